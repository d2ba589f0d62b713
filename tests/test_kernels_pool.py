"""The pool: what runs beside what, what a death or a full disk costs, what a rerun does again."""

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from elsa_build.cli.progress import BarProgress, LineProgress
from elsa_build.diagnostics import Severity
from elsa_build.errors import ToolError
from elsa_build.kernels import pool, schedule
from elsa_build.kernels.memory import memory_available_mib, memory_total_mib
from tests.kernel_jobs import ROOT, alive, job, start, until


@pytest.fixture
def place(tmp_path):
    return tmp_path


def run(place, jobs, **options):
    options = {"workers": 2, "memory_mib": 12000, "machine_mib": 64000, "start": start(), **options}
    return pool.run(
        jobs, journal=place / "work" / "journal.jsonl", build=place / "build", **options
    )


def overlap(one, other):
    return one.found["begun"] < other.found["ended"] and other.found["begun"] < one.found["ended"]


# What runs beside what.


def test_two_jobs_of_8_gb_never_run_together_in_12_gb(place):
    jobs = [job(f"big{n}", mib=8200, cpu_s=9, seconds=0.3) for n in range(3)]
    jobs += [job(f"small{n}", mib=300, seconds=0.3) for n in range(3)]

    told = run(place, jobs, workers=3)

    assert not any(overlap(told[a], told[b]) for a in range(3) for b in range(a))
    assert any(overlap(big, small) for big in told[:3] for small in told[3:])


def test_a_job_larger_than_the_budget_runs_alone_and_is_told_of(place):
    jobs = [job(f"small{n}", mib=0, cpu_s=5 - n, seconds=0.1) for n in range(4)]
    jobs.insert(2, job("huge", mib=20000, cpu_s=4.5, seconds=0.1))

    told = run(place, jobs)
    (said,) = schedule.oversized(jobs, memory_mib=12000, machine_mib=64000)

    assert not any(overlap(told[2], other) for other in (*told[:2], *told[3:]))
    assert (said.code, said.severity) == ("E450", Severity.WARNING)
    assert "kernel huge: needs 20000 MiB" in said.message


def test_a_job_larger_than_the_machine_is_refused_and_the_others_are_done(place):
    jobs = [job("huge", mib=20000), job("link", needs=["huge"]), job("small")]

    told = run(place, jobs, machine_mib=16000)
    (said,) = schedule.oversized(jobs, memory_mib=12000, machine_mib=16000)

    assert told[0].error == "needs 20000 MiB, this machine has 16000 MiB"
    assert told[1].error == "not tried: it needs huge, which failed"
    assert told[2].error is None
    assert said.severity is Severity.ERROR


def test_the_longest_chain_goes_first(place):
    jobs = [job("short", cpu_s=1), job("long", cpu_s=5), job("end", cpu_s=9, needs=["head"])]
    jobs.append(job("head", cpu_s=2))

    told = run(place, jobs, workers=1)

    begun = {one.job: one.found["begun"] for one in told}
    assert sorted(begun, key=begun.get) == ["head", "end", "long", "short"]


def test_the_outcomes_are_in_the_order_of_the_jobs_whatever_ends_first(place):
    jobs = [job(f"k{n}", seconds=0.2 - 0.05 * n, cpu_s=n) for n in range(4)]

    assert [one.job for one in run(place, jobs, workers=4)] == ["k0", "k1", "k2", "k3"]


def test_a_worker_does_many_jobs_and_no_more_are_started_than_asked(place):
    told = run(place, [job(f"k{n}", seconds=0.02) for n in range(12)])

    assert len({one.found["pid"] for one in told}) == 2


def test_needs_that_make_no_sense_are_refused_before_anything_starts(place):
    for jobs, said in (
        ([job("a"), job("a")], "one id"),
        ([job("a", needs=["b"])], "needs 'b'"),
        ([job("a", needs=["b"]), job("b", needs=["a"])], "need each other: a, b"),
    ):
        with pytest.raises(ValueError, match=said):
            run(place, jobs)

    assert not (place / "work").exists()


# The rules alone.


def claims(*sizes):
    return [schedule.claim(job(f"c{n}", mib=mib, cpu_s=s), 100) for n, (mib, s) in enumerate(sizes)]


def test_a_job_that_fits_may_overtake_only_if_the_larger_one_need_not_wait_longer():
    running = claims((60, 10))

    first, long_one, short_one, small_one = claims((80, 5), (30, 20), (30, 9), (20, 99))

    assert schedule.choose([first, long_one], running, 100) is None
    assert schedule.choose([first, long_one, short_one], running, 100) is short_one
    assert schedule.choose([first, long_one, small_one], running, 100) is small_one


