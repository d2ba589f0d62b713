"""Which lines changed between two texts: fast on files of 10,000 lines, and the same way each time.

The guards compare two diffs with each other (the patch as written, and as it landed), so an
insertion that could be shown in several places must be shown in one chosen by its own text. Unique
common lines are the anchors (patience); `difflib` serves only the small rest between them.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import NamedTuple

_OFTEN = 16
"""Where no line is unique, lines that come up to this often serve as anchors."""
_SMALL = 400_000
"""Up to this many line pairs `difflib` is asked; a larger rest counts as one replacement."""


class Hunk(NamedTuple):
    """Lines `[old_start, old_stop)` became `[new_start, new_stop)`; 0-based."""

    old_start: int
    old_stop: int
    new_start: int
    new_stop: int


class _Area(NamedTuple):
    """A rectangle of both texts that is still to be compared."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int


def hunks(old: Sequence[str], new: Sequence[str]) -> tuple[Hunk, ...]:
    """Return the changed blocks in order; two blocks have at least one common line between them.

    Applying them to `old` gives `new`. A pure insertion or removal stands where its first line of
    text is least indented, lowest of equals, so that a whole statement is one block.
    """
    ends = (len(old), len(new))
    equal = [*runs(old, new), (*ends, 0)]
    found: list[Hunk] = []
    a = b = 0
    for run_a, run_b, size in equal:
        if run_a > a or run_b > b:
            found.append(Hunk(a, run_a, b, run_b))
        a, b = run_a + size, run_b + size
    return _settled(found, old, new)


def runs(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal lines `(start in a, start in b, length)` in order."""
    todo = [_Area(0, len(a), 0, len(b))]
    while todo:
        area = todo.pop()
        if area.a_start == area.a_stop or area.b_start == area.b_stop:
            continue
        head, tail = _common_ends(a, b, area)
        inner = _Area(
            area.a_start + head, area.a_stop - tail, area.b_start + head, area.b_stop - tail
        )
        if head:
            yield area.a_start, area.b_start, head
        if tail:
            # What ends both texts comes after the rest: queue it as an area of equal lines.
            todo.append(_Area(inner.a_stop, area.a_stop, inner.b_stop, area.b_stop))
        if head or tail:
            todo.append(inner)
        elif anchors := _anchors(a, b, inner, 1) or _anchors(a, b, inner, _OFTEN):
            todo.extend(reversed(_between(inner, anchors)))
        else:
            yield from _small(a, b, inner)


def _common_ends(a: Sequence[str], b: Sequence[str], area: _Area) -> tuple[int, int]:
    size = min(area.a_stop - area.a_start, area.b_stop - area.b_start)
    head = 0
    while head < size and a[area.a_start + head] == b[area.b_start + head]:
        head += 1
    tail = 0
    while tail < size - head and a[area.a_stop - 1 - tail] == b[area.b_stop - 1 - tail]:
        tail += 1
    return head, tail


def _anchors(a: Sequence[str], b: Sequence[str], area: _Area, often: int) -> list[tuple[int, int]]:
    """Return the longest rising chain of lines that both sides have equally often.

    More than `often` times does not count; the n-th of a line goes with the n-th.
    """
    places_b = _places(b, area.b_start, area.b_stop)
    pairs = sorted(
        pair
        for line, at_a in _places(a, area.a_start, area.a_stop).items()
        if len(at_a) <= often and len(partners := places_b.get(line, [])) == len(at_a)
        for pair in zip(at_a, partners, strict=True)
    )
    tops: list[int] = []
    top_pairs: list[int] = []
    before: list[int] = []
    for number, (_, at_b) in enumerate(pairs):
        place = bisect_left(tops, at_b)
        before.append(top_pairs[place - 1] if place else -1)
        tops[place : place + 1] = [at_b]
        top_pairs[place : place + 1] = [number]
    chain = []
    number = top_pairs[-1] if top_pairs else -1
    while number >= 0:
        chain.append(pairs[number])
        number = before[number]
    return chain[::-1]


def _places(lines: Sequence[str], start: int, stop: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at in range(start, stop):
        found.setdefault(lines[at], []).append(at)
    return found


def _between(area: _Area, anchors: list[tuple[int, int]]) -> list[_Area]:
    """Return the areas that the anchors cut; each but the first starts with its anchor."""
    cuts = [(area.a_start, area.b_start), *anchors, (area.a_stop, area.b_stop)]
    return [_Area(a, next_a, b, next_b) for (a, b), (next_a, next_b) in pairwise(cuts)]


def _small(a: Sequence[str], b: Sequence[str], area: _Area) -> Iterator[tuple[int, int, int]]:
    if (area.a_stop - area.a_start) * (area.b_stop - area.b_start) > _SMALL:
        return
    matcher = SequenceMatcher(
        None, a[area.a_start : area.a_stop], b[area.b_start : area.b_stop], autojunk=False
    )
    for at_a, at_b, size in matcher.get_matching_blocks():
        if size:
            yield area.a_start + at_a, area.b_start + at_b, size


def _settled(found: list[Hunk], old: Sequence[str], new: Sequence[str]) -> tuple[Hunk, ...]:
    """Slide each pure insertion or removal to the place that its own text prefers."""
    settled: list[Hunk] = []
    for number, hunk in enumerate(found):
        floor = settled[-1].new_stop + 1 if settled else 0
        ceiling = found[number + 1].new_start - 1 if number + 1 < len(found) else len(new)
        if hunk.old_start == hunk.old_stop:
            low, high = hunk.new_start - floor, ceiling - hunk.new_stop
            move = _slide(new, hunk.new_start, hunk.new_stop, low, high)
        elif hunk.new_start == hunk.new_stop:
            low, high = hunk.new_start - floor, ceiling - hunk.new_stop
            move = _slide(old, hunk.old_start, hunk.old_stop, low, high)
        else:
            move = 0
        settled.append(Hunk(*(at + move for at in hunk)))
    return tuple(settled)


def _slide(lines: Sequence[str], start: int, stop: int, low: int, high: int) -> int:
    """Return how far a block moves, within `[-low, high]` lines."""
    up = 0
    while up < low and lines[start - up - 1] == lines[stop - up - 1]:
        up += 1
    down = 0
    while down < high and stop + down < len(lines) and lines[start + down] == lines[stop + down]:
        down += 1
    if not up and not down:
        return 0
    size = stop - start
    return min(
        range(down, -up - 1, -1),
        key=lambda move: _indent_of_text(lines, start + move, size),
    )


def _indent_of_text(lines: Sequence[str], start: int, size: int) -> int:
    for line in lines[start : start + size]:
        text = line.lstrip()
        if text:
            return len(line) - len(text)
    return 0
