"""One conflict of the series, laid out in a work tree as git itself would leave it.

Any editor and any merge tool of the person's git configuration works there.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Outcome, Patch, Replay, Series, Step
from elsa_build.patches import checkout, unmerged
from elsa_build.patches.causes import Tracer
from elsa_build.patches.history import UpstreamCommit, between
from elsa_build.patches.replay import change_of, replay, words_of
from elsa_build.patches.review import Site
from elsa_build.patches.seriesfile import active, patch_of
from elsa_build.patches.sites import Ground, sites
from elsa_build.patches.threeway import Merged, put, written
from elsa_build.patches.unmerged import Side, State
from elsa_build.progress import SILENT, Progress
from elsa_build.recalling import recalled
from elsa_build.upstream.lock import Lock

FOLDER = "dist/resolve"
"""Where conflicts are laid out when a person does not say where; git ignores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """A conflict that was laid out in a folder; `sites` are its places and who caused them."""

    folder: Path
    patch: Patch
    ref: str
    step: Step
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
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
    onto, repositories = target(lock, series, ref, upstream, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _fresh(folder) as fresh:
        checkout.borrowing(fresh, repositories, "resolve")
        with Git(fresh) as git:
            case = case_of(git, root, series, patch, onto.commit, progress)
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


def target(
    lock: Lock, series: Series, ref: str | None, upstream: str | None, progress: Progress
) -> tuple[rebasing.Onto, tuple[Path, ...]]:
    """Return what a conflict is settled on (the pin by default), and where all objects are."""
    pinned = project.pinned_repository(lock, progress, series)
    if ref is None:
        pin = lock.pin
        onto = rebasing.Onto(ref=pin.ref, repository=pinned, commit=pin.commit, pin=pin)
    else:
        onto = rebasing.find_onto(ref, lock=lock, upstream=upstream, progress=progress)
    return onto, (onto.repository, pinned)


def case_of(
    git: Git, root: Path, series: Series, patch: Patch, onto: Oid, progress: Progress
) -> Case:
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
    return Case(
        git=git,
        series=series,
        onto=onto,
        done=done,
        step=step,
        before=before,
        after=after,
        merged=merged,
    )
