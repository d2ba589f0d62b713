"""A project's view of upstream: which commits since the pin count, and where they are tried.

A git pin may lie on a release branch; then the commits since it left the branch that is scanned
count, and what the release branch took from there is known by its pull request. A published release
has no history: the scan begins at its tag in another repository, or where `since` says.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.errors import ConfigError, UsageError
from elsa_build.git.door import Git, Quarantine
from elsa_build.model import Interest, Oid, Patch, Recipe, SourceKind
from elsa_build.nightly.interest import filled, reasons
from elsa_build.nightly.prerequisites import LIMIT
from elsa_build.nightly.reverts import Finding, findings
from elsa_build.nightly.scan import Candidate, Field, candidates, hot_files, tried
from elsa_build.patches.history import UpstreamCommit, between
from elsa_build.patches.reverts import told, turns
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream.lock import Lock

PACKAGE = "python/"
"""What a published release holds of upstream's tree."""

_NUMBERS = re.compile(r"\(#(\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a person wants to see of upstream.

    `ref` is how far; `upstream` another repository than the lock's; `since` another start than the
    pin. `grep` (a regular expression over messages) and `paths` (globs) stand in for the recipe's
    interest, `everything` for any. `limit` keeps the newest; `prerequisites` is the most that a
    candidate may have.
    """

    ref: str = "nightly"
    upstream: str | None = None
    since: str | None = None
    grep: str | None = None
    paths: tuple[str, ...] = ()
    everything: bool = False
    limit: int | None = None
    prerequisites: int = LIMIT
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a scan found: `commits` were looked at from `since` to `until`."""

    since: Oid
    until: Oid
    commits: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a watch found: `patches` were followed up to `until`; the `lost` name no origin."""

    until: Oid
    patches: tuple[Patch, ...]
    lost: tuple[Patch, ...]
    findings: tuple[Finding, ...]


def scan(root: Path, recipe: Recipe | None, ask: Ask, *, progress: Progress = SILENT) -> Survey:
    """Return the commits that matter, each tried on our stack (a recipe's, or all patchsets).

    Raises:
        ConfigError: There is no such reference, or no start for a published release (exit 5).
        UsageError: The pin is a published release, and no repository was named (exit 2).
    """
    lock = project.read_lock(root)
    series = project.read_series(root, recipe.patchsets if recipe else None)
    pinned = project.pinned_repository(lock, progress)
    with _upstream(lock, ask.ref, ask.upstream, progress) as (git, onto):
        since = start(git, lock, ask.since)
        history = fetched(git, lock, onto, since, progress)
        field = Field(
            repositories=(onto.repository, pinned),
            series=series,
            pin=lock.pin.commit,
            history=history,
            scope=scope(lock),
        )
        hot = hot_files(git, series)
        why = {one.oid: _reasons(one, recipe, ask, hot) for one in history}
        found = candidates(
            field, why, hot, turns(history), _elsewhere(git, since=onto.commit, until=since)
        )
    if ask.limit is not None:
        found = found[-ask.limit :] if ask.limit else ()
    return Survey(
        since=since,
        until=onto.commit,
        commits=len(history),
        candidates=tried(
            field, found, limit=ask.prerequisites, workers=ask.workers, progress=progress
        ),
    )


def watch(
    root: Path,
    recipe: Recipe | None,
    *,
    ref: str = "nightly",
    upstream: str | None = None,
    progress: Progress = SILENT,
) -> Watched:
    """Return what upstream took back, or landed again, of the patches that come from it.

    Raises:
        UsageError: The pin is a published release, and no repository was named (exit 2).
    """
    lock = project.read_lock(root)
    series = project.read_series(root, recipe.patchsets if recipe else None)
    with _upstream(lock, ref, upstream, progress) as (git, onto), progress.task("read history"):
        history = told(git, onto.commit)
    followed, lost, found = findings(series.patches, history)
    return Watched(until=onto.commit, patches=followed, lost=lost, findings=found)


# --- shared with picking ------------------------------------------------------------------------


def scope(lock: Lock) -> str:
    """Return where a path must begin to be in the pinned tree."""
    return PACKAGE if lock.pin.source is SourceKind.RELEASE else ""


def start(git: Git, lock: Lock, since: str | None) -> Oid:
    """Return the commit of upstream's history at which the pin stands.

    Raises:
        ConfigError: The pin is a published release, and its tag is not in the repository (exit 5).
    """
    if since:
        return git.resolve(since)
    if lock.pin.source is SourceKind.GIT:
        return lock.pin.commit
    found = git.find(f"refs/tags/{lock.pin.ref}") or git.find(lock.pin.ref)
    if found is None:
        raise ConfigError(
            f"no tag '{lock.pin.ref}' in {git.path}: where does the pinned release stand in it?",
            hint="add --since REV, the commit that the release was made from",
        )
    return found


def fetched(
    git: Git, lock: Lock, onto: rebasing.Onto, since: Oid, progress: Progress
) -> tuple[UpstreamCommit, ...]:
    """Return the commits since a start, oldest first, with their files at hand.

    Raises:
        ConfigError: The repository does not hold the start (exit 5).
    """
    if git.find(since) is None:
        raise ConfigError(
            f"the pin's commit {since} is not in {onto.repository}",
            hint="add --since REV, or an --upstream that has it",
        )
    if onto.pin is not None:
        project.fetch_files(lock, since, onto.commit, progress)
    with progress.task("read history"):
        return between(git, since, onto.commit)


@contextmanager
def _upstream(
    lock: Lock, ref: str, upstream: str | None, progress: Progress
) -> Iterator[tuple[Quarantine, rebasing.Onto]]:
    """Open the repository that has the history, with the pinned one's objects at hand."""
    if upstream is None and lock.pin.source is not SourceKind.GIT:
        raise UsageError(
            "the lock pins a release, which has no history",
            hint="add --upstream PATH|URL of a git repository of the upstream",
        )
    onto = rebasing.find_onto(ref, lock=lock, upstream=upstream, progress=progress)
    pinned = project.pinned_repository(lock, progress)
    with Git(onto.repository) as new, Git(pinned) as old, new.quarantine(old) as inner:
        yield inner, onto


def _elsewhere(git: Git, *, since: Oid, until: Oid) -> frozenset[int]:
    """Return the pull requests on the pin's own line, such as picks to a release branch."""
    own = told(git, until, since)
    return frozenset(int(number) for one in own for number in _NUMBERS.findall(one.subject))


def _reasons(
    commit: UpstreamCommit,
    recipe: Recipe | None,
    ask: Ask,
    hot: Mapping[str, tuple[str, ...]],
) -> tuple[str, ...]:
    """Return why a commit is shown: by what was asked for, else by the recipe's interest."""
    if ask.everything:
        return ("all",)
    if ask.grep is None and not ask.paths:
        return reasons(commit, filled(recipe.nightly if recipe else Interest()), hot)
    if ask.grep is not None and not re.search(ask.grep, commit.message, re.IGNORECASE):
        return ()
    hits = [c.path for c in commit.changes if any(fnmatchcase(c.path, glob) for glob in ask.paths)]
    if ask.paths and not hits:
        return ()
    return (*((f"grep: {ask.grep}",) if ask.grep else ()), *(f"path: {path}" for path in hits))
