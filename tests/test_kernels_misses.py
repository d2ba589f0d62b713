"""A miss has a cause in words: each thing that can be in a key is planted once, and named."""

import os

import pytest

from elsa_build.kernels import boots
from elsa_build.kernels.booting import Watch
from elsa_build.kernels.bundle import Kernel, Missing
from elsa_build.kernels.events import Event
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.misses import Had, explain, fields, specialisation
from tests.hooking import BOTH, standin

PARTS = {
    "triton": "t1",
    "backend": "ptxas 12.9-120",
    "environment": {},
    "function": "f1",
    "text": "x1",
    "line": 29,
    "calls": {"m:g": ["g1", 5]},
    "globals": {"BT": "64"},
    "specialisation": "s1",
}
SPEC = {
    "signature": {"x": "*fp32", "n": "i32", "BT": "constexpr"},
    "constant_keys": [[2]],
    "constant_vals": [16],
    "attrs_keys": [[0], [1]],
    "attrs_vals": [[["tt.divisibility", 16]], []],
    "options": {"num_warps": 4},
}


def kernel(name="m:f", **parts):
    return Kernel(
        family=Family.TRITON,
        id="id",
        name=name,
        key=f"key of {name} {sorted(parts)}",
        files=(),
        parts={**PARTS, **parts},
    )


def missed(name="m:f", family="triton", **said):
    given = {"family": family, "name": name, "key": "k", "parts": PARTS, "spec": SPEC, **said}
    return Event(at=0, what="missed", process="p", said=given)


def why(event, *kernels, specs=None, missing=()):
    return explain(event, Had(kernels=kernels, specs=specs or {}, missing=missing))


@pytest.mark.parametrize(
    ("built", "cause"),
    [
        ({"line": 28}, "line: 28 -> 29 (text equal: the function only moved)"),
        ({"text": "x0"}, "text: the function's source changed"),
        ({"triton": "t0"}, "triton: another version or build of Triton"),
        ({"backend": "ptxas 12.8-120"}, "backend: ptxas 12.8-120 -> ptxas 12.9-120"),
        ({"environment": {"TRITON_DEBUG": "1"}}, "environment: TRITON_DEBUG: 1 -> unset"),
        ({"calls": {"m:g": ["g0", 5]}}, "calls m:g: its source changed"),
        (
            {"calls": {"m:g": ["g1", 4]}},
            "calls m:g: line: 4 -> 5 (text equal: the function only moved)",
        ),
        ({"calls": {}}, "calls m:g: new"),
        ({"calls": {"m:g": ["g1", 5], "m:h": ["h", 1]}}, "calls m:h: no longer"),
        ({"globals": {"BT": "32"}}, "global BT: 32 -> 64"),
        ({"function": "f0"}, "function: something else that Triton hashes with its source"),
    ],
)
def test_the_field_that_differs_is_the_cause_and_no_other(built, cause):
    function = {"function": "f0"} if "function" not in built else {}

    assert why(missed(), kernel(**built, **function)) == (cause,)


def test_the_nearest_kernel_is_the_one_compared_with():
    far = kernel(text="x0", line=1, triton="t0", environment={"A": "1"})
    near = kernel(line=28)

    assert why(missed(), far, near, far)[0].startswith("line: 28 -> 29")


def test_several_differences_are_all_told():
    causes = why(missed(), kernel(line=28, environment={"DISABLE_PTXAS_OPT": "1"}))

    assert [cause.partition(":")[0] for cause in causes] == ["environment", "line"]


def test_a_constant_that_no_plan_had_is_named_with_those_it_had():
    specs = {f"id{n}": {**SPEC, "constant_vals": [n]} for n in (32, 64)}
    kernels = [
        Kernel(
            family=Family.TRITON,
            id=ident,
            name="m:f",
            key=ident,
            files=(),
            parts={**PARTS, "specialisation": ident},
        )
        for ident in specs
    ]

    assert why(missed(), *kernels, specs=specs) == (
        "specialisation: constant BT 16 not in the bundle (it has 32, 64)",
    )
    assert why(missed(), *kernels) == ("specialisation: not in the bundle",)


def test_a_specialisation_of_known_values_in_a_new_pairing_is_said_to_be_that():
    new = {**SPEC, "options": {"num_warps": 8}}
    known = [{**SPEC, "constant_vals": [64], "options": {"num_warps": 8}}, SPEC]

    (said,) = specialisation(new, known)

    assert "not all in one kernel" in said


def test_a_specialisation_is_told_by_arguments_constants_and_options():
    assert fields(SPEC) == {
        "argument x": "*fp32 tt.divisibility=16",
        "argument n": "i32",
        "constant BT": "16",
        "option num_warps": "4",
    }
    assert fields(
        {
            "signature": {"t": ["i32", "i32"]},
            "constant_keys": [[0, 1], [7]],
            "constant_vals": [3, None],
        }
    ) == {
        "argument t": "['i32', 'i32']",
        "constant t.1": "3",
        "constant 7": "None",
    }
    assert fields({}) == {}


