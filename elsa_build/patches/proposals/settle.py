"""One conflicted Python file settled, by the first way whose result stands up to scrutiny.

Two ways of joining are tried against each other: git's own merge with only its conflicts joined,
and the three whole files. Where both give an answer and the answers differ in meaning, git has
lined up lines that do not belong together, and the whole files are right.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from elsa_build.patches.proposals.attempt import FileAttempt, HunkAttempt, Versions
from elsa_build.patches.proposals.blocks import Blocks
from elsa_build.patches.proposals.homes import Upstream, followed, successor
from elsa_build.patches.proposals.joining import Notes
from elsa_build.patches.proposals.layout import Unparsable, source
from elsa_build.patches.proposals.rewording import reworded, rewordings, using
from elsa_build.patches.proposals.scrutiny import dangers, objections
from elsa_build.patches.proposals.sequences import Stuck
from elsa_build.patches.proposals.views import Marked

Tree = Callable[[], Upstream]
"""Gives what upstream changed since the patch was written; asked for only when it is needed."""


BOTH = "both sides' statements were joined, upstream's first"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    text: str
    how: tuple[str, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()


def settle(versions: Versions, tree: Tree) -> FileAttempt:
    """Return what can be proposed for one Python file that git left in conflict."""
    if versions.ours is None:
        return _elsewhere(versions, tree)
    marked = Marked(versions.marked)
    answer: _Answer | None = None
    why = ""
    for way in (partial(_whole, marked=marked), _in_new_words, partial(_moved, tree=tree)):
        try:
            answer = way(versions)
            break
        except (Stuck, Unparsable) as e:
            why = why or str(e)
    if answer is not None:
        every = tuple(
            HunkAttempt(number=number, how=answer.how) for number in range(len(marked.hunks))
        )
        return FileAttempt(
            path=versions.path,
            text=answer.text,
            elsewhere=answer.elsewhere,
            how=answer.how,
            hunks=every,
        )
    hunks = tuple(_alone(versions, marked))
    if hunks and all(hunk.lines is not None for hunk in hunks):
        together = _together(versions, marked, hunks)
        if together is not None:
            return together
    return FileAttempt(path=versions.path, why=why, hunks=hunks)


# --- the whole file -----------------------------------------------------------------------------


def _whole(versions: Versions, marked: Marked) -> _Answer:
    """Join the file in both ways and return the one to believe.

    Raises:
        Stuck: Neither way gives an answer that holds.
    """
    assert versions.ours is not None
    three = (versions.base, versions.ours, versions.theirs)
    views = (marked.view("base"), marked.view("ours"), marked.view("theirs"))
    found: list[tuple[str, Notes]] = []
    why = ""
    for texts in (views, three):
        try:
            found.append(_text(texts))
        except (Stuck, Unparsable) as e:
            why = why or str(e)
    if len(found) == 2 and not _alike(found[0][0], found[1][0]):
        found.reverse()
    for number, (text, notes) in enumerate(found):
        if number and text == found[0][0]:
            break
        try:
            return _checked(text, notes, three)
        except (Stuck, Unparsable) as e:
            why = why or str(e)
    raise Stuck(why)


def _joined(sides: tuple[str, str, str]) -> _Answer:
    text, notes = _text(sides)
    return _checked(text, notes, sides)


def _text(texts: tuple[str, str, str]) -> tuple[str, Notes]:
    base, ours, theirs = (source(text).block for text in texts)
    blocks = Blocks()
    return "\n".join(blocks.join(base, ours, theirs)), blocks.notes


def _checked(text: str, notes: Notes, sides: tuple[str, str, str]) -> _Answer:
    wrong = next(objections(*sides, text, idle=notes.idle), None)
    if wrong:
        raise Stuck(wrong)
    said = tuple(dict.fromkeys(notes.said))
    return _Answer(text=text, how=said or (BOTH,))


def _alike(one: str, other: str) -> bool:
    """Say whether two texts mean the same."""
    if one == other:
        return True
    try:
        return ast.dump(source(one).tree) == ast.dump(source(other).tree)
    except Unparsable:
        return False


def _in_new_words(versions: Versions) -> _Answer:
    """Join after the patch was put into the words that upstream now uses."""
    assert versions.ours is not None
    found = rewordings(versions.base, versions.ours, versions.theirs)
    if not found:
        raise Stuck("upstream reworded nothing throughout")
    base, theirs = reworded(versions.base, found), reworded(versions.theirs, found)
    used = using(versions.theirs, found)
    answer = _joined((base, versions.ours, theirs))
    return _Answer(text=answer.text, how=(*(one.said for one in used), *answer.how))


def _moved(versions: Versions, tree: Tree) -> _Answer:
    """Make the edits whose place moved at the new place, and join the rest as usual."""
    assert versions.ours is not None
    moves = followed(
        source(versions.base),
        source(versions.ours),
        source(versions.theirs),
        tree(),
        versions.path,
    )
    text = moves.files.pop(versions.path, versions.ours)
    if moves.theirs != versions.base:
        text = _joined((versions.base, text, moves.theirs)).text
    return _Answer(text=text, how=tuple(moves.how), elsewhere=tuple(sorted(moves.files.items())))


def _elsewhere(versions: Versions, tree: Tree) -> FileAttempt:
    """Make the edits of a file that upstream removed where its definitions now live."""
    upstream = tree()
    base, theirs = source(versions.base), source(versions.theirs)
    why = ""
    with suppress(Stuck, Unparsable):
        home = successor(versions.path, base, upstream)
        answer = _joined((versions.base, upstream.new[home], versions.theirs))
        said = f"upstream replaced the file by {home}; the patch's edits were made there"
        return FileAttempt(
            path=versions.path,
            removed=True,
            elsewhere=((home, answer.text),),
            how=(said, *(one for one in answer.how if one != BOTH)),
        )
    try:
        moves = followed(base, None, theirs, upstream, versions.path)
        if moves.theirs == versions.base:
            return FileAttempt(
                path=versions.path,
                removed=True,
                elsewhere=tuple(sorted(moves.files.items())),
                how=tuple(moves.how),
            )
        why = "upstream removed the file, and not all of the patch's edits have a new place"
    except (Stuck, Unparsable) as e:
        why = str(e)
    return FileAttempt(path=versions.path, why=why)


# --- hunk by hunk -------------------------------------------------------------------------------


def _alone(versions: Versions, marked: Marked) -> Iterator[HunkAttempt]:
    """Yield what can be said of each hunk; one that is not settled stays as upstream has it."""
    rest = {number: hunk.ours for number, hunk in enumerate(marked.hunks)}
    tried = [_hunk(marked, number, rest) for number in rest]
    settled = {one.number: one.lines for one in tried if one.lines is not None}
    if not _danger(versions, marked.view("ours", rest | settled)):
        yield from tried
        return
    for one in tried:
        why = ""
        if one.lines is not None:
            why = _danger(versions, marked.view("ours", rest | {one.number: one.lines}))
        yield HunkAttempt(number=one.number, why=why) if why else one


def _danger(versions: Versions, text: str) -> str:
    try:
        return next(dangers(versions.base, versions.ours or "", versions.theirs, text), "")
    except Unparsable as e:
        return str(e)


def _hunk(marked: Marked, number: int, rest: dict[int, tuple[str, ...]]) -> HunkAttempt:
    """Join one hunk while the others stay as upstream has them."""
    others = {other: lines for other, lines in rest.items() if other != number}
    sides = (
        marked.view("base", others),
        marked.view("ours", others),
        marked.view("theirs", others),
    )
    try:
        answer = _joined(sides)
    except (Stuck, Unparsable) as e:
        return HunkAttempt(number=number, why=str(e))
    lines = _cut(answer.text, sides[1], marked.around(number, rest))
    if lines is None:
        return HunkAttempt(number=number, why="the answer reaches beyond the conflict")
    return HunkAttempt(number=number, lines=tuple(lines), how=answer.how)


def _cut(text: str, ours: str, around: tuple[int, int]) -> list[str] | None:
    """Return the lines that stand for the hunk, when nothing around it has changed."""
    lines, old = text.split("\n"), ours.split("\n")
    before, after = around
    if lines[:before] != old[:before] or lines[len(lines) - after :] != old[len(old) - after :]:
        return None
    return lines[before : len(lines) - after]


def _together(
    versions: Versions, marked: Marked, hunks: tuple[HunkAttempt, ...]
) -> FileAttempt | None:
    assert versions.ours is not None
    settled = {hunk.number: hunk.lines for hunk in hunks if hunk.lines is not None}
    text = marked.view("ours", settled)
    try:
        wrong = next(objections(versions.base, versions.ours, versions.theirs, text), None)
    except Unparsable:
        return None
    if wrong:
        return None
    how = tuple(dict.fromkeys(said for hunk in hunks for said in hunk.how))
    return FileAttempt(path=versions.path, text=text, how=how, hunks=hunks)
