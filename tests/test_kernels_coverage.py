"""The audit says what a card finds in each library, and fails on what it cannot run."""

import io
import json
import os
import sys
import tarfile
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from elsa_build.cli import main
from elsa_build.errors import ConfigError
from elsa_build.images.gpucode import find
from elsa_build.kernels import members as sources
from elsa_build.kernels.allowances import DEFAULT, Verdict, load
from elsa_build.kernels.census import census, family_of
from elsa_build.kernels.coverage import audit
from elsa_build.kernels.coverage_findings import findings
from elsa_build.kernels.members import Member, members
from elsa_build.kernels.target import target
from tests.gpucode import built, compiled, cubin, elf, entry, fat, library, site_packages, wheel
from tests.layouts import layer, layout

__all__ = ["compiled"]


def judged(place, arch="sm_120", **options):
    """Audit a place; return verdicts by name."""
    done = audit(census(members(place)), target(arch), **options)
    return {one.library.name: one.verdict for one in done.judged}


def put(folder, files):
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return folder


def verdict(tmp_path, body, arch="sm_120"):
    (found,) = judged(put(tmp_path, {"pkg/x.so": body}), arch).values()
    return found


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(*args):
        out, err = io.StringIO(), io.StringIO()
        words = ["elsa-build", "kernels", "coverage", *map(str, args), "-C", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", words)
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main.run()
        return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    return run


# --- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "arch", "expected"),
    [
        (built("90a", "120a"), "sm_120", Verdict.COMPLETE),
        (built("90a", "120f"), "sm_120", Verdict.COMPLETE),
        (built("80", "90", "120"), "sm_120", Verdict.COMPLETE),
        (built("90a", "120"), "sm_120", Verdict.PLAIN),
        (built("121a"), "sm_120", Verdict.WRONG_SUFFIX),
        (built("120a"), "sm_121", Verdict.WRONG_SUFFIX),
        (built("120f"), "sm_121", Verdict.COMPLETE),
        (built("100a", "103a"), "sm_120", Verdict.NOTHING),
        (built("90a", ptx=("90",)), "sm_120", Verdict.ONLY_PTX),
        (built("90a", ptx=("90a",)), "sm_120", Verdict.NOTHING),
        (built("90a", ptx=("121",)), "sm_120", Verdict.NOTHING),
        (built("90a", ptx=("120f",)), "sm_121", Verdict.ONLY_PTX),
        (built("90a", ptx=("100f",)), "sm_120", Verdict.NOTHING),
        (built("80", "90a"), "sm_90", Verdict.COMPLETE),
        (library(fat(entry("90")), fat(entry("120a"))), "sm_120", Verdict.PARTIAL),
        (library(fat(entry("120a")))[:-70], "sm_120", Verdict.DAMAGED),
    ],
)
def test_a_library_is_judged_by_what_the_card_runs(tmp_path, body, arch, expected):
    assert verdict(tmp_path, body, arch) is expected


def test_a_few_kernels_with_a_letter_for_others_are_no_complaint(tmp_path):
    # torch: 59 of 475 fat binaries have sm_100a code behind a capability check.
    body = library(*[fat(entry("90"), entry("120"))] * 5, fat(entry("100a"), entry("120")))

    assert verdict(tmp_path, body) is Verdict.COMPLETE


def test_a_host_library_is_not_listed(tmp_path):
    assert judged(put(tmp_path, {"a.so": elf({".text": b"\x90"}), "b.so": b""})) == {}


# --- public reports -----------------------------------------------------------------------------


def test_a_wheel_without_the_card_fails_and_names_what_is_there(tmp_path, run):
    # sgl-project/sglang 7249, vllm-project/vllm 16901, 20748: no kernel image on RTX 50.
    made = wheel(tmp_path / "old-1-py3-none-any.whl", {"old/ops.so": built("80", "89", "90a")})

    ran = run(made)

    assert ran.code == 7
    assert "error[E410]: old/ops.so: nothing for sm_120: sm_80, sm_89, sm_90a" in ran.err


def test_a_build_for_plain_12_0_and_ptx_is_told_from_one_with_a_letter(tmp_path, run):
    # vllm-project/vllm 41738: "12.0+PTX" left the NVFP4 kernels out without a word.
    made = put(tmp_path / "w", {"v/ops.so": built("90a", "100a", "120", ptx=("120",))})

    assert "warning[E413]: v/ops.so: only plain sm_120" in run(made).err
    ran = run(made, "--require", "ops")
    assert ran.code == 7
    assert "error[E415]: v/ops.so: 'ops' is required for sm_120 and is plain" in ran.err
    with pytest.raises(ConfigError, match=r"would leave out what only 120f code has"):
        target("12.0+PTX")


