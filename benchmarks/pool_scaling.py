"""What workers and machines give: real nvcc jobs by pool and farm, against bare processes.

    python benchmarks/pool_scaling.py --nvcc /usr/local/cuda/bin/nvcc

Every arm compiles the same files in a fresh folder: `bare` starts the commands from threads and
knows nothing of memory, order or restarts, so it is what the others' book-keeping is held against.
A farm is a Dask scheduler and a worker process a machine. Arms take turns: times are the best of
the rounds, ratios the median of each round's, since the machine may be busy. Prints one JSON
document.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from elsa_build.kernels import farm, pool
from elsa_build.kernels.jobs import Family, Job, Outcome
from elsa_build.kernels.workers import WorkerStart

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
template <int N> __global__ void mix(float *out, const float *in) {{
    float x[N];
    for (int i = 0; i < N; ++i) x[i] = in[threadIdx.x * N + i];
#pragma unroll
    for (int round = 0; round < {rounds}; ++round)
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = x[i] * x[(i + round) % N] + {number}.0f;
    for (int i = 0; i < N; ++i) out[threadIdx.x * N + i] = x[i];
}}
template __global__ void mix<32>(float *, const float *);
template __global__ void mix<48>(float *, const float *);
template __global__ void mix<64>(float *, const float *);
"""
DASK = (sys.executable, "-c", "import sys; from dask.__main__ import main; sys.exit(main())")
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
Arm = Callable[[Sequence[Job], Path], Sequence[Outcome]]


def start(calls: str) -> WorkerStart:
    """Return how a worker of this interpreter is started."""
    return WorkerStart(
        command=(sys.executable, "-m", "elsa_build.kernels.inside.worker"),
        env=ENV,
        setup={"calls": calls},
    )


def compiling(nvcc: str, arch: str, count: int, folder: Path) -> list[Job]:
    """Return jobs that compile generated files with nvcc."""
    jobs = []
    for number in range(count):
        source, output = folder / f"k{number}.cu", folder / "build" / f"k{number}.cubin"
        source.write_text(SOURCE.format(rounds=48 + 8 * (number % 3), number=number))
        arguments = {
            "command": f"{nvcc} -cubin -arch={arch} -o {output} {source}",
            "compiler": nvcc,
            "cwd": str(folder),
            "inputs": [str(source)],
            "output": str(output),
            "work": str(folder),
        }
        jobs.append(job(f"k{number}", "command:run", arguments, mib=300, cpu_s=3.0))
    return jobs


def job(name: str, call: str, arguments: Mapping[str, object], mib: int, cpu_s: float) -> Job:
    """Return one job."""
    return Job(
        id=name,
        family=Family.SGLANG_JIT,
        name=name,
        call=call,
        arguments=arguments,
        memory_mib=mib,
        cpu_s=cpu_s,
    )


def bare(workers: int) -> Arm:
    """Return an arm that only starts the commands, so many at a time."""

    def compile_one(job: Job) -> None:
        # A session of its own, as a worker has: Linux shares a busy machine out by sessions.
        command = ["sh", "-c", job.arguments["command"]]
        subprocess.run(command, check=True, start_new_session=True)

    def compile_all(jobs: Sequence[Job], folder: Path) -> Sequence[Outcome]:
        (folder / "build").mkdir(exist_ok=True)
        with ThreadPoolExecutor(workers) as threads:
            list(threads.map(compile_one, jobs))
        return ()

    return compile_all


def pooled(workers: int, calls: str = "elsa_build.kernels.inside") -> Arm:
    """Return an arm of so many workers of the pool."""
    return lambda jobs, folder: pool.run(
        jobs,
        start=start(calls),
        workers=workers,
        memory_mib=4000,
        journal=folder / "journal.jsonl",
        build=folder / "build",
    )


def farmed(address: str, calls: str = "elsa_build.kernels.inside") -> Arm:
    """Return an arm of the machines of one scheduler, which get a copy of the sources."""
    return lambda jobs, folder: farm.run(
        jobs,
        scheduler=address,
        start=start(calls),
        journal=folder / "journal.jsonl",
        build=folder / "build",
        scratch=folder,
        carry=[folder],
    )


