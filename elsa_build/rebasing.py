"""Rebase day: the series on another upstream, what that does to each patch, and how it is kept.

Everything happens in a quarantine that reads both repositories, the pinned one (the patches were
written on its files) and the one with the new upstream. Only `write` leaves a trace.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build import project
from elsa_build.diagnostics import Diagnostic
from elsa_build.errors import ConfigError, ConflictError
from elsa_build.git.door import Git, Quarantine
from elsa_build.model import (
    Kind,
    Oid,
    Origin,
    Outcome,
    Patch,
    Pin,
    Proposal,
    Recipe,
    Replay,
    Series,
    SourceKind,
    Status,
)
from elsa_build.patches import editing, probes, seriestext
from elsa_build.patches.absorption import judge
from elsa_build.patches.guarding import guarded
from elsa_build.patches.history import UpstreamCommit, between
from elsa_build.patches.mail import write as as_mail
from elsa_build.patches.proposals.memory import Memory
from elsa_build.patches.proposals.memory import load as load_memory
from elsa_build.patches.proposals.propose import propose
from elsa_build.patches.replay import Clash, Proposer, replay
from elsa_build.patches.review import Review, Revision
from elsa_build.patches.reviewing import review
from elsa_build.patches.seriesfile import NAME
from elsa_build.progress import SILENT, Progress
from elsa_build.recalling import recalled
from elsa_build.upstream import lock as locks
from elsa_build.upstream.cache import cache_dir
from elsa_build.upstream.source import open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Onto:
    """Where a series is to go: a commit in a repository; `pin` when the lock could move there."""

    ref: str
    repository: Path
    commit: Oid
    pin: Pin | None = None


def find_onto(
    ref: str, *, lock: locks.Lock | None, upstream: str | None, progress: Progress = SILENT
) -> Onto:
    """Return what a reference means in `upstream` (a path or an address), or in the lock's source.

    Raises:
        ConfigError: There is no such reference, or neither lock nor upstream.
    """
    if upstream and Path(upstream).exists():
        with Git(Path(upstream)) as git:
            return Onto(ref=ref, repository=Path(upstream).resolve(), commit=git.resolve(ref))
    if upstream:
        source = open_source(
            SourceKind.GIT, upstream, cache=cache_dir(os.environ), progress=progress
        )
    elif lock:
        source = open_source(
            lock.pin.source, lock.pin.url, cache=cache_dir(os.environ), progress=progress
        )
    else:
        raise ConfigError("nothing is pinned here", hint="add --upstream PATH")
    pin = source.resolve(ref)
    return Onto(
        ref=ref,
        repository=source.ensure(pin),
        commit=pin.commit,
        pin=None if upstream else pin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """A series on another upstream.

    `base` is what is pinned, `history` upstream's steps from there, oldest first; `probes` are the
    patches' claims that do not hold on `onto`.
    """

    base: Revision
    pin: Pin
    onto: Onto
    series: Series
    history: tuple[UpstreamCommit, ...]
    done: Replay
    probes: tuple[Diagnostic, ...] = ()


@contextmanager
def rebased(
    root: Path,
    onto: Onto,
    *,
    recipe: Recipe | None = None,
    progress: Progress = SILENT,
) -> Iterator[tuple[Rebased, Quarantine]]:
    """Replay the project's series (a recipe's, or all patchsets) on `onto`; guard and probe it.

    What was settled before (`resolve`) stands settled. A conflict that is left gets a proposal
    where one holds; `resolve --accept` is how one is taken.
    """
    lock = project.read_lock(root)
    series = project.read_series(root, recipe.patchsets if recipe else None)
    pinned = project.pinned_repository(lock, progress, series)
    with Git(pinned) as old, Git(onto.repository) as new, new.quarantine(old) as inner:
        series = recalled(inner, root, series, onto.commit)
        done = replay(
            inner,
            series,
            onto.commit,
            propose=proposer(root, series),
            progress=progress,
        )
        done = guarded(inner, done)
        history = _history(inner, lock.pin.commit, onto)
        done = _judged(inner, done, history, recipe)
        standing = [step.patch for step in done.steps if step.commit]
        yield (
            Rebased(
                base=Revision(name=lock.pin.ref, commit=lock.pin.commit),
                pin=lock.pin,
                onto=onto,
                series=series,
                history=history,
                done=done,
                probes=probes.examine(inner.objects, done.tree, standing),
            ),
            inner,
        )


def proposer(root: Path, series: Series) -> Proposer:
    """Return what suggests settlements, with the resolutions that the patchsets remember.

    Raises:
        ConfigError: A stored resolution cannot be read.
    """
    names = dict.fromkeys(patch.patchset for patch in series.patches)
    folders = [root / project.PATCHSETS / name for name in names]
    known = [one for folder in folders for one in load_memory(folder, root=root).resolutions]
    memory = Memory(resolutions=tuple(known))

    def suggest(git: Git, clash: Clash) -> Proposal | None:
        return propose(
            git,
            before=clash.before,
            after=clash.after,
            onto=clash.onto,
            merged=clash.merged,
            memory=memory.of(clash.patch.id),
        )

    return suggest


def _judged(
    git: Git, done: Replay, history: Sequence[UpstreamCommit], recipe: Recipe | None
) -> Replay:
    """Return the replay with a verdict on each step: how much of it upstream already has."""
    verdicts = judge(git, done, history, arch=recipe.arch if recipe else "sm_120")
    steps = (replace(step, absorption=verdicts.get(step.patch.id)) for step in done.steps)
    return replace(done, steps=tuple(steps))


def reviewed(
    found: Rebased, quarantine: Quarantine, *, now: str, progress: Progress = SILENT
) -> Review:
    """Return what a reviewer needs of a rebase; `now` is ISO 8601 with an offset."""
    return review(
        quarantine,
        found.done,
        series=found.series.name,
        base=found.base,
        onto=found.onto.ref,
        now=now,
        pin=found.pin,
        history=found.history,
        progress=progress,
    )


# --- keeping it ---------------------------------------------------------------------------------


def edits(root: Path, found: Rebased, quarantine: Quarantine) -> tuple[editing.Edit, ...]:
    """Return the edits that move every patchset of a clean rebase to its new base.

    Each patchset is written as it stands on the new base alone, so that it can still be used
    alone. What upstream has taken over is marked as absorbed; its file and its id stay.
    """
    names = dict.fromkeys(patch.patchset for patch in found.series.patches)
    return tuple(_edit(root, name, found, quarantine) for name in names)


def _edit(root: Path, name: str, found: Rebased, quarantine: Quarantine) -> editing.Edit:
    folder = root / project.PATCHSETS / name
    own = replace(
        found.series, patches=tuple(p for p in found.series.patches if p.patchset == name)
    )
    shown = f"{project.PATCHSETS}/{name}/{NAME}"
    text = (folder / NAME).read_text(encoding="utf-8")
    text = seriestext.with_base(text, shown, found.onto.commit, found.onto.ref)
    files: dict[str, bytes] = {}
    for step in replay(quarantine, own, found.onto.commit).steps:
        if step.commit and step.patch.file:
            files[step.patch.file.name] = as_mail(quarantine, step.commit)
        elif step.outcome in (Outcome.CONFLICT, Outcome.BLOCKED):
            raise ConflictError(
                f"{step.patch.id} applies in the whole stack, but not with {name} alone",
                hint=f"elsa-build patch edit {step.patch.id}: requires, or another order of sets",
            )
        elif step.outcome is Outcome.ABSORBED and step.patch.file:
            text = seriestext.with_field(text, shown, step.patch.id, "status", Status.ABSORBED)
    return editing.Edit(folder=folder, files={**files, NAME: text.encode()})


def write(root: Path, found: Rebased, quarantine: Quarantine) -> locks.Lock:
    """Move the patchsets and the lock to the new upstream and return the lock.

    The lock goes last: until then a run that ends early is found stale and can be run again.

    Raises:
        ConfigError: The new upstream is not the lock's source, so the lock cannot name it.
    """
    if found.onto.pin is None:
        raise ConfigError(
            "--write needs the lock's own source",
            hint=f"elsa-build pin set {found.onto.ref} --source git --url ...",
        )
    written = edits(root, found, quarantine)
    quarantine.keep()
    for edit in written:
        editing.write(edit)
    lock = locks.repin(project.read_lock(root), found.onto.pin)
    locks.save(root / locks.FILENAME, lock)
    return lock


# --- single commits -----------------------------------------------------------------------------


def picks(git: Git, commits: Sequence[Oid], patchset: str = "picks") -> Series:
    """Return upstream commits as a series of references, in the order given.

    Raises:
        ConfigError: One of them is a merge, which has no single change.
    """
    patches = []
    for oid in commits:
        found = git.commit(oid)
        if len(found.parents) > 1:
            raise ConfigError(
                f"commit {oid} is a merge of {len(found.parents)} parents",
                hint=f"git log --oneline {oid}^1..{oid}, and pick its commits",
            )
        patches.append(
            Patch(
                id=oid,
                patchset=patchset,
                file=None,
                line=1,
                kind=Kind.CHERRY_PICK,
                status=Status.CANDIDATE,
                why=found.message,
                mail=None,
                origin=Origin(commit=oid),
            )
        )
    return Series(name=patchset, patches=tuple(patches))


def steps_between(
    lock: locks.Lock, onto: Onto, *, progress: Progress = SILENT
) -> tuple[UpstreamCommit, ...]:
    """Return upstream's steps from the pin to `onto`: its commits, or for releases the one jump."""
    pinned = project.pinned_repository(lock, progress)
    with Git(pinned) as old, Git(onto.repository) as new, new.quarantine(old) as git:
        return _history(git, lock.pin.commit, onto)


def _history(git: Git, base: Oid, onto: Onto) -> tuple[UpstreamCommit, ...]:
    # A pin on a release branch is no ancestor of the nightly branch, but shares its history.
    if git.run("merge-base", base, onto.commit, ok=(0, 1, 128))[0] == 0:
        return between(git, base, onto.commit)
    commit = git.commit(onto.commit)
    changes = tuple(git.objects.changes(git.commit(base).tree, commit.tree))
    return (
        UpstreamCommit(
            oid=onto.commit,
            author=commit.author.name,
            date=onto.pin.date if onto.pin else "",
            message=commit.message,
            changes=changes,
        ),
    )