def test_a_module_of_ours_without_its_letter_fails(tmp_path):
    # mostlygeek/llama-swap 1066: no 120a in the image, FP4 silently slow.
    files = {"jit/sm120f/norm/build-0/deps-0/norm.so": built("120")}

    assert list(judged(put(tmp_path, files)).values()) == [Verdict.WRONG_SUFFIX]


def test_a_cubin_for_12_0_alone_is_refused_for_12_1(tmp_path, run):
    # vllm-project/vllm 38423: IllegalInstruction in NVFP4 kernels on 12.x.
    made = put(tmp_path / "b", {f"triton/{'A' * 52}/add.cubin": cubin("120a")})

    ran = run(made, "--arch", "sm_121")

    assert ran.code == 7
    assert "E412" in ran.err
    assert "wrong suffix for sm_121: sm_120a; needs sm_121a, sm_121f, sm_120f" in ran.err
    assert run(made, "--arch", "sm_120").code == 0


def test_one_command_lists_every_form_that_a_package_has(tmp_path, run):
    # huggingface/kernels 698: a person ran cuobjdump by hand to see the missing targets.
    made = wheel(tmp_path / "p-1-py3-none-any.whl", {"p/a.so": built("90a", "120f", files=4)})

    ran = run(made)

    assert ran.code == 0
    assert "+ complete" in ran.out
    assert "p/a.so  4 of 4  dead 0.0 of 0.0 MB  90a x4, 120f x4" in ran.out
    assert "1 libraries with GPU code in 1 files" in ran.err


# --- families and what is required --------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/opt/x/site-packages/torch/lib/libtorch_cuda.so", "torch"),
        ("usr/lib/python3/dist-packages/nvidia/cudnn/lib/a.so", "nvidia/cudnn"),
        ("sgl_kernel/sm100/common_ops.abi3.so", "sgl_kernel"),
        ("p-1.data/platlib/p/a.so", "p"),
        ("alone.cpython-311-x86_64-linux-gnu.so", "alone"),
        ("/usr/local/cuda/lib64/libcublas.so.13", "lib64"),
        ("flashinfer_aot/norm/norm.so", "flashinfer"),
        ("/x/site-packages/flashinfer/data/aot/norm/norm.so", "flashinfer"),
        ("/cache/.cache/flashinfer/0.7.2/120f/cached_ops/norm/norm.so", "flashinfer"),
        ("/b/jit/sm120f/qknorm/build-1/deps-2/qknorm.so", "sglang-jit"),
        ("/home/u/.triton/cache/" + "A2" * 26 + "/add.cubin", "triton"),
    ],
)
def test_a_file_belongs_to_who_looks_it_up(path, family):
    assert family_of(path) == family


def test_the_cubins_of_a_family_are_judged_together(tmp_path):
    names = [f"triton/{letter * 52}/k.cubin" for letter in "ABC"]
    put(tmp_path, dict.fromkeys(names, cubin("120a")))

    assert judged(tmp_path) == {"triton/*.cubin": Verdict.COMPLETE}
    put(tmp_path, {names[0]: cubin("90a")})
    assert judged(tmp_path) == {"triton/*.cubin": Verdict.PARTIAL}
    put(tmp_path, dict.fromkeys(names, cubin("90a")))
    assert judged(tmp_path) == {"triton/*.cubin": Verdict.FOREIGN}


def test_a_bundle_must_hold_the_families_that_are_required(tmp_path, run):
    put(
        tmp_path / "b",
        {
            f"triton/{'A' * 52}/add.cubin": cubin("120a"),
            "flashinfer_aot/norm/norm.so": built("120f"),
        },
    )

    assert run(tmp_path / "b", "--require", "triton", "--require", "flashinfer").code == 0
    ran = run(tmp_path / "b", "--require", "triton", "--require", "sglang-jit")
    assert ran.code == 7
    assert "'sglang-jit' is required, and no library or family of that name has" in ran.err


def test_a_required_library_is_named_by_its_stem_or_a_glob(tmp_path):
    seen = census(members(put(tmp_path, {"pkg/libops.so.1": built("120a")})))

    for name in ("ops", "libops", "pkg/libops.so.*", "pkg/*"):
        (found,) = audit(seen, target("sm_120"), require=(name,)).required
        assert found.verdict is Verdict.COMPLETE, name


