"""Which line of the patch became which line of the result.

A hunk is recognised by what it removes and adds, never by where it stands: where it stands is the
question. What no whole hunk explains (hunks that were joined, or half upstream already) is paired
line by line.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elsa_build.patches.guards.linediff import Hunk, runs
from elsa_build.patches.guards.source import Keys, keys
from elsa_build.patches.guards.view import Edit, Version, View

Pair = tuple[int, int]
"""A line as asked and the same line as applied, both 1-based."""

_PLAIN = re.compile(r"[\W_]*|return|return None|pass|else:|try:|finally:|continue|break|\"\"\".*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """How the lines of two edits correspond; `lost` are the patch's added lines without one."""

    added: tuple[Pair, ...]
    removed: tuple[Pair, ...]
    lost: tuple[int, ...]


def telling(text: str) -> bool:
    """Say whether a line of code says enough to be recognised alone."""
    return bool(text) and not _PLAIN.fullmatch(text)


def pairing(view: View) -> Pairing:
    """Pair the lines that the patch was to change with those that changed."""
    whole, asked, got = _whole_hunks(view)
    added = [pair for a, b in whole for pair in _same(_added(view.asked, a), _added(view.got, b))]
    removed = [
        pair for a, b in whole for pair in _same(_removed(view.asked, a), _removed(view.got, b))
    ]
    rest = [(line, text) for hunk in asked for line, text in _added(view.asked, hunk)]
    found = _alike(rest, [pair for hunk in got for pair in _added(view.got, hunk)])
    gone = _alike(
        [pair for hunk in asked for pair in _removed(view.asked, hunk)],
        [pair for hunk in got for pair in _removed(view.got, hunk)],
    )
    partnered = {line for line, _ in found}
    lost = tuple(line for line, text in rest if line not in partnered and telling(text))
    return Pairing(added=tuple(added + found), removed=tuple(removed + gone), lost=lost)


def _whole_hunks(view: View) -> tuple[list[tuple[Hunk, Hunk]], list[Hunk], list[Hunk]]:
    """Return the hunks that are equal on both sides, and what is left of each side."""
    groups: dict[object, tuple[list[Hunk], list[Hunk]]] = defaultdict(lambda: ([], []))
    for side, edit in enumerate((view.asked, view.got)):
        for hunk in edit.hunks:
            groups[_signature(edit, hunk)][side].append(hunk)
    whole: list[tuple[Hunk, Hunk]] = []
    for asked, got in groups.values():
        if len(asked) > 1 or len(got) > 1:
            whole += _at_one_place(view, asked, got)
        while asked and got:
            whole.append((asked.pop(0), got.pop(0)))
    rest = list(groups.values())
    left = sorted(hunk for asked, _ in rest for hunk in asked)
    return whole, left, sorted(hunk for _, got in rest for hunk in got)


def _at_one_place(view: View, asked: list[Hunk], got: list[Hunk]) -> list[tuple[Hunk, Hunk]]:
    """Take out of both lists the equal hunks that also stand at the same place."""
    found = []
    places = [(hunk, _place(view.got, hunk)) for hunk in got]
    for hunk in tuple(asked):
        here = _place(view.asked, hunk)
        partner = next((other for other, there in places if there == here), None)
        if partner is not None:
            places = [pair for pair in places if pair[0] is not partner]
            asked.remove(hunk)
            got.remove(partner)
            found.append((hunk, partner))
    return found


def _place(edit: Edit, hunk: Hunk) -> Keys:
    """Return where a hunk stands: the blocks around its first line."""
    if hunk.new_start < hunk.new_stop:
        return keys(edit.after.path(hunk.new_start + 1))
    return keys(edit.before.path(hunk.old_start + 1))


def _signature(edit: Edit, hunk: Hunk) -> object:
    """Return what a hunk is, whatever way its insertion was slid: its lines without order."""
    return (
        tuple(sorted(text for _, text in _removed(edit, hunk))),
        tuple(sorted(text for _, text in _added(edit, hunk))),
    )


def _added(edit: Edit, hunk: Hunk) -> list[tuple[int, str]]:
    return _code(edit.after, hunk.new_start, hunk.new_stop)


def _removed(edit: Edit, hunk: Hunk) -> list[tuple[int, str]]:
    return _code(edit.before, hunk.old_start, hunk.old_stop)


def _code(version: Version, start: int, stop: int) -> list[tuple[int, str]]:
    lines = ((line, version.code(line)) for line in range(start + 1, stop + 1))
    return [(line, text) for line, text in lines if text]


def _same(asked: Sequence[tuple[int, str]], got: Sequence[tuple[int, str]]) -> Iterable[Pair]:
    """Pair equal lines of one hunk: the n-th of a text with the n-th of that text."""
    waiting: dict[str, list[int]] = defaultdict(list)
    for line, text in got:
        waiting[text].append(line)
    for line, text in asked:
        yield line, waiting[text].pop(0)


def _alike(asked: Sequence[tuple[int, str]], got: Sequence[tuple[int, str]]) -> list[Pair]:
    """Pair equal telling lines of what is left: in order where possible, else by unique text."""
    found = {
        at_a + step: at_b + step
        for at_a, at_b, size in runs([text for _, text in asked], [text for _, text in got])
        for step in range(size)
    }
    left = [at for at in range(len(got)) if at not in set(found.values())]
    for at, (_, text) in enumerate(asked):
        partners = [other for other in left if got[other][1] == text]
        if at not in found and len(partners) == 1:
            found[at] = partners[0]
            left.remove(partners[0])
    return [(asked[a][0], got[b][0]) for a, b in sorted(found.items()) if telling(asked[a][1])]
