"""Which members of two sequences are the same one, and what a list becomes that both sides edit.

The same three-way rule serves arguments, elements, imported names, decorators and clauses: what a
side removed is gone, what a side added stays beside its neighbour, ours first.
"""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TypeVar

T = TypeVar("T")


class Stuck(Exception):  # noqa: N818 - a reason to stop, not a failure of the tool
    """The two sides cannot be joined without a guess; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One member of a joined list, by its index in base, ours and theirs (None: absent there)."""

    base: int | None = None
    ours: int | None = None
    theirs: int | None = None


def equal_pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the indices of equal members in an order that both sequences share."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        yield head, head
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    matcher = SequenceMatcher(
        None, a[head : len(a) - tail], b[head : len(b) - tail], autojunk=False
    )
    for at_a, at_b, size in matcher.get_matching_blocks():
        for step in range(size):
            yield head + at_a + step, head + at_b + step
    for step in range(tail, 0, -1):
        yield len(a) - step, len(b) - step


def gaps(pairs: Sequence[tuple[int, int]], a: int, b: int) -> Iterator[tuple[range, range]]:
    """Yield what lies between matched pairs, both ranges, the empty ones too."""
    last_a = last_b = 0
    for at_a, at_b in [*pairs, (a, b)]:
        yield range(last_a, at_a), range(last_b, at_b)
        last_a, last_b = at_a + 1, at_b + 1


def keyed_pairs(
    old: Sequence[T], new: Sequence[T], code: Callable[[T], str], key: Callable[[T], str]
) -> dict[int, int]:
    """Return which old member became which new one: equal, or the only one of its key."""
    found = dict(equal_pairs([code(one) for one in old], [code(one) for one in new]))
    names = Counter(key(one) for one in old), Counter(key(one) for one in new)
    at = {key(one): number for number, one in enumerate(new)}
    taken = set(found.values())
    for number, one in enumerate(old):
        name = key(one)
        if number in found or not name or names[0][name] != 1 or names[1][name] != 1:
            continue
        if at[name] not in taken:
            found[number] = at[name]
            taken.add(at[name])
    return found


def joined(
    size: tuple[int, int, int],
    ours: Mapping[int, int],
    theirs: Mapping[int, int],
    *,
    free: bool = False,
    changed: tuple[Container[int], Container[int]] = ((), ()),
) -> tuple[Slot, ...]:
    """Return the members of a list that both sides edited, in the order of ours.

    What theirs added stands behind the nearest earlier member that ours still has and after what
    ours added there; but directly behind that member when theirs changed it too, or when ours put
    its own in place of the member that comes next.

    Args:
        size: How many members base, ours and theirs have.
        ours: Base index to ours index of what ours kept.
        theirs: The same for theirs.
        free: The order of the members means nothing (definitions, imported names).
        changed: Base members that ours and theirs changed.

    Raises:
        Stuck: A side put members into another order, and the order matters.
    """
    if not free and not (_in_order(ours) and _in_order(theirs)):
        raise Stuck("a side put things into another order")
    from_ours = {new: old for old, new in ours.items()}
    from_theirs = {new: old for old, new in theirs.items()}
    slots: list[Slot] = []
    for number in range(size[1]):
        base = from_ours.get(number)
        slots.append(
            Slot(base=base, ours=number, theirs=None if base is None else theirs.get(base))
        )
    for numbers, left, right in _added(from_theirs, size[2]):
        anchor = max((base for base in ours if left is not None and base <= left), default=None)
        replaced = right is not None and right not in ours
        close = anchor is not None and anchor in changed[1] and anchor not in changed[0]
        at = _behind(slots, anchor, close=replaced or (close and anchor == left))
        slots[at:at] = [Slot(theirs=number) for number in numbers]
    return tuple(slots)


def _added(
    from_theirs: Mapping[int, int], size: int
) -> Iterator[tuple[list[int], int | None, int | None]]:
    """Yield each run of new members with the base members before and after it."""
    run: list[int] = []
    left: int | None = None
    for number in range(size):
        base = from_theirs.get(number)
        if base is None:
            run.append(number)
            continue
        if run:
            yield run, left, base
        run, left = [], base
    if run:
        yield run, left, None


def _in_order(kept: Mapping[int, int]) -> bool:
    places = [kept[number] for number in sorted(kept)]
    return places == sorted(places)


def _behind(slots: Sequence[Slot], anchor: int | None, *, close: bool) -> int:
    """Return the place behind a base member, if not `close` behind what ours added after it."""
    at = 0
    if anchor is not None:
        at = next(number for number, slot in enumerate(slots) if slot.base == anchor) + 1
    while not close and at < len(slots) and slots[at].base is None and slots[at].theirs is None:
        at += 1
    while at < len(slots) and slots[at].ours is None:
        at += 1
    return at
