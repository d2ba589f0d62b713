"""A gated boot: its phases, what it would have compiled and when, and how it ends."""

import hashlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.diagnostics import Severity, errors
from elsa_build.errors import ConfigError, InterruptedRunError, ToolError
from elsa_build.kernels import boots, gate, harvest, ledger
from elsa_build.kernels.booting import Watch, boot
from elsa_build.kernels.bundle import Bundle, Held, Kernel, Manifest, is_group, text
from elsa_build.kernels.events import Event
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.ledger import Mark
from elsa_build.kernels.sealing import write as write_files
from tests.hooking import BOTH, standin

PY = sys.executable
QUIET = Watch()


# --- phases and counts ------------------------------------------------------------------------


def event(at, what, family="triton", **said):
    return Event(at=at, what=what, process="1", said={"family": family, "name": "m:f", **said})


def test_a_boot_is_split_at_its_marks_and_counted_per_family():
    events = [
        Event(at=101, what="importing", process="1"),
        event(103, "hit"),
        event(105, "compiled", seconds=2.0),
        event(111, "hit", family="flashinfer"),
        event(121, "missed"),
        event(122, "bench", seconds=0.5),
    ]
    marks = [Mark(name="ready", at=110), Mark(name="weights", at=104), Mark(name="later", at=120)]

    found = ledger.ledger(events, marks, began=100, ended=130)

    assert [(p.name, p.began_s, p.seconds) for p in found.phases] == [
        ("start", 0, 1),
        ("imports", 1, 3),
        ("weights", 4, 6),
        ("ready", 10, 10),
        ("later", 20, 10),
    ]
    by_name = {phase.name: phase for phase in found.phases}
    assert by_name["weights"].total.compiled == 1
    assert by_name["weights"].total.compile_s == 2.0
    assert by_name["ready"].counts["flashinfer"].hits == 1
    assert (by_name["later"].total.refused, by_name["later"].total.benches) == (1, 1)
    assert found.ready_s == 10
    assert (found.total.hits, found.total.missed) == (2, 2)


def test_every_event_is_in_exactly_one_phase_whatever_the_marks():
    events = [event(at, "hit") for at in range(0, 200, 7)]
    marks = [Mark(name=f"p{n}", at=at) for n, at in enumerate((50, 50, 90, 300))]

    found = ledger.ledger(events, marks, began=100, ended=150)

    assert found.total.hits == len(events)
    assert all(phase.seconds >= 0 for phase in found.phases)
    assert found.phases[0].name == "start"


# --- running a command ------------------------------------------------------------------------


def started(tmp_path, code, watch=QUIET, **environ):
    marks = tmp_path / "marks"
    env = {**os.environ, "ELSA_KERNELS_MARKS": str(marks), **environ}
    return boot([PY, "-c", code], env, watch, log=tmp_path / "log", marks=marks)


def test_lines_of_the_output_begin_phases_each_once(tmp_path):
    code = "for x in ('Load weight begin', 'Capture draft CUDA graph begin', 'Capture CUDA graph begin', 'mine'): print(x)"

    done = started(tmp_path, code, replace(QUIET, phases={**QUIET.phases, "own": "^mine$"}))

    assert [mark.name for mark in done.marks] == ["weights", "capture", "own"]
    assert done.exit == 0
    assert "mine" in done.log.read_text()


def test_a_command_marks_phases_itself_with_or_without_a_time(tmp_path):
    code = (
        "import os; f = open(os.environ['ELSA_KERNELS_MARKS'], 'a')\n"
        "f.write('first-request\\nlater 1234.5\\nwarm nonsense\\nhalf'); f.close()"
    )
    began = time.time()

    done = started(tmp_path, code)

    marks = {mark.name: mark.at for mark in done.marks}
    assert began <= marks.pop("first-request") <= time.time()
    assert marks == {"later": 1234.5}


SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.time() > began + 0.3 else 503); self.end_headers()
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print("asked", body.decode(), flush=True)
        self.send_response(int(sys.argv[2])); self.end_headers()
    def log_message(self, *_): pass
