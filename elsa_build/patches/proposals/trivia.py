"""Comments and blank lines of three versions: nobody's comment is lost, nothing is repeated."""

from collections.abc import Sequence

from elsa_build.patches.proposals.layout import Lines
from elsa_build.patches.proposals.sequences import Stuck, equal_pairs, joined


def join_comments(base: Lines, ours: Lines, theirs: Lines) -> Lines:
    """Return the lines before a statement: what a side removed is gone, what it added is there."""
    if theirs in (base, ours):
        return ours
    if ours == base:
        return theirs
    three = [[line for line in side if line.strip()] for side in (base, ours, theirs)]
    if three[2] in (three[0], three[1]):
        return ours
    if three[0] == three[1]:
        return (*_blanks(ours), *_from_text(theirs))
    pairs = [dict(equal_pairs(three[0], side)) for side in three[1:]]
    try:
        slots = joined((len(three[0]), len(three[1]), len(three[2])), pairs[0], pairs[1])
    except Stuck:
        return (*ours, *(line for line in three[2] if line not in three[1] + three[0]))
    lines: list[str] = []
    for slot in slots:
        if slot.base is not None and (slot.ours is None or slot.theirs is None):
            continue
        line = three[1][slot.ours] if slot.ours is not None else three[2][slot.theirs or 0]
        if slot.base is not None or line not in lines:
            lines.append(line)
    return (*_blanks(ours), *lines)


def _blanks(lines: Sequence[str]) -> Lines:
    """Return the blank lines that the lines begin with."""
    count = next((n for n, line in enumerate(lines) if line.strip()), len(lines))
    return tuple(lines[:count])


def _from_text(lines: Sequence[str]) -> Lines:
    return tuple(lines[len(_blanks(lines)) :])