def test_the_estimate_is_at_least_what_memory_allows():
    chains = {f"c{n}": 200.0 for n in range(11)}

    left = schedule.left_s(claims(*[(68, 200)] * 11), [], chains, workers=8, memory_mib=100)

    assert left == 2200


# Failure.


def test_a_failed_job_fails_only_those_that_need_it(place):
    jobs = [
        job("object", "fail"),
        job("link", needs=["object"]),
        job("check", needs=["link"]),
        job("other"),
    ]

    told = run(place, jobs)

    assert (
        told[0].error
        == "ValueError: cannot compile add_kernel\ncaused by: FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/ptxas'"
    )
    assert told[1].error == told[2].error == "not tried: it needs object, which failed"
    assert told[3].error is None


def test_what_failed_is_tried_again_by_the_next_run(place):
    missing = job("joined", "joined", of=["late.txt"], to="all.txt")
    (first,) = run(place, [missing])
    (place / "build/late.txt").write_text("here")

    (second,) = run(place, [missing])

    assert "late.txt" in first.error
    assert (place / "build/all.txt").read_text() == "here"
    assert second.error is None


def test_a_killed_worker_costs_one_retry_alone_and_the_others_are_done(place):
    marks = place / "marks"
    jobs = [job("bad", "die", marks=str(marks), cpu_s=9)]
    jobs += [job(f"k{n}", seconds=0.1) for n in range(6)]

    told = run(place, jobs)

    assert told[0].error.startswith("its worker was killed (signal 9), probably out of memory")
    assert "twice, the second time alone" in told[0].error
    assert not any(one.error for one in told[1:])
    _, second = map(float, marks.read_text().split())
    assert not any(one.found["begun"] < second < one.found["ended"] for one in told[1:])


def test_a_job_that_succeeds_when_it_is_alone_has_succeeded(place):
    (told,) = run(place, [job("tight", "die", marks=str(place / "marks"), times=1)])

    assert told.error is None
    assert len((place / "marks").read_text().split()) == 2


def test_a_compiler_that_was_killed_is_tried_again_alone(place):
    (told,) = run(place, [job("tight", "starved", marks=str(place / "mark"))])

    assert told.error is None


def test_a_worker_that_exits_is_reported_with_its_code_and_its_last_words(place):
    told = run(place, [job("bad", "exit_at_once"), job("good")])

    assert told[0].error.startswith(
        "its worker ended with exit code 3\n  cannot allocate the arena"
    )
    assert told[1].error is None


def test_a_worker_that_dies_of_a_crash_names_the_signal(place):
    (told,) = run(place, [job("bad", "die", marks=str(place / "m"), signal=int(signal.SIGSEGV))])

    assert "its worker died of SIGSEGV" in told.error


def test_a_call_that_leaves_python_is_an_error_of_the_job_only(place):
    told = run(place, [job("bad", "leave"), job("good")], workers=1)

    assert told[0].error == "SystemExit: 4"
    assert told[1].error is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("probe:subprocess", "defines no function 'subprocess'"),
        ("probe:Path", "is not module:function"),
        ("probe:absent", "defines no function"),
        ("os:system", "No module named 'tests.worker_calls.os'"),
        ("..kernel_jobs:job", "is not module:function"),
        ("probe:_private", "is not module:function"),
        ("probe", "is not module:function"),
    ],
)
def test_a_worker_calls_only_functions_of_its_package(place, call, said):
    (told,) = run(place, [replace(job("bad"), call=call)])

    assert said in told.error


def test_a_call_that_returns_no_plain_data_is_an_error(place):
    (told,) = run(place, [job("bad", "unspeakable")])

    assert "not JSON serializable" in told.error


def test_a_call_that_tells_of_a_file_it_did_not_make_has_failed(place):
    (told,) = run(place, [job("bad", "liar")])

    assert "files that are not there" in told.error
    assert "triton/none.cubin" in told.error


# The channel.


def test_what_libraries_print_does_not_break_the_protocol(place):
    told = run(place, [job("loud", "noise"), job("next")], workers=1)

    log = (place / "work/worker-1.log").read_text()
    assert told[0].found == {"read": ""}
    assert told[1].error is None
    assert {"from Python", "from C", "from a child"} <= set(log.split("\n"))


def test_an_answer_that_is_no_json_is_an_error_that_names_the_worker(place):
    with pytest.raises(ToolError, match=r"kernels.inside.worker gave an answer .* not JSON"):
        run(place, [job("loud", "babble")])


