"""What `check` asks of a patchset: is every file what the tool would write, and does it say so?

Errors (`E`) stop a release. Warnings are for what git carries but people rarely mean: a binary
file, a symbolic link, a submodule, a change of mode, added lines with CRLF or not in UTF-8.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.git.objects import GITLINK, SYMLINK
from elsa_build.model import Mail, Patch, Series
from elsa_build.patches import message as words
from elsa_build.patches import standalone
from elsa_build.patches.diff import DiffError, FileDiff, MissingBlobError, parse
from elsa_build.patches.mail import diff_start, message_line
from elsa_build.patches.seriesfile import NAME, SeriesError, active, load

_FILE = re.compile(r"[0-9]{4}-[a-z0-9]+(-[a-z0-9]+)*\.patch")


def check(folder: Path, root: Path, git: Git | None = None) -> tuple[Diagnostic, ...]:
    """Return everything that is wrong with one patchset.

    Args:
        folder: `patchsets/NAME`.
        root: The project; findings name files relative to it.
        git: A repository with the base, better a quarantine. With it each patch is put on its own
            pre-images and written anew, and the bytes must be the same.
    """
    try:
        series = load(folder, root=root)
    except SeriesError as e:
        return e.findings
    except ConfigError as e:
        return tuple(
            Diagnostic(code="E101", severity=Severity.ERROR, message=line)
            for line in e.message.split("\n")
        )
    findings = [*_waiting(series)]
    for patch in series.patches:
        if patch.mail is not None and patch.file is not None:
            shown = str(patch.file.relative_to(root))
            findings += _file(patch, patch.mail, shown, patch.file.read_bytes())
    if git is not None and not any(found.severity is Severity.ERROR for found in findings):
        findings += _round_trips(git, series, root)
    return tuple(findings)


# --- without a repository ---------------------------------------------------------------------


def _waiting(series: Series) -> Iterator[Diagnostic]:
    """Yield a note that says how many references have no commit yet."""
    numbers = [f"#{patch.origin.pr}" for patch in series.patches if patch.unresolved]
    if numbers:
        yield Diagnostic(
            code="E114",
            severity=Severity.NOTE,
            message=f"{len(numbers)} of {len(series.patches)} unresolved, known by their pull "
            f"requests only: {', '.join(numbers)}",
            path=f"patchsets/{series.name}/{NAME}",
            hint="elsa-build nightly scan",
        )


def _file(patch: Patch, mail: Mail, shown: str, text: bytes) -> Iterator[Diagnostic]:
    if not _FILE.fullmatch(Path(shown).name):
        yield _error("E102", "the file is not named NNNN-slug.patch", shown)
    start = diff_start(text)
    if start < len(text) and text.find(b"\n\ndiff --git ") + 2 != start:
        line = text.count(b"\n", 0, start) + 1
        yield _error("E105", "message: a line that begins a diff ends it", shown, line)
        return
    cuts = words.cuts(mail.message)
    for line, why in cuts:
        yield _error("E105", f"message: {why}", shown, message_line(text, line))
    if not cuts and words.normal(mail.message) != mail.message:
        yield _error("E105", "message: a mail reader would change it", shown, hint=_refresh(patch))
    yield from _trailers(patch, mail, shown)
    first = text.count(b"\n", 0, start)
    try:
        files = parse(mail.diff)
    except DiffError as e:
        yield _error("E104", e.reason, shown, first + e.line)
        return
    if not files:
        yield _error("E104", "the patch changes nothing", shown)
    for file in files:
        for odd in _oddities(file):
            yield Diagnostic(
                code="E108",
                severity=Severity.WARNING,
                message=f"{file.path}: {odd}",
                path=shown,
                line=first + file.line,
            )


def _trailers(patch: Patch, mail: Mail, shown: str) -> Iterator[Diagnostic]:
    found = dict(words.trailers(mail.message))
    for key, value in words.wanted(patch.id, patch.kind, patch.origin).items():
        if found.get(key) != value:
            yield _error(
                "E107",
                f"trailer {key}: '{found.get(key) or ''}' here, '{value or ''}' in series.yaml",
                shown,
                hint=_refresh(patch),
            )


def _oddities(file: FileDiff) -> Iterator[str]:
    modes = (file.old_mode, file.new_mode)
    if file.binary:
        yield "a binary file"
    if SYMLINK in modes:
        yield "a symbolic link"
    if GITLINK in modes:
        yield "a submodule"
    if file.old_mode and file.new_mode and file.old_mode != file.new_mode:
        yield f"mode {file.old_mode} becomes {file.new_mode}"
    added = [line[1:] for hunk in file.hunks for line in hunk.lines if line.startswith(b"+")]
    if any(line.endswith(b"\r\n") for line in added):
        yield "adds lines that end in CRLF"
    try:
        b"".join(added).decode("utf-8")
    except UnicodeDecodeError:
        yield "adds lines that are not UTF-8"


# --- with a repository ------------------------------------------------------------------------


def _round_trips(git: Git, series: Series, root: Path) -> Iterator[Diagnostic]:
    for patch in series.patches:
        if patch.mail is None or patch.file is None:
            yield from _reference(git, patch)
            continue
        shown = str(patch.file.relative_to(root))
        text = patch.file.read_bytes()
        first = text[: diff_start(text)].count(b"\n")
        try:
            fresh = standalone.mail(git, patch)
        except MissingBlobError as e:
            severity = Severity.ERROR if active(patch) else Severity.WARNING
            yield Diagnostic(
                code="E109",
                severity=severity,
                message=e.reason,
                path=shown,
                line=first + e.line,
                hint=e.hint,
            )
        except DiffError as e:
            yield _error("E104", e.reason, shown, first + e.line)
        else:
            if fresh != text:
                line = _first_difference(text.split(b"\n"), fresh.split(b"\n"))
                yield _error("E106", "is not as elsa-build writes it", shown, line, _refresh(patch))


def _reference(git: Git, patch: Patch) -> Iterator[Diagnostic]:
    commit = patch.origin.commit
    if active(patch) and commit and git.find(commit) is None:
        yield _error(
            "E109",
            f"{patch.id}: the commit {commit} is not in the repository",
            f"patchsets/{patch.patchset}/{NAME}",
            patch.line,
        )


def _first_difference(old: Iterable[bytes], new: Iterable[bytes]) -> int:
    pairs = zip(old, new, strict=False)
    return next((number for number, (a, b) in enumerate(pairs, 1) if a != b), 1)


def _refresh(patch: Patch) -> str:
    return f"elsa-build patch refresh {patch.id}"


def _error(
    code: str, message: str, path: str, line: int | None = None, hint: str | None = None
) -> Diagnostic:
    return Diagnostic(
        code=code, severity=Severity.ERROR, message=message, path=path, line=line, hint=hint
    )
