"""The farm over a real Dask scheduler and two workers, each a process of its own on 127.0.0.1."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels import farm, pool, toolchain, toolkit
from elsa_build.kernels.places import Places, start_here
from elsa_build.kernels.workers import WorkerStart
from tests.kernel_jobs import ROOT, alive, job, start, until

pytest.importorskip("distributed", reason="the extra farm is not installed")

DASK = (sys.executable, "-c", "import sys; from dask.__main__ import main; sys.exit(main())")
TYPICAL = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


class Dask:
    """A scheduler and its workers, each with two processors and 1,000 MiB to give."""

    def __init__(self, folder):
        self.folder, self.processes, self.workers = folder, [], []
        self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--dashboard-address",
            ":0",
            "--no-show",
        )
        self.address = self._said("scheduler", "Scheduler at:")

    def worker(self, name, resources="MEM=1000 CPU=2", **env):
        self._start(
            "worker",
            self.address,
            "--no-nanny",
            "--nthreads",
            "2",
            "--no-dashboard",
            "--memory-limit",
            "0",
            "--host",
            "127.0.0.1",
            "--local-directory",
            str(self.folder / name),
            *(["--resources", resources] if resources else []),
            log=name,
            env=env,
        )
        self._said(name, "Registered to:")
        return self.processes[-1]

    def _start(self, kind, *arguments, log=None, env=None):
        with (self.folder / f"{log or kind}.log").open("wb") as file:
            command = [*DASK, kind, *arguments]
            environment = {**TYPICAL, **(env or {}), "HOME": str(self.folder)}
            self.processes.append(
                subprocess.Popen(
                    command, stdout=file, stderr=file, env=environment, cwd=self.folder
                )
            )

    def _said(self, log, words):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for line in (self.folder / f"{log}.log").read_text().splitlines():
                if words in line:
                    return line.split()[-1]
            time.sleep(0.05)
        raise AssertionError((self.folder / f"{log}.log").read_text())

    def stop(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()


@contextlib.contextmanager
def dask(folder):
    started = Dask(folder)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    with dask(tmp_path_factory.mktemp("dask")) as started:
        started.worker("one")
        started.worker("two")
        yield started


@pytest.fixture
def place(tmp_path):
    for name in ("build", "work"):
        (tmp_path / name).mkdir()
    return tmp_path


def run(place, jobs, dask, **options):
    options = {"start": start(), "patience_s": 5, **options}
    return farm.run(
        jobs,
        scheduler=dask.address,
        journal=place / "work" / "journal.jsonl",
        build=place / "build",
        **options,
    )


def described(outcomes):
    return [(one.job, one.error, one.found, one.fresh) for one in outcomes]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def chain(n):
    """A module: two objects, the library of both, and its copy."""
    yield job(f"a{n}", "write", files={f"work/{n}/a.o": f"a{n};"})
    yield job(f"b{n}", "write", files={f"work/{n}/b.o": f"b{n};"})
    yield job(
        f"so{n}",
        "joined",
        of=[f"work/{n}/a.o", f"work/{n}/b.o"],
        to=f"jit/{n}.so",
        needs=[f"a{n}", f"b{n}"],
    )
    yield job(f"aot{n}", "joined", of=[f"jit/{n}.so"], to=f"aot/{n}.so", needs=[f"so{n}"])


def test_the_farm_and_the_pool_build_the_same(two, place):
    jobs = [one for n in range(4) for one in chain(n)]
    jobs += [job("bad", "fail"), job("after", needs=["bad"])]

    far = run(place, jobs, two)
    near = pool.run(
        jobs,
        start=start(),
        workers=2,
        memory_mib=1000,
        journal=place / "near" / "journal",
        build=place / "built",
    )

    assert described(far) == described(near)
    assert contents(place / "build") == contents(place / "built")
    assert sum(one.error is None for one in far) == 16


def test_a_file_that_names_its_folder_names_that_of_whoever_has_it(two, place):
    jobs = [job("k", "group"), *(job(f"f{n}", "follow", needs=["k"]) for n in range(4))]

    told = run(place, jobs, two)

    named = json.loads((place / "build/triton/__grp__k.json").read_text())["k.cubin"]
    assert named == str(place / "build/triton/k.cubin")
    assert [one.found for one in told[1:]] == [{"size": 5}] * 4


def test_both_machines_work_each_in_a_folder_of_its_own_and_leave_nothing(two, place):
    told = run(place, [job(f"k{n}", "whereabouts", seconds=0.2) for n in range(8)], two)

    # Told backwards, since a path that is told comes back as the caller's.
    builds = {one.found["backwards"][::-1] for one in told}
    assert {one.found["build"] for one in told} == {str(place / "build")}
    assert sorted(path.removeprefix(f"{two.folder}/")[:3] for path in builds) == ["one", "two"]
    assert 3 <= len({one.found["pid"] for one in told}) <= 4
    until(lambda: not list(two.folder.glob("**/elsa-build-*")))


def test_no_machine_runs_more_than_its_memory(two, place):
    told = run(place, [job(f"big{n}", mib=700, seconds=0.2) for n in range(5)], two)

    spans = [(one.found["begun"], one.found["ended"]) for one in told]
    together = [sum(b <= begun < e for b, e in spans) for begun, _ in spans]
    assert max(together) == 2  # one on each


def test_a_job_that_no_machine_can_hold_is_refused_and_the_others_are_done(two, place):
    told = run(place, [job("huge", mib=9000), job("small")], two)

    assert told[0].error == "needs 9000 MiB, the largest machine has 1000 MiB"
    assert told[1].error is None


def test_a_rerun_does_only_the_rest_with_what_the_first_run_left_here(two, place):
    jobs = list(chain(0))
    run(place, jobs[:2], two)

    told = run(place, jobs, two)

    assert [one.fresh for one in told] == [False, False, True, True]
    assert (place / "build/aot/0.so").read_text() == "a0;b0;"


def test_a_killed_worker_process_costs_one_retry_alone(two, place):
    jobs = [
        job("tight", "die", marks=str(place / "m"), times=1),
        job("bad", "exit_at_once"),
        job("ok"),
    ]

    told = run(place, jobs, two)

    assert told[0].error is None
    assert told[1].error.startswith("its worker ended with exit code 3")
    assert told[2].error is None


def test_folders_are_carried_to_machines_that_do_not_have_them(two, place):
    carried = place / "patched"
    (carried / "sglang").mkdir(parents=True)
    (carried / "sglang/kernel.py").write_text("text")
    arguments = {"of": [str(carried / "sglang/kernel.py")], "to": "copy"}

    (told,) = run(place, [job("k", "joined", **arguments)], two, carry=[carried])
    command = (place / "build/copy").read_text()

    assert told.error is None
    assert command == "text"


def test_what_is_carried_from_below_the_scratch_folder_lies_below_that_of_the_machine(two, place):
    generated = place / "work/flashinfer/generated"
    generated.mkdir(parents=True)
    (generated / "a.cu").write_text("text")
    only_the_scratch_folder_is_known = f"{place / 'work'}/./flashinfer/generated/a.cu"

    arguments = {"of": [only_the_scratch_folder_is_known], "to": "copy"}
    (told,) = run(place, [job("k", "joined", **arguments)], two, carry=[generated])

    assert told.error is None
    assert (place / "build/copy").read_text() == "text"


def interpreter(folder, header):
    """An interpreter for which pip installed a CUDA toolkit with this header."""
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    site = Path(toolchain.installed(python)["purelib"])
    home = site / "nvidia/cu13"
    for name, text in (("bin/nvcc", ""), ("include/cuda.h", header), ("lib/libcudart.so.13", "")):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    (home / "nvvm").mkdir()
    return python, home


def test_a_machine_whose_interpreter_is_elsewhere_compiles_with_its_own(place):
    mine, home = interpreter(place / "mine", "here")
    theirs, _ = interpreter(place / "theirs", "there")
    laid_out = place / "work/cuda-13.0.88"
    toolkit.lay_out(laid_out, home)
    given = start()
    given = replace(given, env={**given.env, "CUDA_HOME": str(laid_out)})
    jobs = [
        job("site", "joined", of=[str(home / "include/cuda.h")], to="site"),
        job("home", "joined", of=[str(laid_out / "include/cuda.h")], to="home"),
    ]

    with dask(place) as started:
        started.worker("one", ELSA_KERNELS_PYTHON=str(theirs))
        told = run(place, jobs, started, start=given, installed=toolchain.installed(mine))

    assert [one.error for one in told] == [None, None]
    assert [(place / "build" / name).read_text() for name in ("site", "home")] == ["there"] * 2


def test_an_interpreter_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ToolError, match="nowhere/python: cannot be run") as failure:
        toolchain.installed(tmp_path / "nowhere/python")

    assert failure.value.hint == "ELSA_KERNELS_PYTHON=PATH"


def test_a_machine_that_finds_something_else_than_here_is_refused(two, place):
    probe = job("toolchain", "toolchain", version="13.0")

    run(place, [job("k")], two, first=[farm.First(job=probe, found={"nvcc": "13.0"})])
    with pytest.raises(ToolError, match="cannot help: kernel toolchain: other nvcc than here"):
        run(place, [job("l")], two, first=[farm.First(job=probe, found={"nvcc": "12.8"})])


def test_a_lost_machine_s_jobs_are_done_by_the_other_and_its_processes_end(place):
    with dask(place) as started:
        started.worker("stays")
        lost = started.worker("goes")
        jobs = [job(f"k{n}", "nap_and_mark", marks=str(place), seconds=0.4) for n in range(8)]
        marks = f'while [ "$(ls {place} | grep -c mark-)" -lt 4 ]; do sleep 0.05; done'

        with subprocess.Popen(["sh", "-c", f"{marks}; kill -9 {lost.pid}"]):
            told = run(place, jobs, started)

        pids = [int(path.name.partition("-")[2]) for path in place.glob("mark-*")]
        assert lost.wait() == -signal.SIGKILL
        assert not [one.error for one in told if one.error]
        assert {one.found["pid"] for one in told} < set(pids)
        until(lambda: not any(map(alive, pids)))


def test_a_lost_scheduler_ends_the_run_and_what_came_back_is_kept(place):
    jobs = [job(f"k{n}", "write", files={f"k{n}": "x"}, cpu_s=9) for n in range(4)]
    jobs.append(job("last", "nap_and_mark", marks=str(place), seconds=2))
    with dask(place) as started:
        started.worker("one")
        scheduler = started.processes[0]
        marks = f'while [ "$(ls {place} | grep -c mark-)" -lt 1 ]; do sleep 0.05; done'

        with (
            subprocess.Popen(["sh", "-c", f"{marks}; sleep 0.3; kill -9 {scheduler.pid}"]),
            pytest.raises(ToolError, match=r"the Dask scheduler at .*; what is finished is kept"),
        ):
            run(place, jobs, started)

    near = pool.run(
        jobs,
        start=start(),
        workers=1,
        memory_mib=1000,
        journal=place / "work/journal.jsonl",
        build=place / "build",
    )
    assert [one.fresh for one in near] == [False, False, False, False, True]


def test_a_machine_s_files_are_written_only_below_our_folders(two, place):
    with pytest.raises(ToolError, match="a machine sent /etc/hostname"):
        run(place, [job("odd", "odd_output")], two)


def test_a_place_that_cannot_be_written_ends_the_run(two, place):
    (place / "build/jit").write_text("in the way")

    with pytest.raises(ToolError, match=r"cannot write .*/build/jit/0.so"):
        run(place, list(chain(0)), two)


def test_progress_names_what_runs_where(two, place):
    heard = []

    class Heard:
        @contextlib.contextmanager
        def task(self, description, total=None, unit="", now=None):
            yield lambda done: heard.append(now())

    run(place, [job("k0", seconds=1, cpu_s=100), job("k1", cpu_s=50)], two, progress=Heard())

    assert any(one.startswith("kernel k0 (machines: 2; about ") for one in heard), heard


def test_without_a_scheduler_or_a_worker_that_offers_memory_it_says_how_to_start_one(place):
    with dask(place) as started:
        started.worker("plain", resources=None)

        with pytest.raises(ToolError, match="offers MEM and CPU") as refused:
            run(place, [job("k")], started, patience_s=1)
    with pytest.raises(ToolError, match=r"no Dask scheduler at tcp://127.0.0.1:9"):
        farm.run(
            [job("k")],
            scheduler="tcp://127.0.0.1:9",
            start=start(),
            journal=place / "j",
            build=place,
            patience_s=1,
        )

    assert "--resources" in refused.value.hint


def test_without_dask_it_says_what_to_install(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(ConfigError) as refused:
        farm.run(
            [job("k")],
            scheduler="tcp://127.0.0.1:1",
            start=start(),
            journal=place / "j",
            build=place,
        )

    assert refused.value.hint == "pip install 'elsa-build[farm]'"


def test_dask_is_not_loaded_before_it_is_used():
    code = "import sys, elsa_build.kernels.farm; sys.exit('distributed' in sys.modules)"

    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# Paths of one machine on another.


def test_whole_folders_are_replaced_wherever_they_stand_in_a_text_and_back():
    places = Places((("/w/build", "/d/f0"), ("/w/build/../x", "/d/f2"), ("/w", "/d/f1")))

    command = "nvcc -o '/w/build/a.o' -I/w/build -I/w/build-2/x /w/cuda.cu /wide/a"

    here = places.here({"c": [command, 1, None]})

    assert here == {
        "c": ["nvcc -o '/d/f0/a.o' -I/d/f0 -I/d/f1/build-2/x /d/f1/cuda.cu /wide/a", 1, None]
    }
    assert places.back(here) == {"c": [command, 1, None]}


def test_a_machine_keeps_its_own_shell_and_takes_what_was_set_on_purpose():
    given = WorkerStart(
        command=("/here/python", "-m", "worker"),
        env={
            "HOME": "/home/me",
            "TRITON_CACHE_DIR": "/b/triton",
            "PATH": "/cuda/bin:/bin",
            "PYTHONPATH": "/lent:/tree",
        },
        setup={"build": "/b"},
    )
    own = {"HOME": "/home/it", "PATH": "/usr/bin", "ELSA_KERNELS_PYTHON": "/there/python"}

    made = start_here(
        given,
        Places((("/b", "/d/b"),)),
        inherited=frozenset({"HOME"}),
        package="/d/package",
        own=own,
    )

    assert made.command == ("/there/python", "-m", "worker")
    assert made.setup == {"build": "/d/b"}
    assert made.env == {
        "HOME": "/home/it",
        "TRITON_CACHE_DIR": "/d/b/triton",
        "PATH": "/cuda/bin:/bin:/usr/bin",
        "PYTHONPATH": "/d/package:/lent:/tree",
    }
