"""One conflict of the series, settled by a person: laid out, taken back, and remembered.

What a person decides is stored as a resolution in the patchset, where the next rebase finds it.
When the target is the pin itself and nothing else of the patchset is in conflict there, the
patchset is also written anew on the pin, so that the conflict is gone from the files.
"""

import glob
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.diagnostics import Diagnostic, Severity, errors
from elsa_build.errors import ConfigError, ConflictError, FailedError, StaleError
from elsa_build.git.door import Git, Quarantine
from elsa_build.model import Oid, Outcome, Patch, Proposal, Replay, Step
from elsa_build.patches import editing, seriestext, unmerged
from elsa_build.patches.guarding import guarded
from elsa_build.patches.guards import landing, presence
from elsa_build.patches.importing import file_name
from elsa_build.patches.proposals import memory as memories
from elsa_build.patches.proposals.memory import Resolution
from elsa_build.patches.proposals.propose import propose
from elsa_build.patches.replay import replay, words_of
from elsa_build.patches.review import Revision
from elsa_build.patches.seriesfile import NAME, patch_of
from elsa_build.patches.unmerged import State
from elsa_build.progress import SILENT, Progress
from elsa_build.recalling import recalled, text_of, with_resolution
from elsa_build.resolving.cases import Case, case_of, target
from elsa_build.upstream.lock import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Who decided, why and when: what a stored resolution says of itself. `date` is YYYY-MM-DD."""

    author: str
    reason: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A conflict that was settled.

    `findings` are the guards' on the settled tree. `stored` are the files of resolutions, empty
    when the settled text also differs where git found no conflict. `rewritten` are the files of the
    patchset that were written anew; `left` are its other patches that are in conflict.
    """

    patch: Patch
    ref: str
    tree: Oid
    paths: tuple[str, ...]
    findings: tuple[Diagnostic, ...]
    stored: tuple[str, ...]
    rewritten: tuple[str, ...]
    left: tuple[str, ...]


def held(folder: Path, patch_id: str) -> State:
    """Return what a folder holds.

    Raises:
        ConfigError: It holds no conflict, or another patch's (exit 5).
    """
    state = unmerged.read_state(folder)
    if state.patch != patch_id:
        raise ConfigError(
            f"{folder} holds the conflict of {state.patch}, not of {patch_id}",
            hint=f"elsa-build resolve {state.patch} --continue, or --abort",
        )
    return state


def abort(folder: Path, patch_id: str) -> State:
    """Remove a folder that holds a conflict, whatever was done in it, and say what it held.

    What runs that were killed left beside it goes too.
    """
    state = held(folder, patch_id)
    unmerged.remove(folder)
    for stale in folder.parent.glob(f".{glob.escape(folder.name)}[-.]*"):
        shutil.rmtree(stale, ignore_errors=True)
    return state


