"""Where a definition or a statement lives now that upstream has moved it.

git follows a file by its likeness to another file; it does not follow a function into another
module, a method into another class or a block into a new function. The patch's edit is made there.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from elsa_build.patches.proposals.blocks import Blocks
from elsa_build.patches.proposals.effects import bound_by
from elsa_build.patches.proposals.joining import Notes, import_text, join_statement
from elsa_build.patches.proposals.layout import Block, Source, Unit, Unparsable, source, words
from elsa_build.patches.proposals.matching import kind_of, likeness, name_of, unit_pairs
from elsa_build.patches.proposals.names import undefined
from elsa_build.patches.proposals.rewording import units_of
from elsa_build.patches.proposals.scrutiny import weighed
from elsa_build.patches.proposals.sequences import Stuck

ALIKE = 0.6
"""Share of words that a statement must have in common with its supposed new place."""
ALIKE_NAMED = 0.5
"""The same for a definition of the same name."""
ALIKE_RENAMED = 0.8
"""The same for a definition of another name."""
CLEARLY = 0.85
"""The second best place may be this good, as a share of the best, and no better."""

COMMON = 20
"""A word that this many changed files have does not lead to a place."""
ASKED = 24
"""Words of a statement that are looked for, the longest, which are the rarest."""
NEAREST = 8
"""Files that are parsed in search of a statement's new place."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Files = dict[str, str]
"""Paths and texts of the tree that the patch is put on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The Python files that upstream changed, as they are; `old` gives what a file was (or None).

    Hundreds change between two releases and one or two are asked for, hence the function.
    """

    new: Mapping[str, str]
    old: Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A statement that the patch changes and that upstream no longer has where it was."""

    base: Unit
    theirs: Unit


@dataclass(slots=True, kw_only=True)
class Moves:
    """Edits made at new places: the changed files, and the patch's text without these edits."""

    theirs: str
    files: Files = field(default_factory=dict)
    how: list[str] = field(default_factory=list)


def lost(b: Block, o: Block, t: Block) -> Iterator[Lost]:
    """Yield what the patch changes and upstream moved away or removed."""
    ours, theirs = unit_pairs(b.units, o.units), unit_pairs(b.units, t.units)
    for number, unit in enumerate(b.units):
        if number not in theirs:
            continue
        changed = t.units[theirs[number]]
        if changed.code == unit.code:
            continue
        if number not in ours:
            yield Lost(base=unit, theirs=changed)
            continue
        here = o.units[ours[number]]
        sizes = {len(version.clauses) for version in (unit, here, changed)}
        if here.code != unit.code and len(sizes) == 1:
            for one in zip(unit.clauses, here.clauses, changed.clauses, strict=True):
                yield from lost(one[0].body, one[1].body, one[2].body)


def followed(base: Source, ours: Source | None, theirs: Source, tree: Upstream, path: str) -> Moves:
    """Return the patch's edits made where upstream moved the edited statements.

    Args:
        base: The file before the patch, as written.
        ours: It in the tree that the patch is put on; None where upstream removed it.
        theirs: It after the patch, as written.
        tree: What upstream changed, this file among it.
        path: Where the file is.

    Raises:
        Stuck: A new place is not found, or not surely.
    """
    empty = Block((), (), "")
    gone = list(lost(base.block, ours.block if ours else empty, theirs.block))
    if not gone:
        raise Stuck("nothing that the patch changes was moved")
    lines = list(theirs.lines)
    moves = Moves(theirs="")
    for one in sorted(gone, key=lambda one: one.theirs.span.start, reverse=True):
        home, unit, text = _home(one, moves.files, tree, path)
        joined = _joined(one, unit)
        fresh = _put(text, unit, joined)
        moves.files[home] = _with_imports(fresh, text, theirs.text)
        span = one.theirs.span
        lines[span.start : span.stop] = one.base.lines
        there = _title(unit)
        named = "" if there == _title(one.base) else f" as `{there}`"
        moves.how.append(
            f"`{_title(one.base)}` now lives in {home}{named}; the patch's edit was made there"
        )
    moves.theirs = "\n".join(lines)
    moves.how.reverse()
    return moves


