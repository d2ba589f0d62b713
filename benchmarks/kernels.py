"""A start that compiles against one that finds a bundle, and what the bundle cost to build.

    python benchmarks/kernels.py --recipe elsa-1.7 --bundle dist/kernels/elsa-1.7 -o kernels.json

Both arms are one process of the interpreter that compiles (`.venv-kernels`, or --python): it
starts, imports the patched tree, and asks for every Triton kernel and every module of SGLang's JIT
that the bundle has, one after the other as a server's first start does. `cold` has empty caches,
`bundled` has the bundle, unpacked in another place. The arms take turns; times are medians of the
rounds, ratios the median of each round's. No GPU: nothing is launched, so it is the compile time
that a start would wait for, not a boot. The third arm compiles on two processes. `--build` adds
what whole builds took (`kernels build --all`), from their journals. Prints one JSON document.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elsa_build import precompiling, project
from elsa_build.kernels import bundle, nvcc_jobs, pool, unpacking
from elsa_build.kernels.jobs import Family, Job, Outcome
from elsa_build.kernels.plan import TRITON_MIB, Plan
from elsa_build.kernels.workers import WorkerStart
from elsa_build.prebuilding import Shop, Wanted
from elsa_build.precompiling import Workplace

ROOT = Path(__file__).resolve().parent.parent
ROOMY_MIB = 1 << 20
"""No arm waits for memory here: the kernels of this benchmark are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start: seconds from the process's start until all was there, and what was compiled."""

    seconds: float
    cpu_s: float
    compiled: int
    failed: int


def asked(plan: Plan, held: bundle.Manifest) -> list[Job]:
    """Return what a start asks for: the planned kernels that the bundle has, in their order."""
    ids = {kernel.id for kernel in held.kernels}
    documents = [{"family": one.family, **one.document()} for one in plan.kernels if one.id in ids]
    triton = [
        Job(
            id=one.id,
            family=Family.TRITON,
            name=one.name,
            call="triton:compile",
            arguments={"name": one.name, "spec": one.spec},
            memory_mib=TRITON_MIB,
            cpu_s=1.0,
        )
        for one in plan.of(Family.TRITON)
        if one.id in ids
    ]
    return [*triton, *nvcc_jobs.sglang_jobs(documents)]


def start(jobs: Sequence[Job], begin: WorkerStart, build: Path, workers: int) -> Start:
    """Run a start on so many processes, in the caches of a build folder."""
    journal = build.parent / f"{build.name}.jsonl"
    began = time.monotonic()
    outcomes: tuple[Outcome, ...] = pool.run(
        jobs, start=begin, workers=workers, memory_mib=ROOMY_MIB, journal=journal, build=build
    )
    return Start(
        seconds=time.monotonic() - began,
        cpu_s=sum(one.cpu_s for one in outcomes),
        compiled=sum(one.fresh for one in outcomes),
        failed=sum(one.error is not None for one in outcomes),
    )


class Bench:
    """The jobs, and how a process that does them is started."""

    def __init__(self, place: Workplace, plan: Plan, held: bundle.Bundle, folder: Path) -> None:
        self.place, self.held, self.folder = place, held, folder
        self.jobs = asked(plan, held.manifest)
        self.shop = Shop(place, Wanted(), progress=_QUIET)
        self._number = 0

    def cold(self, workers: int = 1) -> Start:
        """Start with empty caches."""
        return start(self.jobs, self._begin(build := self._fresh()), build, workers)

    def bundled(self) -> Start:
        """Start with the bundle, unpacked in a place where it has never been."""
        build = self._fresh()
        unpacking.unpack(self.held, build)
        return start(self.jobs, self._begin(build), build, 1)

    def _fresh(self) -> Path:
        self._number += 1
        return self.folder / f"caches-{self._number}"

    def _begin(self, build: Path) -> WorkerStart:
        begin = self.shop.start()
        env = self.place.tools.environment(build, os.environ)
        return WorkerStart(command=begin.command, env=env, setup=begin.setup)


def measured(bench: Bench, rounds: int) -> dict[str, Any]:
    """Return both arms' medians, the ratio, and the same building on two workers."""
    pairs = [(bench.cold(), bench.bundled(), bench.cold(workers=2)) for _ in range(rounds)]
    cold, bundled, two = zip(*pairs, strict=True)
    return {
        "rounds": rounds,
        "kernels": len(bench.jobs),
        "cold": _shown(cold),
        "bundled": _shown(bundled),
        "cold_over_bundled": _median(a.seconds / b.seconds for a, b, _ in pairs),
        "cold_on_two_workers": _shown(two),
        "one_worker_over_two": _median(a.seconds / c.seconds for a, _, c in pairs),
    }


def _shown(starts: Sequence[Start]) -> dict[str, float]:
    return {
        "seconds": _median(one.seconds for one in starts),
        "cpu_s": _median(one.cpu_s for one in starts),
        "compiled": max(one.compiled for one in starts),
        "failed": max(one.failed for one in starts),
    }


def _median(values: Iterator[float]) -> float:
    return round(statistics.median(values), 2)


def built(given: str) -> dict[str, Any]:
    """Return what a build took, whole and by module; `SECONDS,FILE`: its wall time, its journal.

    `there` counts jobs whose result an earlier build had left; `longest_s` is one job's wall time.
    """
    seconds, _, journal = given.partition(",")
    lines = Path(journal).read_text(encoding="utf-8").splitlines()
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        family, _, rest = one.job.partition(":")
        module = re.split("[/:@]", rest)[0] if family == Family.FLASHINFER else "all"
        groups.setdefault(f"{family} {module}", []).append(one)
    parts = {name: _sum(group) for name, group in sorted(groups.items())}
    return {"seconds": float(seconds), "all": _sum(outcomes), **parts}


def _sum(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        "jobs": len(outcomes),
        "there": sum(not one.fresh for one in outcomes),
        "failed": sum(one.error is not None for one in outcomes),
        "cpu_s": round(sum(one.cpu_s for one in outcomes)),
        "peak_mib": max(one.peak_mib for one in outcomes),
        "longest_s": round(max(one.wall_s for one in outcomes)),
    }


def machine() -> dict[str, Any]:
    """Return what the machine is, without its name."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
        return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}
    return {"cores": os.cpu_count(), "python": platform.python_version()}


class _Quiet:
    """Where the shop announces itself: nowhere, its time is not measured."""

    @contextlib.contextmanager
    def task(self, *_: object, **__: object) -> Iterator[Any]:
        yield lambda _: None


_QUIET = _Quiet()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--recipe")
    parser.add_argument("--python", type=Path)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", action="append", metavar="MACHINE=SECONDS,JOURNAL", default=[])
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    recipe = project.choose_recipe(ROOT, name=given.recipe)
    with (
        tempfile.TemporaryDirectory() as folder,
        precompiling.workplace(ROOT, recipe, python=given.python, environ=os.environ) as place,
    ):
        plan = precompiling.current(ROOT, place, dry_run=True)
        bench = Bench(place, plan, bundle.read(given.bundle), Path(folder))
        document = {"machine": machine(), "start": measured(bench, given.rounds)}
    machines = (one.partition("=") for one in given.build)
    document["builds"] = {name: built(rest) for name, _, rest in machines}
    text = json.dumps(document, indent=1) + "\n"
    sys.stdout.write(text)
    if given.output:
        given.output.write_text(text)
    return int(document["start"]["bundled"]["compiled"] > 0)


if __name__ == "__main__":
    sys.exit(main())
