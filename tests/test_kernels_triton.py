"""Real Triton with no GPU: planned by calling, compiled by a worker, found by the run-time path."""

import copy
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from elsa_build.kernels import toolchain
from elsa_build.kernels.machine_code import arch_of, code_of
from elsa_build.kernels.target import target
from elsa_build.kernels.toolchain import Toolchain

pytestmark = pytest.mark.kernels

SM_120 = target("sm_120")
PACKAGE_DIR = "/srv/python"

KERNELS = """\
import triton
import triton.language as tl

SCALE = tl.constexpr(2)


@triton.jit
def doubled(x):
    return x * SCALE


@triton.jit
def double(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, doubled(tl.load(src + at, mask=at < n)), mask=at < n)


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 128}, num_warps=1),
        triton.Config({"BLOCK": 256}, num_warps=2),
    ],
    key=["n"],
    cache_results=True,
)
@triton.jit
def tuned(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, mask=at < n), mask=at < n)


@triton.jit
def product(a, b, c, n, M: tl.constexpr, K: tl.constexpr):
    row, inner = tl.arange(0, M), tl.arange(0, K)
    total = tl.zeros((M, M), tl.float32)
    for at in range(0, n, K):
        left = tl.load(a + row[:, None] * n + at + inner[None, :])
        right = tl.load(b + (at + inner[:, None]) * M + row[None, :])
        total += tl.dot(left, right)
    tl.store(c + row[:, None] * M + row[None, :], total)
"""

PLAN = """
import json, sys
from elsa_build.kernels.inside import gpu
gpu.install(json.load(sys.stdin)["target"])
import torch
import probe
from elsa_build.kernels.inside.capture import capturing
x, y, h = torch.zeros(1024), torch.zeros(1024), torch.zeros(1024, dtype=torch.float16)
with capturing() as found:
    found.phase, found.why = "prefill", "a test"
    probe.double[(4,)](x, y, 1000, BLOCK=256)
    probe.double[(4,)](x, y, 1024, BLOCK=256)
    found.phase = "decode"
    probe.double[(4,)](x, y, 1008, BLOCK=256)
    probe.tuned[(4,)](x, y, 1001)
    probe.product[(1,)](h, h, x, 1024, M=128, K=64, num_stages=8, num_warps=8)
json.dump([list(found.kernels.values()), list(found.tunings.values())], sys.stdout)
"""
"""Calls the kernels as a server would, on a card that is not there."""

SERVE = """
import json, sys
from elsa_build.kernels.inside import gpu
gpu.install(json.load(sys.stdin)["target"])
import torch
import probe
from triton import knobs
from triton.runtime.autotuner import Autotuner
hits, timed = [], []
knobs.compilation.listener = lambda **event: hits.append(
    [event["metadata"]["hash"], event["cache_hit"]]
)
Autotuner._bench = lambda self, *args, config, **meta: timed.append(str(config)) or [1.0] * 3
x, y = torch.zeros(1024), torch.zeros(1024)
probe.double.warmup(x, y, 1000, BLOCK=256, grid=(4,))
probe.double.warmup(x, y, 1024, BLOCK=256, grid=(4,))
probe.tuned.run(x, y, 1001, grid=(4,), warmup=True)
json.dump({"hits": hits, "timed": timed, "best": str(probe.tuned.best_config)}, sys.stdout)
"""
"""Triton's own way to a kernel, as in a server, but for the launch."""


ASK = """
import json, sys
from elsa_build.kernels.inside import gpu
gpu.install(json.load(sys.stdin)["target"])
import torch
import probe
from triton.runtime.driver import driver
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.synchronize()
x = torch.zeros(1024)
refused = []
for act in (
    lambda: probe.double[(4,)](x, x, 1000, BLOCK=256),
    lambda: driver.active.utils.load_binary("a", b"", 0, 0),
    lambda: driver.active.get_benchmarker(),
):
    try:
        act()
    except Exception as e:
        refused.append(str(e))
properties = torch.cuda.get_device_properties(0)
json.dump({
    "torch": [torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_name()],
    "capability": torch.cuda.get_device_capability(),
    "properties": [properties.multi_processor_count, properties.shared_memory_per_block_optin],
    "triton": driver.active.utils.get_device_properties(0)["max_shared_mem"],
    "refused": refused,
}, sys.stdout)
"""
"""Asks torch and Triton of the card, and tries to launch on it."""