def test_an_allowed_library_that_is_required_still_fails(tmp_path):
    seen = census(members(put(tmp_path, {"sgl_kernel/flash_ops.abi3.so": built("90a")})))

    done = audit(seen, target("sm_120"), allowances=load((DEFAULT,)), require=("flash_ops",))

    assert not done.judged[0].failing
    assert done.required[0].failing


# --- dead weight --------------------------------------------------------------------------------


def test_dead_weight_is_what_the_card_never_loads(tmp_path):
    one = entry("120a", payload=bytes(36))
    body = library(
        fat(entry("90", payload=bytes(936)), one, entry("90", 1)),
        fat(entry("80", payload=bytes(436)), entry("90", 1, payload=bytes(136))),
    )

    (found,) = audit(census(members(put(tmp_path, {"pkg/x.so": body}))), target("sm_120")).judged

    assert found.fits == 100
    assert found.dead == 1000 + 104 + 500  # the second PTX is what the driver would compile
    assert found.total == 100 + 1000 + 104 + 500 + 200


def test_what_nvlink_left_in_a_library_is_dead_weight_and_no_lack(tmp_path):
    body = elf({"__nv_relfatbin": fat(entry("90")), ".nv_fatbin": fat(entry("120a"))})

    (found,) = audit(census(members(put(tmp_path, {"pkg/x.so": body}))), target("sm_120")).judged

    assert found.verdict is Verdict.COMPLETE
    assert (found.covered, found.fits, found.dead) == (1, 104, 104)


def test_totals_name_dead_weight_and_whole_useless_files(tmp_path, run):
    body = built("90", files=1)
    put(tmp_path / "w", {"a/x.so": body, "a/y.so": built("90", "120", files=1)})

    ran = run(tmp_path / "w", "--json")

    found = json.loads(ran.out)["data"]
    assert (found["gpu_code_bytes"], found["fits_bytes"], found["dead_bytes"]) == (312, 104, 208)
    assert found["failing"] == ["a/x.so"]
    assert "are whole files with nothing for sm_120" in run(tmp_path / "w").err


# --- allowances ---------------------------------------------------------------------------------

OWN = """\
version: 1
allowances:
  - file: pkg/x.so
    verdict: [nothing]
    why: It serves another card in the same package.
"""


def test_an_allowance_of_a_persons_own_is_shown_with_its_reason(tmp_path, run):
    put(tmp_path / "w", {"pkg/x.so": built("90a")})
    (tmp_path / "own.yaml").write_text(OWN)

    ran = run(tmp_path / "w", "--allow", tmp_path / "own.yaml")

    assert ran.code == 0
    assert "allowed: It serves another card in the same package." in ran.out


def test_an_allowance_hides_no_more_than_it_says(tmp_path):
    (tmp_path / "own.yaml").write_text(OWN)
    own = load((tmp_path / "own.yaml",))
    put(tmp_path / "w", {"pkg/x.so": built("121a")})

    done = audit(census(members(tmp_path / "w")), target("sm_120"), allowances=own)

    assert done.judged[0].verdict is Verdict.WRONG_SUFFIX
    assert done.judged[0].failing


def test_an_allowance_that_nothing_needs_is_told(tmp_path, run):
    put(tmp_path / "w", {"pkg/x.so": built("120a")})
    (tmp_path / "own.yaml").write_text(OWN)

    ran = run(tmp_path / "w", "--allow", tmp_path / "own.yaml", "-v")

    assert "note[E417]: pkg/x.so is allowed to lack sm_120 and does not" in ran.err


def test_a_wrong_allowance_is_named_with_file_and_line(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "version: 1\nallowances:\n  - file: a.so\n    verdict: [nothin]\n    arch: [sm_12]\n"
        "    why: because\n    owner: me\n"
    )

    with pytest.raises(ConfigError) as raised:
        load((path,))

    message = str(raised.value)
    assert f"{path}:4: allowances[0].verdict: 'nothin' is none of" in message
    assert "(did you mean 'nothing'?)" in message
    assert f"{path}:5: allowances[0].arch: 'sm_12' is none of" in message
    assert f"{path}:6: allowances[0].why: 'because' is no reason" in message
    assert f"{path}:7: allowances[0].owner: unknown field" in message


def test_our_own_allowances_can_be_read():
    assert len(load((DEFAULT,))) > 5


# --- where files lie ----------------------------------------------------------------------------


