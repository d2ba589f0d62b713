"""What boots looked up becomes entries of a plan: united, with phases, marked where unsure."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels import boots, recorder
from elsa_build.kernels.booting import Watch
from elsa_build.kernels.events import Event
from elsa_build.kernels.ledger import Mark
from elsa_build.kernels.plan import planned
from elsa_build.kernels.recording import Recorded, aged, lines, merge
from elsa_build.kernels.target import target
from tests.hooking import BOTH, real, standin

MARKS = (Mark(name="start", at=0), Mark(name="ready", at=10), Mark(name="later", at=20))


def spec(value, name="B"):
    return {
        "name": "m.f",
        "signature": {"x": "*fp32", name: "constexpr"},
        "constant_keys": [[1]],
        "constant_vals": [value],
        "options": {},
    }


def asked(at, value, what="hit", **said):
    given = {"family": "triton", "name": "m:f", "spec": spec(value), "key": f"k{value}", **said}
    return Event(at=at, what=what, process="p", said=given)


def boot(*events):
    return Recorded(events=events, marks=MARKS)


def test_boots_are_united_and_what_only_one_had_is_marked():
    found = merge([boot(asked(1, 16), asked(12, 16), asked(2, 32)), boot(asked(3, 16, "compiled"))])

    documents = {one.spec["constant_vals"][0]: one.document() for one in found.entries}
    assert documents[16]["boots"] == documents[16]["of"] == 2
    assert documents[16]["phases"] == ["start", "ready"]
    assert documents[16]["why"] == "recorded in 2 of 2 boots"
    assert documents[32]["why"] == "recorded in 1 of 2 boots only"
    assert documents[32]["recorded"] is True
    assert [one.spec["constant_vals"] for one in found.once] == [[32]]


def test_the_order_of_boots_and_events_does_not_change_the_file():
    first, second = boot(asked(1, 16), asked(2, 32)), boot(asked(1, 32), asked(5, 64))

    assert lines(merge([first, second]).entries) == lines(merge([second, first]).entries)


def test_entries_are_those_of_a_plan_and_have_its_names():
    found = merge([boot(asked(1, 16), Event(at=2, what="hit", process="p", said=MODULE))])

    entries = [json.loads(line) for line in lines(found.kernels).splitlines()]
    assert {one.name for one in planned(entries)} == {"m:f", "sgl_kernel_jit_norm"}
    drive = {"family": "triton", "name": "m:f", "spec": spec(16), "phases": ["prefill"]}
    (both,) = [one for one in planned([drive, *entries]) if one.name == "m:f"]
    assert both.phases == ("prefill", "start")
    assert both.boots == 1


MODULE = {
    "family": "sglang-jit",
    "name": "sgl_kernel_jit_norm",
    "key": "build-1",
    "spec": {"entry": "sglang.x:_jit_norm", "args": [2048], "kwargs": {}},
}


def test_a_constant_that_follows_the_prompts_is_flagged_and_one_of_the_boot_is_not():
    growing = [asked(12 + n, 100 + n) for n in range(4)]
    at_boot = [asked(n, n) for n in range(1, 8)]

    flagged = merge([boot(asked(1, 16), *growing)])

    assert {one.grows for one in flagged.growing} == {
        "constant B took 4 values while serving: 100, 101, 102, 103"
    }
    assert not merge([boot(*at_boot, *growing[:2])]).growing
    assert not merge([boot(*(asked(3, 100 + n) for n in range(4)), *growing)]).growing


def test_two_values_for_two_batch_sizes_are_no_growth():
    assert not merge([boot(asked(1, 1), asked(12, 2), asked(22, 4))]).growing


def test_a_lookup_without_a_specialisation_is_named_with_the_reason():
    event = asked(1, 16, spec=None, unrecorded="TypeError: a function as an argument")

    found = merge([boot(event)])

    assert not found.entries
    assert found.unrecorded == {"triton m:f": "TypeError: a function as an argument"}


def test_choices_keep_the_timings_of_the_boot_that_took_them():
    said = {"family": "triton", "name": "m:f", "tuning_key": ["n"], "configs": ["a", "b"]}
    timed = {**said, "hit": False, "timings": [["a", [1, 1, 1]], ["b", [2, 2, 2]]]}
    found_again = {**said, "hit": True, "timings": [["a", [0, 0, 0]]]}
    events = [Event(at=1, what="tuned", process="p", said=one) for one in (timed, found_again)]

    (choice,) = merge([boot(events[0]), boot(events[1])]).choices

    assert choice.document()["timings"] == {"a": [1, 1, 1], "b": [2, 2, 2]}
    assert choice.boots == 2


def test_recorded_kernels_whose_function_is_gone_or_changed_are_told_apart():
    entries = [
        {"family": "triton", "name": name, "text": "t1"} for name in ("m:gone", "m:new", "m:same")
    ]
    entries.append({"family": "sglang-jit", "name": "m:gone"})

    found = aged(entries, {"m:gone": None, "m:new": "t2", "m:same": "t1"})

    assert (found.gone, found.changed) == (("m:gone",), ("m:new",))


# --- recording a command ----------------------------------------------------------------------


def recorded(stack, tmp_path, *words, times=2, environ=None):
    with boots.held(tmp_path / "logs") as folder:
        return recorder.record(
            stack.command(*words),
            stack.environ(**(environ or {})),
            Watch(),
            tmp_path / "kernels",
            folder,
            times=times,
        )


def codes(done):
    return [one.code for one in recorder.findings(done)]


@pytest.mark.parametrize("make", BOTH)
def test_two_boots_of_a_command_are_recorded_beside_the_plan(make, tmp_path):
    stack = make(tmp_path / "s")

    done = recorded(stack, tmp_path, 16, "mark:ready", 32)

    assert [path.name for path in done.written] == ["recorded.jsonl"]
    entries = [json.loads(line) for line in done.written[0].read_text().splitlines()]
    assert [(e["spec"]["constant_vals"], e["phases"], e["boots"]) for e in entries] == [
        ([16], ["imports"], 2),
        ([32], ["ready"], 2),
    ]
    assert [len(one.heard.of("compiled")) for one in done.booted] == [2, 0]
    assert codes(done) == []


def test_a_cache_that_does_not_last_is_seen_in_the_second_boot(tmp_path):
    stack = standin(tmp_path / "s")
    program = stack.folder / "program.py"
    clean = "import os, shutil; shutil.rmtree(os.environ['TRITON_CACHE_DIR'], ignore_errors=True)\n"
    program.write_text(clean + program.read_text())

    done = recorded(stack, tmp_path, 16)

    (said,) = recorder.findings(done)
    assert said.code == "E469"
    assert said.message == "triton kern:add was compiled again in boot 2: no cache keeps it"


def test_a_command_that_fails_keeps_what_it_had_under_another_name(tmp_path):
    stack = standin(tmp_path / "s")
    recorded(stack, tmp_path, 16)
    whole = (tmp_path / "kernels/recorded.jsonl").read_text()

    done = recorded(stack, tmp_path, 64, "exit:3")

    assert [path.name for path in done.written] == ["recorded.part.jsonl"]
    assert '"constant_vals": [64]' in done.written[0].read_text()
    assert (tmp_path / "kernels/recorded.jsonl").read_text() == whole
    assert len(done.booted) == 1
    with pytest.raises(ToolError, match="exit 3 in boot 1"):
        boots.check(done.booted, ["x"], "kept")
    recorded(stack, tmp_path, 16)
    assert not (tmp_path / "kernels/recorded.part.jsonl").exists()


def test_nothing_recorded_is_said(tmp_path):
    assert codes(recorded(standin(tmp_path / "s"), tmp_path, "mark:ready")) == ["E463"]


def test_a_request_that_needs_a_compiler_is_in_its_phase(tmp_path):
    stack = standin(tmp_path / "s")

    done = recorded(stack, tmp_path, 16, "mark:ready", "mark:first-request", 7, times=1)

    phases = {phase.name: phase.total.compiled for phase in done.booted[0].ledger.phases}
    assert phases == {"start": 0, "imports": 1, "ready": 0, "first-request": 1}


def test_an_unwritable_place_is_an_error_of_the_disk(tmp_path):
    stack = standin(tmp_path / "s")
    (tmp_path / "kernels").write_text("a file")

    with pytest.raises(ToolError, match="cannot be written"):
        recorded(stack, tmp_path, 16)


def test_a_command_that_is_not_there_is_the_persons_mistake(tmp_path):
    with boots.held(tmp_path / "logs") as folder, pytest.raises(ConfigError, match="cannot start"):
        recorder.record(["nope-nope"], dict(os.environ), Watch(), tmp_path / "k", folder)


# --- timings ----------------------------------------------------------------------------------


@pytest.mark.kernels
def test_timings_that_the_card_took_are_recorded_and_found_again(tmp_path):
    stack = real(tmp_path / "s")
    stack.edit(
        "@triton.jit\n", '@triton.autotune(CONFIGS, key=["n"], cache_results=True)\n@triton.jit\n'
    )
    stack.edit("def add(x, ", "def add(x, n, ")
    stack.edit(
        "@triton.autotune",
        'CONFIGS = [triton.Config({"B": size}) for size in (16, 32)]\n\n@triton.autotune',
    )
    program = (
        "import kern\n"
        "from triton.runtime.jit import MockTensor\n"
        "tuner = kern.add\n"
        "tuner._do_bench = lambda call, quantiles: [1.0, 1.0, 1.0]\n"
        "x = MockTensor('float32')\n"
        "bench = lambda: setattr(tuner, 'configs_timings', {c: tuner._bench(x, config=c) for c in tuner.configs})\n"
        "tuner.nargs = {}\n"
        "tuner.check_disk_cache((64,), tuner.configs, bench)\n"
    )
    Path(stack.folder / "program.py").write_text(program)

    done = recorded(stack, tmp_path)

    assert [len(one.heard.of("bench")) for one in done.booted] == [2, 0]
    (choice,) = done.recording.choices
    assert list(choice.timings.values()) == [[1.0] * 3] * 2
    assert [path.name for path in done.written] == ["recorded.jsonl", "timings.jsonl"]
    assert done.harvest
    assert [one.family for one in done.harvest.files] == ["autotune"]


@pytest.mark.kernels
def test_what_was_recorded_is_compared_with_the_tree_of_today(tmp_path):
    stack = real(tmp_path / "s")
    (path,) = recorded(stack, tmp_path, 16, times=1).written
    entries = [json.loads(line) for line in path.read_text().splitlines()]

    def now(*names):
        request = {"target": target("sm_120").document(), "names": ["kern:add", *names]}
        done = subprocess.run(
            [stack.python, "-m", "elsa_build.kernels.inside.recorded"],
            env=stack.environ(),
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)["texts"]

    same = aged(entries, now())
    stack.edit("+ 1", "+ 2")
    changed = aged(entries, now("kern:nothing", "no.such.module:f"))
    gone = aged([{**entries[0], "name": "kern:nothing"}], now("kern:nothing"))

    assert (same.gone, same.changed) == ((), ())
    assert (changed.gone, changed.changed) == ((), ("kern:add",))
    assert gone.gone == ("kern:nothing",)
