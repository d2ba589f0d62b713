"""Hashes a bundle again and reads its machine code again, wherever it lies: a folder, or an image.

The document says what a kernel is for; here the code itself is asked. What was found is a value, so
that the same judgement serves a folder and the layers of an image.
"""

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.kernels.allowances import Verdict
from elsa_build.kernels.bundle import DOCUMENT, REBUILD, Bundle, Kernel, Manifest, is_group
from elsa_build.kernels.census import Library
from elsa_build.kernels.coverage import judge
from elsa_build.kernels.coverage_findings import words
from elsa_build.kernels.fatbin import GpuCode
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.machine_code import arch_of, code_of
from elsa_build.kernels.staleness import Fate, Stale
from elsa_build.kernels.target import Target
from elsa_build.progress import SILENT, Progress

CHANGED, UNLISTED, ARCH, SHARED, GROUP, SOURCE, MISSING = (f"E42{n}" for n in range(7))
_TEXT = 1 << 20
"""Texts up to this size are kept to be looked into, in bytes; group files have some hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a file is: its digest (bare hex), its GPU code, the bytes of a short text."""

    sha256: str
    code: GpuCode | None = None
    text: bytes | None = None


def seen(body: bytes) -> Seen:
    """Return what the bytes of a file are."""
    code = code_of(body)
    short = code is None and len(body) <= _TEXT
    return Seen(sha256=sha256(body).hexdigest(), code=code, text=body if short else None)


def look(bundle: Bundle, progress: Progress = SILENT) -> dict[str, Seen]:
    """Read every file of a bundle's folder, those that it does not name as well.

    A symbolic link is not followed: it is shown as what it is, a file with another digest.
    """
    found: dict[str, Seen] = {}
    with progress.task("kernels", bundle.size, "B") as advance:
        for path in sorted(bundle.folder.rglob("*")):
            mode = path.lstat().st_mode
            name = path.relative_to(bundle.folder).as_posix()
            if stat.S_ISDIR(mode) or name == DOCUMENT:
                continue
            body = path.read_bytes() if stat.S_ISREG(mode) else b"not a file"
            found[name] = seen(body)
            advance(len(body))
    return found


def examine(manifest: Manifest, found: Mapping[str, Seen], target: Target) -> Iterator[Diagnostic]:
    """Yield what is wrong with files, given what was found at their places."""
    for path, held in sorted(manifest.files.items()):
        if path not in found:
            yield _finding(CHANGED, "is missing", path, hint=REBUILD)
        elif found[path].sha256 != held.sha256:
            message = f"is sha256:{found[path].sha256}, sealed as sha256:{held.sha256}"
            yield _finding(CHANGED, message, path, hint=REBUILD)
        elif is_group(path):
            yield from _group(path, manifest, found[path])
    for path in sorted(found.keys() - manifest.files.keys()):
        yield _finding(UNLISTED, "is in no bundle: something else wrote it", path)
    for kernel in manifest.kernels:
        yield from _kernel(kernel, found, target)
    for family, paths in manifest.harvested.items():
        for path in paths:
            code = found[path].code if path in found else None
            if code:
                yield from _runs(family, f"harvested from a boot ({family})", path, code, target)


def verify(bundle: Bundle, target: Target, progress: Progress = SILENT) -> tuple[Diagnostic, ...]:
    """Return what is wrong with a bundle's folder: content, architecture, limits, stray files."""
    if bundle.manifest.target != target.name:
        message = f"is for {bundle.manifest.target}, not for {target.name}"
        return (_finding(ARCH, message, str(bundle.folder), hint=REBUILD),)
    return tuple(examine(bundle.manifest, look(bundle, progress), target))


