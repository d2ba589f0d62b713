"""The earlier upstream commits that a pick stands on, found by the lines that it conflicts on.

A conflict on our tree mostly means that the lines a commit changes were written after the pin.
Who wrote them is asked at the commit's own parent; these commits are merged first, and may conflict
in turn. What the answer does not need is dropped again, so that it is short, and every answer was
merged as it stands.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from elsa_build.diagnostics import Diagnostic
from elsa_build.git.door import Git
from elsa_build.git.objects import Change, Entry
from elsa_build.model import Conflict, Oid
from elsa_build.nightly.trial import landed, objections
from elsa_build.patches.causes import before, file_lines
from elsa_build.patches.guards import imports
from elsa_build.patches.guards.linediff import Hunk, hunks
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.threeway import Merged

LIMIT = 8
"""Commits; a pick that needs more is not a pick but a rebase."""
MERGES = 60
"""Merges that one search may take, some 10 ms each."""

_NAMES = re.compile(r"`([\w.]+)`")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisites:
    """What must come before a pick, oldest first; with none, `reason` says why none was found."""

    commits: tuple[UpstreamCommit, ...] = ()
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class Ground:
    """A tree of ours and upstream's commits since the pin (oldest first), ready for many searches.

    `scope` is as in `trial.landed`. What one search merges and compares, the next one finds.
    """

    git: Git
    onto: Oid
    history: Sequence[UpstreamCommit]
    scope: str = ""
    _touching: dict[str, list[tuple[int, Change]]] = field(default_factory=dict, init=False)
    _merged: dict[tuple[int, ...], Merged] = field(default_factory=dict, init=False)
    _hunks: dict[tuple[Entry | None, Entry | None], tuple[Hunk, ...]] = field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        for number, commit in enumerate(self.history):
            for change in commit.changes:
                self._touching.setdefault(change.path, []).append((number, change))

    def touching(self, path: str, until: int) -> list[tuple[int, Change]]:
        """Return what changed a file before commit number `until`, the newest first."""
        found = [item for item in self._touching.get(path, []) if item[0] < until]
        return found[::-1]

    def hunks(self, change: Change) -> tuple[Hunk, ...]:
        """Return the changed blocks of one file."""
        key = (change.old, change.new)
        if key not in self._hunks:
            self._hunks[key] = hunks(*(file_lines(self.git, entry) for entry in key))
        return self._hunks[key]

    def merged(self, chosen: tuple[int, ...]) -> tuple[Merged, bool]:
        """Return the last of these commits on our tree and the others, and whether it was new.

        The others must merge.
        """
        known = self._merged.get(chosen)
        if known is not None:
            return known, False
        onto = self._merged[chosen[:-1]].tree if len(chosen) > 1 else self.onto
        merged = landed(self.git, self.history[chosen[-1]], onto, self.scope)
        self._merged[chosen] = merged
        return merged, True


def prerequisites(
    ground: Ground, commit: Oid, *, limit: int = LIMIT, guarded: bool = False
) -> Prerequisites:
    """Return the fewest earlier commits with which a conflicting commit merges into a tree.

    Args:
        ground: The tree, and a history that holds the commit; objects are written to its `git`.
        commit: The pick.
        limit: How many commits an answer may have.
        guarded: Also bring what the guards miss: a module or a name that came after the pin.
    """
    pick = next((n for n, one in enumerate(ground.history) if one.oid == commit), None)
    if pick is None:
        return Prerequisites(reason="it is not in upstream's history since the pin")
    try:
        chosen = _Search(ground=ground, pick=pick, limit=limit, guarded=guarded).run()
    except _Stuck as e:
        return Prerequisites(reason=str(e))
    return Prerequisites(commits=tuple(ground.history[number] for number in chosen))


class _Stuck(Exception):  # noqa: N818 - a reason to stop, not a failure of the tool
    """Why a search ended without an answer."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """One search; commits are numbered as in the history."""

    ground: Ground
    pick: int
    limit: int
    guarded: bool
    merges: int = 0
    asked: set[int] = field(default_factory=set)

    def run(self) -> list[int]:
        chosen: set[int] = set()
        while fresh := self._lacking(chosen):
            chosen |= fresh
            if len(chosen) > self.limit:
                raise _Stuck(f"more than {self.limit} earlier commits would have to come first")
        return self._fewest(sorted(chosen))

    def _lacking(self, chosen: set[int]) -> set[int]:
        """Return commits that the chosen ones and the pick need as well."""
        failed = self._first_failure(sorted(chosen))
        if failed is None:
            wrong = self._objections(sorted(chosen))
            fresh = set(self._providers(wrong)) - chosen
            if wrong and not fresh:
                raise _Stuck(f"no commit since the pin helps where a guard objects: {wrong[0]}")
            return fresh
        number, merged = failed
        fresh = set(self._writers(number, merged)) - chosen
        if not fresh and number not in self.asked:
            self.asked.add(number)
            fresh = set(self._neighbours(number, merged)) - chosen
        if not fresh:
            raise _Stuck(self._ours(number, merged))
        return fresh

    def _first_failure(self, chosen: Sequence[int]) -> tuple[int, Merged] | None:
        """Merge these commits and then the pick, and return the first that conflicts."""
        done: tuple[int, ...] = ()
        for number in (*chosen, self.pick):
            done = (*done, number)
            merged, fresh = self.ground.merged(done)
            self.merges += fresh
            if self.merges > MERGES:
                raise _Stuck(f"not found in {MERGES} merges")
            if merged.conflicts:
                return number, merged
        return None

    def _fewest(self, chosen: list[int]) -> list[int]:
        """Leave out what is not needed, the newest first: older ones may only serve it."""
        for number in reversed(chosen.copy()):
            fewer = [one for one in chosen if one != number]
            if self._first_failure(fewer) is None and not self._objections(fewer):
                chosen = fewer
        return chosen

    def _objections(self, chosen: Sequence[int]) -> tuple[Diagnostic, ...]:
        """Return what the guards find wrong with the pick on the chosen commits, which merge."""
        if not self.guarded:
            return ()
        ground = self.ground
        below = ground.merged(tuple(chosen))[0].tree if chosen else ground.onto
        merged, _ = ground.merged((*chosen, self.pick))
        oid = ground.history[self.pick].oid
        return objections(ground.git, oid, below, merged, ground.scope)

    def _providers(self, wrong: Sequence[Diagnostic]) -> Iterator[int]:
        """Yield for each finding the newest commit that brought what it misses."""
        for found in wrong:
            names = _NAMES.findall(found.message)
            for number in range(self.pick - 1, -1, -1) if names else ():
                if any(self._brings(change, found, names) for change in self._changes(number)):
                    yield number
                    break

    def _changes(self, number: int) -> tuple[Change, ...]:
        return self.ground.history[number].changes

    def _brings(self, change: Change, found: Diagnostic, names: Sequence[str]) -> bool:
        if change.new is None:
            return False
        if found.code == imports.NO_MODULE:
            return change.old is None and _is_module(change.path, names[0])
        at_home = change.path == found.path or any(_is_module(change.path, n) for n in names[1:])
        if not at_home:
            return False
        old, new = (_words(self.ground.git, entry) for entry in (change.old, change.new))
        return names[0] in new - old

    def _writers(self, number: int, merged: Merged) -> Iterator[int]:
        """Yield the commits that wrote the lines which a commit changes and conflicts on.

        A rename counts as a writer; what it renamed is asked when it conflicts itself.
        """
        for conflict in merged.conflicts:
            for change in _behind(conflict, self.ground.history[number].changes):
                for lines in self._spots(conflict, change):
                    yield from self._wrote(change.path, lines, number)

    def _wrote(self, path: str, lines: tuple[int, int] | None, until: int) -> Iterator[int]:
        for number, change in self.ground.touching(path, until):
            if change.old is None or change.new is None:
                yield number
                return
            if lines is not None:
                hit, lines = before(self.ground.hunks(change), lines)
                if hit:
                    yield number

    def _neighbours(self, number: int, merged: Merged) -> Iterator[int]:
        """Yield the commits that touched the same files before."""
        for conflict in merged.conflicts:
            for change in _behind(conflict, self.ground.history[number].changes):
                yield from (at for at, _ in self.ground.touching(change.path, number))

    def _spots(self, conflict: Conflict, change: Change) -> Iterator[tuple[int, int] | None]:
        """Yield where a commit's parent has the lines of a conflict, one more on each side."""
        if change.old is None or not conflict.regions:
            yield None
            return
        old, new = (file_lines(self.ground.git, entry) for entry in (change.old, change.new))
        for hunk in self.ground.hunks(change):
            if _in_regions(conflict, old[hunk.old_start : hunk.old_stop], new, hunk.new_start):
                yield max(0, hunk.old_start - 1), min(len(old), hunk.old_stop + 1)

    def _ours(self, number: int, merged: Merged) -> str:
        paths = ", ".join(conflict.path for conflict in merged.conflicts)
        oid = self.ground.history[number].oid
        who = "it" if number == self.pick else f"its prerequisite {oid}"
        return (
            f"{who} conflicts in {paths} with what is not upstream's: our patches, or another line"
        )


def _is_module(path: str, dotted: str) -> bool:
    """Say whether a file can be a module of this name, relative or absolute."""
    place = dotted.lstrip(".").replace(".", "/")
    return f"/{path}".endswith((f"/{place}.py", f"/{place}/__init__.py"))


def _words(git: Git, entry: Entry | None) -> set[str]:
    return {word for line in file_lines(git, entry) for word in _WORD.findall(line)}


def _behind(conflict: Conflict, changes: Iterable[Change]) -> list[Change]:
    """Return the changes that a conflict is about: of its path, or of a file moved to it."""
    changes = list(changes)
    same = [change for change in changes if change.path == conflict.path]
    name = conflict.path.rpartition("/")[2]
    return same or [c for c in changes if c.path.rpartition("/")[2] == name] or changes


def _in_regions(conflict: Conflict, old: Sequence[str], new: Sequence[str], start: int) -> bool:
    """Say whether a hunk of a commit is part of a conflict's regions, by its own text."""
    for region in conflict.regions:
        base, theirs = region.base.splitlines(), region.theirs.splitlines()
        if any(line in base for line in old if line.strip()):
            return True
        if start < len(new) and any(line in theirs for line in new[start : start + 1]):
            return True
    return False