@contextlib.contextmanager
def machines(count: int) -> Iterator[str]:
    """Start a scheduler and so many workers of one processor; give the address."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as processes:
        known = Path(folder) / "scheduler.json"
        common = ("--host", "127.0.0.1", "--scheduler-file", str(known))
        worker = ("worker", *common, "--no-nanny", "--no-dashboard", "--nthreads", "1")
        offers = ("--memory-limit", "0", "--resources", "MEM=4000 CPU=1")
        commands = [["scheduler", *common, "--port", "0", "--dashboard-address", ":0"]]
        commands += [
            [*worker, *offers, "--local-directory", f"{folder}/{number}"] for number in range(count)
        ]
        for command in commands:
            process = subprocess.Popen(
                [*DASK, *command], env=ENV, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            processes.callback(process.wait)
            processes.callback(process.kill)
            while not known.exists():
                time.sleep(0.05)
        address = json.loads(known.read_text())["address"]
        _until_there(address, count)
        yield address


def _until_there(address: str, count: int) -> None:
    from distributed import Client  # noqa: PLC0415 - only here

    with Client(address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        client.wait_for_workers(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One run: wall and CPU seconds, the CPU of the caller's own process, a digest of outputs."""

    wall_s: float
    job_cpu_s: float
    own_cpu_s: float
    made: str


def once(arm: Arm, make: Callable[[Path], Sequence[Job]]) -> Timed:
    """Run an arm in a fresh folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = make(folder)
        begun, own = time.perf_counter(), time.process_time()
        outcomes = arm(jobs, folder)
        wall, own = time.perf_counter() - begun, time.process_time() - own
        failed = [one.error for one in outcomes if one.error]
        if failed:
            raise SystemExit(failed[0])
        made = hashlib.sha256()
        for path in sorted(folder.glob("build/*.cubin")):
            made.update(path.read_bytes())
        return Timed(
            wall_s=wall,
            job_cpu_s=sum(one.cpu_s for one in outcomes),
            own_cpu_s=own,
            made=made.hexdigest(),
        )


def main() -> None:
    """Measure scaling and overhead, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--arch", default="sm_120f")
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--empty", type=int, default=200, help="jobs that do nothing")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    scaling: dict[str, list[Timed]] = {}
    overhead: dict[str, list[Timed]] = {}
    with machines(1) as one, machines(2) as two:
        arms = {
            "bare 1": bare(1),
            "pool 1": pooled(1),
            "farm 1": farmed(one),
            "bare 2": bare(2),
            "pool 2": pooled(2),
            "farm 2": farmed(two),
        }
        empty = {
            "pool 1": pooled(1, "tests.worker_calls"),
            "pool 2": pooled(2, "tests.worker_calls"),
            "farm 1": farmed(one, "tests.worker_calls"),
            "farm 2": farmed(two, "tests.worker_calls"),
        }
        for _ in range(asked.rounds):
            for name, arm in arms.items():
                timed = once(
                    arm, lambda folder: compiling(asked.nvcc, asked.arch, asked.files, folder)
                )
                scaling.setdefault(name, []).append(timed)
            for name, arm in empty.items():
                timed = once(arm, lambda _: nothing(asked.empty))
                overhead.setdefault(name, []).append(timed)
    sys.stdout.write(json.dumps(result(asked, scaling, overhead), indent=2) + "\n")


def nothing(count: int) -> list[Job]:
    """Return jobs that do nothing."""
    return [job(f"n{n}", "probe:nap", {"seconds": 0}, mib=1, cpu_s=0.01) for n in range(count)]


def result(
    asked: argparse.Namespace,
    scaling: dict[str, list[Timed]],
    overhead: dict[str, list[Timed]],
) -> dict[str, object]:
    """Return the document: the best of each arm, and the median of each round's ratios."""
    best = {name: min(one.wall_s for one in runs) for name, runs in scaling.items()}
    ours = [f"{kind} {n}" for kind in ("pool", "farm") for n in (1, 2)]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "load_1min_at_end": round(os.getloadavg()[0], 1),
        "jobs": f"{asked.files} files by nvcc for {asked.arch}",
        "rounds": asked.rounds,
        "wall_s": {name: round(wall, 2) for name, wall in best.items()},
        "job_cpu_s": {name: round(min(one.job_cpu_s for one in scaling[name]), 1) for name in ours},
        "times_faster_with_2": {
            kind: ratio(scaling[f"{kind} 1"], scaling[f"{kind} 2"])
            for kind in ("bare", "pool", "farm")
        },
        "wall_against_bare": {
            name: ratio(scaling[name], scaling[f"bare {name[-1]}"]) for name in ours
        },
        "outputs_equal": len({one.made for runs in scaling.values() for one in runs}) == 1,
        "empty_jobs": asked.empty,
        "wall_ms_an_empty_job": {
            name: round(1000 * min(one.wall_s for one in runs) / asked.empty, 2)
            for name, runs in overhead.items()
        },
        "own_cpu_ms_an_empty_job": {
            name: round(1000 * min(one.own_cpu_s for one in runs) / asked.empty, 2)
            for name, runs in overhead.items()
        },
    }


def ratio(runs: Sequence[Timed], others: Sequence[Timed]) -> float:
    """Return the median over rounds of wall time over wall time."""
    pairs = zip(runs, others, strict=True)
    return round(statistics.median(one.wall_s / other.wall_s for one, other in pairs), 2)


if __name__ == "__main__":
    main()