def test_a_program_that_is_no_worker_is_named_with_what_it_said(place):
    for command, said in (
        (("/nowhere/python",), "cannot start the worker /nowhere/python"),
        ((sys.executable, "-c", "import nowhere"), "No module named 'nowhere'"),
        ((sys.executable, "-c", "print('hello')"), "an answer that is none: hello"),
    ):
        with pytest.raises(ToolError, match=said):
            run(place, [job("k")], start=start(*command))


def test_the_setup_and_the_environment_reach_the_call(place):
    (told,) = run(place, [job("k", "told")], start=start(target={"number": 120}))

    assert told.found["setup"]["target"] == {"number": 120}
    assert told.found["setup"]["build"] == str(place / "build")
    assert told.found["env"] == "given"


@pytest.mark.kernels
def test_a_worker_runs_in_the_interpreter_that_has_triton(place):
    python = os.environ.get("ELSA_KERNELS_PYTHON")
    if not python:
        pytest.skip("ELSA_KERNELS_PYTHON names no interpreter with Triton")

    (told,) = run(
        place, [job("k", "triton")], start=start(python, "-m", "elsa_build.kernels.inside.worker")
    )

    assert told.error is None
    assert told.found["triton"][0] == "3"


def test_a_place_that_cannot_be_written_is_named(place):
    (place / "work").write_text("in the way")

    with pytest.raises(ToolError, match=r"cannot write .*/work: File exists"):
        run(place, [job("k")])


def test_a_job_is_charged_for_its_children_and_not_for_the_one_before(place):
    big = job("big", "eat", mib=1, cpu_s=9)
    jobs = [replace(big, arguments={"mib": 300, "cpu_s": 0.2}), job("small")]

    told = run(place, jobs, workers=1)

    assert 300 <= told[0].peak_mib < 400
    assert 0.2 <= told[0].cpu_s < 2
    assert told[1].peak_mib < 100


# Stopping, and going on.


def test_a_finished_job_is_not_done_again_unless_its_files_have_gone(place):
    jobs = [job(f"k{n}", "write", files={f"triton/k{n}.cubin": f"{n}"}) for n in range(3)]
    first = run(place, jobs)
    (place / "build/triton/k1.cubin").unlink()

    second = run(place, jobs)

    assert [one.fresh for one in first] == [True, True, True]
    assert [one.fresh for one in second] == [False, True, False]
    assert (place / "build/triton/k1.cubin").read_text() == "1"
    assert second[0].cpu_s == first[0].cpu_s


def test_a_half_last_line_of_the_journal_is_ignored_and_cut_away(place):
    jobs = [job("a", "write", files={"a": "1"}), job("b", "write", files={"b": "2"})]
    run(place, jobs, workers=1)
    journal = place / "work/journal.jsonl"
    text = journal.read_bytes()
    journal.write_bytes(text[:-20])

    told = run(place, jobs, workers=1)

    assert [one.fresh for one in told] == [False, True]
    assert [json.loads(line)["job"] for line in journal.read_text().splitlines()] == ["a", "b"]


