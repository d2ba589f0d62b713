"""One conflict of the series, settled by a person: laid out, taken back, and remembered.

What a person decides is stored as a resolution in the patchset, where the next rebase finds it.
When the target is the pin itself and nothing else of the patchset is in conflict there, the
patchset is also written anew on the pin, so that the conflict is gone from the files.
"""

import glob
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.diagnostics import Diagnostic, Severity, errors
from elsa_build.errors import ConfigError, ConflictError, FailedError, StaleError, ToolError
from elsa_build.git.door import Git, Quarantine
from elsa_build.git.objects import TREE
from elsa_build.model import Conflict, Oid, Outcome, Patch, Proposal, Replay, Series, Step
from elsa_build.patches import checkout, editing, seriestext, unmerged
from elsa_build.patches.causes import Tracer
from elsa_build.patches.guarding import guarded
from elsa_build.patches.guards import landing, presence
from elsa_build.patches.history import UpstreamCommit, between
from elsa_build.patches.importing import file_name
from elsa_build.patches.mail import parse, write
from elsa_build.patches.proposals import memory as memories
from elsa_build.patches.proposals.memory import Memory, Resolution
from elsa_build.patches.proposals.propose import propose
from elsa_build.patches.proposals.views import Marked
from elsa_build.patches.replay import change_of, replay, words_of
from elsa_build.patches.review import Revision, Site
from elsa_build.patches.seriesfile import NAME, active, patch_of
from elsa_build.patches.sites import Ground, sites
from elsa_build.patches.threeway import Merged, put, written
from elsa_build.patches.unmerged import Side, State
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream.lock import Lock

FOLDER = "dist/resolve"
"""Where conflicts are laid out when a person does not say where; git ignores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Who decided, why and when: what a stored resolution says of itself. `date` is YYYY-MM-DD."""

    author: str
    reason: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A conflict that was laid out in a folder; `sites` are its places and who caused them."""

    folder: Path
    patch: Patch
    ref: str
    step: Step
    sites: tuple[Site, ...]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A conflicting step with what it was merged from."""

    git: Git
    series: Series
    onto: Oid
    done: Replay
    step: Step
    before: Oid
    after: Oid
    merged: Merged

    @property
    def head(self) -> Oid:
        """Return the commit of the stack that the patch met."""
        commits = [step.commit for step in self.earlier if step.commit]
        return commits[-1] if commits else self.onto

    @property
    def earlier(self) -> tuple[Step, ...]:
        """Return the steps before."""
        return self.done.steps[: self.done.steps.index(self.step)]

    @property
    def tree(self) -> Oid:
        """Return the tree that the patch met."""
        return self.git.commit(self.head).tree


# --- laying out ---------------------------------------------------------------------------------


