"""A file that git left in conflict, as three whole texts that differ only where it conflicts.

What git merged is the same in all three, so a joined text keeps git's result there byte for byte.
"""

import re
from dataclasses import dataclass
from functools import cached_property

_MARKER = re.compile(r"([<|=>])\1{31}(?: .*)?\r?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One conflict: three runs of lines."""

    ours: tuple[str, ...]
    base: tuple[str, ...]
    theirs: tuple[str, ...]


class Marked:
    """A text with 32-character zdiff3 markers: clean lines and hunks in turn."""

    def __init__(self, text: str) -> None:
        self.runs: list[tuple[str, ...] | Hunk] = []
        sides: dict[str, list[str]] = {}
        clean: list[str] = []
        side = ""
        for line in text.split("\n"):
            marker = _MARKER.fullmatch(line)
            if marker is None:
                (sides[side] if side else clean).append(line)
                continue
            side = marker[1]
            if side == "<":
                self.runs.append(tuple(clean))
                clean, sides = [], {"<": [], "|": [], "=": []}
            elif side == ">":
                side = ""
                self.runs.append(
                    Hunk(ours=tuple(sides["<"]), base=tuple(sides["|"]), theirs=tuple(sides["="]))
                )
        self.runs.append(tuple(clean))

    @cached_property
    def hunks(self) -> tuple[Hunk, ...]:
        """Return the conflicts in order."""
        return tuple(run for run in self.runs if isinstance(run, Hunk))

    def view(self, side: str, settled: "dict[int, tuple[str, ...]] | None" = None) -> str:
        """Return the text as one side (`base`, `ours`, `theirs`) has it.

        `settled` has lines for hunks, by number, that are no longer in question.
        """
        lines: list[str] = []
        number = 0
        for run in self.runs:
            if isinstance(run, Hunk):
                known = (settled or {}).get(number)
                lines += getattr(run, side) if known is None else known
                number += 1
            else:
                lines += run
        return "\n".join(lines)

    def around(self, number: int, settled: dict[int, tuple[str, ...]]) -> tuple[int, int]:
        """Return how many lines stand before and after one hunk, the others being settled."""
        before = after = seen = 0
        passed = False
        for run in self.runs:
            if isinstance(run, Hunk):
                if seen == number:
                    passed = True
                elif passed:
                    after += len(settled[seen])
                else:
                    before += len(settled[seen])
                seen += 1
            elif passed:
                after += len(run)
            else:
                before += len(run)
        return before, after

    def beside(self, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the clean lines directly before and after a hunk."""
        seen = -1
        for at, run in enumerate(self.runs):
            seen += isinstance(run, Hunk)
            if seen == number:
                before, after = self.runs[at - 1], self.runs[at + 1]
                assert not isinstance(before, Hunk)
                assert not isinstance(after, Hunk)
                return before, after
        raise IndexError(number)