began = time.time()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
open(sys.argv[1], "w").write(str(server.server_port))
server.serve_forever()
"""


@pytest.fixture
def port():
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as free:
        return free.server_port


def serve(tmp_path, port, status=200, **watch):
    base = f"http://127.0.0.1:{port}"
    code = SERVER.replace('("127.0.0.1", 0)', f'("127.0.0.1", {port})')
    return boot(
        [PY, "-c", code, str(tmp_path / "port"), str(status)],
        {**os.environ, "http_proxy": "http://127.0.0.1:9"},
        Watch(ready_url=f"{base}/health", request_url=f"{base}/generate", body=b'{"n":1}', **watch),
        log=tmp_path / "log",
        marks=tmp_path / "marks",
    )


def test_a_server_is_asked_once_it_is_ready_and_ended_afterwards(tmp_path, port):
    done = serve(tmp_path, port, requests=3)

    assert done.exit is None
    assert done.problem is None
    assert [m.name for m in done.marks] == ["ready", "first-request", "later", "later"]
    assert done.log.read_text().count('asked {"n":1}') == 3
    assert done.marks[0].at - done.began >= 0.3


def test_a_request_that_is_refused_is_a_problem_with_its_status(tmp_path, port):
    assert "answered 500" in serve(tmp_path, port, status=500).problem


def test_a_server_that_is_not_ready_in_time_is_ended_and_late(tmp_path):
    watch = Watch(ready_line="never", within_s=0.4)

    done = started(tmp_path, "import time; print('slow', flush=True); time.sleep(60)", watch)

    assert done.late
    assert done.problem == "not ready within 0.4 s"
    assert done.last == ("slow",)
    assert done.ended - done.began < 10


def test_children_of_the_command_end_with_it(tmp_path):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True); print('ready', flush=True); time.sleep(60)"
    )

    done = started(tmp_path, code, Watch(ready_line="^ready$"))

    pid = int(done.log.read_text().split()[1])
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_that_ignores_the_signal_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("elsa_build.kernels.booting._GRACE_S", 0.3)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True); time.sleep(60)"
    )

    done = started(tmp_path, code, Watch(ready_line="ready"))

    assert done.exit is None
    assert done.ended - done.began < 10


def test_a_command_that_does_not_exist_and_a_bad_pattern_are_the_persons_mistakes(tmp_path):
    with pytest.raises(ConfigError, match="cannot start nothing-here"):
        boot(["nothing-here"], {}, QUIET, log=tmp_path / "log", marks=tmp_path / "m")
    with pytest.raises(ConfigError, match="no regular expression"):
        Watch(phases={"x": "("})
    with pytest.raises(ConfigError, match="needs to know when"):
        Watch(request_url="http://127.0.0.1/")


# --- the gate ---------------------------------------------------------------------------------


def made(stack, folder, *sizes):
    """Return a bundle of the kernels of a stack, as a builder would have sealed it at `folder`."""
    told = folder.parent / "building"
    env = stack.environ(TRITON_CACHE_DIR=str(folder / "triton"), TRITON_STORE_BINARY_ONLY="1")
    folder.mkdir(parents=True)
    (done,) = boots.run(stack.command(*sizes), env, QUIET, told)
    assert done.boot.exit == 0, done.boot.last
    kernels = []
    for at in done.heard.of("compiled"):
        names = [p for p in (folder / "triton").rglob("*") if p.is_file()]
        kernels.append(
            Kernel(
                family=Family.TRITON,
                id=f"id{at.said['spec']['constant_vals'][0]}",
                name=at.name,
                key=at.said["key"],
                files=tuple(sorted(str(p.relative_to(folder)) for p in names)[:1]),
                parts=at.said.get("parts", {}),
            )
        )
    files = {
        str(p.relative_to(folder)): Held(
            sha256=hashlib.sha256(p.read_bytes()).hexdigest(), size=p.stat().st_size
        )
        for p in sorted((folder / "triton").rglob("*"))
        if p.is_file()
    }
    assert any(map(is_group, files))
    manifest = Manifest(
        recipe="none",
        target="sm_120",
        tree="0" * 40,
        toolchain={},
        kernels=tuple(kernels),
        files=files,
        prefix=str(folder),
    )
    write_files({"bundle.json": text(manifest)}, folder)
    return Bundle(folder=folder, manifest=manifest)


def gated(stack, bundle, tmp_path, *words, watch=QUIET, **more):
    environ = stack.environ(**more.pop("environ", {}))
    with boots.held(tmp_path / "logs") as folder:
        return gate.gate(stack.command(*words), bundle, environ, watch, folder, **more)


def codes(found):
    return [one.code for one in gate.findings(found)]


@pytest.mark.parametrize("make", BOTH)
def test_a_boot_that_finds_all_its_kernels_passes(make, tmp_path):
    stack = make(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16, 32)

    (found,) = gated(stack, bundle, tmp_path, 16, 32)

    assert gate.findings(found) == ()
    assert found.booted.ledger.total.hits == 2


@pytest.mark.parametrize("make", BOTH)
def test_a_miss_stops_the_command_and_has_its_phase_and_cause(make, tmp_path):
    stack = make(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    specs = {"id16": boots_spec(stack, tmp_path)}

    (found,) = gated(
        stack, bundle, tmp_path, 16, "mark:ready", "mark:first-request", 64, 128, specs=specs
    )

    assert [(m.what, m.phase) for m in found.misses] == [("missed", "first-request")]
    assert found.misses[0].causes == (
        "specialisation: constant B 64 not in the bundle (it has 16)",
    )
    assert found.booted.boot.exit == 1
    assert codes(found) == ["E460"]
    assert found.written == ()


def boots_spec(stack, tmp_path):
    env = stack.environ(TRITON_CACHE_DIR=str(tmp_path / "again"))
    (done,) = boots.run(stack.command(16), env, QUIET, tmp_path / "spec")
    return done.heard.lookups()[0].said["spec"]


def test_keeping_going_finds_every_miss_and_leaves_the_bundle_as_it_is(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    before = sorted(bundle.folder.rglob("*"))

    (found,) = gated(stack, bundle, tmp_path, 16, 64, 128, keep_going=True)

    assert [m.what for m in found.misses] == ["compiled", "compiled"]
    assert found.booted.boot.exit == 0
    assert sorted(bundle.folder.rglob("*")) == before


@pytest.mark.parametrize("make", BOTH)
def test_a_bundle_in_another_place_is_unpacked_and_everything_hits(make, tmp_path):
    stack = make(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    moved = tmp_path / "elsewhere"
    shutil.move(bundle.folder, moved)

    (found,) = gated(stack, replace(bundle, folder=moved), tmp_path, 16)

    assert gate.findings(found) == ()


@pytest.mark.parametrize("make", BOTH)
def test_a_bundle_that_was_only_copied_misses_and_says_why(make, tmp_path):
    stack = make(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    moved = tmp_path / "elsewhere"
    shutil.move(bundle.folder, moved)
    careless = Bundle(folder=moved, manifest=replace(bundle.manifest, prefix=str(moved)))

    (found,) = gated(stack, careless, tmp_path, 16)

    assert "moved without being unpacked" in found.misses[0].causes[0]


def test_a_home_that_is_new_at_each_boot_changes_nothing(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)

    for number in (1, 2):
        (tmp_path / f"home{number}").mkdir()
        environ = {"HOME": str(tmp_path / f"home{number}")}
        (found,) = gated(stack, bundle, tmp_path, 16, environ=environ)

        assert gate.findings(found) == ()


def test_without_a_bundle_the_second_boot_on_a_cache_must_find_everything(tmp_path):
    stack = standin(tmp_path / "s")
    environ = {"SGLANG_CACHE_DIR": str(tmp_path / "cache")}

    first, second = gated(stack, None, tmp_path, 16, environ=environ, keep_going=True, times=2)

    assert codes(first) == ["E460"]
    assert codes(second) == []


def test_a_process_that_the_hook_does_not_see_is_betrayed_by_what_it_writes(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    code = (
        "import os, subprocess, sys, kern; kern.warm(16)\n"
        "hidden = {k: v for k, v in os.environ.items() if k != 'ELSA_KERNELS_EVENTS'}\n"
        "subprocess.run([sys.executable, '-c', 'import kern; kern.warm(99)'], env=hidden)\n"
        "nv = os.environ['CUDA_CACHE_PATH']; os.makedirs(nv); open(nv + '/0', 'w').write('sass')\n"
    )
    (stack.folder / "program.py").write_text(code)

    (found,) = gated(stack, bundle, tmp_path)

    assert {(one.family, one.path.name) for one in found.written} == {
        ("triton", "add.cubin"),
        ("driver", "0"),
    }
    assert set(codes(found)) == {"E462"}


def test_what_triton_compiles_for_the_host_is_told_and_fails_nothing(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    code = (
        "import os, kern; kern.warm(16)\n"
        "folder = os.environ['TRITON_CACHE_DIR'] + '/' + 'A' * 52\n"
        "os.makedirs(folder)\n"
        "open(folder + '/cuda_utils.cpython-312-x86_64-linux-gnu.so', 'w').write('C')\n"
    )
    (stack.folder / "program.py").write_text(code)

    (found,) = gated(stack, bundle, tmp_path)

    assert not found.blamed
    (said,) = gate.findings(found)
    assert (said.code, said.severity) == ("E462", Severity.WARNING)
    assert "C for the host" in said.message


def test_timing_again_fails_unless_the_family_is_allowed(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16, 32)
    code = (
        "import kern\n"
        "from triton.runtime.autotuner import Autotuner\n"
        "Autotuner(kern.add, [16, 32]).run('n', False)\n"
    )
    (stack.folder / "program.py").write_text(code)

    (found,) = gated(stack, bundle, tmp_path)

    (said,) = gate.findings(found)
    assert said.code == "E461"
    assert "kern:add timed 2 configurations" in said.message
    assert not errors(gate.findings(found, allowed=["triton"]))


def test_a_command_that_never_loads_a_compiler_proves_nothing(tmp_path):
    (found,) = gate.gate(["true"], None, dict(os.environ), QUIET, tmp_path / "logs")

    assert codes(found) == ["E463"]


def test_a_command_that_fails_is_told_with_its_code_and_last_lines(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)

    (found,) = gated(stack, bundle, tmp_path, 16, "exit:9")

    assert codes(found) == []
    with pytest.raises(ToolError, match=r"ended with exit 9 in boot 1; kept\n  going down"):
        boots.check([found.booted], ["serve"], "kept")


def test_the_environment_is_strict_or_not_at_all(tmp_path):
    places = gate.Caches(variables={"PYTHONPATH": "/b/python"}, folders={})
    given = {"FLASHINFER_DISABLE_JIT": "1", "PYTHONPATH": "/mine"}

    strict = gate.environment(given, places, strict=True)
    lenient = gate.environment(given, places, strict=False)

    assert strict["SGLANG_CRASH_ON_JIT_COMPILE"] == "1"
    assert strict["PYTHONPATH"] == "/b/python:/mine"
    assert "FLASHINFER_DISABLE_JIT" not in lenient


def test_every_familys_cache_has_a_place_of_its_own_below_ours(tmp_path):
    bundle = Bundle(
        folder=tmp_path,
        manifest=Manifest(
            recipe="r",
            target="sm_120",
            tree="0" * 40,
            toolchain={},
            kernels=(),
            prefix=str(tmp_path),
        ),
    )
    foreign = {"TRITON_CACHE_DIR": "/home/me/triton", "HOME": "/home/me"}

    with gate.caches(bundle, foreign, tmp_path / "logs", copied=False) as places:
        inside = [
            Path(v).is_relative_to(tmp_path) for k, v in places.variables.items() if k[-3:] == "DIR"
        ]

        assert all(inside)
        assert places.folders["triton"] == tmp_path / "triton"
        assert len(set(places.folders.values())) == len(places.folders)


def test_two_runs_in_one_folder_are_refused(tmp_path):
    again = boots.held(tmp_path / "logs")

    with boots.held(tmp_path / "logs"), pytest.raises(ToolError, match="in use by another run"):
        again.__enter__()


# --- the command ------------------------------------------------------------------------------

CODE = "from elsa_build.cli.main import run; run()"


def elsa(tmp_path, stack, *words, **environ):
    (tmp_path / "project" / "patchsets").mkdir(parents=True, exist_ok=True)
    return [PY, "-c", CODE, "kernels", *map(str, words), "-C", str(tmp_path / "project")], {
        **os.environ,
        **stack.environ(**environ),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), str(stack.folder)]),
    }


def ran(tmp_path, stack, *words):
    command, env = elsa(tmp_path, stack, *words[: words.index("--")])
    rest = words[words.index("--") :]
    return subprocess.run(
        [*command, *map(str, rest)], env=env, capture_output=True, text=True, check=False
    )


def test_the_command_prints_the_ledger_and_exits_7_with_the_misses(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)

    good = ran(tmp_path, stack, "gate", "--bundle", bundle.folder, "--", *stack.command(16))
    bad = ran(
        tmp_path, stack, "gate", "--bundle", bundle.folder, "--json", "--", *stack.command(16, 7)
    )

    assert good.returncode == 0, good.stderr
    assert "nothing was compiled: 1 kernels were found" in good.stderr
    assert "imports" in good.stdout
    assert max(map(len, good.stdout.splitlines())) <= 80
    assert bad.returncode == 7, bad.stderr
    (said,) = json.loads(bad.stdout)["data"]["boots"]
    assert said["misses"][0]["name"] == "kern:add"
    assert said["ledger"]["total"]["refused"] == 1
    assert said["exit"] == 1


def test_a_late_server_fails_the_gate_with_its_ledger(tmp_path):
    stack = standin(tmp_path / "s")
    bundle = made(stack, tmp_path / "bundle", 16)
    words = ["gate", "--bundle", bundle.folder, "--ready-line", "never", "--within", "1.5"]

    done = ran(tmp_path, stack, *words, "--", *stack.command(16, "sleep"))

    assert done.returncode == 7
    assert "error[E464]: not ready within 1.5 s" in done.stderr


def test_interrupting_ends_the_command_and_says_130(tmp_path):
    stack = standin(tmp_path / "s")
    command, env = elsa(tmp_path, stack, "record", "--into", "it")

    with subprocess.Popen(
        [*command, "--", *stack.command(16, "sleep")],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        log = tmp_path / "project/.cache/kernels/record-it/boot-1/output.log"
        until = time.monotonic() + 20
        while not (log.exists() and "sleeping" in log.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)

    assert process.returncode == 130, said
    assert "wrote kernels/it/recorded.part.jsonl" in said
    kept = (tmp_path / "project/kernels/it/recorded.part.jsonl").read_text()
    assert '"name": "kern:add"' in kept


def test_interruption_is_an_error_of_its_own(tmp_path):
    stack = standin(tmp_path / "s")
    (done,) = boots.run(stack.command(), stack.environ(), QUIET, tmp_path / "logs")
    stopped = replace(done, boot=replace(done.boot, interrupted=True))

    with pytest.raises(InterruptedRunError, match="interrupted in boot 1"):
        boots.check([stopped], ["x"], "kept")


def test_caches_that_the_environment_names_stay_where_they_are(tmp_path):
    found = harvest.caches({"TRITON_CACHE_DIR": "/mine"}, tmp_path)

    assert found["TRITON_CACHE_DIR"] == "/mine"
    assert found["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    assert found["TRITON_CACHE_AUTOTUNING"] == "1"


def test_readiness_is_noticed_while_the_command_prints_without_end(tmp_path):
    code = "import itertools\nfor n in itertools.count(): print(n, flush=True)"

    found = started(tmp_path, code, Watch(ready_line="^2000$"))

    assert found.exit is None
    assert [m.name for m in found.marks] == ["ready"]
