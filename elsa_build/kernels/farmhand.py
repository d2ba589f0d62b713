"""The farm's half on the other machine: what a Dask worker keeps and does for us.

A plugin of Dask holds the folders and the worker processes for one run, and ends them with it. What
a job made travels back as bytes, so the machines need no file system in common.
"""

import itertools
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distributed import Worker as DaskWorker
from distributed import WorkerPlugin, get_worker

from elsa_build import __version__
from elsa_build.errors import ToolError
from elsa_build.kernels import toolchain, toolkit
from elsa_build.kernels.farm import Done, First
from elsa_build.kernels.jobs import Job, Outcome
from elsa_build.kernels.journal import products
from elsa_build.kernels.parcels import Product, put, unpack
from elsa_build.kernels.places import PYTHON, Places, start_here
from elsa_build.kernels.workers import Answer, Worker, WorkerDiedError, WorkerStart


class Hand(WorkerPlugin):
    """The workers of one run on one machine."""

    def __init__(
        self,
        name: str,
        start: WorkerStart,
        folders: Sequence[Path],
        *,
        carried: Sequence[tuple[Path, bytes]] = (),
        installed: Mapping[str, str] | None = None,
        first: Sequence[First] = (),
    ) -> None:
        self.name = name
        self.version = __version__
        self._start, self._folders = start, tuple(map(str, folders))
        self._carried = [(str(place), packed) for place, packed in carried]
        self._installed = dict(installed or {})
        self._first = tuple(first)
        self._inherited = frozenset(
            key for key, text in start.env.items() if os.environ.get(key) == text
        )

    def setup(self, worker: DaskWorker) -> None:
        """Make this machine's folders; the workers are started when there is work.

        Raises:
            ToolError: This machine has another version of us (exit 6).
        """
        self.where = worker.address
        if self.version != __version__:
            raise ToolError(f"{self.where} has elsa-build {__version__}, not {self.version}")
        base = self._base = Path(worker.local_directory).absolute() / self.name
        self.logs = base / "logs"
        self.logs.mkdir(parents=True)
        named = [*self._folders, *(place for place, _ in self._carried if not self._within(place))]
        places = {place: str(base / f"folder-{n}") for n, place in enumerate(dict.fromkeys(named))}
        for here in places.values():
            Path(here).mkdir()
        own = self._own()
        there = [(self._installed[kind], own[kind]) for kind in own]
        self.places = Places((*places.items(), *there))
        for place, packed in self._carried:
            folder = Path(self.places.here(place))
            folder.mkdir(parents=True, exist_ok=True)
            unpack(packed, folder)
        self._lay_out_toolkit(own)
        package = base / "package"
        package.mkdir()
        (package / "elsa_build").symlink_to(Path(__file__).resolve().parents[1])
        self.start = start_here(
            self._start,
            self.places,
            inherited=self._inherited,
            package=str(package),
            own=os.environ,
        )
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        self._idle, self._all = list[Worker](), list[Worker]()

    def _within(self, place: str) -> bool:
        return any(Path(place).is_relative_to(folder) for folder in self._folders)

    def _own(self) -> dict[str, str]:
        """Return where this machine's interpreter has what the caller's has."""
        if not self._installed:
            return {}
        return toolchain.installed(os.environ.get(PYTHON) or self._start.command[0])

    def _lay_out_toolkit(self, own: Mapping[str, str]) -> None:
        """Make the toolkit's home where it is a folder of links in the caller's scratch folder.

        Where pip installed none, nvcc is not found, and the machine differs from the caller's.
        """
        home = self._start.env.get("CUDA_HOME", "")
        found = toolkit.by_pip(Path(own["purelib"])) if own and self._within(home) else []
        if found:
            toolkit.lay_out(Path(self.places.here(home)), found[0])

    def teardown(self, worker: DaskWorker) -> None:
        """End the workers and free the disk; what was made has gone to the caller."""
        del worker
        for one in self._all:
            one.stop()
        shutil.rmtree(self._base, ignore_errors=True)

    def do(self, job: Job, needs: Sequence[Done]) -> Done:
        """Do a job here, after putting in place what it needs from others."""
        begun = time.monotonic()
        self._prepare()
        for product in (product for need in needs for product in need.made):
            here = product.renamed(self.places.here)
            put(here, Path(here.path))
        try:
            answer = self._ask(job)
        except WorkerDiedError as e:
            return Done(outcome=Outcome(job=job.id, error=str(e)), lacked="memory")
        told = answer.outcome()
        build = Path(self.start.setup["build"])
        made = [] if told.error else [Product.of(path) for path in products(told, build)]
        outcome = replace(
            told,
            error=self.places.back(told.error),
            found=self.places.back(told.found),
            wall_s=round(time.monotonic() - begun, 3),
        )
        return Done(
            outcome=outcome,
            made=tuple(one.renamed(self.places.back) for one in made),
            lacked=answer.lacked,
        )

    def _prepare(self) -> None:
        """Do what must be done first, once."""
        with self._lock:
            while self._first:
                asked = self._first[0]
                answer = self._ask(asked.job)
                found = self.places.back(answer.found)
                differing = sorted(
                    key for key in {*found, *asked.found} if found.get(key) != asked.found.get(key)
                )
                if answer.error is not None or differing:
                    why = answer.error or f"other {', '.join(differing)} than here"
                    raise ToolError(f"{self.where} cannot help: {asked.job.name}: {why}")
                self._first = self._first[1:]

    def _ask(self, job: Job) -> Answer:
        # Dask runs us in several threads: taking one must not be two steps.
        try:
            worker = self._idle.pop()
        except IndexError:
            worker = Worker(self.start, self.logs / f"worker-{next(self._numbers)}.log")
            self._all.append(worker)
        answer = worker.ask(self.places.job(job))
        self._idle.append(worker)
        return answer


def do(name: str, job: Job, needs: Sequence[Done]) -> Done:
    """Do a job on whatever Dask worker this runs; `name` is the run's."""
    worker = get_worker()
    hand = worker.plugins[name]
    assert isinstance(hand, Hand)
    worker.log_event(name, {"id": job.id, "name": job.name})
    return hand.do(job, needs)
