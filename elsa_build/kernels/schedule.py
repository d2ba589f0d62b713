"""Which job is next: pure rules, so that they can be tried without building anything.

The longest chain of work goes first, since what it waits for cannot be made up later. A job that
does not fit may be overtaken, but only by one that does not make it wait longer; otherwise small
jobs would keep a large one out for ever.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.kernels.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a job takes: `memory_mib` while it runs, for `left_s` more seconds (estimated)."""

    job: Job
    memory_mib: int
    left_s: float


def claim(job: Job, memory_mib: int, *, alone: bool = False, spent_s: float = 0.0) -> Claim:
    """Return what a job takes of a budget, MiB: all of it when it must be alone or is larger."""
    whole = alone or job.memory_mib > memory_mib
    return Claim(
        job=job,
        # At least 1, so that nothing runs beside a job that claims the whole budget.
        memory_mib=memory_mib if whole else max(1, job.memory_mib),
        left_s=max(0.0, job.cpu_s - spent_s),
    )


def choose(ready: Sequence[Claim], running: Sequence[Claim], memory_mib: int) -> Claim | None:
    """Return the job to start now, None to wait.

    Args:
        ready: Jobs that could run, most urgent first.
        running: Jobs that do.
        memory_mib: The budget, MiB.
    """
    if not ready:
        return None
    free = memory_mib - sum(one.memory_mib for one in running)
    first = ready[0]
    if first.memory_mib <= free:
        return first
    wait_s, spare = _opening(first, running, free)
    for one in ready[1:]:
        if one.memory_mib <= free and (one.left_s <= wait_s or one.memory_mib <= spare):
            return one
    return None


def _opening(first: Claim, running: Sequence[Claim], free: int) -> tuple[float, int]:
    """Return in how many seconds there is room for a job, and the MiB that it then leaves."""
    for one in sorted(running, key=lambda one: one.left_s):
        free += one.memory_mib
        if free >= first.memory_mib:
            return one.left_s, free - first.memory_mib
    return 0.0, 0


def urgency(jobs: Sequence[Job]) -> Mapping[str, float]:
    """Return per id the CPU seconds of the longest chain that begins with it.

    Raises:
        ValueError: An id twice, a need that is no job, or jobs that need each other.
    """
    by_id = {job.id: job for job in jobs}
    if len(by_id) != len(jobs):
        raise ValueError("two jobs have one id")
    after: dict[str, list[str]] = {job.id: [] for job in jobs}
    for job in jobs:
        for need in job.needs:
            if need not in by_id:
                raise ValueError(f"job {job.id} needs '{need}', which is no job")
            after[need].append(job.id)
    found: dict[str, float] = {}
    open_ends = {job.id: len(after[job.id]) for job in jobs}
    ends = [job.id for job in jobs if not open_ends[job.id]]
    while ends:
        job = by_id[ends.pop()]
        found[job.id] = job.cpu_s + max((found[one] for one in after[job.id]), default=0.0)
        for need in job.needs:
            open_ends[need] -= 1
            if not open_ends[need]:
                ends.append(need)
    if len(found) != len(jobs):
        names = ", ".join(job.id for job in jobs if job.id not in found)
        raise ValueError(f"these jobs need each other: {names}")
    return found


def left_s(
    waiting: Collection[Claim],
    running: Collection[Claim],
    chains: Mapping[str, float],
    *,
    workers: int,
    memory_mib: int,
) -> float:
    """Return the least time, seconds, in which the rest can be done, by its estimates.

    It is the largest of four bounds: all work over the workers, the longest chain, all work times
    its memory over the budget, and the jobs of more than half the budget, no two of which overlap.
    """
    claims = [*waiting, *running]
    return max(
        sum(one.left_s for one in claims) / workers,
        max((chains[one.job.id] - one.job.cpu_s + one.left_s for one in claims), default=0.0),
        sum(one.left_s * one.memory_mib for one in claims) / memory_mib,
        sum(one.left_s for one in claims if 2 * one.memory_mib > memory_mib),
    )


def oversized(jobs: Sequence[Job], *, memory_mib: int, machine_mib: int) -> tuple[Diagnostic, ...]:
    """Return what to say of jobs that need more memory than the budget, or than there is."""
    said = []
    for job in jobs:
        if job.memory_mib > machine_mib:
            said.append(
                Diagnostic(
                    code="E451",
                    severity=Severity.ERROR,
                    message=f"{job.name}: {refusal(job, machine_mib)}",
                    hint="build it on a larger machine, or with the farm",
                )
            )
        elif job.memory_mib > memory_mib:
            said.append(
                Diagnostic(
                    code="E450",
                    severity=Severity.WARNING,
                    message=f"{job.name}: needs {job.memory_mib} MiB, more than the budget of"
                    f" {memory_mib} MiB; it runs alone",
                    hint="a larger memory budget, when the machine has it",
                )
            )
    return tuple(said)


def refusal(job: Job, machine_mib: int, machine: str = "this machine") -> str:
    """Return why a job is not tried on a machine."""
    return f"needs {job.memory_mib} MiB, {machine} has {machine_mib} MiB"
