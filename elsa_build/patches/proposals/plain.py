"""Files that are not Python: only edits of different words in lines that still pair up.

Without a grammar nothing can be checked afterwards, so nothing is moved, added or put in order
here; a changed version number beside a changed comment is the typical case.
"""

import re
from itertools import zip_longest

from elsa_build.patches.proposals.attempt import FileAttempt, HunkAttempt, Versions
from elsa_build.patches.proposals.sequences import Stuck, equal_pairs
from elsa_build.patches.proposals.views import Hunk, Marked

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")
HOW = "the words that each side changed in the same lines were put together"


def settle_words(versions: Versions) -> FileAttempt:
    """Return what can be proposed for a file of any kind."""
    marked = Marked(versions.marked)
    hunks: list[HunkAttempt] = []
    settled: dict[int, tuple[str, ...]] = {}
    for number, hunk in enumerate(marked.hunks):
        try:
            settled[number] = joined_words(hunk)
        except Stuck as e:
            hunks.append(HunkAttempt(number=number, why=str(e)))
        else:
            hunks.append(HunkAttempt(number=number, lines=settled[number], how=(HOW,)))
    if not hunks or len(settled) != len(hunks):
        why = next((hunk.why for hunk in hunks if hunk.why), "no conflict inside the text")
        return FileAttempt(path=versions.path, why=why, hunks=tuple(hunks))
    text = marked.view("ours", settled)
    return FileAttempt(path=versions.path, text=text, how=(HOW,), hunks=tuple(hunks))


def joined_words(hunk: Hunk) -> tuple[str, ...]:
    """Return the lines of a hunk with both sides' changed words.

    Raises:
        Stuck: The lines do not pair up, or both sides changed neighbouring words.
    """
    sizes = {len(hunk.base), len(hunk.ours), len(hunk.theirs)}
    if len(sizes) != 1 or not hunk.base:
        raise Stuck("the lines of both sides do not pair up")
    return tuple(_line(*three) for three in zip(hunk.base, hunk.ours, hunk.theirs, strict=True))


def _line(base: str, ours: str, theirs: str) -> str:
    if ours in (base, theirs):
        return theirs
    if theirs == base:
        return ours
    b, o, t = (_WORDS.findall(text) for text in (base, ours, theirs))
    mine, their = list(equal_pairs(b, o)), list(equal_pairs(b, t))
    kept = {number for number, _ in mine} & {number for number, _ in their}
    anchors = [-1, *sorted(kept), len(b)]
    if not any(b[number].strip() for number in kept):
        raise Stuck("both sides rewrote a line")
    at_mine, at_their = dict(mine), dict(their)
    found: list[str] = []
    for left, right in zip_longest(anchors, anchors[1:]):
        if right is None:
            break
        old = b[left + 1 : right]
        new = [
            words[at.get(left, -1) + 1 : at.get(right, len(words))]
            for words, at in ((o, at_mine), (t, at_their))
        ]
        if new[1] == old or new[0] == new[1]:
            found += new[0]
        elif new[0] == old:
            found += new[1]
        else:
            raise Stuck("both sides changed the same words")
        found += b[right : right + 1]
    return "".join(found)
