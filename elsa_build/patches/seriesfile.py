"""A patchset on disk: `series.yaml` says what and in which order, the mails beside it say how.

The order is the file's, never the folder's: names sort differently by locale. An id is for life:
a patch that lost its number to another one went missing unnoticed for weeks in a public series.
All complaints of a patchset are collected, so that one run shows them all.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError
from elsa_build.model import Kind, Mail, Oid, Origin, Patch, Probe, Series, Status
from elsa_build.patches.mail import MailError, parse
from elsa_build.strictyaml import Problems, read
from elsa_build.strictyaml import load as parse_yaml
from elsa_build.yamlform import Check, Form, nearest

NAME = "series.yaml"
VERSION = 1
WHY_LENGTH = 20
"""Characters; less is not a reason."""

APART = ("resolutions", "tests", "README.md")
"""What else may lie in a patchset."""

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class SeriesError(ConfigError):
    """A patchset is wrong; `findings` has one diagnostic for each thing that is."""

    def __init__(self, findings: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(str(found) for found in findings))
        self.findings = tuple(findings)


# --- one patchset -----------------------------------------------------------------------------


def load(folder: Path, *, root: Path | None = None, text: str | None = None) -> Series:
    """Return a patchset with its mails.

    Args:
        folder: `patchsets/NAME`.
        root: The project; messages name files relative to it (default: as `folder` was given).
        text: A `series.yaml` to read instead of the one on disk, before it is written.

    Raises:
        SeriesError: Anything in the folder is wrong; it has every finding (exit 5).
        ConfigError: There is no `series.yaml`, or it is not strict YAML (exit 5).
    """
    shown = str(folder.relative_to(root) if root else folder)
    if not folder.is_dir():
        raise ConfigError(
            f"{shown}: no such patchset", hint=f"elsa-build patch import PATH --into {folder.name}"
        )
    name = f"{shown}/{NAME}"
    problems = Problems(name)
    node = read(folder / NAME, name) if text is None else parse_yaml(text, name)
    form = Form(node, problems)
    if form.integer("version", 0) != VERSION:
        form.problem("version", f"must be {VERSION}")
    if form.text("name", required=True) != folder.name:
        form.problem("name", f"must be '{folder.name}', as the folder is called")
    base = form.text("base", check=_hex)
    form.text("ref")
    broken: list[Diagnostic] = []
    patches = []
    for entry in form.forms("patches"):
        patch = _patch(entry, folder, shown, broken)
        patches.append((entry, replace(patch, base=Oid(base) if base else None)))
    form.close()
    _relations(patches)
    broken += _strays(folder, shown, [patch for _, patch in patches])
    findings = [*_findings(problems), *broken]
    if findings:
        raise SeriesError(findings)
    return Series(
        name=folder.name,
        patches=tuple(patch for _, patch in patches),
        base=Oid(base) if base else None,
    )


def combine(*sets: Series) -> Series:
    """Return a recipe's patchsets as one series, in the order given.

    `base` is kept when all sets share it.

    Raises:
        SeriesError: Two patches have one id, or two active ones exclude each other (exit 5).
    """
    patches = tuple(patch for one in sets for patch in one.patches)
    findings: list[Diagnostic] = []
    seen: dict[str, Patch] = {}
    for patch in patches:
        first = seen.setdefault(patch.id, patch)
        if first is not patch:
            findings.append(_finding(patch, f"id: '{patch.id}' is taken by {_place(first)}"))
    findings += [
        _finding(patch, f"conflicts_with: '{other}' is in {_place(seen[other])} and active too")
        for patch in patches
        for other in patch.conflicts_with
        if other in seen and active(patch) and active(seen[other])
    ]
    if findings:
        raise SeriesError(findings)
    bases = {one.base for one in sets}
    return Series(
        name=" + ".join(one.name for one in sets),
        patches=patches,
        base=bases.pop() if len(bases) == 1 else None,
    )


def patch_of(series: Series, patch_id: str) -> Patch:
    """Return a patch by its id.

    Raises:
        ConfigError: There is none of that name; the nearest one is named (exit 5).
    """
    for patch in series.patches:
        if patch.id == patch_id:
            return patch
    near = nearest(patch_id, [patch.id for patch in series.patches])
    raise ConfigError(f"no patch '{patch_id}'{near}", hint="elsa-build patch list")


def active(patch: Patch) -> bool:
    """Say whether a replay puts this patch on the tree; an unresolved reference waits."""
    return patch.status in (Status.CANDIDATE, Status.KEPT) and not patch.unresolved


def _place(patch: Patch) -> str:
    return f"patchsets/{patch.patchset}/{NAME}:{patch.line}"


def _finding(patch: Patch, message: str) -> Diagnostic:
    return Diagnostic(
        code="E101",
        severity=Severity.ERROR,
        message=message,
        path=f"patchsets/{patch.patchset}/{NAME}",
        line=patch.line,
    )


# --- one patch --------------------------------------------------------------------------------


def _patch(form: Form, folder: Path, shown: str, broken: list[Diagnostic]) -> Patch:
    kind = Kind(form.text("kind", Kind.LOCAL, required=True, check=_one_of(Kind)))
    status = Status(form.text("status", Status.CANDIDATE, check=_one_of(Status)))
    file = form.text("file", check=_plain_file)
    origin = form.form("origin")
    commit = origin.text("commit", check=_hex)
    pr = origin.integer("pr", 0, minimum=1)
    origin.close()
    patch = Patch(
        id=form.text("id", required=True, check=slug_problem),
        patchset=folder.name,
        file=folder / file if file else None,
        line=form.line,
        kind=kind,
        status=status,
        why=form.text("why", required=True, check=_reason).strip(),
        mail=_mail(form, folder / file, f"{shown}/{file}", broken) if file else None,
        origin=Origin(commit=Oid(commit) if commit else None, pr=pr or None),
        drop_when=form.text("drop_when") or None,
        requires=form.texts("requires", check=slug_problem),
        conflicts_with=form.texts("conflicts_with", check=slug_problem),
        hot_path=form.boolean("hot_path"),
        tests=form.texts("tests"),
        evidence=form.texts("evidence"),
        probes=tuple(_probe(probe) for probe in form.forms("probes")),
        guards=_severities(form.form("guards")),
    )
    if not file and active(patch):
        if kind is not Kind.CHERRY_PICK:
            form.problem("file", f"a {kind} needs one")
        elif not commit:
            origin.problem("commit", "a cherry-pick without a file needs one, a candidate a 'pr'")
    form.close()
    return patch


def _mail(form: Form, path: Path, shown: str, broken: list[Diagnostic]) -> Mail | None:
    try:
        return parse(shown, path.read_bytes())
    except OSError as e:
        form.problem("file", f"cannot read {shown}: {(e.strerror or str(e)).lower()}")
    except MailError as e:
        broken.append(
            Diagnostic(
                code="E103",
                severity=Severity.ERROR,
                message=e.reason,
                path=shown,
                line=e.line,
            )
        )
    return None


def _severities(form: Form) -> tuple[tuple[str, Severity], ...]:
    """Return what a patch says of guards' findings: `E311: warning`."""
    found = []
    for entry in form.pairs():
        word = form.text(entry.key, check=_one_of(Severity))
        if not re.fullmatch(r"E31\d", entry.key):
            form.problem(entry.key, "is no code of a guard (E311 to E318)")
        elif word in list(Severity):
            found.append((entry.key, Severity(word)))
    return tuple(found)