def successor(path: str, base: Source, tree: Upstream) -> str:
    """Return the new file that has what a removed file had.

    Raises:
        Stuck: No new file has most of its definitions, or two have.
    """
    names = [unit.node.name for unit in base.block.units if isinstance(unit.node, _DEFINITIONS)]
    bag = words(base.text)
    found: list[tuple[float, str]] = []
    for place, text in tree.new.items():
        if place == path or sum(name in text for name in names) < max(1, ALIKE * len(names)):
            continue
        score = likeness(bag, words(text))
        if score >= ALIKE_NAMED and tree.old(place) is None:
            found.append((score, place))
    found.sort(key=lambda one: (-one[0], one[1]))
    if not found or (len(found) > 1 and found[1][0] > CLEARLY * found[0][0]):
        raise Stuck("upstream removed the file, and no new file has its definitions")
    return found[0][1]


def _joined(one: Lost, home: Unit) -> tuple[str, ...]:
    blocks = Blocks()
    lines = blocks.unit(one.base, home, one.theirs)
    problems = list(
        weighed(one.base.code, home.code, one.theirs.code, "\n".join(lines), blocks.notes.idle)
    )
    if problems:
        raise Stuck(problems[0])
    return lines


def _put(text: str, unit: Unit, lines: Sequence[str]) -> str:
    old = text.split("\n")
    return "\n".join([*old[: unit.span.start], *lines, *old[unit.span.stop :]])


def _home(one: Lost, changed: Files, tree: Upstream, own: str) -> tuple[str, Unit, str]:
    """Return the file, the statement and the text of a statement's new place."""
    texts = {**tree.new, **changed}
    if isinstance(one.base.node, _DEFINITIONS):
        name = one.base.node.name
        defines = re.compile(rf"\b(?:def|class)\s+{re.escape(name)}\b")
        named = [path for path, text in texts.items() if name in text and defines.search(text)]
        found = _best(one.base, texts, named, ALIKE_NAMED, tree.old, own, name=name)
        if found is not None:
            return found
    near = _near(one.base, texts)
    limit = ALIKE_RENAMED if isinstance(one.base.node, _DEFINITIONS) else ALIKE
    found = _best(one.base, texts, near, limit, tree.old, own)
    if found is None:
        raise Stuck(f"`{_title(one.base)}` is gone, and nothing like it is elsewhere")
    return found


def _near(unit: Unit, texts: Files) -> list[str]:
    """Return the few files that have a statement's words, those with its rare words first.

    A statement of common words only is in no file in particular, and has none.
    """
    words_of_it = (word for word in unit.bag if len(word) > 3 and word.isidentifier())
    keys = sorted(words_of_it, key=lambda word: (-len(word), word))[:ASKED]
    held = {path: [word for word in keys if word in text] for path, text in texts.items()}
    often = Counter(word for words_in in held.values() for word in words_in)
    score = {
        path: sum(1 / often[word] for word in words_in)
        for path, words_in in held.items()
        if words_in and len(words_in) >= ALIKE * len(keys)
    }
    rare = {path for path in score if min(often[word] for word in held[path]) <= COMMON}
    return sorted(rare, key=lambda path: (-score[path], path))[:NEAREST]


def _best(
    unit: Unit,
    texts: Files,
    paths: Sequence[str],
    limit: float,
    old: Callable[[str], str | None],
    own: str,
    *,
    name: str = "",
) -> tuple[str, Unit, str] | None:
    """Return the statement most like one, if it is like enough and no other comes near.

    Raises:
        Stuck: Two places are about as likely.
    """
    found = [
        (score, path, other)
        for path in paths
        for score, other in _scored(unit, name, texts[path])
        if score >= limit and _new_there(other, score, old(path), moved=path == own)
    ]
    found.sort(key=lambda one: (-one[0], one[1]))
    if not found:
        return None
    if len(found) > 1 and found[1][0] > CLEARLY * found[0][0]:
        raise Stuck(f"`{_title(unit)}` may have moved to {found[0][1]} or {found[1][1]}")
    _, path, other = found[0]
    return path, other, texts[path]


