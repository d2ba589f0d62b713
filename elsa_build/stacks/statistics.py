"""What the stack costs to carry, now and over the project's own history.

A rebase is a revision at which the pin moved. A patch counts as a conflict of it when its own lines
changed with the pin, or when a resolution was stored for it: what only shifted cost nobody time.
"""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elsa_build import project
from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Patch, Series
from elsa_build.patches.diff import parse
from elsa_build.patches.proposals.memory import FOLDER as RESOLUTIONS
from elsa_build.patches.seriesfile import active
from elsa_build.progress import SILENT, Progress
from elsa_build.stacks.revision import READ, extract, history

DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One active patch: lines of its file (none for a reference) and since when it is carried.

    `since` is in seconds since 1970: the commit of ours that brought it, or its author's date where
    our history does not show it.
    """

    id: str
    added: int
    removed: int
    files: tuple[str, ...]
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The stack at one revision of ours; `date` is in seconds since 1970.

    `conflicts` are the patches that a rebase changed, empty where the pin did not move.
    """

    commit: Oid
    date: int
    subject: str
    ref: str
    patches: int
    references: int
    added: int
    removed: int
    files: int
    rebase: bool
    conflicts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The stack now, and the points of its history, oldest first.

    `hot` are the files that more than one patch touches, most first. `unreadable` are revisions
    whose files this version cannot read.
    """

    loads: tuple[Load, ...]
    references: int
    hot: tuple[tuple[str, tuple[str, ...]], ...]
    points: tuple[Point, ...]
    unreadable: tuple[Oid, ...]

    @property
    def lines(self) -> tuple[int, int]:
        """Return the lines added and removed by all patches."""
        return sum(one.added for one in self.loads), sum(one.removed for one in self.loads)


def statistics(root: Path, *, limit: int = 50, progress: Progress = SILENT) -> Statistics:
    """Return what the stack costs; the newest `limit` revisions of ours are looked at.

    A project in no git repository has no history, and is not refused for it.

    Raises:
        ConfigError: The patchsets cannot be read (exit 5).
    """
    series = project.read_series(root)
    states: list[_State] = []
    unreadable: list[Oid] = []
    try:
        with history(root) as (git, prefix):
            revisions = _revisions(git, prefix, limit)
            with progress.task("read our history", total=len(revisions)) as advance:
                for revision in revisions:
                    state = _read(git, prefix, revision)
                    if state is None:
                        unreadable.append(revision.commit)
                    else:
                        states.append(state)
                    advance(1)
    except ConfigError:
        states = []
    since: dict[str, int] = {}
    for state in states:
        for patch in state.series.patches:
            since.setdefault(patch.id, state.revision.date)
    loads = tuple(_load(patch, since) for patch in series.patches if active(patch))
    return Statistics(
        loads=loads,
        references=_references(series),
        hot=_hot(loads),
        points=_points(states),
        unreadable=tuple(unreadable),
    )


# --- now ----------------------------------------------------------------------------------------


def _load(patch: Patch, since: Mapping[str, int]) -> Load:
    added, removed, files = _size(patch)
    written = int(patch.mail.author.date.split()[0]) if patch.mail else 0
    return Load(
        id=patch.id,
        added=added,
        removed=removed,
        files=files,
        since=since.get(patch.id, written),
    )


def _size(patch: Patch) -> tuple[int, int, tuple[str, ...]]:
    if patch.mail is None:
        return 0, 0, ()
    files = parse(patch.mail.diff)
    signs = Counter(line[:1] for file in files for hunk in file.hunks for line in hunk.lines)
    return signs[b"+"], signs[b"-"], tuple(file.path for file in files)


def _hot(loads: Sequence[Load]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    touching: dict[str, list[str]] = {}
    for one in loads:
        for path in one.files:
            touching.setdefault(path, []).append(one.id)
    shared = [(path, tuple(ids)) for path, ids in touching.items() if len(ids) > 1]
    return tuple(sorted(shared, key=lambda item: (-len(item[1]), item[0])))


def _references(series: Series) -> int:
    return sum(active(patch) and patch.mail is None for patch in series.patches)


# --- over time ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Revision:
    commit: Oid
    date: int
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """One revision as it was: `texts` are the changed lines of each patch, without places."""

    revision: _Revision
    pin: Oid
    ref: str
    series: Series
    texts: Mapping[str, Counter[bytes]]
    resolutions: frozenset[str]


def _revisions(git: Git, prefix: str, limit: int) -> list[_Revision]:
    """Return the commits of ours that touched lock or patchsets, oldest first."""
    paths = [f":(top){prefix}{name}" for name in READ]
    form = "--format=%H%x00%ct%x00%s"
    if git.find("HEAD") is None:
        return []
    lines = git.text("log", "--first-parent", f"-n{limit}", form, "HEAD", "--", *paths)
    found = [line.split("\0") for line in lines.split("\n") if line]
    return [_Revision(commit=Oid(c), date=int(d), subject=s) for c, d, s in reversed(found)]


def _read(git: Git, prefix: str, revision: _Revision) -> _State | None:
    with tempfile.TemporaryDirectory(prefix="elsa-revision-") as folder:
        root = Path(folder)
        extract(git, revision.commit, prefix, root)
        try:
            lock = project.read_lock(root)
            series = project.read_series(root)
            sizes = {patch.id: _changed_lines(patch) for patch in series.patches}
        except ConfigError:
            return None
        stored = {path.name for path in root.glob(f"{project.PATCHSETS}/*/{RESOLUTIONS}/*.yaml")}
    return _State(
        revision=revision,
        pin=lock.pin.commit,
        ref=lock.pin.ref,
        series=series,
        texts=sizes,
        resolutions=frozenset(stored),
    )


def _changed_lines(patch: Patch) -> Counter[bytes]:
    if patch.mail is None:
        return Counter()
    return Counter(
        line
        for file in parse(patch.mail.diff)
        for hunk in file.hunks
        for line in hunk.lines
        if line[:1] in (b"+", b"-")
    )


def _points(states: Sequence[_State]) -> tuple[Point, ...]:
    points = []
    for number, state in enumerate(states):
        before = states[number - 1] if number else None
        points.append(_point(state, before))
    return tuple(points)


def _point(state: _State, before: _State | None) -> Point:
    sizes = [_size(patch) for patch in state.series.patches if active(patch)]
    moved = before is not None and before.pin != state.pin
    return Point(
        commit=state.revision.commit,
        date=state.revision.date,
        subject=state.revision.subject,
        ref=state.ref,
        patches=len(sizes),
        references=_references(state.series),
        added=sum(added for added, _, _ in sizes),
        removed=sum(removed for _, removed, _ in sizes),
        files=len({path for _, _, files in sizes for path in files}),
        rebase=moved,
        conflicts=_conflicts(state, before) if moved and before else (),
    )


def _conflicts(state: _State, before: _State) -> tuple[str, ...]:
    fresh = {name.partition(".")[0] for name in state.resolutions - before.resolutions}
    return tuple(
        patch.id
        for patch in state.series.patches
        if active(patch)
        and patch.id in before.texts
        and (patch.id in fresh or state.texts[patch.id] != before.texts[patch.id])
    )
