"""One side puts statements into a new `if`, `try` or `with`; the other side changes them.

To git both rewrote the lines. Here the wrapper is seen as a wrapper: what the other side made of
the statements goes inside.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elsa_build.patches.proposals.layout import (
    Block,
    Clause,
    Lines,
    Source,
    Unit,
    Unparsable,
    indent_of,
    moved,
    outdented,
)
from elsa_build.patches.proposals.matching import likeness, unit_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

COVERED = 0.6
"""Share of the removed text that must be found again inside a wrapper."""

CLEARLY = 0.8
"""The second best place may be this good, as a share of the best, and no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrap:
    """Base statements `run` that stand in `block` inside `wrapper`, a new statement of one side.

    `base`, `ours`, `theirs` are the versions to join inside; `mine` says that the wrapper is ours.
    """

    mine: bool
    wrapper: int
    unit: Unit
    block: Block
    run: range
    other: range
    base: Block
    ours: Block
    theirs: Block

    @property
    def said(self) -> str:
        """Return what was seen, for a reviewer."""
        who, what = (
            ("upstream", "the patch's edit") if self.mine else ("the patch", "upstream's edit")
        )
        head = self.unit.clauses[0].head[0].strip()
        return f"{who} put the statements into `{head}`; {what} was made inside it"


class _Solid(Unit):
    """A run of statements that counts as one and is the same in all versions."""

    def __init__(self, lines: Lines, lead: Lines, indent: str) -> None:
        self.lead = lead
        self.lines = lines
        self.indent = indent
        self.nodes = (ast.Pass(),)
        self.node = ast.Pass()
        self.single = True
        self.code = "<wrapped>"
        self.bag = Counter({"<wrapped>": 1})
        self.meaning = "<wrapped>"
        self.clauses = ()
        self.quoted = frozenset()


def wraps(
    b: Block, o: Block, t: Block, ours: "Mapping[int, int]", theirs: "Mapping[int, int]"
) -> Iterator[Wrap]:
    """Yield what one side wrapped, upstream's wrappers first."""
    for mine, side, found, other, away in (
        (True, o, ours, t, theirs),
        (False, t, theirs, o, ours),
    ):
        taken = set(found.values())
        for number, unit in enumerate(side.units):
            if number in taken or not unit.compound:
                continue
            run = _gone_around(found, number, len(b.units))
            best = _home(b.units, run, unit) if run else None
            if best is None:
                continue
            block, span = best
            others = _range(other, away, span)
            inside = Block(other.units[others.start : others.stop], (), other.indent)
            base = Block(b.units[span.start : span.stop], (), b.indent)
            yield Wrap(
                mine=mine,
                wrapper=number,
                unit=unit,
                block=block,
                run=span,
                other=others,
                base=base,
                ours=block if mine else inside,
                theirs=inside if mine else block,
            )


def outside(wrap: Wrap, b: Block, o: Block, t: Block, inner: Lines) -> tuple[Block, Block, Block]:
    """Return the three blocks with the wrapped statements as one that is the same in all."""
    side = o if wrap.mine else t
    target = wrap.ours.indent
    lines = moved(inner, target, wrap.block.indent)
    body = _replaced(wrap.unit, wrap.block, lines)
    solid = _Solid(body, wrap.unit.lead, side.indent)

    def with_solid(block: Block, span: range, lead: Lines) -> Block:
        own = _Solid(body, lead, block.indent)
        return Block(
            (*block.units[: span.start], own, *block.units[span.stop :]), block.tail, block.indent
        )

    own = range(wrap.wrapper, wrap.wrapper + 1)
    base = with_solid(b, wrap.run, ())
    if wrap.mine:
        return base, with_solid(o, own, solid.lead), with_solid(t, wrap.other, ())
    lead = tuple(moved(solid.lead, t.indent, o.indent))
    body = moved(body, t.indent, o.indent)
    ours_block = with_solid(o, wrap.other, lead)
    return with_solid(b, wrap.run, lead), ours_block, with_solid(t, own, lead)


def _gone_around(found: "Mapping[int, int]", number: int, size: int) -> range:
    """Return the base statements that a side lost where it has a new one."""
    left = max((b for b, at in found.items() if at < number), default=-1)
    right = min((b for b, at in found.items() if at > number), default=size)
    return range(left + 1, right)


def _home(units: Sequence[Unit], run: range, wrapper: Unit) -> tuple[Block, range] | None:
    """Return the body inside a wrapper that holds the run, and the part of the run it holds.

    Two bodies that hold it about as well (a call in each branch) leave the question open.
    """
    pieces = [units[number] for number in run]
    total = sum(len(unit.code) for unit in pieces)
    found: list[tuple[float, Block, range]] = []
    for block in _bodies(wrapper):
        pairs = unit_pairs(pieces, block.units)
        covered = sum(len(pieces[number].code) for number in pairs)
        if not pairs or covered < COVERED * total:
            continue
        same = sum(
            len(pieces[old].code) * likeness(pieces[old].bag, block.units[new].bag) ** 2
            for old, new in pairs.items()
        )
        equal = all(pieces[old].code == block.units[new].code for old, new in pairs.items())
        span = range(run.start + min(pairs), run.start + max(pairs) + 1)
        found.append((same + total * equal, block, span))
    found.sort(key=lambda one: one[0], reverse=True)
    if not found or (len(found) > 1 and found[1][0] > CLEARLY * found[0][0]):
        return None
    return found[0][1:]


def _bodies(unit: Unit) -> Iterator[Block]:
    for clause in unit.clauses:
        yield clause.body
        for inner in clause.body.units:
            if inner.compound and not isinstance(
                inner.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                yield from _bodies(inner)


def _range(other: Block, away: "Mapping[int, int]", span: range) -> range:
    """Return where the other side has what the run was."""
    if span.start in away and span.stop - 1 in away:
        return range(away[span.start], away[span.stop - 1] + 1)
    left = max((away[b] for b in away if b < span.start), default=-1)
    right = min((away[b] for b in away if b >= span.stop), default=len(other.units))
    return range(left + 1, right)


def _replaced(unit: Unit, block: Block, lines: Lines) -> Lines:
    """Return a statement's lines with other ones in one of its bodies."""
    found: list[str] = []
    for clause in unit.clauses:
        found += clause.lead
        if clause.body is block:
            found += _branch(unit, clause, lines)
            continue
        found += (*clause.decorators, *clause.head)
        for inner in clause.body.units:
            found += inner.lead
            found += _replaced(inner, block, lines) if inner.compound else inner.lines
        found += clause.body.tail
    return tuple(found)


def _branch(unit: Unit, clause: Clause, lines: Lines) -> Lines:
    """Return a clause with another body; `else` around a lone `if` is written as `elif`."""
    plain = (*clause.decorators, *clause.head, *lines)
    text = [line for line in lines if line.strip()]
    if clause.word != "else" or not isinstance(unit.node, ast.If) or not text:
        return plain
    inner = indent_of(text[0])
    try:
        source = Source("\n".join(outdented(lines, inner)))
    except Unparsable:
        return plain
    units = source.block.units
    if len(units) != 1 or not isinstance(units[0].node, ast.If) or not units[0].compound:
        return plain
    outer = indent_of(clause.head[0])
    own = units[0]
    flat = moved_in((*own.lead, *own.lines, *source.block.tail), outer)
    first = len(own.lead)
    return (*flat[:first], flat[first].replace("if", "elif", 1), *flat[first + 1 :])


def moved_in(lines: Sequence[str], indent: str) -> Lines:
    """Return lines with an indent put before those that have text."""
    return tuple(indent + line if line.strip() else line for line in lines)