def test_a_name_that_is_nowhere_and_one_that_moved_house():
    assert why(missed("new:f"), kernel("old:f")) == (
        "nothing with the name new:f is in the bundle; the bundle has old:f",
    )
    assert why(missed("m:other")) == ("nothing with the name m:other is in the bundle",)


def test_what_was_planned_and_not_built_says_so():
    lacking = Missing(family=Family.TRITON, name="m:f", why="needs 120,000 bytes of shared memory")

    assert why(missed(), missing=[lacking]) == (
        "planned, but not built: needs 120,000 bytes of shared memory",
    )


def test_a_key_that_is_in_the_bundle_was_looked_for_elsewhere():
    found = kernel()

    (said,) = why(missed(key=found.key), found)

    assert "its files were not found" in said


def test_parts_that_were_not_told_give_the_reason():
    event = missed(parts=None, unrecorded="TypeError: not JSON")

    assert why(event, kernel()) == ("unknown: TypeError: not JSON",)


def test_modules_of_sglangs_jit_differ_by_build_key_or_by_a_header():
    module = Kernel(
        family=Family.SGLANG_JIT,
        id="id",
        name="sgl_kernel_jit_norm",
        key="build-1/deps-1",
        files=("jit/sm120f/sgl_kernel_jit_norm/build-1/deps-1/sgl_kernel_jit_norm.so",),
    )
    event = missed("sgl_kernel_jit_norm", "sglang-jit", key="build-2")

    assert why(event, module)[0].startswith("build key: build-1 -> build-2: ")
    same = missed("sgl_kernel_jit_norm", "sglang-jit", key="build-1")
    assert why(same, module) == ("a header that it includes is another than at build time",)
    assert "nothing with the name" in why(missed("x", "sglang-jit"), module)[0]


def test_flashinfer_and_families_that_no_bundle_has():
    module = Kernel(family=Family.FLASHINFER, id="id", name="norm", key="k1", files=())

    assert "not told of its folder" in why(missed("norm", "flashinfer"), module)[0]
    assert "harvest its cache" in why(missed("x", "inductor"), module)[0]


# --- planted in a real lookup -----------------------------------------------------------------


def told(stack, folder, *words, **environ):
    """Return the events of a run, and what a bundle of it would have."""
    env = stack.environ(TRITON_CACHE_DIR=str(folder / "cache"), **environ)
    (done,) = boots.run(stack.command(*words), env, Watch(), folder / "logs")
    assert done.boot.exit == 0, done.boot.last
    events = done.heard.of("compiled")
    kernels = [
        Kernel(
            family=Family.TRITON,
            id=str(number),
            name=event.name,
            key=event.said["key"],
            files=(),
            parts=event.said["parts"],
        )
        for number, event in enumerate(events)
    ]
    specs = {str(number): event.said["spec"] for number, event in enumerate(events)}
    return events, Had(kernels=kernels, specs=specs)


@pytest.mark.parametrize("make", BOTH)
def test_planted_differences_are_found_in_what_processes_tell(make, tmp_path):
    stack = make(tmp_path / "s")
    _, had = told(stack, tmp_path / "built", 16, 32)
    import_line = "from triton" if not stack.real else "import json"

    (size,), _ = told(stack, tmp_path / "size", 64)
    variable = "DISABLE_PTXAS_OPT"
    (debug,), _ = told(stack, tmp_path / "debug", 16, **{variable: "1"})
    stack.edit(import_line, f"# one line more\n{import_line}")
    (moved,), _ = told(stack, tmp_path / "moved", 16)
    stack.edit("+ 1" if stack.real else "+ B", "+ 2")
    (changed,), _ = told(stack, tmp_path / "changed", 16)

    assert explain(size, had) == (
        "specialisation: constant B 64 not in the bundle (it has 16, 32)",
    )
    (said,) = explain(debug, had)
    assert said.startswith(f"environment: {variable}: ")
    (said,) = explain(moved, had)
    assert said.startswith("line: ")
    assert said.endswith("(text equal: the function only moved)")
    assert explain(changed, had)[0] == "text: the function's source changed"


def test_an_environment_that_is_equal_is_no_cause(tmp_path):
    stack = standin(tmp_path / "s")
    _, had = told(stack, tmp_path / "built", 16, TRITON_DEBUG="1")

    (again,), _ = told(stack, tmp_path / "again", 16, TRITON_DEBUG="1", MY_OWN="1")

    assert "its key is in the bundle" in explain(again, had)[0]
    assert os.environ.get("TRITON_DEBUG") is None
