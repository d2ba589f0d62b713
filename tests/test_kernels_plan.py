"""The plan as a value and as files: the same kernels give the same text, and an edit is seen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build import precompiling
from elsa_build.errors import ConfigError, ToolError
from elsa_build.images import recipe as recipes
from elsa_build.kernels import plan as plans
from elsa_build.kernels import planlock
from elsa_build.kernels.inside import plan as driving
from elsa_build.kernels.inside.capture import Captured
from elsa_build.kernels.inside.drives.served import Drive, served
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.plan import Plan, Planned, changes, planned, serving, tunings
from elsa_build.kernels.target import target
from elsa_build.kernels.toolchain import Toolchain
from elsa_build.reports import kernels_plan as words

ROOT = Path(__file__).parent.parent


def entry(name="sglang.ops:kernel", *, block=64, **more):
    return {"family": "triton", "name": name, "spec": {"block": block}, **more}


def plan(*entries, **changed):
    kernels = planned(entries or [entry(), entry(block=128), entry("norm", family="flashinfer")])
    found = Plan(
        recipe="small",
        target="sm_120",
        package="0" * 40,
        inputs="1" * 64,
        versions={"torch": "2.14.1", "triton": "3.8.0"},
        kernels=tuple(kernels),
        tunings=tuple(
            tunings([{"name": "sglang.ops:kernel", "spec": {"tuning_key": [4], "configs": ["a"]}}])
        ),
        failures={"eagle": 'AttributeError: "x" \\ gone (eagle.py:3)'},
    )
    return replace(found, **changed)


# --- the value --------------------------------------------------------------------------------


def test_an_id_is_of_what_decides_a_kernel_and_of_nothing_else():
    one = planned([entry(phases=["prefill"], why="a drive")])[0]
    other = planned([entry(phases=["decode"], why="a boot", boots=2, sources=["b", "a"])])[0]

    assert one.id == other.id
    assert one.id != planned([entry(block=32)])[0].id
    assert one.id != planned([entry("sglang.ops:other")])[0].id
    assert one.id != replace(one, family=Family.FLASHINFER).id


def test_an_id_is_the_same_on_every_machine_and_in_every_order_of_fields():
    first = Planned(family=Family.TRITON, name="m:f", spec={"a": 1, "b": [True, None]})
    second = Planned(family=Family.TRITON, name="m:f", spec={"b": [True, None], "a": 1})

    assert first.id == second.id == "25393dc3cf347a4e"


def test_a_drive_and_a_recording_of_one_kernel_are_one_with_both_phases():
    driven = entry(phases=["prefill"], why="gdn-prefill: qwen3_5.py")
    recorded = entry(phases=["capture", "prefill"], why="recorded", boots=2, sources=["sglang.ops"])

    found = planned([driven, recorded])

    assert len(found) == 1
    assert found[0].phases == ("prefill", "capture")
    assert (found[0].why, found[0].boots) == ("gdn-prefill: qwen3_5.py", 2)
    assert found[0].sources == ("sglang.ops",)


def test_the_order_in_which_kernels_were_found_does_not_matter():
    entries = [entry(block=n) for n in range(5)] + [entry("norm", family="flashinfer")]

    assert planned(entries) == planned(entries[::-1])


def test_a_family_that_nobody_compiles_is_refused():
    with pytest.raises(ValueError, match="cutlass"):
        planned([entry(family="cutlass")])


def test_two_plans_differ_by_the_kernels_that_one_of_them_has():
    old = plan(entry(block=1), entry(block=2))
    new = plan(entry(block=2), entry(block=3))

    change = changes(old, new)

    assert [one.spec["block"] for one in change.new] == [3]
    assert [one.spec["block"] for one in change.gone] == [1]
    assert changes(old, old) == plans.PlanChange(new=(), gone=())


def test_counts_name_every_family_also_an_empty_one():
    assert plan().counts() == {"triton": 2, "sglang-jit": 0, "flashinfer": 1}


def test_flags_of_a_server_become_facts_for_drives():
    flags = {
        "max-running-requests": "12",
        "max-mamba-cache-size": "49",
        "kv-cache-dtype": "fp8_e4m3",
        "speculative-num-steps": "5",
        "enable-linear-replayssm-spec": None,
    }

    said = serving(flags)

    assert (said["requests"], said["slots"], said["kv_dtype"]) == (12, 49, "float8_e4m3fn")
    assert (said["steps"], said["draft_tokens"], said["topk"]) == (5, 6, 1)
    assert said["replay"]
    assert serving({})["draft_tokens"] == 1


def test_a_flag_that_should_be_a_number_is_an_error():
    with pytest.raises(ValueError, match="many"):
        serving({"max-running-requests": "many"})


# --- shown ------------------------------------------------------------------------------------


def test_a_plan_is_shown_by_what_asks_for_its_kernels():
    found = plan(
        entry("sglang.ops:a", why="decode: backend.py", phases=["decode"]),
        entry("sglang.ops:a", block=2, why="decode: backend.py", phases=["capture"]),
        entry("norm", family="flashinfer", why="recorded"),
    )

    shown = words.table(found).plain.splitlines()

    assert shown[0].startswith("decode  ")
    assert sorted(shown[0].replace(",", "").split()[1:]) == ["capture", "decode"]
    assert shown[1].strip() == "backend.py"
    assert shown[2].split() == ["2", "triton", "ops:a"]
    assert shown[-1] == "small for sm_120: 2 triton, 0 sglang-jit, 1 flashinfer"


def test_a_plan_for_scripts_names_what_came_and_what_went_by_id():
    old, new = plan(entry(block=1)), plan(entry(block=2))

    document = words.document(new, changes(old, new))

    assert document["new"] == [new.kernels[0].id] == [one["id"] for one in document["kernels"]]
    assert document["gone"] == [old.kernels[0].id]
    assert document["failures"] == {"eagle": 'AttributeError: "x" \\ gone (eagle.py:3)'}


# --- drives -----------------------------------------------------------------------------------


def test_a_drive_that_fails_is_told_with_its_place_and_keeps_what_it_found():
    found = Captured()
    spec = {"name": "m.f", "key": "k", "target": {"arch": 120}, "options": {"arch": "sm_120"}}

    def run(model):
        yield "prefill"
        found.kernel("m:f", spec)
        raise LookupError(f"{model} has moved\nmore words")

    problem = driving.drive(Drive(name="gdn", source="backend.py", run=run), "chunk", found)

    assert problem.startswith("LookupError: chunk has moved (test_kernels_plan.py:")
    (one,) = found.kernels.values()
    assert (one["phases"], one["why"]) == (["prefill"], "gdn: backend.py")
    assert one["spec"] == {"name": "m.f", "options": {}}


def test_drives_are_asked_what_the_recipe_says():
    request = precompiling.asked(ROOT, place())

    model = served(request["geometry"], {**request["serve"], "flags": request["flags"].items()})

    assert (model.requests, model.slots, model.draft_tokens, model.steps) == (12, 49, 6, 5)
    assert (model.kv_dtype, model.state_dtype, model.replay) == ("float8_e4m3fn", "bfloat16", True)
    assert (model.key_heads, model.value_heads) == (16, 32)
    assert ("quantization", "modelopt_fp4") in model.flags
    assert request["target"]["name"] == "sm_120"


# --- the files --------------------------------------------------------------------------------


def test_a_plan_that_was_written_reads_back_and_is_not_written_again(tmp_path):
    wanted = plan()

    written = planlock.save(tmp_path, wanted)

    assert written[-1] == planlock.lock_path(tmp_path, "small")
    assert planlock.load(tmp_path, "small") == wanted
    assert planlock.save(tmp_path, wanted) == ()
    assert not list((tmp_path / "kernels").rglob(".*"))


def test_a_kernel_that_came_is_one_line_of_one_file_and_the_lock(tmp_path):
    planlock.save(tmp_path, plan(entry(block=1), entry(block=2)))
    before = (tmp_path / "kernels/small/triton.jsonl").read_text().splitlines()

    written = planlock.save(tmp_path, plan(entry(block=1), entry(block=2), entry(block=3)))

    after = (tmp_path / "kernels/small/triton.jsonl").read_text().splitlines()
    assert [path.name for path in written] == ["triton.jsonl", "small.lock"]
    assert set(before) < set(after)
    assert len(after) == len(before) + 1


def test_without_a_lock_there_is_no_plan(tmp_path):
    assert planlock.load(tmp_path, "small") is None


def load_damaged(root, said):
    with pytest.raises(ConfigError, match=said) as caught:
        planlock.load(root, "small")
    assert caught.value.hint == "elsa-build kernels plan"
    assert "kernels/small" in caught.value.message


@pytest.mark.parametrize("name", ["triton.jsonl", "flashinfer.jsonl", "autotune.jsonl"])
def test_an_edited_file_is_not_the_one_that_the_lock_names(tmp_path, name):
    planlock.save(tmp_path, plan())
    path = tmp_path / "kernels/small" / name
    path.write_text(path.read_text().replace("kernel", "kernal").replace("norm", "rope"))

    load_damaged(tmp_path, f"{name}: is not the file that the lock names")


def test_a_missing_file_is_named(tmp_path):
    planlock.save(tmp_path, plan())
    (tmp_path / "kernels/small/triton.jsonl").unlink()

    load_damaged(tmp_path, r"triton\.jsonl: cannot be read")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], r"small\.lock: "),
        (lambda text: text.replace("version = 1", "version = 2"), "version: 2 is not 1"),
        (lambda text: text.replace("package", "packet"), "package is missing"),
        (lambda text: text.replace("small/triton.jsonl", "small/other.jsonl"), "other.jsonl"),
        (lambda text: text.partition("[files]")[0], "files is missing"),
        (lambda text: text.partition("[files]")[0] + "[files]\n", "triton.jsonl is missing"),
        (lambda text: text.replace("[files]", "[[files]]"), "not of the form"),
        (lambda _: "\x00", r"small\.lock: "),
    ],
)
def test_a_damaged_lock_is_refused(tmp_path, change, said):
    planlock.save(tmp_path, plan())
    path = planlock.lock_path(tmp_path, "small")
    path.write_text(change(path.read_text()))

    load_damaged(tmp_path, said)


def test_a_kernel_file_that_the_lock_does_not_name_is_not_read(tmp_path):
    planlock.save(tmp_path, plan())
    (tmp_path / "kernels/small/cutlass.jsonl").write_text("not JSON\n")
    (tmp_path / "kernels/small/recorded.jsonl").write_text(json.dumps(entry()) + "\n")

    assert planlock.load(tmp_path, "small") == plan()


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "kernels").write_text("a file\n")

    with pytest.raises(ToolError, match="cannot be written"):
        planlock.save(tmp_path, plan())


def test_the_repositorys_own_plan_is_whole_and_of_the_recipes_card():
    kept = planlock.load(ROOT, "elsa-1.7")

    assert kept is not None
    assert kept.target == recipes.load(ROOT / "recipes/elsa-1.7.yaml").arch
    assert not kept.failures
    assert min(kept.counts().values()) > 0


# --- recipes that say too little --------------------------------------------------------------


def place(**changed):
    chosen = replace(recipes.load(ROOT / "recipes/elsa-1.7.yaml"), **changed)
    return precompiling.Workplace(
        recipe=chosen,
        target=target("sm_120"),
        tools=Toolchain(python=Path("/none"), source=Path("/none"), scratch=Path("/none")),
        tree="0" * 40,
        package="0" * 40,
        folder=Path("/none"),
        fingerprint={},
        triton={},
        objects=None,
    )


def test_a_recipe_without_a_model_cannot_be_planned():
    known = recipes.load(ROOT / "recipes/elsa-1.7.yaml").memory

    with pytest.raises(ConfigError, match=r"elsa-1\.7\.yaml: memory\.model: is missing") as caught:
        precompiling.plan(ROOT, place(memory=replace(known, model=None)))

    assert "qwen3.6-35b-a3b" in caught.value.hint


@pytest.mark.parametrize("name", ["max-mamba-cache-size", "max-running-requests"])
def test_a_recipe_that_leaves_a_number_of_a_key_to_the_server_cannot_be_planned(name):
    flags = recipes.load(ROOT / "recipes/elsa-1.7.yaml").flags
    left = tuple((flag, value) for flag, value in flags if flag != name)

    with pytest.raises(ConfigError, match=rf"serve\.{name}: is left to the server") as caught:
        precompiling.plan(ROOT, place(flags=left))

    assert f"{name}: N" in caught.value.hint
