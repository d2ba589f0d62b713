"""Diffs as rows for a page: kinds, line numbers, and the words that differ.

Words are marked, not characters, and only where lines pair one to one: anything finer or looser
was confetti on real code.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum
from itertools import groupby

from elsa_build.patches.guards.linediff import Hunk, hunks
from elsa_build.patches.review import Around

CONTEXT = 3
"""Unchanged lines kept around a change inside a region."""

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
_ALIKE = 0.4
"""Lines with a smaller share of equal words are another text: a mark on all of it says nothing."""
_WORTH_FOLDING = 8
"""Fewer hidden lines are shown, so that both columns begin alike."""
_LONGEST = 400
"""Words of a line; a longer one is data, and comparing it costs more than it shows."""
_SHOWN = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {127: "␡"}


class RowKind(StrEnum):
    """What a row is; the value is its sign."""

    SAME = " "
    ADDED = "+"
    REMOVED = "-"
    GAP = "⋯"
    HEADING = "@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a line; `marked` when it is a word that the other side does not have."""

    text: str
    marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a diff; `number` is 1-based, in the file that the column is about."""

    kind: RowKind
    parts: tuple[Part, ...]
    number: int | None = None

    @property
    def text(self) -> str:
        """Return the line without marks."""
        return "".join(part.text for part in self.parts)


def visible(text: str) -> str:
    """Return text in which nothing hides: controls and directions of writing have signs."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_sign(char) for char in text)


def _sign(char: str) -> str:
    if ord(char) in _SHOWN:
        return _SHOWN[ord(char)]
    category = unicodedata.category(char)
    if category == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    if category in ("Cf", "Zl", "Zp") or 0x80 <= ord(char) < 0xA0:
        return f"[U+{ord(char):04X}]"
    return char


# --- a region ---------------------------------------------------------------------------------


def columns(base: str, new: str, around: Around | None, *, by_base: bool) -> tuple[Row, ...]:
    """Return the rows of one side of a region: what became of `base` in `new`.

    Line numbers are the base's (`by_base`) or the new text's, from `around`.
    """
    old_lines, new_lines = base.split("\n")[:-1], new.split("\n")[:-1]
    rows = [*_rows(old_lines, new_lines, hunks(old_lines, new_lines))]
    above = tuple(_row(RowKind.SAME, line) for line in around.above) if around else ()
    below = tuple(_row(RowKind.SAME, line) for line in around.below) if around else ()
    start = around.line - len(above) if around else None
    return tuple(_folded(_numbered([*above, *rows, *below], start, by_base=by_base)))


def _rows(old: Sequence[str], new: Sequence[str], found: Sequence[Hunk]) -> Iterator[Row]:
    at = 0
    for hunk in found:
        yield from (_row(RowKind.SAME, line) for line in old[at : hunk.old_start])
        yield from _replaced(
            old[hunk.old_start : hunk.old_stop], new[hunk.new_start : hunk.new_stop]
        )
        at = hunk.old_stop
    yield from (_row(RowKind.SAME, line) for line in old[at:])


def _replaced(old: Sequence[str], new: Sequence[str]) -> Iterator[Row]:
    """Yield removed lines, then added ones, with marks where they pair one to one."""
    if len(old) == len(new):
        pairs = [_words(a, b) for a, b in zip(old, new, strict=True)]
        yield from (Row(kind=RowKind.REMOVED, parts=parts) for parts, _ in pairs)
        yield from (Row(kind=RowKind.ADDED, parts=parts) for _, parts in pairs)
    else:
        yield from (_row(RowKind.REMOVED, line) for line in old)
        yield from (_row(RowKind.ADDED, line) for line in new)


def _row(kind: RowKind, line: str) -> Row:
    return Row(kind=kind, parts=(Part(text=line),))