def test_a_journal_that_another_run_holds_is_not_touched(place):
    code = (
        "import sys, fcntl, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(); input()"
    )
    (place / "work").mkdir()
    journal = place / "work/journal.jsonl"
    with subprocess.Popen(
        [sys.executable, "-uc", code, journal], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()

        with pytest.raises(ToolError, match="in use by another run"):
            run(place, [job("k")])

        other.stdin.close()


def tool(place, body):
    """Start a run in a process of its own, which a test can kill."""
    code = (
        "import sys; from pathlib import Path\n"
        "from elsa_build.kernels import pool\n"
        "from tests.kernel_jobs import job, start\n"
        "from tests.test_kernels_pool import run\n"
        f"place = Path({str(place)!r})\n{body}"
    )
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_after_the_tool_was_stopped_a_rerun_does_only_the_rest(place, how):
    jobs = [job(f"k{n}", "write", files={f"k{n}": "x"}, cpu_s=9 - n) for n in range(3)]
    long_one = job("long", "long_child", pid=str(place / "pid"), cpu_s=1)
    body = (
        "jobs = [job(f'k{n}', 'write', files={f'k{n}': 'x'}, cpu_s=9 - n) for n in range(3)]\n"
        "jobs.append(job('long', 'long_child', pid=str(place / 'pid'), cpu_s=1))\n"
        "run(place, jobs, workers=1)\n"
    )
    stopped = tool(place, body)
    until(lambda: (place / "pid").exists() and (place / "pid").read_text())
    child = int((place / "pid").read_text())
    os.kill(stopped.pid, how)
    stopped.wait()
    until(lambda: not alive(child))

    told = run(place, [*jobs, replace(long_one, call="probe:nap", arguments={"seconds": 0})])

    assert [one.fresh for one in told] == [False, False, False, True]


@contextlib.contextmanager
def small_disk(folder):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_the_run_and_with_space_the_rest_is_done(place):
    jobs = [job("a", "fill", name="a.so", kib=400, cpu_s=9), job("b", "fill", name="b.so", kib=500)]
    (place / "build").mkdir()
    with small_disk(place / "build"):
        (place / "build/other").write_bytes(b"x" * (300 << 10))

        with pytest.raises(ToolError, match="the disk is full: kernel b") as stopped:
            run(place, jobs, workers=1)
        (place / "build/other").unlink()
        told = run(place, jobs, workers=1)

    assert "run the same command again" in stopped.value.hint
    assert [(one.error, one.fresh) for one in told] == [(None, False), (None, True)]


def test_a_full_device_ends_the_run(place):
    (place / "build").mkdir()
    (place / "build/b.so").symlink_to("/dev/full")
    jobs = [job("a", "fill", name="a.so", kib=4, cpu_s=9), job("b", "fill", name="b.so", kib=4)]

    with pytest.raises(ToolError, match="No space left on device"):
        run(place, jobs, workers=1)
    (place / "build/b.so").unlink()

    assert [one.fresh for one in run(place, jobs, workers=1)] == [False, True]


def test_a_journal_that_cannot_grow_ends_the_run_and_its_half_line_does_no_harm(place):
    jobs = [job(f"k{n}", cpu_s=9 - n) for n in range(4)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(
            ToolError, match=r"cannot write .*journal.jsonl: (No space|File too large)"
        ):
            run(place, jobs, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    kept = (place / "work/journal.jsonl").read_bytes()

    told = run(place, jobs, workers=1)

    assert 250 < len(kept) <= 500
    assert [one.fresh for one in told] == [n >= kept.count(b"\n") for n in range(4)]


# What is told meanwhile.


def test_progress_says_what_runs_and_how_long_it_takes(place):
    heard, counted = [], []

    class Heard:
        @contextlib.contextmanager
        def task(self, description, total=None, unit="", now=None):
            def advance(done):
                counted.append(done)
                heard.append(now())

            yield advance

    run(place, [job("k0", cpu_s=100, seconds=0.7), job("k1")], workers=1, progress=Heard())

    assert sum(counted) == 2
    assert any(one.startswith("kernel k0 (about 2 min left)") for one in heard)


def test_a_log_hears_once_a_minute_what_runs(place, monkeypatch, capsys):
    monkeypatch.setattr("elsa_build.cli.progress._SAY_EVERY_S", 0.6)

    run(place, [job("k0", seconds=1.2)], progress=LineProgress())

    *beats, end = capsys.readouterr().err.splitlines()
    assert beats[0].startswith("compile: 0 of 1 jobs; kernel k0 (about ")
    assert end.startswith("compile: ")
    assert end.endswith(" s")


def test_a_terminal_shows_what_runs_and_shortens_nothing(place):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200)

    run(place, [job("k0", seconds=0.8, cpu_s=300)], progress=BarProgress(console))

    assert "compile: kernel k0 (about 5 min left)" in screen.getvalue()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (3600, "60 min"), (7500, "2 h 05 min")],
)
def test_a_time_is_said_as_people_say_it(seconds, said):
    assert pool.duration(seconds) == said


# The memory of the machine.


MEMINFO = "MemTotal:       25165824 kB\nMemFree:  1 kB\nMemAvailable:   20971520 kB\n"


def write_all(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_without_a_container_the_memory_is_the_machines(tmp_path):
    write_all(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})

    assert (memory_total_mib(tmp_path), memory_available_mib(tmp_path)) == (24576, 20480)


def test_a_cgroup_of_the_second_version_limits_at_every_level(tmp_path):
    group = "sys/fs/cgroup/ci/job"
    write_all(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/ci/job\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.current": "1\n",
            f"{group}/memory.stat": "",
            "sys/fs/cgroup/ci/memory.max": f"{8 << 30}\n",
            "sys/fs/cgroup/ci/memory.current": f"{5 << 30}\n",
            "sys/fs/cgroup/ci/memory.stat": f"anon 1\ninactive_file {1 << 30}\n",
        },
    )

    assert (memory_total_mib(tmp_path), memory_available_mib(tmp_path)) == (8192, 4096)


def test_a_cgroup_of_the_first_version_limits_though_its_path_is_not_visible(tmp_path):
    write_all(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "7:cpu:/x\n4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 << 30}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 << 30}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {1 << 30}\n",
        },
    )

    assert (memory_total_mib(tmp_path), memory_available_mib(tmp_path)) == (4096, 2048)


def test_this_machine_has_memory():
    assert 0 < memory_available_mib() <= memory_total_mib()
