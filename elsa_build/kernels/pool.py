"""Build on one machine: jobs on worker processes, within its memory, and nothing lost by a stop.

Compilers of large kernels take 8 GiB each, so one process a core is killed on an ordinary builder.
What is finished is in the journal before the next job starts: after ^C, a kill or a full disk the
same call does only the rest.
"""

import selectors
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from elsa_build.errors import ToolError
from elsa_build.kernels.jobs import Job, Outcome
from elsa_build.kernels.journal import Journal, disk_failed, opened
from elsa_build.kernels.memory import memory_total_mib
from elsa_build.kernels.schedule import Claim, choose, claim, left_s, refusal, urgency
from elsa_build.kernels.workers import Answer, Worker, WorkerDiedError, WorkerStart
from elsa_build.progress import SILENT, Progress

_LOOK_EVERY_S = 0.5
_FULL_BYTES = 1 << 20


def run(
    jobs: Sequence[Job],
    *,
    start: WorkerStart,
    workers: int,
    memory_mib: int,
    journal: Path,
    build: Path,
    progress: Progress = SILENT,
    machine_mib: int | None = None,
) -> tuple[Outcome, ...]:
    """Do the jobs and return their outcomes, in the order of `jobs`.

    The most urgent goes first (the longest chain of CPU seconds). A failed job fails those that
    need it and no others. When a worker dies or runs out of memory, its job is tried once more,
    alone. A job larger than the budget runs alone, one larger than the machine is not tried.

    Args:
        jobs: What to do; their needs are among them.
        start: How a worker is started; its setup is given the build folder.
        workers: How many processes.
        memory_mib: What jobs that run together may need by their estimates, MiB.
        journal: What is finished; JSON lines. Logs of the workers are written beside it.
        build: Where the outputs lie; a finished job whose files have gone is done again.
        progress: Where it is told what runs now and how long the rest takes.
        machine_mib: The memory of this machine, MiB; found out when None.

    Raises:
        ToolError: A worker does not start or talks nonsense, the disk is full, or another run has
            the journal (exit 6).
        ValueError: The jobs' needs do not make sense.
    """
    chains = urgency(jobs)
    machine = memory_total_mib() if machine_mib is None else machine_mib
    setup = {**start.setup, "build": str(build)}
    start = WorkerStart(command=start.command, env=start.env, setup=setup)
    with opened(journal, build) as kept:
        done = {job.id: told for job in jobs if (told := kept.finished(job, build))}
        state = State(jobs, chains, done, memory_mib)
        state.settle(refused(state.waiting.values(), machine))
        crew = Crew(start, journal.parent, max(1, min(workers, len(state.waiting))), kept, state)
        with crew, progress.task("compile", len(jobs), "jobs", now=crew.now) as advance:
            counted = 0
            while True:
                advance(len(state.outcomes) - counted)
                counted = len(state.outcomes)
                if not state.waiting and not crew.busy:
                    break
                crew.step()
    return tuple(state.outcomes[job.id] for job in jobs)


def refused(jobs: Iterable[Job], machine_mib: int, machine: str = "this machine") -> list[Outcome]:
    """Return the outcomes of jobs that a machine cannot hold."""
    return [
        Outcome(job=job.id, error=refusal(job, machine_mib, machine), fresh=False)
        for job in jobs
        if job.memory_mib > machine_mib
    ]


class State:
    """Which jobs wait, and what became of the others. `alone` ones were killed once."""

    def __init__(
        self,
        jobs: Sequence[Job],
        chains: Mapping[str, float],
        done: Mapping[str, Outcome],
        memory_mib: int,
    ) -> None:
        self.chains, self.memory_mib = chains, memory_mib
        self.outcomes = dict(done)
        self.alone: set[str] = set()
        self.waiting = self._ordered([job for job in jobs if job.id not in done])

    def _ordered(self, jobs: Sequence[Job]) -> dict[str, Job]:
        return {job.id: job for job in sorted(jobs, key=lambda job: -self.chains[job.id])}

    def claim(self, job: Job, spent_s: float = 0.0) -> Claim:
        """Return what a job takes of the budget."""
        return claim(job, self.memory_mib, alone=job.id in self.alone, spent_s=spent_s)

    def ready(self) -> list[Job]:
        """Return the jobs that wait for no other, most urgent first."""
        return [
            job for job in self.waiting.values() if all(need in self.outcomes for need in job.needs)
        ]

    def take(self, running: Sequence[Claim]) -> Job | None:
        """Take the job to start now from those that wait."""
        chosen = choose([self.claim(job) for job in self.ready()], running, self.memory_mib)
        return self.waiting.pop(chosen.job.id) if chosen else None

    def again(self, job: Job) -> bool:
        """Put back a job whose worker died, to run alone; False when that was its second time."""
        if job.id in self.alone:
            return False
        self.alone.add(job.id)
        self.waiting = self._ordered([*self.waiting.values(), job])
        return True

    def settle(self, outcomes: Iterable[Outcome]) -> None:
        """Note outcomes; what needs a failed job fails with it, and says of which."""
        failed = {}
        for outcome in outcomes:
            self.outcomes[outcome.job] = outcome
            self.waiting.pop(outcome.job, None)
            if outcome.error is not None:
                failed[outcome.job] = outcome.job
        while failed:
            lost = {
                job.id: failed[need]
                for job in self.waiting.values()
                for need in job.needs
                if need in failed
            }
            for job, root in lost.items():
                error = f"not tried: it needs {root}, which failed"
                self.outcomes[job] = Outcome(job=job, error=error, fresh=False)
                del self.waiting[job]
            failed = lost


