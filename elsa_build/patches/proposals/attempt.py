"""What was tried on one conflicted file: values only, for the proposal and for a reviewer.

A file that stays in conflict still shows which of its hunks could be settled.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """One conflicted file as texts: as the patch was written, and where it is put.

    `marked` is git's merge with conflict markers. `ours` is None where upstream removed the file.
    """

    path: str
    base: str
    ours: str | None
    theirs: str
    marked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HunkAttempt:
    """One conflict of a file: the lines proposed for it, or why there are none.

    `lines` is None also where the whole file is settled in another way than hunk by hunk.
    """

    number: int
    lines: tuple[str, ...] | None = None
    how: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAttempt:
    """One conflicted file: its whole proposed text, or why there is none.

    `elsewhere` has other files that the proposal changes (the new home of what moved), as path and
    text; `removed` says that the file itself is not in the proposal.
    """

    path: str
    text: str | None = None
    elsewhere: tuple[tuple[str, str], ...] = ()
    removed: bool = False
    how: tuple[str, ...] = ()
    why: str = ""
    hunks: tuple[HunkAttempt, ...] = ()

    @property
    def settled(self) -> bool:
        """Say whether nothing of this file is in conflict any more."""
        return self.text is not None or self.removed

    @property
    def proposed(self) -> int:
        """Return how many of the file's hunks have a proposal."""
        if self.settled:
            return len(self.hunks)
        return sum(hunk.lines is not None for hunk in self.hunks)
