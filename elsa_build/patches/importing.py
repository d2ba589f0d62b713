"""Make a patchset of ours out of other people's patches, all of it or nothing.

Each patch is put on the one before by `git apply --cached` in an index of its own: no fuzz, and no
work tree that could be left half done. The files are then written by us from the commits, so that
two people who import the same series get the same bytes.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import COMMITTER, Git
from elsa_build.model import Kind, Oid, Origin, Patch, Signature, Status
from elsa_build.patches import landing, seriestext
from elsa_build.patches import message as words
from elsa_build.patches.landing import Applied
from elsa_build.patches.mail import parse, write_all
from elsa_build.patches.seriesfile import NAME
from elsa_build.patches.sources import Incoming
from elsa_build.progress import SILENT, Progress

SLUG_LENGTH = 60
"""Characters of an id that is made from a subject; enough to read, short enough to type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A patchset that is not on disk yet. `files` are its mails by name; `tree` is the last."""

    name: str
    base: Oid
    tree: Oid
    patches: tuple[Patch, ...]
    files: Mapping[str, bytes]
    findings: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the person decided about the import.

    `include` are globs of paths in the tree; hunks elsewhere are left out and reported. `why`
    replaces the reason that is made from a patch's subject.
    """

    include: tuple[str, ...] = ()
    kind: Kind = Kind.LOCAL
    why: str | None = None


def build(
    git: Git,
    incoming: Sequence[Incoming],
    base: Oid,
    name: str,
    choice: Choice,
    *,
    taken: Collection[str] = (),
    progress: Progress = SILENT,
) -> Imported:
    """Return the patchset that these patches make on the commit `base`.

    Objects are written to `git`: pass a quarantine. A patch that changes nothing within the
    include is recorded as `dropped`, without a file, so that its id and the reason stay.

    Args:
        git: The repository that holds `base`.
        incoming: The patches, in order.
        base: The commit that the first one is written on.
        name: The patchset's name.
        choice: What the person decided.
        taken: Ids that other patches have.
        progress: Told of each patch.

    Raises:
        ConflictError: A patch does not apply exactly; nothing was written (exit 3).
        ConfigError: A patch is corrupt (exit 5).
    """
    drafts = tuple(_drafts(git, incoming, base, choice, set(taken)))
    head, tree = base, git.commit(base).tree
    landed: list[_Landed] = []
    with (
        landing.index(git, tree) as env,
        progress.task(f"import {name}", total=len(incoming)) as advance,
    ):
        for draft in drafts:
            applied = landing.apply(git, env, tree, draft.incoming, choice.include, len(landed))
            changed = applied.tree != tree
            if changed:
                head = git.commit_tree(applied.tree, (head,), draft.message, draft.author)
            landed.append(_Landed(draft=draft, changed=changed, applied=applied))
            tree = applied.tree
            advance(1)
    return _result(name, base, tree, landed, write_all(git, base, head))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A patch as it will be recorded, before it has landed."""

    incoming: Incoming
    id: str
    message: str
    author: Signature
    kind: Kind
    origin: Origin
    why: str
    findings: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Landed:
    draft: Draft
    changed: bool
    applied: Applied


def _result(
    name: str, base: Oid, tree: Oid, landed: Sequence[_Landed], mails: Iterable[bytes]
) -> Imported:
    rest = iter(mails)
    numbers = _numbers([one.draft.incoming for one in landed])
    patches: list[Patch] = []
    files: dict[str, bytes] = {}
    findings: list[Diagnostic] = []
    for number, one in zip(numbers, landed, strict=True):
        draft = one.draft
        file = file_name(number, draft.id) if one.changed else None
        if file:
            files[file] = next(rest)
        patches.append(recorded(draft, name, file, files[file] if file else None))
        findings += findings_of(draft, one.applied, changed=one.changed)
    return Imported(
        name=name,
        base=base,
        tree=tree,
        patches=tuple(patches),
        files=files,
        findings=tuple(findings),
    )


def findings_of(draft: Draft, applied: Applied, *, changed: bool) -> tuple[Diagnostic, ...]:
    """Return what a person should know of how a patch came in."""
    found = list(draft.findings)
    if applied.left_out:
        paths = ", ".join(applied.left_out)
        found.append(_note(draft, "E111", f"left out, not within --include: {paths}"))
    if applied.moved and changed:
        places = ", ".join(applied.moved)
        found.append(_note(draft, "E113", f"not at its line, put where its context is: {places}"))
    if not changed:
        found.append(_note(draft, "E112", "changes nothing; recorded as dropped"))
    return tuple(found)


def recorded(draft: Draft, patchset: str, file: str | None, mail: bytes | None) -> Patch:
    """Return a draft as a patch of the series; without a file it is dropped."""
    return Patch(
        id=draft.id,
        patchset=patchset,
        file=Path(file) if file else None,
        line=0,
        kind=draft.kind,
        status=Status.CANDIDATE if file else Status.DROPPED,
        why=draft.why if file else f"changes nothing here: {draft.why}",
        mail=parse(file, mail) if file and mail else None,
        origin=draft.origin,
    )


def _numbers(incoming: Sequence[Incoming]) -> Sequence[int]:
    """Return the numbers that people know the patches by, if they rise; else 1, 2, 3, ..."""
    found = [re.match(r"\d{1,4}(?=\D)", Path(patch.name).name) for patch in incoming]
    numbers = [int(match[0]) for match in found if match]
    if len(numbers) == len(incoming) and numbers == sorted(set(numbers)):
        return numbers
    return range(1, len(incoming) + 1)


def file_name(number: int, patch_id: str) -> str:
    """Return the name of a patch file, `0001-slug.patch`."""
    return f"{number:04}-{patch_id}.patch"


# --- words ------------------------------------------------------------------------------------


def _drafts(
    git: Git, incoming: Iterable[Incoming], base: Oid, choice: Choice, taken: set[str]
) -> Iterable[Draft]:
    date = git.commit(base).author.date
    for patch in incoming:
        made = draft(patch, date, choice, taken)
        taken.add(made.id)
        yield made


def draft(patch: Incoming, date: str, choice: Choice, taken: Collection[str]) -> Draft:
    """Return how a patch will be recorded: its id, its message with trailers, its origin.

    Trailers of ours that are in the message already win, so that an export comes back as it was.

    Args:
        patch: The patch from outside.
        date: git's raw date for an author who gives none.
        choice: What the person decided.
        taken: Ids that are in use.
    """
    stem = slug(_bare(Path(patch.name).stem)) if patch.commit is None else ""
    text = words.normal(patch.message)
    if not text.partition("\n")[0]:
        text = words.normal(f"{stem.replace('-', ' ') or patch.name}\n{text}")
    known = dict(words.trailers(text))
    subject = text.partition("\n")[0]
    wanted = known.get("Elsa-Patch-Id") or stem or slug(subject) or "patch"
    identity = unused(wanted, taken)
    kind, origin = _origin(text, known, choice.kind)
    why = choice.why or known.get(words.WHY) or _why(subject, patch)
    text = words.with_trailers(text, {words.WHY: None, **words.wanted(identity, kind, origin)})
    author = patch.author or Signature(name=COMMITTER[0], email=COMMITTER[1], date="")
    return Draft(
        incoming=patch,
        id=identity,
        message=text,
        author=Signature(name=author.name, email=author.email, date=author.date or date),
        kind=kind,
        origin=origin,
        why=why,
        findings=tuple(_changes_of_words(patch, identity, wanted)),
    )


def unused(wanted: str, taken: Collection[str]) -> str:
    """Return an id that no other patch has: the wanted one, or with `-2`, `-3`, ... behind."""
    if wanted not in taken:
        return wanted
    number = 2
    while f"{wanted}-{number}" in taken:
        number += 1
    return f"{wanted}-{number}"


def _origin(text: str, known: Mapping[str, str], kind: Kind) -> tuple[Kind, Origin]:
    """Return kind and origin from our trailers, or from what `git cherry-pick -x` wrote."""
    commit = known.get("Upstream-Commit")
    picked = re.findall(r"^\(cherry picked from commit ([0-9a-f]{40})\)$", text, re.MULTILINE)
    number = known.get("Upstream-PR", "")
    pr = int(number) if re.fullmatch(r"[1-9][0-9]*", number) else None
    if known.get("Elsa-Kind") in set(Kind):
        kind = Kind(known["Elsa-Kind"])
    elif picked:
        kind = Kind.CHERRY_PICK
    if not commit and picked and kind is not Kind.LOCAL:
        commit = picked[-1]
    full = bool(commit) and re.fullmatch(r"[0-9a-f]{40}", commit or "")
    return kind, Origin(commit=Oid(commit) if commit and full else None, pr=pr)


def _why(subject: str, patch: Incoming) -> str:
    origin = f"imported from {patch.name}"
    return f"{subject} ({origin})"


def _bare(stem: str) -> str:
    """Return a file's name without its number, `0003-` or `012b_`."""
    return re.sub(r"^\d+[a-z]?[-_. ]+", "", stem)