def _words(old: str, new: str) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    plain = ((Part(text=old),), (Part(text=new),))
    if len(a) > _LONGEST or len(b) > _LONGEST:
        return plain
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return plain
    lefts, rights = [], []
    for tag, a_start, a_stop, b_start, b_stop in matcher.get_opcodes():
        marked = tag != "equal"
        lefts.append(Part(text="".join(a[a_start:a_stop]), marked=marked))
        rights.append(Part(text="".join(b[b_start:b_stop]), marked=marked))
    return tuple(p for p in lefts if p.text), tuple(p for p in rights if p.text)


def _numbered(rows: Sequence[Row], start: int | None, *, by_base: bool) -> Iterator[Row]:
    skipped = RowKind.ADDED if by_base else RowKind.REMOVED
    number = start
    for row in rows:
        if number is None or row.kind is skipped:
            yield row
        else:
            yield replace(row, number=number)
            number += 1


def _folded(rows: Iterator[Row]) -> Iterator[Row]:
    """Replace long runs of unchanged lines by one row that counts them."""
    runs = [(same, list(run)) for same, run in groupby(rows, lambda r: r.kind is RowKind.SAME)]
    for at, (same, run) in enumerate(runs):
        head = CONTEXT if at else 0
        tail = CONTEXT if at < len(runs) - 1 else 0
        hidden = len(run) - head - tail
        if same and hidden >= _WORTH_FOLDING and len(runs) > 1:
            yield from run[:head]
            yield _row(RowKind.GAP, f"{hidden} unchanged lines")
            yield from run[len(run) - tail :]
        else:
            yield from run


# --- a diff as text ---------------------------------------------------------------------------


def unified(diff: str) -> tuple[Row, ...]:
    """Return the rows of a unified diff as git writes it, words marked."""
    return tuple(_unified(diff.rstrip("\n").split("\n"))) if diff.strip() else ()


def _unified(lines: Sequence[str]) -> Iterator[Row]:
    number, in_hunk, at = 0, False, 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            in_hunk = False
        elif found := re.match(r"@@ -\d+(?:,\d+)? \+(\d{1,9})(?:,\d+)? @@ ?(.*)", line):
            in_hunk, number = True, int(found[1])
            yield _row(RowKind.HEADING, found[2] or f"line {number}")
        elif not in_hunk:
            if heading := _heading(line):
                yield _row(RowKind.HEADING, heading)
        elif line.startswith("\\"):
            yield _row(RowKind.GAP, line[2:])
        elif line[:1] in ("+", "-"):
            removed = _run(lines, at, "-")
            added = _run(lines, at + len(removed), "+")
            for row in _replaced(removed, added):
                shown = row.kind is RowKind.ADDED
                yield replace(row, number=number) if shown else row
                number += shown
            at += len(removed) + len(added)
            continue
        else:
            yield replace(_row(RowKind.SAME, line[1:]), number=number)
            number += 1
        at += 1


def _heading(line: str) -> str:
    """Return what a line before the hunks says to a person, or nothing."""
    if line.startswith("+++ ") and line != "+++ /dev/null":
        return line[4:].removeprefix("b/").rstrip("\t")
    if line.startswith(("deleted ", "new mode", "rename ", "similarity ", "Binary ", "GIT binary")):
        return line
    return ""


def _run(lines: Sequence[str], start: int, sign: str) -> list[str]:
    stop = start
    while stop < len(lines) and lines[stop][:1] == sign:
        stop += 1
    return [line[1:] for line in lines[start:stop]]


def of_diffs(changed: str) -> tuple[Row, ...]:
    """Return the rows of a diff of two diffs: the outer sign is the kind, the inner stays text."""
    rows = []
    for line in changed.split("\n")[2:] if changed else ():
        if line == "@@":
            rows.append(_row(RowKind.GAP, ""))
        else:
            kind = RowKind(line[0]) if line[:1] in ("+", "-") else RowKind.SAME
            rows.append(_row(kind, line[1:]))
    return tuple(rows[1:] if rows and rows[0].kind is RowKind.GAP else rows)