def _probe(form: Form) -> Probe:
    kinds = ("absent", "present", "attribute")
    absent, present = (form.text(key, check=_pattern) or None for key in kinds[:2])
    probe = Probe(
        paths=form.texts("paths"),
        absent=absent,
        present=present,
        attribute=form.text("attribute", check=_attribute) or None,
        count=form.integer("count", -1) if form.entry("count") else None,
        why=form.text("why"),
    )
    given = [key for key in kinds if getattr(probe, key) is not None]
    if len(given) != 1:
        form.problems.add(form.line, f"{form.place}: needs exactly one of {', '.join(kinds)}")
    elif probe.attribute is None and not probe.paths:
        form.problem("paths", "is missing")
    if probe.count is not None and probe.present is None:
        form.problem("count", "only 'present' is counted")
    form.close()
    return probe


# --- the whole list ---------------------------------------------------------------------------


def _relations(patches: Sequence[tuple[Form, Patch]]) -> None:
    """Complain of ids and files that two patches share, and of relations that cannot hold."""
    ids: dict[str, Patch] = {}
    files: dict[Path, Patch] = {}
    for form, patch in patches:
        first = ids.get(patch.id)
        if first and patch.id:
            form.problem("id", f"'{patch.id}' is taken since line {first.line}; ids are for life")
        if patch.file and patch.file in files:
            form.problem("file", f"is the file of '{files[patch.file].id}' already")
        for need in patch.requires:
            wrong = _requirement(need, ids, patches)
            if wrong and active(patch):
                form.problem("requires", wrong)
        ids.setdefault(patch.id, patch)
        if patch.file:
            files.setdefault(patch.file, patch)
    for form, patch in patches:
        for other in patch.conflicts_with:
            if other in ids and active(patch) and active(ids[other]):
                form.problem("conflicts_with", f"'{other}' is active too")


