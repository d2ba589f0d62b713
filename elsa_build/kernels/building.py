"""From a plan to jobs, and from their outcomes to what a bundle holds: pure, so easy to read.

Who does the jobs is another question (`pool`, `farm`). A job's id names its work and what does it,
so a change of the tree, of a compiler or of the target is other work, and nothing else is.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elsa_build.diagnostics import Diagnostic
from elsa_build.kernels.bundle import Bundle
from elsa_build.kernels.jobs import Family, Job, Outcome
from elsa_build.kernels.plan import TRITON_CPU_S, TRITON_MIB, Plan, Planned, Tuning


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One planned kernel or choice, and the jobs that make it; the last one places the result."""

    family: Family
    name: str
    jobs: tuple[Job, ...]
    planned: Planned | None = None
    tuning: Tuning | None = None

    @property
    def cpu_s(self) -> float:
        """Return what it is estimated to take, CPU seconds."""
        return sum(job.cpu_s for job in self.jobs)

    @property
    def result(self) -> str:
        """Return the id of the job whose outcome is the kernel's."""
        return self.jobs[-1].id


def triton_work(plan: Plan, stamp: Mapping[str, Any]) -> Iterator[Work]:
    """Yield one work a specialisation; `stamp` is what else decides it (tree, tools, target)."""
    for one in plan.of(Family.TRITON):
        arguments = {"name": one.name, "spec": one.spec}
        job = _triton("triton:compile", one.name, arguments, stamp)
        yield Work(family=Family.TRITON, name=one.name, jobs=(job,), planned=one)


def tuning_work(
    plan: Plan,
    stamp: Mapping[str, Any],
    timings: Mapping[str, Any] | None = None,
    *,
    untimed: bool = False,
) -> Iterator[Work]:
    """Yield one work a choice among configurations.

    Args:
        plan: What was found to be tuned.
        stamp: What else decides a choice's place.
        timings: Milliseconds by configuration, by `choice_id`.
        untimed: Also write choices that no card has timed; their first configuration wins.
    """
    for one in plan.tunings:
        measured = (timings or {}).get(choice_id(one.name, one.key))
        if measured is None and not untimed:
            continue
        arguments = {**one.document(), "timings": measured}
        arguments.pop("why")
        job = _triton("triton:tune", f"{one.name} (choice)", arguments, stamp)
        yield Work(family=Family.TRITON, name=one.name, jobs=(job,), tuning=one)


def choice_id(name: str, key: Iterable[Any]) -> str:
    """Return what tells one choice from another: the function and what it is tuned for."""
    return json.dumps([name, list(key)])


def _triton(call: str, name: str, arguments: Mapping[str, Any], stamp: Mapping[str, Any]) -> Job:
    return Job(
        id=f"triton:{digest([call, arguments, stamp])}",
        family=Family.TRITON,
        name=name,
        call=call,
        arguments=arguments,
        memory_mib=TRITON_MIB,
        cpu_s=TRITON_CPU_S,
    )


def module_work(plan: Plan, family: Family, jobs: Iterable[Job]) -> Iterator[Work]:
    """Yield one work a planned module of nvcc's families, with those of the jobs that are its own.

    A module's jobs are named `MODULE` or `MODULE/part`, and the one that places it comes last.
    """
    own: dict[str, list[Job]] = {}
    for job in jobs:
        own.setdefault(job.name.partition("/")[0], []).append(job)
    for one in plan.of(family):
        if one.name in own:
            yield Work(family=family, name=one.name, jobs=tuple(own[one.name]), planned=one)


def stamped(jobs: Iterable[Job], stamp: Mapping[str, Any]) -> tuple[Job, ...]:
    """Return jobs whose ids also name what does them."""
    mark = digest(stamp)[:8]
    return tuple(
        replace(job, id=f"{job.id}@{mark}", needs=tuple(f"{need}@{mark}" for need in job.needs))
        for job in jobs
    )


def digest(value: object) -> str:
    """Return a short name of plain data by its content."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is built in the given time, and what is left for another."""

    taken: tuple[Work, ...]
    left: tuple[Work, ...]


def within(works: Sequence[Work], cpu_s: float | None) -> Choice:
    """Return what fits into a number of estimated CPU seconds, cheapest first (None: everything).

    By the estimates, not by a clock: two runs of one plan choose the same.
    """
    taken, left, spent = [], [], 0.0
    for work in sorted(works, key=lambda work: (work.cpu_s, work.family, work.name)):
        if cpu_s is not None and spent + work.cpu_s > cpu_s:
            left.append(work)
        else:
            taken.append(work)
            spent += work.cpu_s
    return Choice(taken=tuple(taken), left=tuple(left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What became of a work: the placing job's outcome, or the first error on the way to it."""

    work: Work
    outcome: Outcome
    error: str | None = None
    fresh: bool = False
    cpu_s: float = 0.0
    peak_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """What a build came to: the bundle, what became of each work, what was left, what was odd."""

    bundle: Bundle
    built: tuple[Built, ...]
    left: tuple[Work, ...]
    remarks: tuple[Diagnostic, ...] = ()

    @property
    def compiled(self) -> int:
        """Return how many works had to be compiled in this run."""
        return sum(one.fresh for one in self.built)

    @property
    def failed(self) -> tuple[Built, ...]:
        """Return the works that ended with an error."""
        return tuple(one for one in self.built if one.error is not None)


def built(works: Sequence[Work], outcomes: Iterable[Outcome]) -> tuple[Built, ...]:
    """Return what became of each work, in their order."""
    by_id = {outcome.job: outcome for outcome in outcomes}
    return tuple(_built(work, [by_id[job.id] for job in work.jobs]) for work in works)


def _built(work: Work, outcomes: Sequence[Outcome]) -> Built:
    errors = (one.error for one in outcomes if one.error is not None)
    return Built(
        work=work,
        outcome=outcomes[-1],
        error=next(errors, None),
        fresh=any(one.fresh for one in outcomes if one.error is None),
        cpu_s=sum(one.cpu_s for one in outcomes),
        peak_mib=max(one.peak_mib for one in outcomes),
    )
