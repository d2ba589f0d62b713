"""Which upstream commits changed the lines that a patch conflicts on: a reviewer reads this first.

`git log -L` answers it in a second a region, and not at all where the lines are gone. Here each
region walks back through the blobs of the commits that touched its file, line numbers and renames
followed; the whole history was read once before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from elsa_build.git.door import Git
from elsa_build.git.objects import TREE, Change, Entry
from elsa_build.model import Oid
from elsa_build.patches.guards.linediff import Hunk, hunks
from elsa_build.patches.history import UpstreamCommit


class Deed(StrEnum):
    """What a commit did to the lines of a region, or to their file."""

    LINES = "changed these lines"
    ADDED = "added the file"
    DELETED = "deleted the file"
    RENAMED = "renamed the file"
    FOLDER = "moved the folder"
    FILE = "changed the file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One upstream commit and why it was made; `date` is ISO 8601 with an offset.

    `body` is the message without its subject. `path` is the file's name after a rename.
    """

    oid: Oid
    author: str
    date: str
    subject: str
    body: str
    pr: int | None
    deed: Deed
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Lines `[start, stop)` of a file as it is on onto, 0-based; None means the whole file."""

    path: str
    lines: tuple[int, int] | None = None


@dataclass(slots=True)
class Tracer:
    """Upstream's history from base to onto, oldest first, ready to be asked about spots."""

    git: Git
    history: Sequence[UpstreamCommit]
    _touching: dict[str, list[tuple[int, Change]]] = field(default_factory=dict, init=False)
    _hunks: dict[tuple[Entry | None, Entry | None], tuple[Hunk, ...]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        for number, commit in enumerate(self.history):
            for change in commit.changes:
                self._touching.setdefault(change.path, []).append((number, change))

    def causes(self, spot: Spot) -> tuple[Cause, ...]:
        """Return the commits that changed a spot, oldest first.

        Where none changed these very lines, or the file is gone, all commits that touched the
        file; what each did is in its `deed`.
        """
        found = tuple(self._walk(spot))
        exact = tuple(cause for cause in found if cause.deed is not Deed.FILE)
        return tuple(reversed(exact or found))

    def home(self, path: str) -> str | None:
        """Return where upstream moved a file that is no longer at this path, or None."""
        moved = None
        for number, change in self._touching.get(path, []):
            if change.new is None:
                moved = self._moved(self.history[number], path)
        return moved

    def folder_moves(self, old: str, new: str) -> tuple[Cause, ...]:
        """Return the commits that moved files from one folder into another, oldest first."""
        return tuple(
            _cause(commit, Deed.FOLDER, new)
            for commit in self.history
            if any(c.new is None and _folder(c.path) == old for c in commit.changes)
            and any(c.old is None and _folder(c.path) == new for c in commit.changes)
        )

    def _walk(self, spot: Spot) -> Iterator[Cause]:
        """Yield causes from the newest to the oldest."""
        path, lines, last = spot.path, spot.lines, len(self.history)
        while True:
            touching = [item for item in self._touching.get(path, []) if item[0] < last]
            for number, change in reversed(touching):
                commit, last = self.history[number], number
                if change.old is None:
                    source = self._source(commit, change)
                    if source is None:
                        yield _cause(commit, Deed.ADDED)
                        return
                    hit, lines = self._hit(source.old, change.new, lines)
                    yield _cause(commit, Deed.LINES if hit else Deed.RENAMED, path)
                    path = source.path
                    break
                if change.new is None:
                    yield _cause(commit, Deed.DELETED, self._moved(commit, path))
                    continue
                hit, lines = self._hit(change.old, change.new, lines)
                yield _cause(commit, Deed.LINES if hit else Deed.FILE)
            else:
                return

    def _hit(
        self, old: Entry | None, new: Entry | None, lines: tuple[int, int] | None
    ) -> tuple[bool, tuple[int, int] | None]:
        """Say whether a commit changed the lines, and return where they were before it."""
        if lines is None:
            return False, None
        key = (old, new)
        if key not in self._hunks:
            self._hunks[key] = hunks(file_lines(self.git, old), file_lines(self.git, new))
        return before(self._hunks[key], lines)

    def _source(self, commit: UpstreamCommit, added: Change) -> Change | None:
        """Return what a commit removed when it added a file, if that is its old self."""
        gone = [change for change in commit.changes if change.new is None and change.old]
        same = [change for change in gone if _oid(change.old) == _oid(added.new)]
        if not same and gone:
            renamed = self._renames(commit)
            same = [change for change in gone if renamed.get(change.path) == added.path]
        return same[0] if same else None

    def _moved(self, commit: UpstreamCommit, path: str) -> str | None:
        return self._renames(commit).get(path)

    def _renames(self, commit: UpstreamCommit) -> dict[str, str]:
        """Return git's own renames of a commit, old path to new."""
        form = ("-r", "-z", "-M", "--diff-filter=R", "--name-status", "--no-commit-id")
        if self.git.find(f"{commit.oid}^") is None:
            return {}
        fields = self.git.text("diff-tree", *form, f"{commit.oid}^", commit.oid).split("\0")
        return dict(zip(fields[1::3], fields[2::3], strict=False))


def before(found: Sequence[Hunk], lines: tuple[int, int]) -> tuple[bool, tuple[int, int]]:
    """Return whether any hunk touches `lines` of the new text, and these lines in the old text.

    A range that begins or ends inside a hunk takes in the hunk's whole old side.
    """
    start, stop = lines
    hit = any(
        (h.new_start < stop and h.new_stop > start)
        or (h.new_start == h.new_stop and start <= h.new_start <= stop)
        for h in found
    )
    first = _first(found, start)
    return hit, (first, max(first, _last(found, stop)))


def _first(found: Sequence[Hunk], start: int) -> int:
    shift = 0
    for h in found:
        if h.new_stop < start or h.new_start < h.new_stop == start:
            shift = h.old_stop - h.new_stop
        elif h.new_start <= start:
            return h.old_start
        else:
            break
    return start + shift


def _last(found: Sequence[Hunk], stop: int) -> int:
    shift = 0
    for h in found:
        if h.new_stop <= stop:
            shift = h.old_stop - h.new_stop
        elif h.new_start < stop:
            return h.old_stop
        else:
            break
    return stop + shift


def file_lines(git: Git, entry: Entry | None) -> tuple[str, ...]:
    """Return the lines of a file, split on LF only; none for what is absent or a directory."""
    if entry is None or entry.mode == TREE:
        return ()
    found = git.objects.get(entry.oid)
    if found is None or found[0] != "blob":
        return ()
    lines = found[1].decode("utf-8", "replace").split("\n")
    return tuple(lines if lines[-1] else lines[:-1])


def _cause(commit: UpstreamCommit, deed: Deed, path: str | None = None) -> Cause:
    return Cause(
        oid=commit.oid,
        author=_clean(commit.author),
        date=commit.date,
        subject=_clean(commit.subject),
        body=_clean(commit.message.partition("\n")[2].strip("\n")),
        pr=commit.pr,
        deed=deed,
        path=path,
    )


def _clean(text: str) -> str:
    """Return text of unknown encoding as characters that every report can hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _oid(entry: Entry | None) -> Oid | None:
    return entry.oid if entry else None