def test_links_are_left_out_and_a_hard_link_counts_once(tmp_path):
    put(tmp_path, {"a/x.so": built("120")})
    (tmp_path / "a/x.so.1").symlink_to("x.so")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "gone.so").symlink_to("nowhere")
    (tmp_path / "a/y.so").hardlink_to(tmp_path / "a/x.so")

    assert judged(tmp_path) == {"a/x.so": Verdict.COMPLETE}


def test_a_large_packed_library_goes_through_a_temporary_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "IN_MEMORY", 1000)
    body = built("90a", "120a", files=40)
    made = wheel(tmp_path / "p.whl", {"p/x.so": body, "p/y.so": elf({".text": bytes(5000)})})

    (found,) = audit(census(members(made)), target("sm_120")).judged

    assert found.covered == 40
    assert found.verdict is Verdict.COMPLETE


@pytest.mark.parametrize("compression", ["", "gz", "xz"])
def test_a_tar_is_read_as_it_is(tmp_path, compression):
    made = tmp_path / "b.tar"
    put(tmp_path / "b", {"pkg/x.so": built("120a"), "pkg/readme.md": b"text"})
    with tarfile.open(made, f"w:{compression}") as out:
        out.add(tmp_path / "b", arcname=".")

    assert judged(made) == {"pkg/x.so": Verdict.COMPLETE}


def test_a_single_file_is_read(tmp_path):
    put(tmp_path, {"x.fatbin": fat(entry("120a"))})

    assert judged(tmp_path / "x.fatbin") == {"x.fatbin": Verdict.COMPLETE}


def test_an_image_shows_what_a_container_of_it_would_see(tmp_path):
    site = "usr/lib/python3/site-packages"
    below = layer(
        {
            f"{site}/old/x.so": built("90"),
            f"{site}/torch/x.so": built("90"),
            f"{site}/keep/x.so": built("120"),
            f"{site}/keep/link.so": "-> x.so",
        }
    )
    above = layer({f"{site}/old/.wh.x.so": b"", f"{site}/torch/x.so": built("120a")})
    made = layout(tmp_path / "image", [below, above])

    done = audit(census(find(str(made), tmp_path)), target("sm_120"))

    assert {one.library.name: (one.library.family, one.verdict) for one in done.judged} == {
        f"{site}/keep/x.so": ("keep", Verdict.COMPLETE),
        f"{site}/torch/x.so": ("torch", Verdict.COMPLETE),
    }


def test_an_image_in_a_tar_and_one_by_its_tag_are_found(tmp_path, run):
    made = layout(tmp_path / "dist/elsa-v1", [layer({"opt/p/x.so": built("120a")})])
    with tarfile.open(tmp_path / "image.tar", "w") as out:
        out.add(made, arcname=".")

    for name in (tmp_path / "image.tar", "elsa-v1"):
        ran = run(name, "--output", tmp_path / "dist", "--json")
        assert ran.code == 0, ran.err
        assert json.loads(ran.out)["data"]["libraries"][0]["name"] == "opt/p/x.so"


# --- bad input ----------------------------------------------------------------------------------


def test_a_place_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere: cannot read: No such file"):
        census(members(tmp_path / "nowhere"))


def test_a_wheel_that_is_cut_short_is_refused(tmp_path):
    made = wheel(tmp_path / "p.whl", {"p/x.so": built("120a")})
    made.write_bytes(made.read_bytes()[:-30])

    with pytest.raises(ConfigError, match=r"not a wheel or zip"):
        census(members(made))


def test_a_damaged_file_in_a_wheel_is_told_and_the_rest_is_read(tmp_path):
    made = wheel(tmp_path / "p.whl", {"p/x.so": built("120a", files=50), "p/y.so": built("120a")})
    body = bytearray(made.read_bytes())
    body[100:110] = bytes(10)
    made.write_bytes(bytes(body))

    seen = census(members(made))
    said = findings(audit(seen, target("sm_120")))

    assert [one.name for one in seen.libraries] == ["p/y.so"]
    assert [(found.code, found.path) for found in said] == [("E416", "p/x.so")]


@pytest.mark.parametrize("compression", ["", "gz", "bz2", "xz"])
def test_a_tar_that_is_cut_short_anywhere_is_refused(tmp_path, compression):
    made = tmp_path / "b.tar"
    with tarfile.open(made, f"w:{compression}") as out:
        out.add(put(tmp_path / "b", {"x.so": built("120a", files=2), "y.so": built("90")}))
    whole = made.read_bytes()
    last = len(whole) if compression else 5 * 1024  # what follows is padding

    for size in range(20, last, 31):
        made.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"a broken tar"):
            census(sources.tar(made))