def _requirement(
    need: str, before: dict[str, Patch], patches: Iterable[tuple[Form, Patch]]
) -> str | None:
    if need in before:
        status = before[need].status
        return f"'{need}' is dropped" if status is Status.DROPPED else None
    known = [patch.id for _, patch in patches]
    if need in known:
        return f"'{need}' comes later in the series"
    return f"unknown patch '{need}'{nearest(need, known)}"


def _strays(folder: Path, shown: str, patches: Iterable[Patch]) -> list[Diagnostic]:
    named = {patch.file for patch in patches}
    return [
        Diagnostic(
            code="E102",
            severity=Severity.ERROR,
            message=f"is not in {NAME}",
            path=f"{shown}/{path.name}",
            hint=f"name it in {NAME}, or move it away",
        )
        for path in sorted(folder.iterdir())
        if path not in named and path.name not in (NAME, *APART) and path.name[0] != "."
    ]


def _findings(problems: Problems) -> list[Diagnostic]:
    return [
        Diagnostic(
            code="E101", severity=Severity.ERROR, message=text, path=problems.name, line=line
        )
        for line, text in sorted(problems.found, key=lambda problem: problem[0])
    ]


# --- what a value must look like --------------------------------------------------------------


def _hex(text: str) -> str | None:
    if re.fullmatch(r"[0-9a-f]{40}", text):
        return None
    return f"'{text}' must be a full commit id, 40 lower-case hex digits (it has {len(text)})"


def slug_problem(text: str) -> str | None:
    """Return why a text cannot be the id of a patch or the name of a patchset, or None."""
    return None if _ID.fullmatch(text) else f"'{text}' must be words of a-z and 0-9 joined by '-'"


def _plain_file(text: str) -> str | None:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.patch", text):
        return None
    return f"'{text}' must be the name of a .patch file in this folder"


def _reason(text: str) -> str | None:
    length = len(text.strip())
    return (
        None if length >= WHY_LENGTH else f"must be {WHY_LENGTH} or more characters, has {length}"
    )


def _pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as e:
        return f"not a regular expression: {e}"
    return None


def _attribute(text: str) -> str | None:
    return None if re.fullmatch(r"[\w.]+:[\w.]+", text) else f"'{text}' must be 'module:name'"


def _one_of(words: Iterable[str]) -> Check:
    known = list(words)

    def check(text: str) -> str | None:
        if text in known:
            return None
        return f"'{text}' must be one of {', '.join(known)}{nearest(text, known)}"

    return check