def slug(text: str) -> str:
    """Return words of a-z and 0-9 joined by `-`, cut at a whole word."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(plain) > SLUG_LENGTH:
        plain = plain[: SLUG_LENGTH + 1].rpartition("-")[0] or plain[:SLUG_LENGTH]
    return plain


def _changes_of_words(patch: Incoming, identity: str, wanted: str) -> Iterable[Diagnostic]:
    raw = patch.message.strip().replace("\r\n", "\n")
    notes = [f"message line {line}: {why}; indented by one blank" for line, why in words.cuts(raw)]
    if "\n" in raw.partition("\n\n")[0]:
        notes.append("a subject of several lines is one line now")
    if patch.had_crlf:
        notes.append("all lines ended in CRLF; read as LF")
    if identity != wanted:
        notes.append(f"the id '{wanted}' is taken, it is '{identity}' now")
    for note in notes:
        yield Diagnostic(code="E110", severity=Severity.WARNING, message=note, path=patch.name)


def _note(made: Draft, code: str, message: str) -> Diagnostic:
    return Diagnostic(
        code=code, severity=Severity.WARNING, message=message, path=made.incoming.name
    )


# --- on disk ----------------------------------------------------------------------------------


def store(folder: Path, imported: Imported, ref: str | None = None) -> None:
    """Write a patchset to a folder that is not there yet; it appears whole or not at all.

    Raises:
        ConfigError: The folder exists (exit 5).
        ToolError: The disk refuses (exit 6).
    """
    if folder.exists():
        raise ConfigError(
            f"{folder.name}: the patchset exists already",
            hint=f"elsa-build patch add ... --into {folder.name}",
        )
    text = seriestext.header(imported.name, imported.base, ref)
    text = seriestext.appended(text, f"{folder.name}/{NAME}", imported.patches)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    try:
        fresh.mkdir(parents=True)
        for name, mail in imported.files.items():
            (fresh / name).write_bytes(mail)
        (fresh / NAME).write_text(text, encoding="utf-8")
        fresh.rename(folder)
    except OSError as e:
        raise ToolError(f"cannot write {folder}: {e.strerror}") from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
