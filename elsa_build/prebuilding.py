"""From a plan to a sealed bundle: the jobs are made, done by a pool or a farm, and gathered.

A kernel that fails does not hide the others: the bundle names what it lacks and why, and the server
compiles that at its first start. What was finished before a stop is not done again.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.serving import CACHE
from elsa_build.kernels import (
    building,
    bundle,
    farm,
    fitting,
    harvest,
    memory,
    nvcc_jobs,
    pool,
    schedule,
    sealing,
    toolchain,
    wheels,
)
from elsa_build.kernels.building import Building, Built, Choice, Work
from elsa_build.kernels.bundle import Manifest, Missing
from elsa_build.kernels.harvest import Harvest
from elsa_build.kernels.inside import neutral
from elsa_build.kernels.jobs import Family, Job, Outcome
from elsa_build.kernels.plan import Plan
from elsa_build.kernels.workers import WorkerStart
from elsa_build.precompiling import Workplace
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream import pip

OTHER_CARD = "E472"
LATER = "left for another build: the time given was used up by what is cheaper"
_LAUNCHER = "sccache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a person asked of a build.

    `cpu_s` is how many estimated CPU seconds may be spent (None: all that it takes), `families`
    which to build, `first_config` to ship a tuner's choice that no card has timed. `workers` and
    `memory_mib` bound what runs at a time (None: the cores, and four fifths of what is free).
    `scheduler` is the address of a Dask scheduler that builds instead of this machine. `timings`
    are what a card measured of tuners' choices, `harvest` what else a boot on it has left.
    """

    cpu_s: float | None = None
    families: tuple[Family, ...] = tuple(Family)
    first_config: bool = False
    workers: int | None = None
    memory_mib: int | None = None
    scheduler: str | None = None
    timings: Mapping[str, Any] = field(default_factory=dict)
    harvest: Harvest | None = None


def build(
    place: Workplace, plan: Plan, wanted: Wanted, output: Path, progress: Progress = SILENT
) -> Building:
    """Build what a plan lists and seal it.

    Raises:
        ToolError: The disk is full, a worker does not start, or the folder cannot be written.
        ConfigError: The recipe's Python needs a Triton that is not the same compiler.
    """
    shop = Shop(place, wanted, progress)
    choice = building.within(shop.works(plan), wanted.cpu_s)
    jobs = [job for work in choice.taken for job in work.jobs]
    outcomes = shop.do(jobs)
    done = building.built(choice.taken, outcomes)
    manifest = _manifest(place, choice, done, shop.toolchain(done))
    found, remarks = _fitting(wanted.harvest, place)
    if found:
        made = {path for kernel in manifest.kernels for path in kernel.files}
        manifest = replace(manifest, harvested=harvest.for_bundle(found, made))
    return Building(
        bundle=sealing.seal(shop.folder, output, manifest, found.folder if found else None),
        built=done,
        left=choice.left,
        remarks=shop.oversized(jobs) + remarks,
    )


def _fitting(
    found: Harvest | None, place: Workplace
) -> tuple[Harvest | None, tuple[Diagnostic, ...]]:
    """Return a harvest when it is of the card that is built for, else None and why."""
    if found is None or found.archs in ((), (place.target.name,)):
        return found, ()
    message = (
        f"{found.folder}: was harvested on {', '.join(found.archs)}, not on {place.target.name}:"
        " left out"
    )
    hint = f"elsa-build kernels record --into {place.recipe.name} -- COMMAND"
    said = Diagnostic(code=OTHER_CARD, severity=Severity.WARNING, message=message, hint=hint)
    return None, (said,)


def choose(place: Workplace, plan: Plan, wanted: Wanted, progress: Progress = SILENT) -> Choice:
    """Return what would be built and what left, building nothing."""
    return building.within(Shop(place, wanted, progress).works(plan), wanted.cpu_s)


