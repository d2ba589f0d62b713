"""Change a patchset on disk: add, keep, drop, edit, refresh; each lands whole or not at all.

A patch is written on the ones before it, so that a patch which changes takes its followers along:
they are merged onto the new text and written anew. A dropped patch keeps its id and its file,
because later ones may have been written on it.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic
from elsa_build.errors import ConfigError, ConflictError, ToolError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Origin, Outcome, Patch, Replay, Series, Status
from elsa_build.patches import importing, landing, seriestext, standalone
from elsa_build.patches import message as words
from elsa_build.patches.importing import Choice
from elsa_build.patches.landing import Applied
from elsa_build.patches.mail import write_all
from elsa_build.patches.replay import replay
from elsa_build.patches.seriesfile import NAME, WHY_LENGTH, load
from elsa_build.patches.sources import Incoming
from elsa_build.patches.threeway import put


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """New texts for files of one patchset, by name; nothing is written until `write`."""

    folder: Path
    files: Mapping[str, bytes]
    patches: tuple[Patch, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


def write(edit: Edit) -> None:
    """Write an edit: all new files beside the old ones first, then each renamed into place.

    `series.yaml` comes last, so that a run that ends early leaves a patchset that `check` names.

    Raises:
        ToolError: The disk refuses; the files are as they were (exit 6).
    """
    order = sorted(edit.files, key=lambda name: (name == NAME, name))
    fresh = {name: edit.folder / f".{name}.{os.getpid()}.new" for name in order}
    try:
        edit.folder.mkdir(parents=True, exist_ok=True)
        for name in order:
            fresh[name].write_bytes(edit.files[name])
        for name in order:
            fresh[name].replace(edit.folder / name)
    except OSError as e:
        raise ToolError(f"cannot write {edit.folder}: {e.strerror}") from e
    finally:
        for path in fresh.values():
            path.unlink(missing_ok=True)


# --- series.yaml alone ------------------------------------------------------------------------


def set_fields(
    folder: Path, root: Path, patch_id: str, fields: Mapping[str, seriestext.Value]
) -> Edit:
    """Return the edit that sets fields of one patch in `series.yaml`; None removes one.

    Raises:
        ConfigError: There is no such patch, or a value is wrong (exit 5).
    """
    shown = str((folder / NAME).relative_to(root))
    text = (folder / NAME).read_text(encoding="utf-8")
    for key, value in fields.items():
        text = seriestext.with_field(text, shown, patch_id, key, value)
    changed = load(folder, root=root, text=text)
    return Edit(
        folder=folder,
        files={NAME: text.encode()},
        patches=tuple(patch for patch in changed.patches if patch.id == patch_id),
    )


def keep(folder: Path, root: Path, patch: Patch, why: str | None) -> Edit:
    """Return the edit that makes a patch one that has earned its place."""
    fields: dict[str, seriestext.Value] = {"status": Status.KEPT}
    if why:
        fields["why"] = why
    return set_fields(folder, root, patch.id, fields)


def drop(folder: Path, root: Path, patch: Patch, why: str) -> Edit:
    """Return the edit that takes a patch out of every replay; its id and its file stay.

    The reason goes in front of the old one, which stays to be read.

    Raises:
        ConfigError: The reason is too short, or an active patch requires this one (exit 5).
    """
    if len(why.strip()) < WHY_LENGTH:
        raise ConfigError(f"--why: must be {WHY_LENGTH} or more characters")
    reason = f"Dropped: {why.strip().rstrip('.')}. Carried before: {patch.why}"
    return set_fields(folder, root, patch.id, {"status": Status.DROPPED, "why": reason})


def edit(
    git: Git | None,
    folder: Path,
    root: Path,
    patch: Patch,
    fields: Mapping[str, seriestext.Value],
) -> Edit:
    """Return the edit that sets fields, and the trailers of the mail where they say the same.

    Raises:
        ConfigError: A value is wrong, or the mail must change and no repository was given (exit 5).
    """
    made = set_fields(folder, root, patch.id, fields)
    changed = made.patches[0]
    same = (patch.kind, patch.origin) == (changed.kind, changed.origin)
    if same or changed.mail is None or changed.file is None:
        return made
    if git is None:
        raise ConfigError(f"{patch.id}: its trailers change too", hint="add --upstream PATH")
    return replace(made, files={**made.files, **rewritten(git, load(folder, root=root), changed)})


def origin(commit: str | None, pr: int | None, old: Origin) -> Mapping[str, str | int]:
    """Return the field `origin` with a commit or a pull request replaced."""
    values = {"commit": commit or old.commit, "pr": pr or old.pr}
    return {key: value for key, value in values.items() if value}


# --- patches ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What to add to a patchset. `base` starts a patchset that is not there yet."""

    incoming: tuple[Incoming, ...]
    choice: Choice = field(default_factory=Choice)
    base: Oid | None = None