def _new_there(unit: Unit, score: float, old: str | None, *, moved: bool) -> bool:
    """Say whether upstream brought a statement to a file: what was there before did not move.

    `moved` says that the statement left a place in this very file, where it stood before.
    """
    if old is None:
        return True
    try:
        before = source(old)
    except Unparsable:
        return False
    alike = sum(
        kind_of(one) == kind_of(unit) and likeness(one.bag, unit.bag) >= score
        for one in units_of(before.block)
    )
    return alike <= moved


def _scored(unit: Unit, name: str, text: str) -> Iterator[tuple[float, Unit]]:
    """Yield the statements of a text that are of one's kind (and name), with their likeness."""
    try:
        found = source(text)
    except Unparsable:
        return
    kind, wanted = kind_of(unit), unit.bag
    for other in units_of(found.block):
        if kind_of(other) != kind or (name and getattr(other.node, "name", "") != name):
            continue
        if kind == "Assign" and name_of(other) != name_of(unit):
            continue
        longer, shorter = sorted((len(other.code), len(unit.code)), reverse=True)
        if longer > 4 * shorter + 200:
            continue
        yield likeness(wanted, other.bag), other


def _with_imports(fresh: str, before: str, patched: str) -> str:
    """Return a text with the imports that the patch's words need and the file lacks.

    Raises:
        Stuck: A name is neither known there nor imported where the patch was written.
    """
    missing = {name for _, name in undefined(fresh) - undefined(before)}
    for name in sorted(missing):
        found = next(
            (
                unit.node
                for unit in source(patched).block.units
                if isinstance(unit.node, ast.Import | ast.ImportFrom)
                and name in set(bound_by(unit.node))
            ),
            None,
        )
        if found is None:
            raise Stuck(f"the new place does not know `{name}`")
        fresh = imported(fresh, found, name)
    return fresh


def imported(text: str, node: ast.Import | ast.ImportFrom, name: str) -> str:
    """Return a text that imports a name as another text does."""
    alias = next(one for one in node.names if (one.asname or one.name.partition(".")[0]) == name)
    said = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
    whole = source(text)
    units = [u for u in whole.block.units if isinstance(u.node, ast.Import | ast.ImportFrom)]
    if isinstance(node, ast.ImportFrom):
        head = f"from {'.' * node.level}{node.module or ''} import"
        for unit in units:
            if isinstance(unit.node, ast.ImportFrom) and name_of(unit) == head[:-7]:
                more = join_statement(unit.code, unit.code, _longer(unit, said), Notes())
                return _put(text, unit, more.split("\n"))
        line = import_text(head, [said])
    else:
        line = f"import {said}"
    lines = text.split("\n")
    at = units[-1].span.stop if units else _after_docstring(whole)
    return "\n".join([*lines[:at], line, *lines[at:]])


def _longer(unit: Unit, name: str) -> str:
    assert isinstance(unit.node, ast.ImportFrom)
    names = [f"{one.name} as {one.asname}" if one.asname else one.name for one in unit.node.names]
    order = sorted(names, key=str.casefold) == names
    names.append(name)
    head = f"{name_of(unit)} import"
    return import_text(head, sorted(names, key=str.casefold) if order else names)


def _after_docstring(whole: Source) -> int:
    units = whole.block.units
    if units and isinstance(units[0].node, ast.Expr):
        return units[0].span.stop
    return 0


def _title(unit: Unit) -> str:
    line = next(
        (line.strip() for line in unit.lines if re.match(r"\s*(async |def |class )", line)), ""
    )
    return (line or unit.lines[0].strip()).rstrip(":")