class Place:
    """A folder with the kernels' module, and a build folder; asks real workers."""

    def __init__(self, folder, kernels=KERNELS):
        self.folder, self.build = folder, folder / "build"
        self.source = folder / "source"
        self.source.mkdir(parents=True)
        (self.source / "probe.py").write_text(kernels)
        self.tools = Toolchain(
            python=Path(os.environ[toolchain.VARIABLE]), source=self.source, scratch=folder / "work"
        )

    def environment(self, environ=os.environ):
        return self.tools.environment(self.build, environ)

    def work(self, *jobs, environ=os.environ, **setup):
        """Return a worker's answer to each `(call, arguments)`."""
        setup = {
            "target": SM_120.document(),
            "build": str(self.build),
            "package_dir": PACKAGE_DIR,
            **setup,
        }
        lines = [
            setup,
            *(
                {"id": str(n), "call": f"triton:{c}", "arguments": a}
                for n, (c, a) in enumerate(jobs)
            ),
        ]
        ran = subprocess.run(
            self.tools.command("worker"),
            input="".join(json.dumps(line) + "\n" for line in lines),
            env=self.environment(environ),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]

    def run(self, program):
        """Return what one of the programs above says."""
        command = (str(self.tools.python), "-c", program)
        return toolchain.ask(command, {"target": SM_120.document()}, self.environment())

    def cubins(self):
        found = sorted(self.build.rglob("*.cubin"))
        return {path.relative_to(self.build): path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The place of most tests: its kernels are planned and compiled once."""
    if not os.environ.get(toolchain.VARIABLE):
        pytest.skip(f"{toolchain.VARIABLE} names no interpreter with torch and Triton")
    place = Place(tmp_path_factory.mktemp("triton"))
    place.kernels, place.tunings = place.run(PLAN)
    place.variants = [
        ("compile", renamed(entry, module))
        for module, text in VARIANTS.items()
        for entry in of(place.kernels, "double")[:1]
        if (place.source / f"{module}.py").write_text(text)
    ]
    jobs = [("compile", one) for one in place.kernels] + [("tune", one) for one in place.tunings]
    answers = place.work(*jobs, *place.variants)
    place.answers = answers[: len(jobs)]
    place.changed = dict(zip(VARIANTS, answers[len(jobs) :], strict=True))
    return place


def of(kernels, name):
    return [one for one in kernels if one["name"] == f"probe:{name}"]


def answers_of(shop, name):
    named = zip([*shop.kernels, *shop.tunings], shop.answers, strict=True)
    return [answer for entry, answer in named if entry["name"] == f"probe:{name}"]


def renamed(entry, module):
    """Return a planned kernel of a module that is a copy of another, as its plan would have it."""
    found = copy.deepcopy(entry)
    found["name"] = found["name"].replace("probe", module)
    found["spec"]["name"] = found["spec"]["name"].replace("probe", module)
    return found


VARIANTS = {
    "probe_same": KERNELS,
    "probe_below": KERNELS.replace("\n\n@triton.autotune", "\n# a line\n\n@triton.autotune"),
    "probe_above": f"# a line\n{KERNELS}",
    "probe_between": KERNELS.replace(
        "\n\n@triton.jit\ndef double(", "\n\n\n@triton.jit\ndef double("
    ),
    "probe_text": KERNELS.replace("program_id(0) * BLOCK", "program_id(0) * 1 * BLOCK", 1),
    "probe_called": KERNELS.replace("x * SCALE", "SCALE * x"),
    "probe_constant": KERNELS.replace("constexpr(2)", "constexpr(3)"),
}


# --- the card that is not there -------------------------------------------------------------------


def test_torch_and_triton_hear_of_the_targets_card_and_a_launch_is_refused(shop):
    said = shop.run(ASK)

    assert said["torch"] == [True, 1, "NVIDIA GeForce RTX 5090"]
    assert said["capability"] == [12, 0]
    assert said["properties"] == [170, 101_376]
    assert said["triton"] == 101_376
    assert len(said["refused"]) == 3
    assert all("no GPU here" in words for words in said["refused"])


# --- planned --------------------------------------------------------------------------------------


def test_a_call_is_planned_once_a_specialisation_with_all_its_phases(shop):
    first, second = of(shop.kernels, "double")

    assert [first["phases"], second["phases"]] == [["prefill"], ["prefill", "decode"]]
    assert {first["why"], second["why"]} == {"a test"}


def test_every_configuration_of_a_tuner_is_planned_and_the_choice_with_its_key(shop):
    (choice,) = shop.tunings

    assert len(of(shop.kernels, "tuned")) == 2
    assert choice["name"] == "probe:tuned"
    assert choice["spec"]["tuning_key"][0] == 1001
    assert [text.partition(",")[0] for text in choice["spec"]["configs"]] == [
        "BLOCK: 128",
        "BLOCK: 256",
    ]


def test_a_plan_says_nothing_of_the_machine_or_the_card_that_it_was_made_for(shop):
    text = json.dumps(shop.kernels)

    assert not re.search(r"libdevice|\"arch\"|sm_?120|site-packages|/tmp", text)
    assert str(shop.folder) not in text


# --- compiled -------------------------------------------------------------------------------------


def test_every_cubin_is_for_the_card_by_its_own_bytes(shop):
    made = shop.cubins()

    assert len(made) > len(shop.kernels)
    assert {arch_of([code_of(body)]) for body in made.values()} == {"sm_120a"}


def test_a_worker_tells_key_files_and_shared_memory_of_a_kernel(shop):
    for answer in answers_of(shop, "double"):
        assert answer["error"] is None
        assert answer["fresh"]
        assert answer["found"]["shared"] <= SM_120.shared_bytes
        assert [Path(name).name for name in sorted(answer["found"]["files"])] == [
            "__grp__double.json",
            "double.cubin",
            "double.json",
            "double.source",
        ]
        assert all((shop.build / name).is_file() for name in answer["found"]["files"])
        assert answer["found"]["sources"] == ["probe"]


def test_a_kernel_that_needs_more_shared_memory_than_a_block_may_have_is_an_error(shop):
    (answer,) = answers_of(shop, "product")

    assert re.search(
        r"needs [\d,]+ bytes of shared memory, a block may have 101,376 on sm_120", answer["error"]
    )


def test_a_second_build_compiles_nothing_whatever_the_persons_shell_says(shop):
    library = next(
        Path(os.environ[toolchain.VARIABLE]).parent.parent.glob(
            "lib/python*/site-packages/triton/_C/libtriton.so"
        )
    )
    names = re.findall(rb"\b[A-Z][A-Z0-9_]{5,40}\b", library.read_bytes())
    asked = {name.decode() for name in names if re.match(rb"TRITON_|DISABLE_|LLVM_|MLIR_", name)}
    shell = dict.fromkeys(asked, "1") | dict(os.environ)

    answers = shop.work(
        *(("compile", one) for one in of(shop.kernels, "double")),
        *(("tune", one) for one in shop.tunings),
        environ=shell,
    )

    assert {"DISABLE_LLVM_OPT", "TRITON_F32_DEFAULT"} <= shell.keys()
    assert [answer["error"] for answer in answers] == [None] * 3
    assert [answer["fresh"] for answer in answers] == [False] * 3
    first = answers[0]["found"]["parts"]
    assert set(first["environment"]) <= {"TRITON_DEFAULT_BACKEND"}
    assert first == answers_of(shop, "double")[0]["found"]["parts"]


def test_two_builds_in_different_folders_are_byte_equal(shop, tmp_path):
    # triton-ascend 1603: an absolute path was in the key; in 3.8 it is in the line table.
    other = Place(tmp_path / "elsewhere")

    answers = other.work(*(("compile", one) for one in of(shop.kernels, "double")))

    assert all(answer["fresh"] for answer in answers)
    made, before = other.cubins(), shop.cubins()
    assert len(made) == 2
    assert made == {path: before[path] for path in made}
    assert all(PACKAGE_DIR.encode() in body for body in made.values())
    for path in other.build.rglob("*"):
        if path.is_file() and not path.name.startswith("__grp__"):
            assert str(tmp_path).encode() not in path.read_bytes(), path


def test_one_plan_is_compiled_for_another_card(shop, tmp_path):
    other = Place(tmp_path / "sm_90")

    (answer,) = other.work(
        ("compile", of(shop.kernels, "double")[0]), target=target("sm_90").document()
    )

    assert answer["error"] is None
    assert {arch_of([code_of(body)]) for body in other.cubins().values()} == {"sm_90a"}


# --- the parts of a key ---------------------------------------------------------------------------


def differing(shop, module):
    """Return the fields of the key in which a changed copy differs from the module itself."""
    before = answers_of(shop, "double")[0]["found"]["parts"]
    after = json.loads(json.dumps(shop.changed[module]["found"]["parts"]).replace(module, "probe"))
    return {name for name in before | after if before.get(name) != after.get(name)}


ITS_NAME = {"specialisation"}
"""A copy has another module's name in its specialisation."""


@pytest.mark.parametrize(
    ("module", "fields"),
    [
        ("probe_same", set()),
        ("probe_below", set()),
        ("probe_above", {"line", "calls", "function"}),
        ("probe_between", {"line", "function"}),
        ("probe_text", {"text", "function"}),
        ("probe_called", {"calls", "function"}),
        ("probe_constant", {"globals", "function"}),
    ],
)
def test_the_field_of_the_key_that_differs_says_why_a_kernel_is_compiled_again(
    shop, module, fields
):
    assert differing(shop, module) - ITS_NAME == fields
    assert shop.changed[module]["fresh"] == bool(fields)


def test_for_another_pythons_triton_the_same_code_has_another_key(shop, tmp_path):
    other = Place(tmp_path / "keyed")

    (answer,) = other.work(("compile", of(shop.kernels, "double")[0]), libtriton="0" * 64)

    first = answers_of(shop, "double")[0]["found"]
    changed = {n for n, v in answer["found"]["parts"].items() if first["parts"][n] != v}
    assert answer["found"]["key"] != first["key"]
    assert changed == {"triton"}
    (body,) = other.cubins().values()
    assert body in shop.cubins().values()


# --- what cannot be compiled any more -------------------------------------------------------------


def test_what_was_planned_and_is_gone_is_named(shop):
    spec = of(shop.kernels, "double")[0]["spec"]
    names = ["probe_gone:double", "probe:gone", "probe:SCALE", "probe"]

    answers = shop.work(*(("compile", {"name": name, "spec": spec}) for name in names))

    errors = [answer["error"] for answer in answers]
    assert errors[0].startswith("LookupError: module probe_gone cannot be imported")
    assert [error.splitlines()[0] for error in errors[1:]] == [
        "LookupError: module probe has no JIT function gone",
        "LookupError: module probe has no JIT function SCALE",
        "LookupError: module probe has no JIT function",
    ]


def test_a_function_that_cannot_be_keyed_fails_in_the_same_words_each_time(shop):
    text = KERNELS.replace("@triton.jit\ndef doubled", "def doubled")
    (shop.source / "probe_plain.py").write_text(text)
    entries = [renamed(entry, "probe_plain") for entry in of(shop.kernels, "double")]

    first, second = shop.work(*(("compile", entry) for entry in entries))

    assert first["error"] == second["error"]
    assert "Unsupported function referenced: <function doubled>" in first["error"]


def test_a_function_whose_arguments_changed_is_an_error_and_whose_text_changed_is_compiled(
    shop, tmp_path
):
    text = KERNELS.replace("def double(src, dst, n,", "def double(src, dst, m, n,")
    text = text.replace("tl.store(dst + at, tl.load(", "tl.store(dst + at, 1 + tl.load(")
    other = Place(tmp_path / "changed", text.replace('BLOCK": 256', 'BLOCK": 512'))

    changed, same, choice = other.work(
        ("compile", of(shop.kernels, "double")[0]),
        ("compile", of(shop.kernels, "tuned")[0]),
        ("tune", shop.tunings[0]),
    )

    assert changed["error"] is not None
    assert same["error"] is None
    assert same["found"]["key"] != answers_of(shop, "tuned")[0]["found"]["key"]
    assert "has other configurations now" in choice["error"]


# --- found ----------------------------------------------------------------------------------------


def test_the_run_time_path_finds_each_kernel_and_the_choice_and_compiles_and_times_nothing(shop):
    # vllm 37188: tuned again at each start.
    said = shop.run(SERVE)

    keys = {answer["found"]["key"] for answer in answers_of(shop, "double")}
    assert {key for key, _ in said["hits"]} > keys
    assert all(hit for _, hit in said["hits"])
    assert len(said["hits"]) == 3
    assert said["timed"] == []
    assert said["best"].startswith("BLOCK: 128")


def test_a_choice_is_what_a_card_timed_where_there_are_timings(shop, tmp_path):
    (choice,) = shop.tunings
    slow, fast = choice["spec"]["configs"]
    other = Place(tmp_path / "timed")
    shutil.copytree(shop.build, other.build, ignore=shutil.ignore_patterns("*.autotune.json"))
    for group in other.build.rglob("__grp__*"):
        group.write_text(group.read_text().replace(str(shop.build), str(other.build)))

    (answer,) = other.work(
        ("tune", choice | {"timings": {slow: [3.0, 3.0, 3.0], fast: [1.0, 1.0, 1.0]}})
    )

    assert (answer["error"], answer["found"]["timed"]) == (None, True)
    assert shop.answers[-1]["found"]["timed"] is False
    said = other.run(SERVE)
    assert (said["timed"], said["best"]) == ([], fast)