def proceed(
    root: Path,
    folder: Path,
    word: Word,
    *,
    patch_id: str,
    accept: bool = False,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Settled:
    """Take what a person made of a conflict, guard it and store it; then remove the folder.

    `accept` takes it although a guard objects.

    Raises:
        ConflictError: Something is still in conflict, or nothing of the patch is left (exit 3).
        FailedError: A guard objects (exit 7).
        StaleError: The patchsets or the pin are not what they were (exit 4).
        ConfigError: The folder holds no conflict, or another patch's (exit 5).
    """
    state = held(folder, patch_id)
    lock = project.read_lock(root)
    series = project.read_series(root)
    with Git(folder) as opened, opened.quarantine() as git:
        patch = patch_of(series, state.patch)
        case = case_of(git, root, series, patch, state.commit, progress)
        if case.head != state.head:
            raise StaleError(
                f"the stack before {patch.id} is not what it was when {folder} was made",
                hint=f"elsa-build resolve {patch.id} --abort, and begin again",
            )
        conflicts = [(one.path, bool(one.regions)) for one in case.merged.conflicts]
        tree = unmerged.resolved(git, folder, conflicts)
        ref = state.ref or lock.pin.ref
        done = _settle(root, lock, case, tree, ref, word, accept=accept, dry_run=dry_run)
    if not dry_run:
        abort(folder, patch_id)
    return done


def take(
    root: Path,
    patch_id: str,
    word: Word,
    *,
    ref: str | None = None,
    upstream: str | None = None,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> tuple[Settled, Proposal]:
    """Take the proposal for a conflict as it is, and store it.

    Raises:
        ConflictError: There is no proposal (exit 3).
        FailedError: A guard objects to it (exit 7).
    """
    lock = project.read_lock(root)
    series = project.read_series(root)
    patch = patch_of(series, patch_id)
    onto, (first, *others) = target(lock, series, ref, upstream, progress)
    with ExitStack() as opened:
        far = [opened.enter_context(Git(path)) for path in others]
        git = opened.enter_context(opened.enter_context(Git(first)).quarantine(*far))
        case = case_of(git, root, series, patch, onto.commit, progress)
        known = memories.load(root / project.PATCHSETS / patch.patchset, root=root)
        proposal = propose(
            git,
            before=case.before,
            after=case.after,
            onto=case.tree,
            merged=case.merged,
            memory=known.of(patch.id),
        )
        if proposal is None:
            raise ConflictError(
                f"there is no proposal for {patch.id}", hint=f"elsa-build resolve {patch.id}"
            )
        wrong = errors(proposal.findings)
        if wrong:
            raise FailedError(
                "\n".join(map(str, wrong)), hint=f"elsa-build resolve {patch.id}, and mend it"
            )
        done = _settle(root, lock, case, proposal.tree, onto.ref, word, dry_run=dry_run)
    return done, proposal


def _settle(
    root: Path,
    lock: Lock,
    case: Case,
    tree: Oid,
    ref: str,
    word: Word,
    *,
    accept: bool = False,
    dry_run: bool = False,
) -> Settled:
    patch = case.step.patch
    if tree == case.tree:
        raise ConflictError(
            f"nothing of {patch.id} is left: upstream has all that it needs, or it was given up",
            hint=f"elsa-build patch drop {patch.id} --why TEXT",
        )
    paths = tuple(change.path for change in case.git.objects.changes(case.tree, tree))
    findings = _guard(case, tree, paths)
    wrong = errors(findings)
    if wrong and not accept:
        failure = FailedError(
            "\n".join(map(str, wrong)),
            hint=f"mend it, or elsa-build resolve {patch.id} --continue --accept",
        )
        failure.findings = findings
        raise failure
    fresh = _remembered(case, tree, word)
    folder = root / project.PATCHSETS / patch.patchset
    edit: editing.Edit | None = None
    left: tuple[str, ...] = ()
    if case.onto == lock.pin.commit:
        edit, left = _rewritten(root, lock, case, tree)
    stored: tuple[str, ...] = tuple(f"{memories.FOLDER}/{one.name}" for one in fresh)
    if not dry_run:
        memories.save(folder, fresh)
        if edit:
            editing.write(edit)
    return Settled(
        patch=patch,
        ref=ref,
        tree=tree,
        paths=paths,
        findings=findings,
        stored=stored,
        rewritten=tuple(sorted(edit.files)) if edit else (),
        left=left,
    )


def _guard(case: Case, tree: Oid, paths: Sequence[str]) -> tuple[Diagnostic, ...]:
    message, author = words_of(case.git, case.step.patch)
    commit = case.git.commit_tree(tree, (case.head,), message, author)
    step = Step(
        patch=case.step.patch, outcome=Outcome.CLEAN, tree=tree, commit=commit, paths=tuple(paths)
    )
    done = guarded(case.git, Replay(onto=case.head, steps=(step,), head=commit, tree=tree))
    return tuple(_decided(found) for found in done.steps[0].findings)


def _decided(found: Diagnostic) -> Diagnostic:
    """Return a finding as it counts for what a person wrote: its place is what they chose."""
    if found.code in (landing.CODE, presence.CODE) and found.severity is Severity.ERROR:
        return replace(found, severity=Severity.WARNING)
    return found


def _remembered(case: Case, tree: Oid, word: Word) -> tuple[Resolution, ...]:
    """Return the resolutions that a settled tree stands for, none unless they give all of it."""
    found: list[Resolution] = []
    for conflict in case.merged.conflicts:
        marked, text = (text_of(case.git, one, conflict.path) for one in (case.merged.marked, tree))
        if marked is None or text is None:
            return ()
        fresh = memories.remember(
            case.step.patch.id,
            conflict.path,
            marked,
            text,
            author=word.author,
            reason=word.reason,
            base=case.onto,
            date=word.date,
        )
        if not fresh:
            return ()
        found += fresh
    return tuple(found)


def _rewritten(
    root: Path, lock: Lock, case: Case, tree: Oid
) -> tuple[editing.Edit | None, tuple[str, ...]]:
    """Return the patchset written anew on the pin, or which other patches of it conflict."""
    git = case.git
    assert isinstance(git, Quarantine)
    patch = case.step.patch
    folder = root / project.PATCHSETS / patch.patchset
    series = with_resolution(git, case.series, patch, (case.head, tree), case.onto)
    series = recalled(git, root, series, case.onto)
    own = replace(series, patches=tuple(p for p in series.patches if p.patchset == folder.name))
    alone = replay(git, own, case.onto)
    left = tuple(s.patch.id for s in alone.steps if s.outcome in _LEFT)
    if left:
        return None, left
    # A pick that had to be resolved is no longer upstream's commit: it gets a file.
    name = patch.file.name if patch.file else file_name(editing.last_number(own) + 1, patch.id)
    own = replace(
        own,
        patches=tuple(
            replace(p, file=folder / name) if p.id == patch.id else p for p in own.patches
        ),
    )
    pin = lock.pin
    found = rebasing.Rebased(
        base=Revision(name=pin.ref, commit=pin.commit),
        pin=pin,
        onto=rebasing.Onto(ref=pin.ref, repository=git.path, commit=pin.commit, pin=pin),
        series=own,
        history=(),
        done=alone,
    )
    edit = rebasing.edits(root, found, git)[0]
    if patch.file is None:
        shown = f"{project.PATCHSETS}/{folder.name}/{NAME}"
        text = seriestext.with_field(edit.files[NAME].decode(), shown, patch.id, "file", name)
        edit = replace(edit, files={**edit.files, NAME: text.encode()})
    return edit, ()


_LEFT = (Outcome.CONFLICT, Outcome.BLOCKED, Outcome.EMPTY)