def start(
    root: Path,
    patch_id: str,
    *,
    folder: Path,
    ref: str | None = None,
    upstream: str | None = None,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Laid:
    """Lay out the conflict of a patch on a target (None: the pin) in a folder of its own.

    Raises:
        FailedError: The folder holds a conflict already (exit 7).
        ConfigError: The folder is not ours, or the patch is not in conflict there (exit 5).
    """
    unmerged.refuse_taken(folder)
    lock = project.read_lock(root)
    series = project.read_series(root)
    patch = patch_of(series, patch_id)
    onto, repositories = _target(lock, series, ref, upstream, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _fresh(folder) as fresh:
        checkout.borrowing(fresh, repositories, "resolve")
        with Git(fresh) as git:
            case = _case(git, root, series, patch, onto.commit, progress)
            history = _history(git, lock, onto, progress)
            ground = Ground(onto=git.commit(onto.commit).tree, earlier=case.earlier)
            found = sites(git, case.step, ground, Tracer(git, history))
            state = State(
                patch=patch.id,
                ref=ref,
                commit=onto.commit,
                upstream=upstream,
                head=case.head,
            )
            message, _ = words_of(git, patch)
        unmerged.lay(fresh, state, Side(before=case.before, after=case.after, message=message))
        if not dry_run:
            if folder.exists():
                folder.rmdir()
            fresh.rename(folder)
    return Laid(folder=folder, patch=patch, ref=onto.ref, step=case.step, sites=found)


def _history(
    git: Git, lock: Lock, onto: rebasing.Onto, progress: Progress
) -> tuple[UpstreamCommit, ...]:
    """Return upstream's commits up to the target, from where the pin's line left it.

    A pin on a release branch is no ancestor of the target; what happened since then still counts.
    """
    base = lock.pin.commit
    if git.run("merge-base", base, onto.commit, ok=(0, 1, 128))[0] == 0:
        return between(git, base, onto.commit)
    return rebasing.steps_between(lock, onto, progress=progress)


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    """Make a folder beside another one; what is left of it in the end goes away."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield fresh
    except OSError as e:
        raise ToolError(f"cannot write {folder}: {e.strerror}") from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _target(
    lock: Lock, series: Series, ref: str | None, upstream: str | None, progress: Progress
) -> tuple[rebasing.Onto, tuple[Path, ...]]:
    pinned = project.pinned_repository(lock, progress, series)
    if ref is None:
        pin = lock.pin
        onto = rebasing.Onto(ref=pin.ref, repository=pinned, commit=pin.commit, pin=pin)
    else:
        onto = rebasing.find_onto(ref, lock=lock, upstream=upstream, progress=progress)
    return onto, (onto.repository, pinned)


def _case(
    git: Git, root: Path, series: Series, patch: Patch, onto: Oid, progress: Progress
) -> _Case:
    """Return the conflict of a patch, with the stored resolutions of the ones before it taken."""
    if not active(patch):
        raise ConfigError(f"{patch.id} is {patch.status}; only an active patch can conflict")
    series = recalled(git, root, series, onto, until=patch.id)
    done = replay(git, series, onto, progress=progress)
    step = next(step for step in done.steps if step.patch.id == patch.id)
    if step.outcome is Outcome.BLOCKED:
        raise ConfigError(
            f"{patch.id} conflicts where {step.blocked_by} does, which comes first",
            hint=f"elsa-build resolve {step.blocked_by}",
        )
    if step.outcome is not Outcome.CONFLICT:
        raise ConfigError(f"{patch.id} is {step.outcome} on {onto}: there is nothing to resolve")
    change, parent = change_of(git, step.patch)
    context = parent or (git.find(patch.base, "tree") if patch.base else None)
    before, after = written(git, change, context or git.commit(onto).tree)
    at = done.steps.index(step)
    below = done.steps[at - 1].tree if at else git.commit(onto).tree
    merged = put(git, before, after, below)
    return _Case(
        git=git,
        series=series,
        onto=onto,
        done=done,
        step=step,
        before=before,
        after=after,
        merged=merged,
    )


# --- settling -----------------------------------------------------------------------------------


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
        case = _case(git, root, series, patch, state.commit, progress)
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
    onto, (first, *others) = _target(lock, series, ref, upstream, progress)
    with ExitStack() as opened:
        far = [opened.enter_context(Git(path)) for path in others]
        git = opened.enter_context(opened.enter_context(Git(first)).quarantine(*far))
        case = _case(git, root, series, patch, onto.commit, progress)
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
    case: _Case,
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


def _guard(case: _Case, tree: Oid, paths: Sequence[str]) -> tuple[Diagnostic, ...]:
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


def _remembered(case: _Case, tree: Oid, word: Word) -> tuple[Resolution, ...]:
    """Return the resolutions that a settled tree stands for, none unless they give all of it."""
    found: list[Resolution] = []
    for conflict in case.merged.conflicts:
        marked, text = (_text(case.git, one, conflict.path) for one in (case.merged.marked, tree))
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
    root: Path, lock: Lock, case: _Case, tree: Oid
) -> tuple[editing.Edit | None, tuple[str, ...]]:
    """Return the patchset written anew on the pin, or which other patches of it conflict."""
    git = case.git
    assert isinstance(git, Quarantine)
    patch = case.step.patch
    folder = root / project.PATCHSETS / patch.patchset
    series = _with(git, case.series, patch, (case.head, tree), case.onto)
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


# --- stored resolutions -------------------------------------------------------------------------


def recalled(
    git: Git, root: Path, series: Series, onto: Oid, *, until: str | None = None
) -> Series:
    """Return a series in which conflicts on a target are settled as their patchsets remember.

    A settled patch is written anew on the target, so that a replay there is clean. Patches from
    `until` on stay as they are.
    """
    known = {
        name: memories.load(root / project.PATCHSETS / name, root=root)
        for name in dict.fromkeys(patch.patchset for patch in series.patches)
    }
    tried: set[str] = set()
    while True:
        done = replay(git, series, onto)
        step = next(
            (s for s in _before(done, until) if s.conflicts and s.patch.id not in tried), None
        )
        if step is None:
            return series
        tried.add(step.patch.id)
        at = done.steps.index(step)
        head = next((s.commit for s in reversed(done.steps[:at]) if s.commit), onto)
        tree = _recall(git, step, known[step.patch.patchset].of(step.patch.id), head)
        if tree:
            series = _with(git, series, step.patch, (head, tree), onto)


def _before(done: Replay, until: str | None) -> Iterator[Step]:
    for step in done.steps:
        if step.patch.id == until:
            return
        yield step


def _recall(git: Git, step: Step, memory: Memory, head: Oid) -> Oid | None:
    """Return the tree that stored resolutions make of a conflict, when they settle all of it."""
    if not memory.resolutions:
        return None
    change, parent = change_of(git, step.patch)
    context = parent or (git.find(step.patch.base, "tree") if step.patch.base else None)
    onto = git.commit(head).tree
    merged = put(git, *written(git, change, context or onto), onto)
    if merged.marked is None:
        return merged.tree
    edits = {}
    for conflict in merged.conflicts:
        text = _recalled_text(git, conflict, merged.marked, memory)
        here = git.objects.find(merged.marked, conflict.path)
        if text is None or here is None:
            return None
        blob = git.objects.write("blob", text.encode("utf-8", "surrogateescape"))
        edits[conflict.path] = here._replace(oid=blob)
    return git.objects.edit(merged.marked, edits)


def _recalled_text(git: Git, conflict: Conflict, marked: Oid, memory: Memory) -> str | None:
    text = _text(git, marked, conflict.path)
    if text is None:
        return None
    whole = Marked(text)
    settled = {}
    for number in range(len(whole.hunks)):
        found, _ = memory.recall(conflict.path, whole, number)
        if found is None:
            return None
        settled[number] = found.lines
    return whole.view("ours", settled) if settled else None


def _with(git: Git, series: Series, patch: Patch, sides: tuple[Oid, Oid], onto: Oid) -> Series:
    """Return a series with one patch written anew: from a commit of the stack to a tree."""
    head, tree = sides
    message, author = words_of(git, patch)
    commit = git.commit_tree(tree, (head,), editing.rightly(patch, message), author)
    mail = parse(patch.id, write(git, commit))
    return replace(
        series,
        patches=tuple(
            replace(one, mail=mail, base=onto) if one.id == patch.id else one
            for one in series.patches
        ),
    )


def _text(git: Git, tree: Oid | None, path: str) -> str | None:
    entry = git.objects.find(tree, path) if tree else None
    if entry is None or entry.mode == TREE:
        return None
    body = git.objects.blob(entry.oid)
    return None if b"\0" in body else body.decode("utf-8", "surrogateescape")
