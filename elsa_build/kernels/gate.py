"""Boots a command so that nothing can be compiled unnoticed, and says what was not in the bundle.

Two switches of upstream and one of ours turn a silent compile into an error. A read-only folder is
no gate: root writes through its mode bits, and a mount needs rights that a container has not. So
the hook refuses before anything is compiled, and what the hook cannot see (a Python that
ignores PYTHONPATH, a compiler outside of Python) shows as new files in the caches.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels import boots, harvest, planlock, unpacking
from elsa_build.kernels.booting import Watch
from elsa_build.kernels.boots import Booted
from elsa_build.kernels.bundle import Bundle
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.ledger import phase_of
from elsa_build.kernels.misses import Had, Miss, Spec, explain
from elsa_build.kernels.placing import PYTHON
from elsa_build.progress import SILENT, Progress

UPSTREAM: Mapping[str, str] = {"SGLANG_CRASH_ON_JIT_COMPILE": "1", "FLASHINFER_DISABLE_JIT": "1"}
"""Source: sgl-project/sglang 36615; flashinfer 0.7.2 flashinfer/jit/core.py."""

_MADE = frozenset({".so", ".o", ".cubin", ".fatbin", ".ptx"})
"""What a compiler leaves; sources, logs and locks are also written when nothing is compiled."""
_ALL_OF = frozenset({"inductor", "driver"})
"""Caches of which every new file is a compile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """Where a boot looks kernels up: its variables, and the folders that are watched by family."""

    variables: Mapping[str, str]
    folders: Mapping[str, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file that appeared in a cache, and whose: a path as found on this machine, and bytes."""

    family: str
    path: Path
    size: int

    @property
    def for_the_host(self) -> bool:
        """Return whether it is a module of Triton's that has no GPU code."""
        return self.family == Family.TRITON and self.path.name.startswith(harvest.FOR_THE_HOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """One boot through the gate."""

    booted: Booted
    misses: tuple[Miss, ...]
    written: tuple[Written, ...]

    @property
    def blamed(self) -> bool:
        """Return whether a kernel is the reason, should the command have failed."""
        unseen = [one for one in self.written if not one.for_the_host]
        return bool(self.misses or unseen) and not self.booted.boot.interrupted


def specs(root: Path, bundle: Bundle | None) -> dict[str, Spec]:
    """Return the specialisations of the plan that a bundle was built from, by id, as far as known.

    They only make messages better: a plan that is damaged or gone is no reason not to boot.
    """
    with contextlib.suppress(ConfigError):
        plan = planlock.load(root, bundle.manifest.recipe) if bundle else None
        return {one.id: one.spec for one in plan.kernels} if plan else {}
    return {}


def gate(
    command: Sequence[str],
    bundle: Bundle | None,
    environ: Mapping[str, str],
    watch: Watch,
    folder: Path,
    *,
    specs: Mapping[str, Spec] | None = None,
    times: int = 1,
    keep_going: bool = False,
    progress: Progress = SILENT,
) -> tuple[Gated, ...]:
    """Boot a command strictly so many times, and return each boot with what it missed.

    Args:
        command: The program and its arguments.
        bundle: Whose kernels it is to find; a copy is unpacked when it was sealed for another
            place. None: the caches that the environment names, as in an image.
        environ: Its environment.
        watch: What marks the phases, and when the command is ended.
        folder: Ours, for logs and events (`boots.held`).
        specs: Specialisations of the plan by id, to name a constant that no plan had.
        times: How many boots.
        keep_going: Compile what is missing, into a copy, so that one run finds every miss.
        progress: Where the boots are announced.

    Raises:
        ConfigError: There is no such command, or the bundle is damaged (exit 5).
        ToolError: A folder cannot be read or written (exit 6).
    """
    had = Had(specs=specs or {})
    if bundle:
        had = replace(had, kernels=bundle.manifest.kernels, missing=bundle.manifest.missing)
    with caches(bundle, environ, folder, copied=keep_going) as places:
        found: list[Gated] = []
        for number in range(times):
            before = listing(places.folders)
            booted = boots.run(
                command,
                environment(environ, places, strict=not keep_going),
                watch,
                folder / f"run-{number + 1}",
                strict=not keep_going,
                progress=progress,
            )[0]
            misses = missed(booted, had)
            new = written(before, listing(places.folders), misses)
            found.append(Gated(booted=booted, misses=misses, written=new))
            if booted.broke:
                break
    return tuple(found)


def environment(environ: Mapping[str, str], places: Caches, *, strict: bool) -> dict[str, str]:
    """Return the environment of a gated boot, without the hook's own variables."""
    kept = {name: value for name, value in environ.items() if strict or name not in UPSTREAM}
    path = [places.variables.get("PYTHONPATH"), environ.get("PYTHONPATH")]
    return {
        **kept,
        **places.variables,
        **(UPSTREAM if strict else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


@contextlib.contextmanager
def caches(
    bundle: Bundle | None, environ: Mapping[str, str], folder: Path, *, copied: bool
) -> Iterator[Caches]:
    """Provide the caches of a boot while the block runs; a copy of a bundle goes with it.

    Raises:
        ToolError: There is no place for the copy (exit 6).
    """
    if bundle is None:
        home = Path(environ.get("HOME") or "~").expanduser() / ".cache"
        variables = harvest.caches(environ, home / "sglang")
        yield Caches(variables=variables, folders=_folders(variables))
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="caches-", dir=folder) as name:
            here = bundle.folder.absolute()
            if copied or bundle.manifest.prefix != str(here):
                here = unpacking.unpack(bundle, Path(name).absolute() / "bundle").folder
            variables = _variables(bundle, here, Path(name).absolute() / "cache")
            yield Caches(variables=variables, folders=_folders(variables))
    except OSError as e:
        raise ToolError(f"{e.filename or folder}: {e.strerror}") from e


def _variables(bundle: Bundle, here: Path, scratch: Path) -> dict[str, str]:
    """Return the variables that make a bundle's caches the only ones that have anything."""
    for path in chain.from_iterable(bundle.manifest.harvested.values()):
        if not path.startswith("triton/"):  # its owner also writes there, so it is copied
            (scratch / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(here / path, scratch / path)
    found = harvest.caches({"SGLANG_CACHE_DIR": str(scratch)}, scratch)
    own = {"TRITON_CACHE_DIR": here / "triton", "SGLANG_JIT_CACHE_DIR": here / "jit"}
    return {
        **found,
        **{name: str(path) for name, path in own.items()},
        "PYTHONPATH": str(here / PYTHON),
    }


def _folders(variables: Mapping[str, str]) -> dict[str, Path]:
    base = Path(variables["SGLANG_CACHE_DIR"])
    return {
        "triton": Path(variables["TRITON_CACHE_DIR"]),
        "sglang-jit": Path(variables["SGLANG_JIT_CACHE_DIR"]),
        "inductor": Path(variables["TORCHINDUCTOR_CACHE_DIR"]),
        "driver": Path(variables["CUDA_CACHE_PATH"]),
        "flashinfer": Path(variables["FLASHINFER_WORKSPACE_BASE"], ".cache", "flashinfer"),
        "deep_gemm": base / "deep_gemm",
        "tilelang": base / "tilelang",
        "cute": base / "cute_aot",
    }


def listing(folders: Mapping[str, Path]) -> dict[Path, tuple[str, int, int]]:
    """Return family, bytes and time of every file in the caches that a compiler could have made."""
    found = {}
    for family, folder in folders.items():
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root, name)
                if family not in _ALL_OF and path.suffix not in _MADE:
                    continue
                with contextlib.suppress(OSError):  # gone meanwhile
                    stat = path.stat()
                    found[path] = (family, stat.st_size, stat.st_mtime_ns)
    return found


def written(
    before: Mapping[Path, tuple[str, int, int]],
    after: Mapping[Path, tuple[str, int, int]],
    misses: Collection[Miss],
) -> tuple[Written, ...]:
    """Return the files that appeared or changed, of families of which no process told a compile."""
    told = {miss.family for miss in misses if miss.what != "missed"}
    new = [path for path in sorted(after) if after[path] != before.get(path)]
    return tuple(
        Written(family=after[path][0], path=path, size=after[path][1])
        for path in new
        if after[path][0] not in told
    )


def missed(booted: Booted, had: Had) -> tuple[Miss, ...]:
    """Return what a boot did not find, each once a phase, in the order of first missing."""
    found: dict[tuple[str, ...], Miss] = {}
    for event in booted.heard.of("compiled", "missed", "failed"):
        phase = phase_of(event, booted.phases)
        key = str(event.said.get("key") or "")
        ident = (event.family, event.name, key, event.what, phase)
        again = found.get(ident)
        if again:
            seconds = round(again.seconds + event.seconds, 6)
            found[ident] = replace(again, times=again.times + 1, seconds=seconds)
            continue
        found[ident] = Miss(
            family=event.family,
            name=event.name,
            key=key,
            what=event.what,
            phase=phase,
            causes=explain(event, had),
            seconds=event.seconds,
            error=event.said.get("error"),
        )
    return tuple(found.values())


def findings(gated: Gated, *, allowed: Collection[str] = ()) -> tuple[Diagnostic, ...]:
    """Return what speaks against a boot; of a family that is allowed, only as a warning."""
    return tuple(_findings(gated, frozenset(allowed)))


def _findings(gated: Gated, allowed: frozenset[str]) -> Iterator[Diagnostic]:
    def said(code: str, family: str, message: str, hint: str | None = None) -> Diagnostic:
        severity = Severity.WARNING if family in allowed else Severity.ERROR
        return Diagnostic(code=code, severity=severity, message=message, hint=hint)

    booted = gated.booted
    words = {"compiled": "was compiled", "missed": "is not in the cache", "failed": "failed"}
    for miss in gated.misses:
        often = f", {miss.times} times" if miss.times > 1 else ""
        text = f"{miss.phase}: {miss.family} {miss.name} {words[miss.what]}{often}"
        why = miss.error if miss.what == "failed" and miss.error else "; ".join(miss.causes)
        yield said("E460", miss.family, f"{text}: {why}")
    for (family, name, phase), times in _benches(booted).items():
        text = f"{phase}: {family} {name} timed {times} configurations"
        yield said("E461", family, f"{text}: no cache has its choice", _BENCH_HINT.get(family))
    for one in gated.written:
        text = f"{one.family}: {one.path} ({one.size} bytes) was written"
        if one.for_the_host:
            why = "C for the host, compiled at the first start on a machine"
            yield Diagnostic(code="E462", severity=Severity.WARNING, message=f"{text}: {why}")
        else:
            yield said("E462", one.family, f"{text} by a process that the hook does not see")
    if not booted.heard.of("importing", "hit", "compiled", "missed", "failed"):
        yield said("E463", "", "no process loaded Triton, SGLang or FlashInfer: nothing was proved")
    yield from unsure(booted, Severity.ERROR)


_BENCH_HINT = {"triton": "TRITON_CACHE_AUTOTUNING=1, and elsa-build kernels record on the card"}


def unsure(booted: Booted, severity: Severity) -> Iterator[Diagnostic]:
    """Yield why a boot may not have told everything; a line cut short is only a warning."""
    if booted.boot.problem:
        yield Diagnostic(code="E464", severity=severity, message=booted.boot.problem)
    for event in booted.heard.of("blind"):
        text = f"{event.said.get('module')} of this version cannot be watched"
        why = event.said.get("error")
        yield Diagnostic(code="E465", severity=severity, message=f"{text}: {why}")
    for name, lines in booted.heard.damaged.items():
        yield Diagnostic(
            code="E466",
            severity=Severity.WARNING,
            message=f"{name}: {lines} lines of events are not whole and were left out",
        )


def _benches(booted: Booted) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for event in booted.heard.of("bench"):
        place = (event.family, event.name, phase_of(event, booted.phases))
        found[place] = found.get(place, 0) + 1
    return found