def _group(path: str, manifest: Manifest, found: Seen) -> Iterator[Diagnostic]:
    """Compare a group file's children with where the bundle's own files will be."""
    folder = path.rpartition("/")[0]
    try:
        children: Mapping[str, str] = json.loads(found.text or b"")["child_paths"]
        wrong = [
            child
            for name, child in children.items()
            if child != f"{manifest.prefix}/{folder}/{name}"
            or f"{folder}/{name}" not in manifest.files
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        wrong = ["nothing"]
    if wrong:
        message = f"names {', '.join(wrong)}: a lookup below {manifest.prefix} misses"
        yield _finding(GROUP, message, path, hint=REBUILD)


def _kernel(kernel: Kernel, found: Mapping[str, Seen], target: Target) -> Iterator[Diagnostic]:
    codes = {path: found[path].code for path in kernel.files if path in found}
    for path, code in codes.items():
        if code is None:
            if path.endswith(".cubin"):
                yield _finding(ARCH, f"{kernel.name}: is no cubin", path, hint=REBUILD)
        else:
            yield from _runs(str(kernel.family), kernel.name, path, code, target)
    arch = arch_of(code for code in codes.values() if code)
    if len(codes) == len(kernel.files) and arch != kernel.arch:
        message = f"{kernel.name}: the code is for {arch or 'no card'}, sealed as {kernel.arch}"
        yield _finding(ARCH, message, kernel.files[0], hint=REBUILD)
    yield from _shared(kernel, found, target)


def _runs(family: str, name: str, path: str, code: GpuCode, target: Target) -> Iterator[Diagnostic]:
    library = Library(
        name=path,
        path=path,
        family=family,
        size=0,
        containers=code.containers,
        problems=code.problems,
        cubins=code.cubin,
    )
    judged = judge(library, target)
    if judged.verdict is not Verdict.COMPLETE:
        yield _finding(ARCH, f"{name}: {words(judged, target)}", path, hint=REBUILD)


def _shared(kernel: Kernel, found: Mapping[str, Seen], target: Target) -> Iterator[Diagnostic]:
    """Compare shared memory, as Triton wrote it beside the kernel, with what a block may have."""
    if kernel.family is not Family.TRITON:
        return
    for path in kernel.files:
        text = found[path].text if path in found and path.endswith(".json") else None
        try:
            needed = int(json.loads(text)["shared"]) if text else 0
        except (ValueError, KeyError, TypeError):
            continue  # a group file, or results of autotuning
        if needed > target.shared_bytes:
            message = (
                f"{kernel.name}: needs {needed:,} bytes of shared memory, a block may have"
                f" {target.shared_bytes:,} on {target.name}"
            )
            yield _finding(SHARED, message, path)


# --- sources and gaps -------------------------------------------------------------------------


def of_sources(found: tuple[Stale, ...], recipe: str) -> tuple[Diagnostic, ...]:
    """Return one finding for each source file that is not the tree's, with the kernels it feeds."""
    files: dict[str, list[Stale]] = {}
    for one in found:
        for path in one.paths:
            files.setdefault(path, []).append(one)
    return tuple(
        _finding(
            SOURCE,
            f"is not what {len(fed)} kernels were compiled from: {_fates(fed)}",
            path,
            hint=f"{REBUILD} --recipe {recipe}",
        )
        for path, fed in sorted(files.items())
    )


_FATES = {
    Fate.CHANGED: "changed",
    Fate.MOVED: "same text, moved",
    Fate.BESIDE: "only text beside them",
    Fate.GONE: "gone",
}


def _fates(fed: list[Stale]) -> str:
    named = [
        f"{words}: {', '.join(sorted({one.kernel.name for one in fed if one.fate is fate}))}"
        for fate, words in _FATES.items()
        if any(one.fate is fate for one in fed)
    ]
    return "; ".join(named)


def of_missing(manifest: Manifest) -> tuple[Diagnostic, ...]:
    """Return a warning for each planned kernel that a bundle does not have."""
    return tuple(
        _finding(
            MISSING,
            f"{one.family} kernel {one.name} is not in the bundle: {one.why}",
            severity=Severity.WARNING,
        )
        for one in manifest.missing
    )


def _finding(
    code: str,
    message: str,
    path: str | None = None,
    *,
    severity: Severity = Severity.ERROR,
    hint: str | None = None,
) -> Diagnostic:
    return Diagnostic(code=code, severity=severity, message=message, path=path, hint=hint)
