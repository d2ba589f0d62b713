"""What kind of upstream change broke a patch: a reviewer acts differently on each.

Reworded text is merged by hand, moved or renamed code is followed, deleted code asks whether the
patch is still needed, and what upstream has taken over is dropped.
"""

from collections.abc import Iterable
from enum import StrEnum

from elsa_build.git.door import Git
from elsa_build.git.objects import Change, Entry
from elsa_build.patches.guards.linediff import hunks
from elsa_build.patches.history import UpstreamCommit

_SHARE_MOVED = 0.6
"""Of the lines that a commit took away around a patch, how many must turn up in one file."""


class Breakage(StrEnum):
    """Why a patch stopped applying, as seen at the commit that did it; the most telling first."""

    ABSORBED = "absorbed"
    RENAMED = "renamed"
    MOVED = "moved"
    DELETED = "deleted"
    REWORDED = "reworded"
    ELSEWHERE = "elsewhere"


def classify(git: Git, commit: UpstreamCommit, patch: Iterable[Change]) -> Breakage:
    """Return what a commit did to the lines around a patch, in the files that both touch.

    `elsewhere` is a break from outside these files: a patch before this one, or a directory.
    """
    touched = {change.path: change for change in commit.changes}
    found = [_of_file(git, commit, touched[c.path], c) for c in patch if c.path in touched]
    return min(found, key=list(Breakage).index, default=Breakage.ELSEWHERE)


def _of_file(git: Git, commit: UpstreamCommit, theirs: Change, ours: Change) -> Breakage:
    if theirs.new is None and _renamed(git, commit, theirs.path):
        return Breakage.RENAMED
    if _new_home(git, theirs, _around(git, ours), commit.changes):
        return Breakage.MOVED
    return Breakage.DELETED if theirs.new is None else Breakage.REWORDED


def _renamed(git: Git, commit: UpstreamCommit, path: str) -> str | None:
    """Return where git says that a commit moved a whole file, or None."""
    form = ("-r", "-z", "-M", "--diff-filter=R", "--name-status", "--no-commit-id")
    fields = git.text("diff-tree", *form, f"{commit.oid}^", commit.oid).split("\0")
    pairs = dict(zip(fields[1::3], fields[2::3], strict=False))
    return pairs.get(path)


def _new_home(git: Git, lost: Change, around: set[bytes], changes: Iterable[Change]) -> str | None:
    """Return the file that gained most of the lines that another one lost around a patch."""
    gone = (_lines(git, lost.old) - _lines(git, lost.new)) & around
    if len(gone) < 3:
        return None
    for change in changes:
        if change.path != lost.path and change.new is not None:
            gained = _lines(git, change.new) - _lines(git, change.old)
            if len(gone & gained) >= _SHARE_MOVED * len(gone):
                return change.path
    return None


def _around(git: Git, ours: Change) -> set[bytes]:
    """Return the lines within ten of a patch's hunks, in the file that it was written on."""
    old, new = (_split(git, entry) for entry in (ours.old, ours.new))
    near: set[bytes] = set()
    for hunk in hunks(old, new):
        window = old[max(0, hunk.old_start - 10) : hunk.old_stop + 10]
        near.update(line.strip().encode("utf-8", "surrogateescape") for line in window)
    return near


def _split(git: Git, entry: Entry | None) -> list[str]:
    text = git.objects.blob(entry.oid) if entry else b""
    return text.decode("utf-8", "surrogateescape").split("\n")


def _lines(git: Git, entry: Entry | None) -> set[bytes]:
    """Return the lines that say something: brackets and blank lines would match anywhere."""
    text = git.objects.blob(entry.oid) if entry else b""
    return {line.strip() for line in text.split(b"\n") if len(line.strip()) > 8}
