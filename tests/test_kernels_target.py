"""What an architecture is called, and the names that would build something slower or unusable."""

import subprocess

import pytest

from elsa_build.errors import ConfigError
from elsa_build.kernels import target as module
from elsa_build.kernels.allowances import Verdict
from elsa_build.kernels.census import Library
from elsa_build.kernels.coverage import judge
from elsa_build.kernels.fatbin import Code, Kind
from elsa_build.kernels.target import target, targets
from tests.gpucode import nvcc


@pytest.mark.parametrize("name", ["sm_120", "120f", "12.0f", "sm_120a"])
def test_every_compilers_name_leads_to_the_one_value(name):
    found = target(name)

    assert (found.name, found.number, found.capability) == ("sm_120", 120, (12, 0))
    assert (found.gencode, found.flashinfer, found.cute) == ("120f", "12.0f", "sm_120a")
    assert (found.jit_folder, found.shared_bytes, found.nvcc) == ("sm120f", 101_376, (12, 9))


@pytest.mark.parametrize("name", ["12.0", "12.0+PTX", "120", "120+PTX"])
def test_a_number_without_its_letter_is_refused_and_the_right_name_told(name):
    # vllm 41738 and llama.cpp 17906: built, and FP4 kernels silently left out.
    with pytest.raises(ConfigError, match=r"block-scaled FP4") as caught:
        target(name)

    assert f"'{name}'" in caught.value.message
    assert "12.0f" in caught.value.hint
    assert "sm_120" in caught.value.hint
    assert ("first start" in caught.value.message) == name.endswith("PTX")


@pytest.mark.parametrize("name", ["sm_12", "sm_119", "", "blackwell", "12.0x"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(ConfigError, match="no architecture") as caught:
        target(name)

    assert all(one.name in caught.value.hint for one in targets())


def test_names_of_architectures_do_not_overlap():
    names = [{one.name, one.gencode, one.flashinfer, one.cute} for one in targets()]

    assert len(set.union(*names)) == sum(map(len, names))


def test_the_form_that_is_built_runs_on_its_own_card():
    for one in targets():
        assert one.gencode in one.runs
        assert all(form.rstrip("af").isdigit() for form in one.runs)


@pytest.mark.parametrize(
    ("form", "card", "verdict"),
    [
        ("120a", "sm_120", Verdict.COMPLETE),
        ("120f", "sm_120", Verdict.COMPLETE),
        ("120f", "sm_121", Verdict.COMPLETE),
        ("120a", "sm_121", Verdict.WRONG_SUFFIX),
        ("121a", "sm_120", Verdict.WRONG_SUFFIX),
        ("90a", "sm_120", Verdict.NOTHING),
    ],
)
def test_a_letter_says_which_cards_run_the_code(form, card, verdict):
    # vllm 38423: code of 12.0 alone ended with an illegal instruction on 12.1.
    library = Library(
        name="x.so",
        path="x.so",
        family="flashinfer",
        size=1,
        containers=((Code(Kind.SASS, form, 1),),),
    )

    assert judge(library, target(card)).verdict is verdict


def test_a_target_is_plain_data_for_another_interpreter():
    document = target("sm_120").document()

    assert document["shared_bytes"] == 101_376
    assert all(isinstance(value, str | int | tuple) for value in document.values())


def test_a_wrong_data_file_is_named_with_its_field(tmp_path, monkeypatch):
    wrong = module._FILE.read_text().replace("number: 120", "number: many", 1)
    (tmp_path / "targets.yaml").write_text(wrong)
    monkeypatch.setattr(module, "_FILE", tmp_path / "targets.yaml")

    with pytest.raises(ConfigError, match=r"targets\.yaml:\d+: .*number"):
        targets()


PROBE = """
__global__ void probe(float* out, const unsigned* in) {
  float d0, d1, d2, d3;
  asm volatile(
      "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col"
      ".f32.e2m1.e2m1.f32.ue4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13},"
      " {%14}, {%15,%16}, {%17}, {%18,%19};"
      : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
      : "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3]), "r"(in[4]), "r"(in[5]),
        "f"(0.f), "f"(0.f), "f"(0.f), "f"(0.f), "r"(in[6]), "h"((short)0), "h"((short)0),
        "r"(in[7]), "h"((short)0), "h"((short)0));
  out[threadIdx.x] = d0 + d1 + d2 + d3;
}
"""
"""One block-scaled FP4 matrix instruction, the reason for the letter."""


@pytest.mark.kernels
def test_block_scaled_fp4_compiles_for_the_targets_form_and_not_for_the_plain_number(tmp_path):
    # llama.cpp 17906: "120" has no such instruction, and the assembler names it.
    (tmp_path / "probe.cu").write_text(PROBE)

    def compiled(form):
        command = [nvcc(), "-cubin", f"-arch=sm_{form}", "-o", f"{form}.cubin", "probe.cu"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    plain, *right = (compiled(form) for form in ("120", target("sm_120").gencode, "120a"))

    assert plain.returncode != 0
    assert "sm_120'" in plain.stderr
    assert "block_scale" in plain.stderr
    assert [one.returncode for one in right] == [0, 0], [one.stderr for one in right]