def test_a_zstd_file_says_what_to_do(tmp_path):
    (tmp_path / "b.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(60))

    with pytest.raises(ConfigError, match=r"compressed with zstd") as raised:
        census(members(tmp_path / "b.tar.zst"))
    assert raised.value.hint.startswith("zstd -d ")


def test_a_file_that_goes_away_is_told_and_the_rest_is_read(tmp_path):
    put(tmp_path, {"a.so": built("120a"), "b.so": built("120a")})
    listed = list(members(tmp_path))
    (tmp_path / "a.so").unlink()

    seen = census(listed)

    assert [one.name for one in seen.libraries] == ["b.so"]
    assert [(one.name, one.why) for one in seen.unread] == [("a.so", "No such file or directory")]


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(built("120a"))
    (member,) = members(path)

    @contextmanager
    def changing():
        with member.open() as file:
            path.write_bytes(path.read_bytes()[:500])
            yield file

    seen = census([Member(name="a.so", path="a.so", size=member.size, open=changing)])

    assert not seen.libraries
    assert "changed while it was read" in seen.unread[0].why


def test_files_and_folders_without_rights_are_told():
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        made = put(
            Path(name), {"a/x.so": built("120a"), "b.so": built("90"), "c.so": built("120a")}
        )
        made.chmod(0o755)
        (made / "a").chmod(0)
        (made / "b.so").chmod(0)
        user = os.geteuid()
        os.seteuid(nobody if user == 0 else user)  # root may read everything
        try:
            seen = census(members(made))
        finally:
            os.seteuid(user)
            (made / "a").chmod(0o755)

    assert [one.name for one in seen.libraries] == ["c.so"]
    assert {one.name: one.why for one in seen.unread} == {
        "a/": "Permission denied",
        "b.so": "Permission denied",
    }


def test_a_damaged_library_fails_and_says_where(tmp_path, run):
    made = put(tmp_path / "w", {"p/x.so": built("120a")[:700]})

    ran = run(made)

    assert ran.code == 7
    assert "error[E414]: p/x.so: cut short" in ran.err


def test_an_audit_that_found_nothing_to_audit_says_so(tmp_path, run):
    made = put(tmp_path / "w", {"readme.txt": b"text"})

    ran = run(made)

    assert ran.code == 0
    assert "warning[E418]: no GPU code in 1 files" in ran.err


# --- real libraries -----------------------------------------------------------------------------


@pytest.mark.kernels
def test_real_libraries_get_the_verdicts_of_made_ones(compiled, tmp_path):
    made = {
        "good": ("compute_90a,sm_90a", "compute_120f,sm_120f"),
        "plain": ("compute_90a,sm_90a", "compute_120,sm_120"),
        "ptx": ("compute_90a,sm_90a", "compute_90,compute_90"),
        "other": ("compute_121a,sm_121a",),
        "none": ("compute_90a,sm_90a",),
    }
    files = {f"p/{n}.so": compiled.library(f"{n}.so", *c).read_bytes() for n, c in made.items()}

    found = judged(wheel(tmp_path / "p.whl", files))

    assert {name: str(verdict) for name, verdict in found.items()} == {
        "p/good.so": "complete",
        "p/plain.so": "plain",
        "p/ptx.so": "only-ptx",
        "p/other.so": "wrong-suffix",
        "p/none.so": "nothing",
    }


@pytest.mark.kernels
def test_sglang_kernel_is_complete_but_for_what_sm_120_does_not_use(run):
    site = site_packages()
    if site is None or not (site / "sgl_kernel").is_dir():
        pytest.skip("ELSA_KERNELS_PYTHON names no interpreter with sglang-kernel")

    ran = run(site / "sgl_kernel", "--require", "common_ops", "--json")

    assert ran.code == 0
    found = {one["name"].partition(".")[0]: one for one in json.loads(ran.out)["data"]["libraries"]}
    assert {name: (one["verdict"], one["covered"]) for name, one in found.items()} == {
        "flash_ops": ("nothing", 0),
        "flashmla_ops": ("nothing", 0),
        "infllm_ops": ("complete", 4),
        "sm100/common_ops": ("complete", 35),
        "sm90/common_ops": ("complete", 35),
        "spatial_ops": ("complete", 1),
    }
    assert found["flash_ops"]["allowed"]
    assert {"kind": "sass", "arch": "sm_120a"}.items() <= found["sm100/common_ops"]["entries"][
        -1
    ].items()