def add(git: Git, folder: Path, root: Path, addition: Addition, taken: Sequence[str] = ()) -> Edit:
    """Return the edit that appends patches to a patchset, written on its last patch.

    A commit is merged there by git's three-way merge, a diff must apply exactly. Objects are
    written to `git`: pass a quarantine.

    Raises:
        ConflictError: A patch does not apply, or changes nothing there (exit 3).
        ConfigError: The patchset does not record its base, or the base is unknown (exit 5).
    """
    series, text = _existing(folder, root, addition.base)
    done = stack(git, series)
    head, tree = done.head, done.tree
    names: list[str] = []
    used = {*taken, *(patch.id for patch in series.patches)}
    number = last_number(series)
    patches: list[Patch] = []
    findings: list[Diagnostic] = []
    for incoming in addition.incoming:
        draft = importing.draft(incoming, git.commit(done.head).author.date, addition.choice, used)
        applied = _landed(git, tree, incoming, addition.choice, len(names))
        if applied.tree == tree:
            raise ConflictError(f"{incoming.name}: changes nothing on top of {series.name}")
        tree = applied.tree
        head = git.commit_tree(tree, (head,), draft.message, draft.author)
        number += 1
        used.add(draft.id)
        names.append(importing.file_name(number, draft.id))
        findings += importing.findings_of(draft, applied, changed=True)
        patches.append(importing.recorded(draft, series.name, names[-1], None))
    mails = write_all(git, done.head, head)
    files = dict(zip(names, mails, strict=True))
    shown = str((folder / NAME).relative_to(root))
    files[NAME] = seriestext.appended(text, shown, patches).encode()
    return Edit(folder=folder, files=files, patches=tuple(patches), findings=tuple(findings))


def refresh(
    git: Git, series: Series, patch: Patch, sides: tuple[Oid, Oid], message: str | None = None
) -> dict[str, bytes]:
    """Return the mails that change when one patch becomes another, and the later ones with it.

    Args:
        git: A quarantine over the repository that holds the base.
        series: The patchset.
        patch: The patch of it that changes.
        sides: A tree without the new patch, and that tree with it.
        message: Its new message (default: as it was); the trailers are set here.

    Returns:
        New mails by file name; those that stay the same are not among them.

    Raises:
        ConflictError: It, or a later patch, does not merge; the message names it (exit 3).
        ConfigError: The patchset does not record its base, or the base is unknown (exit 5).
    """
    done = stack(git, series)
    steps = [step for step in done.steps if step.commit]
    at = next((n for n, step in enumerate(steps) if step.patch.id == patch.id), None)
    if at is None:
        raise ConfigError(f"{patch.id} is {patch.status}; only an active patch can be refreshed")
    start = steps[at - 1].commit if at else done.onto
    assert start is not None
    head, tree, was = start, git.commit(start).tree, git.commit(start).tree
    files: list[Path | None] = []
    for step in steps[at:]:
        merged = put(git, *(sides if step is steps[at] else (was, step.tree)), tree)
        if merged.conflicts:
            paths = ", ".join(conflict.path for conflict in merged.conflicts)
            raise ConflictError(f"{step.patch.id} does not merge any more: {paths}")
        if merged.tree == tree:
            raise ConflictError(
                f"{step.patch.id} would change nothing",
                hint=f"elsa-build patch drop {step.patch.id}",
            )
        assert step.commit is not None
        made = git.commit(step.commit)
        text = message if message and step is steps[at] else made.message
        head = git.commit_tree(merged.tree, (head,), rightly(step.patch, text), made.author)
        tree, was = merged.tree, step.tree
        files.append(step.patch.file)
    mails = write_all(git, start, head)
    return {
        path.name: mail
        for path, mail in zip(files, mails, strict=True)
        if path is not None and path.read_bytes() != mail
    }


def refreshed_from(git: Git, series: Series, patch: Patch, commit: Oid) -> dict[str, bytes]:
    """Return the mails that change when a patch becomes this commit, message and all.

    Raises:
        ConfigError: The commit has not one parent, or as `refresh` says (exit 5).
        ConflictError: As `refresh` says (exit 3).
    """
    made = git.commit(commit)
    if len(made.parents) != 1:
        raise ConfigError(f"{commit} is a merge or a root; a patch has one parent")
    sides = (git.commit(made.parents[0]).tree, made.tree)
    return refresh(git, series, patch, sides, words.normal(made.message) or None)


