"""How a patch that applied differs from how it was written: what `git range-diff` is read for.

A patch can land in another function, or between other neighbours, without a conflict. Both diffs
are made anew with three lines of context and compared without their line numbers; the numbers are
told apart, as the lines that each hunk moved. One git process makes all diffs of a series.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from elsa_build.git.door import Git
from elsa_build.model import Oid, Step
from elsa_build.patches.replay import change_of
from elsa_build.patches.standalone import trees

Pair = tuple[Oid, Oid]
"""Two trees, before and after."""

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@ ?(.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One hunk: where it was written and where it landed, 1-based lines of the old side.

    The scopes are git's function lines, as in a hunk header.
    """

    path: str
    written: int
    landed: int
    written_scope: str
    landed_scope: str

    @property
    def offset(self) -> int:
        """Return how many lines further down the hunk landed; negative is up."""
        return self.landed - self.written


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """What changed around a patch. `changed` is a diff of its two diffs, '' when they agree.

    `moves` has the hunks whose place or function changed, in order.
    """

    moves: tuple[Move, ...] = ()
    changed: str = ""


def pairs(git: Git, before: Oid, step: Step) -> tuple[Pair, Pair] | None:
    """Return a step's change as written and as landed, as trees of just its files.

    `before` is the tree that the step landed on. None when both are the same, blob by blob.
    """
    change, _ = change_of(git, step.patch)
    landed = tuple(c for c in git.objects.changes(before, step.tree) if c.path in step.paths)
    if tuple(change) == landed:
        return None
    return trees(git, change), trees(git, landed)


def diffs(git: Git, wanted: Sequence[Pair]) -> tuple[str, ...]:
    """Return the diff of every pair of trees with three lines of context."""
    if not wanted:
        return ()
    form = ("--stdin", "-p", "-r", "-U3", "--full-index", "--no-renames", "--no-ext-diff")
    stdin = "".join(f"{old} {new}\n" for old, new in wanted)
    out = git.run("diff-tree", *form, "--no-textconv", stdin=stdin.encode())[1]
    found: dict[str, list[str]] = {}
    current: list[str] = []
    heads = {f"{old} {new}" for old, new in wanted}
    for line in out.decode("utf-8", "replace").split("\n"):
        if line in heads:
            current = found.setdefault(line, [])
        else:
            current.append(line)
    return tuple("\n".join(found.get(f"{old} {new}", [])) for old, new in wanted)


def compare(written: str, landed: str) -> Drift:
    """Return how two diffs of one patch differ."""
    old, new = _bare(written), _bare(landed)
    changed = "\n".join(_of_diffs(old, new)) if old != new else ""
    return Drift(moves=tuple(_moves(written, landed)), changed=changed)


def _of_diffs(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield a unified diff of two diffs, with its own hunk lines as plain separators."""
    for line in difflib.unified_diff(old, new, "as written", "as landed", n=3, lineterm=""):
        yield "@@" if line.startswith("@@ ") else line


def _bare(diff: str) -> list[str]:
    """Return the lines of a diff without what a mere offset or another base changes."""
    lines = []
    for line in diff.rstrip("\n").split("\n"):
        found = _HUNK.match(line)
        if found:
            lines.append(f"@@ {found[2]}".rstrip())
        elif not line.startswith(("index ", "diff --git ")):
            lines.append(line)
    return lines


def _moves(written: str, landed: str) -> Iterator[Move]:
    old, new = tuple(_hunks(written)), tuple(_hunks(landed))
    if len(old) != len(new):
        return
    for (_, was, scope), (path, now, scope_now) in zip(old, new, strict=True):
        if was != now or scope != scope_now:
            yield Move(
                path=path, written=was, landed=now, written_scope=scope, landed_scope=scope_now
            )


def _hunks(diff: str) -> Iterator[tuple[str, int, str]]:
    """Yield path, old line and function line of each hunk."""
    path, heading = "", True
    for line in diff.split("\n"):
        found = _HUNK.match(line)
        if found:
            heading = False
            yield path, int(found[1]), found[2]
        elif line.startswith("diff --git "):
            heading = True
        elif heading and line.startswith(("--- a/", "+++ b/")):
            path = line[6:].rstrip("\t")


def mini(git: Git, tree: Oid, paths: Iterable[str]) -> Oid:
    """Return a tree of just these paths of another one; absent ones are left out."""
    return git.objects.edit(None, {path: git.objects.find(tree, path) for path in paths})
