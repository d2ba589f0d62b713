"""Build on several machines: the jobs of a pool on Dask, which places, moves and repeats them.

Dask has the queue, the network and the dead machines; ours are only the order, the estimates and
the journal. A caller's build folder and journal are the same after the farm as after the pool.
"""

import contextlib
import errno
import queue
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elsa_build.errors import ElsaError, ToolError
from elsa_build.kernels.jobs import Job, Outcome
from elsa_build.kernels.journal import Journal, disk_failed, opened, products
from elsa_build.kernels.machines import Client, Machines, connected, how_to_start, seen, wait
from elsa_build.kernels.parcels import Product, pack, put
from elsa_build.kernels.pool import State, duration, refused
from elsa_build.kernels.schedule import left_s, urgency
from elsa_build.kernels.workers import WorkerStart
from elsa_build.progress import SILENT, Progress

Future = Any
"""A `distributed.Future` of a `Done`; untyped, as Dask's client is."""

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """A job that each machine does before any other, and what it must find there.

    So that a machine with another compiler is refused instead of building what is never looked up.
    """

    job: Job
    found: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What came of a job, with its files. `lacked` is "memory" or "disk" when that was why."""

    outcome: Outcome
    made: tuple[Product, ...] = ()
    lacked: str | None = None


def run(
    jobs: Sequence[Job],
    *,
    scheduler: str,
    start: WorkerStart,
    journal: Path,
    build: Path,
    scratch: Path | None = None,
    carry: Sequence[Path] = (),
    installed: Mapping[str, str] | None = None,
    first: Sequence[First] = (),
    progress: Progress = SILENT,
    patience_s: float = 60.0,
) -> tuple[Outcome, ...]:
    """Do the jobs on the workers of a Dask scheduler; outcomes are in the order of `jobs`.

    A Dask worker offers the resources MEM (MiB) and CPU. It has a build and a scratch folder of its
    own, and every path below the caller's is rewritten to it. What a job made comes back as bytes
    and is written here. A lost machine's jobs are done elsewhere.

    Args:
        jobs: What to do; their needs are among them.
        scheduler: Its address, as `tcp://host:8786`.
        start: How a worker process is started, as on this machine.
        journal: What is finished, as for the pool.
        build: Where the outputs are written.
        scratch: The caller's folder for what a bundle does not hold; the journal's when None.
        carry: Folders that every machine gets a copy of: the patched tree, generated sources.
        installed: Where the caller's interpreter has things (`toolchain.installed`); paths below
            them are rewritten as well, and a toolkit that pip installed is laid out there.
        first: What each machine does first, and must find as this one did.
        progress: Where it is told what runs now and how long the rest takes.
        patience_s: How long to wait while there is no machine, seconds.

    Raises:
        ConfigError: Dask is not installed (exit 5).
        ToolError: No scheduler, no machine, one that differs from this one, a full disk (exit 6).
        ValueError: The jobs' needs do not make sense.
    """
    chains = urgency(jobs)
    folders = (build, scratch or journal.parent)
    with opened(journal, build) as kept, connected(scheduler, patience_s) as client:
        machines = wait(client, scheduler, patience_s)
        done = {job.id: told for job in jobs if (told := kept.finished(job, build))}
        state = State(jobs, chains, done, machines.memory_mib)
        largest = machines.largest_mib
        state.settle(refused(state.waiting.values(), largest, "the largest machine"))
        farm = Farm(client, scheduler, kept, state, build, folders, machines, patience_s)
        shown = progress.task("compile", len(jobs), "jobs", now=farm.now)
        with _hands(client, farm, start, carry, installed or {}, first), shown as advance:
            counted = 0
            while True:
                advance(len(state.outcomes) - counted)
                counted = len(state.outcomes)
                if not state.waiting and not farm.asked:
                    break
                farm.step()
    return tuple(state.outcomes[job.id] for job in jobs)


@dataclass(slots=True)
class Farm:
    """One run: what was asked of Dask, and what is kept for jobs that need it."""

    client: Client
    scheduler: str
    journal: Journal
    state: State
    build: Path
    folders: tuple[Path, ...]
    machines: Machines
    patience_s: float
    name: str = field(default_factory=lambda: f"elsa-build-{uuid.uuid4().hex[:12]}")
    asked: dict[Future, tuple[Job, int]] = field(default_factory=dict)
    done: dict[str, Future] = field(default_factory=dict)
    heard: queue.SimpleQueue[Future] = field(default_factory=queue.SimpleQueue)
    running: dict[str, str] = field(default_factory=dict)
    last_s: float = field(default_factory=time.monotonic)
    expected_s: float = 0.0
    took_s: float = 0.0

    def step(self) -> None:
        """Ask for what can be done now, then wait a moment for what was."""
        for job in self.state.ready():
            self._ask(self.state.waiting.pop(job.id))
        needed = {need for job in self.state.waiting.values() for need in job.needs}
        self.done = {id_: future for id_, future in self.done.items() if id_ in needed}
        try:
            self._hear(self.heard.get(timeout=_LOOK_EVERY_S))
        except queue.Empty:
            self._look()

    def now(self) -> str:
        """Return what runs and how long the rest takes, by the pace so far."""
        jobs = (*self.state.waiting.values(), *(job for job, _ in self.asked.values()))
        rest = left_s(
            [self.state.claim(job) for job in jobs],
            [],
            self.state.chains,
            workers=max(1, self.machines.cpus),
            memory_mib=max(1, self.machines.memory_mib),
        )
        pace = self.took_s / self.expected_s if self.expected_s else 1.0
        names = ", ".join(self.running.copy().values())
        return f"{names} (machines: {self.machines.count}; about {duration(rest * pace)} left)"

    def note(self, event: tuple[float, Any]) -> None:
        """Remember what a machine began; called in a thread of Dask's."""
        self.running[event[1]["id"]] = event[1]["name"]

    def _ask(self, job: Job) -> None:
        from elsa_build.kernels import farmhand  # noqa: PLC0415 - imports Dask

        alone = job.id in self.state.alone
        wanted = {"MEM": job.memory_mib, "CPU": 1}
        if alone:
            wanted = {"MEM": self.machines.largest_mib, "CPU": self.machines.largest_cpus}
        needs = [self.done.get(need) or self._given(need) for need in job.needs]
        future = self.client.submit(
            farmhand.do,
            self.name,
            job,
            needs,
            key=f"{self.name}-{job.id}{'-alone' if alone else ''}",
            resources=wanted,
            priority=round(self.state.chains[job.id] * 1000),
            pure=False,
        )
        self.asked[future] = (job, wanted["MEM"])
        future.add_done_callback(self.heard.put)

    def _given(self, need: str) -> Future:
        """Send what an earlier run made; to all, so that no machine's loss loses it."""
        outcome = self.state.outcomes[need]
        made = [Product.of(path) for path in products(outcome, self.build)]
        given = self.client.scatter(
            Done(outcome=outcome, made=tuple(made)), broadcast=True, hash=False
        )
        self.done[need] = given
        return given

    def _hear(self, future: Future) -> None:
        """Keep what came of a job; ask once more, alone, when memory was too little."""
        job, _ = self.asked.pop(future)
        self.running.pop(job.id, None)
        self.last_s = time.monotonic()
        done = self._result(future, job)
        outcome = done.outcome
        if outcome.error is not None:
            if done.lacked == "disk":
                raise disk_failed(f"the disk is full: {job.name}: {outcome.error}", self.build)
            if done.lacked == "memory" and self.state.again(job):
                return
        for product in done.made:
            self._put(product)
        if outcome.error is None and outcome.fresh:
            self.expected_s += job.cpu_s
            self.took_s += outcome.wall_s
        self.done[job.id] = future
        self.journal.add(outcome)
        self.state.settle([outcome])

    def _result(self, future: Future, job: Job) -> Done:
        from distributed import KilledWorker  # noqa: PLC0415 - only with the farm

        if future.status == "finished":
            done: Done = future.result()
            return done
        if future.status != "error":
            raise self._gone("has gone")
        error = future.exception()
        if isinstance(error, ElsaError):
            raise error
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_failed(f"the disk is full: {job.name}: {error}", self.build)
        said = f"{type(error).__name__}: {error}"
        if isinstance(error, KilledWorker):
            said = f"the Dask workers that tried it died, {error.last_worker.address} the last"
        return Done(outcome=Outcome(job=job.id, error=said))

    def _put(self, product: Product) -> None:
        path = Path(product.path)
        if ".." in path.parts or not any(path.is_relative_to(folder) for folder in self.folders):
            raise ToolError(f"a machine sent {path}, which is not below the build folder")
        try:
            put(product, path)
        except OSError as e:
            raise disk_failed(f"cannot write {path}: {e.strerror}", self.build) from e

    def _look(self) -> None:
        """Count the machines; without one that is large enough there is nothing to wait for."""
        try:
            self.machines = seen(self.client)
        except OSError:
            raise self._gone("does not answer") from None
        if max((mib for _, mib in self.asked.values()), default=0) <= self.machines.largest_mib:
            self.last_s = time.monotonic()
        elif time.monotonic() - self.last_s > self.patience_s:
            raise self._gone("has no worker any more that is large enough")

    def _gone(self, what: str) -> ToolError:
        return ToolError(
            f"the Dask scheduler at {self.scheduler} {what}; what is finished is kept",
            hint=how_to_start(self.scheduler),
        )


@contextlib.contextmanager
def _hands(
    client: Client,
    farm: Farm,
    start: WorkerStart,
    carry: Sequence[Path],
    installed: Mapping[str, str],
    first: Sequence[First],
) -> Iterator[None]:
    """Give every machine, also one that comes later, what it needs; take it back at the end."""
    from elsa_build.kernels.farmhand import Hand  # noqa: PLC0415 - imports Dask

    carried = [(folder, pack(folder)) for folder in carry]
    setup = {**start.setup, "build": str(farm.build)}
    start = WorkerStart(command=start.command, env=start.env, setup=setup)
    client.subscribe_topic(farm.name, farm.note)
    try:
        hand = Hand(
            farm.name, start, farm.folders, carried=carried, installed=installed, first=first
        )
        client.register_plugin(hand)
        yield
    finally:
        for future in farm.asked:
            future.cancel(force=True)
        with contextlib.suppress(OSError, ValueError):
            client.unregister_worker_plugin(farm.name)
            client.unsubscribe_topic(farm.name)