@dataclass(slots=True)
class Crew:
    """The workers of one run and what each does; leaving the block ends them."""

    start: WorkerStart
    logs: Path
    size: int
    journal: Journal
    state: State
    busy: dict[Worker, tuple[Job, float]] = field(default_factory=dict)
    idle: list[Worker] = field(default_factory=list)
    started: int = 0
    expected_s: float = 0.0
    took_s: float = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in (*self.busy, *self.idle):
            worker.stop()

    def step(self) -> None:
        """Start what can be started, then wait a moment for answers."""
        while len(self.busy) < self.size:
            job = self.state.take(self._running())
            if job is None:
                break
            worker = self.idle.pop() if self.idle else self._worker()
            self.busy[worker] = (job, time.monotonic())
            worker.send(job)
        with selectors.DefaultSelector() as selector:
            for worker in self.busy:
                selector.register(worker, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(_LOOK_EVERY_S)}
        for worker in tuple(self.busy):
            if worker in ready or worker.dead():
                self._hear(worker, answers=worker in ready)

    def now(self) -> str:
        """Return what runs and how long the rest takes, by the pace so far."""
        names = ", ".join(job.name for job, _ in self.busy.values())
        pace = self.took_s / self.expected_s if self.expected_s else 1.0
        rest = left_s(
            [self.state.claim(job) for job in self.state.waiting.values()],
            self._running(),
            self.state.chains,
            workers=self.size,
            memory_mib=self.state.memory_mib,
        )
        return f"{names} (about {duration(rest * pace)} left)"

    def _running(self) -> list[Claim]:
        now = time.monotonic()
        return [self.state.claim(job, now - since) for job, since in self.busy.values()]

    def _worker(self) -> Worker:
        self.started += 1
        # A log is of one process; a run has few of them, unless they die.
        return Worker(self.start, self.logs / f"worker-{self.started}.log")

    def _hear(self, worker: Worker, *, answers: bool) -> None:
        """Read an answer, or find out how a worker died."""
        job, since = self.busy[worker]
        try:
            answer = worker.receive() if answers else worker.died()
            if isinstance(answer, WorkerDiedError):
                raise answer
        except WorkerDiedError as e:
            del self.busy[worker]
            if not self.state.again(job):
                self._note(Outcome(job=job.id, error=f"{e}\n(twice, the second time alone)"), since)
            return
        if answer is None:
            return
        if answer.job != job.id:
            raise ToolError(f"the worker {worker.name} answers '{answer.job}', asked {job.id}")
        del self.busy[worker]
        self.idle.append(worker)
        if answer.error is not None:
            self._failed(job, answer, answer.error)
            if answer.lacked == "memory" and self.state.again(job):
                return
        elif answer.fresh:
            self.expected_s += job.cpu_s
            self.took_s += time.monotonic() - since
        self._note(answer.outcome(), since)

    def _failed(self, job: Job, answer: Answer, error: str) -> None:
        """Stop the run when a job failed for want of disk: the others would fail as well."""
        build = Path(self.start.setup["build"])
        if answer.lacked == "disk" or shutil.disk_usage(build).free < _FULL_BYTES:
            raise disk_failed(f"the disk is full: {job.name}: {error}", build)

    def _note(self, outcome: Outcome, since: float) -> None:
        timed = replace(outcome, wall_s=round(time.monotonic() - since, 3))
        self.journal.add(timed)
        self.state.settle([timed])


def duration(seconds: float) -> str:
    """Return a time as a person says it: `40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