def rewritten(git: Git, series: Series, patch: Patch) -> dict[str, bytes]:
    """Return the mail of a patch as the tool writes it, by file name, if that is not what is there.

    The change itself stays; a message that `check` complains of is put right.
    """
    if patch.mail is None or patch.file is None:
        return {}
    standalone.prepare(git, series.patches)
    mail = standalone.mail(git, patch, rightly(patch, patch.mail.message))
    return {} if mail == patch.file.read_bytes() else {patch.file.name: mail}


def rightly(patch: Patch, message: str) -> str:
    """Return a message in the form of a patch file, with the trailers that the patch must have."""
    wanted = words.wanted(patch.id, patch.kind, patch.origin)
    return words.with_trailers(words.normal(message), {words.WHY: None, **wanted})


def folded(git: Git, series: Series, patch: Patch, before: Oid, after: Oid) -> tuple[Oid, Oid]:
    """Return the trees around a patch that has a further change (`before` to `after`) added.

    Raises:
        ConflictError: The change does not merge into the patch; it belongs to a later one (exit 3).
    """
    done = stack(git, series)
    was = git.commit(done.onto).tree
    for step in done.steps:
        if step.patch.id == patch.id:
            merged = put(git, before, after, step.tree)
            if merged.conflicts:
                paths = ", ".join(conflict.path for conflict in merged.conflicts)
                raise ConflictError(f"the change does not merge into {patch.id}: {paths}")
            return was, merged.tree
        was = step.tree
    raise ConfigError(f"no patch '{patch.id}' in {series.name}", hint="elsa-build patch list")


def work_tree(git: Git, folder: Path) -> tuple[Oid, Oid]:
    """Return the trees of HEAD and of the files in a work tree, new files among them.

    The work tree's own index stays as it is.
    """
    head = git.resolve("HEAD", "tree")
    with landing.index(git, head) as env:
        git.run(f"--work-tree={folder.resolve()}", "add", "--all", env=env)
        tree = git.run("write-tree", env=env)[1].decode().strip()
    return head, Oid(tree)


def stack(git: Git, series: Series) -> Replay:
    """Return a patchset replayed on its own base, where every patch must apply.

    Raises:
        ConfigError: The base is not recorded, or not in the repository (exit 5).
        ConflictError: A patch does not apply there; `check` says more (exit 3).
    """
    if series.base is None:
        raise ConfigError(f"patchsets/{series.name}/{NAME}: base: is missing")
    if git.find(series.base) is None:
        raise ConfigError(
            f"the base {series.base} of {series.name} is not in {git.path}",
            hint="fetch it, or name a repository that has it with --upstream",
        )
    done = replay(git, series, series.base)
    wrong = [s.patch.id for s in done.steps if s.outcome not in (Outcome.CLEAN, Outcome.SKIPPED)]
    if wrong:
        raise ConflictError(
            f"{', '.join(wrong)}: not clean on the patchset's own base", hint="elsa-build check"
        )
    return done


def _existing(folder: Path, root: Path, base: Oid | None) -> tuple[Series, str]:
    if (folder / NAME).is_file():
        return load(folder, root=root), (folder / NAME).read_text(encoding="utf-8")
    if base is None:
        raise ConfigError(f"{folder.relative_to(root)}: no such patchset", hint="add --base REV")
    return Series(name=folder.name, patches=(), base=base), seriestext.header(
        folder.name, base, None
    )


def _landed(git: Git, tree: Oid, incoming: Incoming, choice: Choice, before: int) -> Applied:
    if incoming.commit is None or choice.include:
        with landing.index(git, tree) as env:
            return landing.apply(git, env, tree, incoming, choice.include, before)
    commit = git.commit(incoming.commit)
    merged = put(git, git.commit(commit.parents[0]).tree, commit.tree, tree)
    if merged.conflicts:
        paths = ", ".join(conflict.path for conflict in merged.conflicts)
        raise ConflictError(f"{incoming.name}: conflicts in {paths}")
    return Applied(tree=merged.tree)


def last_number(series: Series) -> int:
    """Return the highest number among the file names of a patchset; 0 when there is none."""
    names = [patch.file.name for patch in series.patches if patch.file]
    found = [re.match(r"\d{4}(?=-)", name) for name in names]
    return max((int(match[0]) for match in found if match), default=0)
