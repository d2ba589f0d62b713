"""Upstream's own search-and-replace, read off its diff and made in the patch's text too.

When upstream retires an idiom (`size()` becomes `config().size` in every line of a file), each
patched line beside it conflicts, and each line that the patch adds calls what is gone. Putting the
patch into upstream's new words first leaves only what the two really disagree about.
"""

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from elsa_build.patches.proposals.effects import bound_by
from elsa_build.patches.proposals.layout import Block, Source, Unit, Unparsable, outdented, source
from elsa_build.patches.proposals.matching import unit_pairs
from elsa_build.patches.proposals.parts import Part, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewording:
    """What upstream writes instead of an expression, both as Python prints them."""

    old: str
    new: str
    times: int

    @property
    def said(self) -> str:
        """Return what was learnt, for a reviewer."""
        return f"upstream writes `{self.new}` for `{self.old}` throughout; the patch now does too"


def rewordings(base: str, ours: str, theirs: str) -> tuple[Rewording, ...]:
    """Return what upstream replaced everywhere in a file, as far as the patch's lines use it.

    An expression counts when each place where it stood got the same new one, none is left, and the
    name that it began with is no longer known there or at least two places agree.

    Raises:
        Unparsable: One of the texts is not Python.
    """
    used = _roots(base, theirs)
    seen: dict[str, list[str]] = defaultdict(list)
    for old, new in _replaced(source(base).block, source(ours).block, used):
        seen[old].append(new)
    known = {name for statement in source(ours).tree.body for name in bound_by(statement)}
    known |= set(dir(builtins))
    found = []
    for old, news in seen.items():
        root, target = _root(old), _root(news[0])
        if len(set(news)) != 1 or old in news or root not in used or not target:
            continue
        if target in known or target == root:
            retired = not re.search(rf"\b{re.escape(root)}\b", ours)
            if retired or len(news) > 1:
                found.append(Rewording(old=old, new=news[0], times=len(news)))
    left = _standing(source(ours).tree, {one.old for one in found})
    kept = [one for one in found if one.old not in left]
    return tuple(sorted(kept, key=lambda one: (-len(one.old), one.old)))


def _roots(base: str, theirs: str) -> frozenset[str]:
    """Return the words of the lines that the patch adds or removes."""
    changed = set(theirs.split("\n")) ^ set(base.split("\n"))
    return frozenset(word for line in changed for word in re.findall(r"[A-Za-z_]\w*", line))


def reworded(text: str, rewordings: Sequence[Rewording]) -> str:
    """Return a text with upstream's replacements made.

    Raises:
        Unparsable: The text is not Python.
    """
    new = {one.old: one.new for one in rewordings}
    places = sorted(_places(source(text), new), reverse=True)
    for start, end, old in places:
        text = text[:start] + new[old] + text[end:]
    return text


def using(text: str, rewordings: Sequence[Rewording]) -> tuple[Rewording, ...]:
    """Return the replacements that a text has a place for."""
    left = _standing(source(text).tree, {one.old for one in rewordings})
    return tuple(one for one in rewordings if one.old in left)


def _standing(tree: ast.Module, olds: Iterable[str]) -> set[str]:
    return {old for _, old in _nodes(tree, set(olds))}


def _replaced(base: Block, ours: Block, used: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the smallest expressions that upstream replaced, from every changed statement."""
    for number, at in unit_pairs(base.units, ours.units).items():
        old, new = base.units[number], ours.units[at]
        if old.code == new.code or used.isdisjoint(old.bag):
            continue
        if old.compound and new.compound:
            for clause, other in zip(old.clauses, new.clauses, strict=False):
                if clause.word not in {"else", "try", "finally"} and clause.word == other.word:
                    yield from _in_statement(
                        "\n".join(outdented(clause.head, old.indent)),
                        "\n".join(outdented(other.head, new.indent)),
                        header=True,
                    )
                yield from _replaced(clause.body, other.body, used)
        elif not old.compound and not new.compound:
            yield from _in_statement(old.code, new.code, header=False)


def _in_statement(old: str, new: str, *, header: bool) -> Iterator[tuple[str, str]]:
    if old == new:
        return
    try:
        left, right = Text(old, header=header), Text(new, header=header)
    except Unparsable:
        return
    for a, b in _differences(left.root, right.root):
        if a.kind in {"Call", "Attribute", "Name"} and b.kind in {"Call", "Attribute", "Name"}:
            yield _plain(left.of(a)), _plain(right.of(b))


def _differences(a: Part, b: Part) -> Iterator[tuple[Part, Part]]:
    """Yield the smallest pairs of nodes in which two statements differ."""
    if a.code == b.code:
        return
    same = a.kind == b.kind and a.label == b.label
    if same and len(a.parts) == len(b.parts) and len(a.items) == len(b.items):
        inner = [
            pair
            for old, new in zip((*a.parts, *a.items), (*b.parts, *b.items), strict=True)
            for pair in _differences(old, new)
        ]
        small = a.kind in {"Call", "Attribute"}
        if not small or all(pair[0].kind != "Name" for pair in inner):
            yield from inner
            return
    yield a, b


def _plain(text: str) -> str:
    try:
        return ast.unparse(ast.parse(text, mode="eval"))
    except SyntaxError:
        return " ".join(text.split())


def _root(expression: str) -> str:
    found = re.match(r"[A-Za-z_]\w*", expression)
    return found[0] if found else ""


def _nodes(tree: ast.Module, olds: set[str]) -> Iterator[tuple[ast.expr, str]]:
    """Yield the outermost expressions that are one of these, with which one."""
    roots = {_root(old) for old in olds}
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call | ast.Attribute | ast.Name) and _leftmost(node) in roots:
            text = ast.unparse(node)
            if text in olds:
                yield node, text
                continue
        todo.extend(ast.iter_child_nodes(node))


def _leftmost(node: ast.AST) -> str:
    while True:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Attribute(value=inner) | ast.Call(func=inner) | ast.Subscript(value=inner):
                node = inner
            case _:
                return ""


def _places(whole: Source, new: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield where an expression to be replaced starts and ends, and which one it is."""
    lines = whole.lines
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    for node, old in _nodes(whole.tree, set(new)):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        yield (
            starts[first] + _column(lines[first], node.col_offset),
            starts[last] + _column(lines[last], node.end_col_offset or 0),
            old,
        )


def _column(line: str, offset: int) -> int:
    return offset if line.isascii() else len(line.encode()[:offset].decode("utf-8", "replace"))


def units_of(block: Block) -> Iterator[Unit]:
    """Yield every statement of a block and of the bodies inside it."""
    for unit in block.units:
        yield unit
        for clause in unit.clauses:
            yield from units_of(clause.body)
