"""Put one change on a tree by three-way merge: git's own merge, in the object store.

One `git merge-tree` on whole SGLang trees takes 9 ms (2.39, two cores), renames and all: faster
than any scheme of ours that looked at single paths first (measured), and it is `git rebase`'s own
merge. Only the case that nothing stands in the way is settled without a process.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elsa_build.git.door import Git, Merge
from elsa_build.git.objects import TREE, Change
from elsa_build.model import Conflict, Oid, Region

_MARKER = re.compile(rb"([<|=>])\1{31}(?: .*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A change put on a tree: the new tree, or why not.

    On a conflict `tree` is unchanged and `marked` is git's own tree, conflict markers and all.
    """

    tree: Oid
    paths: tuple[str, ...]
    marked: Oid | None = None
    conflicts: tuple[Conflict, ...] = ()


def written(git: Git, change: Iterable[Change], context: Oid) -> tuple[Oid, Oid]:
    """Return the trees before and after a change, as it was written.

    `context` is the tree around it: what the change does not touch comes from there.
    """
    change = tuple(change)
    before = git.objects.edit(context, {path: old for path, old, _ in change})
    return before, git.objects.edit(before, {path: new for path, _, new in change})


def put(git: Git, before: Oid, after: Oid, onto: Oid) -> Merged:
    """Return the tree `onto` with the change from tree `before` to tree `after` merged in."""
    if onto == before:
        merged = Merge(clean=True, tree=after, reasons={})
    else:
        merged = git.merge_trees(before, onto, after)
    if not merged.clean:
        return _conflicted(git, merged, onto)
    touched = tuple(change.path for change in git.objects.changes(onto, merged.tree))
    return Merged(tree=merged.tree, paths=touched)


def _conflicted(git: Git, merged: Merge, onto: Oid) -> Merged:
    conflicts = []
    for path, reason in sorted(merged.reasons.items()):
        entry = git.objects.find(merged.tree, path)
        text = git.objects.blob(entry.oid) if entry and entry.mode != TREE else b""
        here = git.objects.find(onto, path)
        ours = git.objects.blob(here.oid) if here and here.mode != TREE else b""
        conflicts.append(Conflict(path=path, reason=reason, regions=regions(text, ours)))
    return Merged(
        tree=onto,
        paths=tuple(sorted(merged.reasons)),
        marked=merged.tree,
        conflicts=tuple(conflicts),
    )


def regions(text: bytes, ours: bytes) -> tuple[Region, ...]:
    """Return the conflicts inside a file that git wrote with 32-character zdiff3 markers.

    `ours` is the file on our side; it gives each region its line there.
    """
    found: list[Mapping[bytes, list[bytes]]] = []
    starts: list[int] = []
    side: bytes | None = None
    ours_view: list[bytes] = []
    for line in text.split(b"\n"):
        marker = _MARKER.fullmatch(line.rstrip(b"\r"))
        if marker:
            side = marker[1]
            if side == b"<":
                found.append({b"<": [], b"|": [], b"=": []})
                starts.append(len(ours_view))
            elif side == b">":
                side = None
            continue
        if side is not None:
            found[-1][side].append(line)
        if side in (None, b"<"):
            ours_view.append(line)
    lines = _lines_in(ours_view, ours.split(b"\n"), starts)
    return tuple(
        Region(
            line=line,
            ours=_whole(part[b"<"]),
            base=_whole(part[b"|"]),
            theirs=_whole(part[b"="]),
        )
        for line, part in zip(lines, found, strict=True)
    )


def _whole(lines: list[bytes]) -> str:
    return "".join(line.decode("utf-8", "replace") + "\n" for line in lines)


def _lines_in(view: list[bytes], ours: list[bytes], starts: list[int]) -> list[int]:
    """Map line indices of the half-merged view to 1-based lines of our own file.

    What merged cleanly from the other side has shifted the view; a line diff undoes the shift.
    """
    if view == ours or not starts:
        return [start + 1 for start in starts]
    mapped = []
    blocks = difflib.SequenceMatcher(None, view, ours, autojunk=False).get_matching_blocks()
    for start in starts:
        before = [b for b in blocks if b.a <= start]
        last = before[-1] if before else blocks[0]
        mapped.append(last.b + min(start - last.a, last.size) + 1)
    return mapped