class Shop:
    """One target's and one toolchain's build folder, and how its workers are started.

    The folder is shared by every tree: what lies in it is found by content. Where the image has the
    package is in the line tables of what lies there, though in no key, so another place is another
    folder; FlashInfer's objects are in the scratch folder and shared.
    """

    def __init__(self, place: Workplace, wanted: Wanted, progress: Progress) -> None:
        self.place, self.wanted, self.progress = place, wanted, progress
        self.libtriton = _libtriton(place, progress)
        tools = {**place.fingerprint, "libtriton": self.libtriton or place.fingerprint["libtriton"]}
        self._tools = {"target": place.target.document(), "tools": tools, "form": neutral.FORM}
        mark = building.digest({**self._tools, "where": self._where()})
        root = place.folder / "build" / f"{place.target.name}-{mark}"
        self.folder, self.journal = root / "build", root / "journal.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.generated: tuple[Path, ...] = ()
        self.memory_mib = wanted.memory_mib or memory.memory_available_mib() * 4 // 5

    def oversized(self, jobs: list[Job]) -> tuple[Diagnostic, ...]:
        """Return which jobs ran alone, as they need more than the budget of this machine."""
        if self.wanted.scheduler:
            return ()
        machine = memory.memory_total_mib()
        return tuple(
            said
            for said in schedule.oversized(jobs, memory_mib=self.memory_mib, machine_mib=machine)
            if said.severity is Severity.WARNING  # one that is not tried is a failed kernel
        )

    def works(self, plan: Plan) -> list[Work]:
        """Return everything that the plan asks of the wanted families."""
        stamp = {**self._tools, "package": plan.package}
        documents = [{"family": one.family, **one.document()} for one in plan.kernels]
        found: list[Work] = []
        if Family.TRITON in self.wanted.families:
            found += building.triton_work(plan, stamp)
            found += building.tuning_work(
                plan, stamp, self.wanted.timings, untimed=self.wanted.first_config
            )
        if Family.SGLANG_JIT in self.wanted.families:
            jobs = building.stamped(nvcc_jobs.sglang_jobs(documents), stamp)
            found += building.module_work(plan, Family.SGLANG_JIT, jobs)
        if Family.FLASHINFER in self.wanted.families and plan.of(Family.FLASHINFER):
            jobs = building.stamped(nvcc_jobs.flashinfer_jobs(self._commands(documents)), stamp)
            found += building.module_work(plan, Family.FLASHINFER, jobs)
        return found

    def _commands(self, documents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Ask FlashInfer for the compile commands of its modules; nothing is compiled.

        It is asked here, also by a farm: the sources that it generates are sent along.
        """
        asked = self.journal.with_name("asked.jsonl")
        asked.unlink(missing_ok=True)
        asking = Job(
            id=f"flashinfer:specs:{building.digest(list(documents))}",
            family=Family.FLASHINFER,
            name="FlashInfer's compile commands",
            call="flashinfer:specs",
            arguments=nvcc_jobs.generators(documents),
            memory_mib=2000,
            cpu_s=20.0,
        )
        (told,) = self._here([asking], asked)
        if told.error is not None:
            raise ToolError(f"FlashInfer does not say how its modules are built: {told.error}")
        folder = Path(told.found["generated"])
        self.generated = (folder,) if folder.is_dir() else ()
        return told.found

    def do(self, jobs: list[Job]) -> tuple[Outcome, ...]:
        """Do jobs on this machine or on the farm."""
        if not self.wanted.scheduler:
            return self._here(jobs, self.journal)
        tools = self.place.tools
        return farm.run(
            jobs,
            scheduler=self.wanted.scheduler,
            start=self.start(),
            journal=self.journal,
            build=self.folder,
            scratch=tools.scratch,
            carry=(tools.source, *tools.libraries, *self.generated),
            installed=toolchain.installed(tools.python),
            first=(self._alike(),),
            progress=self.progress,
        )

    def _here(self, jobs: list[Job], journal: Path) -> tuple[Outcome, ...]:
        return pool.run(
            jobs,
            start=self.start(),
            workers=self.wanted.workers or os.cpu_count() or 1,
            memory_mib=self.memory_mib,
            journal=journal,
            build=self.folder,
            progress=self.progress,
        )

    def _alike(self) -> farm.First:
        """Return what another machine must find as this one did, so that its keys are the same."""
        fields = sorted({name for one in self.wanted.families for name in fitting.FIELDS[one]})
        asked = Job(
            id=f"fingerprint:{building.digest(fields)}",
            family=self.wanted.families[0],
            name="compare the toolchains",
            call="fingerprint:told",
            arguments={"fields": fields},
            memory_mib=500,
            cpu_s=2.0,
        )
        return farm.First(job=asked, found={name: self.place.fingerprint[name] for name in fields})

    def start(self) -> WorkerStart:
        """Return how a worker of this shop is started."""
        tools = self.place.tools
        launcher = _on_path(_LAUNCHER)
        return WorkerStart(
            command=tools.command("worker"),
            env=tools.environment(self.folder, os.environ),
            setup={
                "target": self.place.target.document(),
                "package_dir": self._where(),
                **({"libtriton": self.libtriton} if self.libtriton else {}),
                **({"launcher": launcher} if launcher else {}),
            },
        )

    def _where(self) -> str:
        return self.place.recipe.package_dir or PACKAGE_DIR

    def toolchain(self, done: Iterable[Built]) -> dict[str, Any]:
        """Return the fingerprint to seal: the interpreter's, but for a Python that is keyed for."""
        known = dict(self.place.fingerprint)
        if self.libtriton:
            keys = (one.outcome.found.get("parts", {}).get("triton") for one in done)
            known |= {
                "python": self.place.recipe.python,
                "soabi": None,
                "libtriton": self.libtriton,
                "triton_key": next((key for key in keys if key), None),
            }
        return known


PACKAGE_DIR = "/opt/elsa-overlay/python"
"""Where line tables say the package is when a recipe does not say; it decides no key."""


def _on_path(program: str) -> str | None:
    import shutil  # noqa: PLC0415 - for one look

    return shutil.which(program)


def _libtriton(place: Workplace, progress: Progress) -> str | None:
    """Return the digest of the image's libtriton when its Python is not the interpreter's."""
    ours, theirs = place.fingerprint["python"], place.recipe.python
    if ours.split(".")[:2] == theirs.split(".")[:2]:
        return None
    version = place.fingerprint["triton"]
    kept = place.folder / f"triton-{version}-python-{theirs}.RECORD.json"
    if not kept.is_file():
        with tempfile.TemporaryDirectory(dir=place.folder) as folder:
            target = pip.Target(python=theirs, machine="x86_64")
            wheel = pip.download(f"triton=={version}", target, Path(folder), progress)
            wheels.keep(wheels.record(wheel), kept)
    return wheels.libtriton_for(wheels.installed(place.triton), wheels.kept(kept))


# --- the manifest -----------------------------------------------------------------------------


def _manifest(
    place: Workplace, choice: Choice, done: Iterable[Built], tools: Mapping[str, Any]
) -> Manifest:
    done = tuple(done)
    failed = [one for one in done if one.error is not None]
    missing = [
        *(
            Missing(family=one.work.family, name=one.work.name, why=str(one.error))
            for one in failed
        ),
        *(Missing(family=work.family, name=work.name, why=LATER) for work in choice.left),
    ]
    return Manifest(
        recipe=place.recipe.name,
        target=place.target.name,
        tree=place.tree,
        toolchain=tools,
        kernels=tuple(
            _kernel(place, one, found)
            for one in done
            if one.error is None
            for found in _results(one)
        ),
        missing=tuple(missing),
        prefix=CACHE,
    )


def _results(one: Built) -> Iterator[Mapping[str, Any]]:
    """Yield what was made: SGLang's entry points may load two modules."""
    yield from one.outcome.found.get("modules", [one.outcome.found])


def _kernel(place: Workplace, one: Built, found: Mapping[str, Any]) -> bundle.Kernel:
    planned = one.work.planned
    names = found.get("sources") or (planned.sources if planned else ())
    if one.work.family is Family.FLASHINFER:
        names = ()  # FlashInfer's own files, which no patch of ours touches
    return bundle.Kernel(
        family=one.work.family,
        id=planned.id if planned else one.work.result.partition(":")[2],
        name=found.get("name") or one.work.name,
        key=str(found["key"]),
        files=tuple(found["files"]),
        phases=planned.phases if planned else (),
        why=planned.why if planned else (one.work.tuning.why if one.work.tuning else ""),
        cpu_s=one.work.cpu_s,
        shared=found.get("shared"),
        parts=found.get("parts", {}),
        sources=_sources(place, names),
    )


def _sources(place: Workplace, names: Iterable[str]) -> dict[str, str]:
    """Return the git ids of the patched tree's files that decide a kernel.

    Raises:
        ConfigError: One is not in the tree, so the plan is of another.
    """
    found = {}
    for name in names:
        dotted = name.replace(".", "/") if name.startswith("sglang.") else name
        path = dotted if dotted.startswith("sglang/") else f"sglang/{dotted}"
        for candidate in (path, f"{path}.py", f"{path}/__init__.py"):
            entry = place.objects.find(place.tree, f"python/{candidate}")
            if entry is not None and entry.mode.startswith("100"):
                found[candidate] = str(entry.oid)
                break
        else:
            raise ConfigError(f"{name}: is not in the patched tree", hint="elsa-build kernels plan")
    return dict(sorted(found.items()))
