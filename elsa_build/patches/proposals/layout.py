"""Python text as blocks of statements that keep their comments and blank lines.

A merge that joins syntax trees and prints them would rewrite every file in the printer's own style.
Here a statement is a slice of lines, so that what nobody changed stays as it was, byte for byte.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

Lines = tuple[str, ...]
"""Whole lines without their line ends."""

_COMPOUND = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)
_WORD = re.compile(r"\w+|[^\w\s]")
_BROKEN = (SyntaxError, ValueError, RecursionError, MemoryError)


class Unparsable(Exception):  # noqa: N818 - a reason to stop, not a failure of the tool
    """The text is not Python, or not as this Python reads it."""


def parse(text: str) -> ast.Module:
    """Return the tree of a text; upstream's own warnings are kept from our user.

    Raises:
        Unparsable: It is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except _BROKEN as e:
            raise Unparsable(str(e)) from e


def indent_of(line: str) -> str:
    """Return the blanks that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def idle(line: str) -> bool:
    """Say whether a line is blank or only a comment."""
    text = line.strip()
    return not text or text.startswith("#")


class Block:
    """The statements of one body, with what stands before, between and after them."""

    def __init__(self, units: "tuple[Unit, ...]", tail: Lines, indent: str) -> None:
        self.units = units
        self.tail = tail
        self.indent = indent

    @cached_property
    def lines(self) -> Lines:
        """Return the block as it stands."""
        found: list[str] = []
        for unit in self.units:
            found += unit.lead
            found += unit.lines
        return (*found, *self.tail)


class Clause:
    """One header of a compound statement and its body: `if ...:`, `else:`, `def ...:`.

    `lead` stands before the header, `head` has the header's lines, decorators apart.
    """

    def __init__(self, lead: Lines, decorators: Lines, head: Lines, body: Block) -> None:
        self.lead = lead
        self.decorators = decorators
        self.head = head
        self.body = body

    @property
    def word(self) -> str:
        """Return the header's keyword."""
        return re.split(r"\W", self.head[0].strip(), maxsplit=1)[0]

    @cached_property
    def lines(self) -> Lines:
        """Return the clause as it stands, without its lead."""
        return (*self.decorators, *self.head, *self.body.lines)


class Unit:
    """One statement (or several on one line); `lead` are the comments and blanks before it."""

    def __init__(
        self, source: "Source", nodes: Sequence[ast.stmt], lead: Lines, span: range
    ) -> None:
        self._source = source
        self.span = span
        self.nodes = tuple(nodes)
        self.node = nodes[0]
        self.single = len(nodes) == 1
        self.lead = lead
        self.lines: Lines = tuple(source.lines[span.start : span.stop])
        self.indent = indent_of(self.lines[0])

    @cached_property
    def code(self) -> str:
        """Return the text without indentation: equal for a statement that only moved."""
        return "\n".join(outdented(self.lines, self.indent)).rstrip()

    @cached_property
    def meaning(self) -> str:
        """Return the syntax alone: equal when only comments or layout differ."""
        try:
            return ast.dump(parse(self.code + "\n"))
        except Unparsable:
            return self.code

    @cached_property
    def bag(self) -> Counter[str]:
        """Return the words and signs of the statement, comments apart."""
        return words(self.code)

    @cached_property
    def quoted(self) -> frozenset[int]:
        """Return the lines, 0-based in `lines`, that begin inside a string."""
        return frozenset(
            at - self.span.start for node in self.nodes for at in self._source.quoted(node)
        )

    @property
    def compound(self) -> bool:
        """Say whether the statement has clauses with bodies on lines of their own."""
        return bool(self.clauses)

    @cached_property
    def clauses(self) -> tuple[Clause, ...]:
        """Return the clauses of a compound statement, nothing for a simple one."""
        if not self.single or not isinstance(self.node, _COMPOUND):
            return ()
        return tuple(self._source.clauses(self.node, self.span))


class Source:
    """One version of a file or a part of it."""

    def __init__(self, text: str) -> None:
        """Parse a text.

        Raises:
            Unparsable: It is not Python.
        """
        self.text = text
        self.lines = text.split("\n")
        self.tree = parse(text)

    def quoted(self, statement: ast.stmt) -> Iterator[int]:
        """Yield the lines, 0-based, that begin inside a string: indentation there is content."""
        for node in ast.walk(statement):
            several = isinstance(node, ast.expr) and node.end_lineno != node.lineno
            match node:
                case ast.JoinedStr() | ast.Constant(value=str() | bytes()) if several:
                    yield from self._open(node)
                case _:
                    pass

    def _open(self, node: ast.expr) -> range:
        """Return the lines that a string may hold open; several joined strings are left out."""
        first, last = self.lines[node.lineno - 1], node.end_lineno or node.lineno
        start = first.encode()[node.col_offset :]
        return range(node.lineno, last) if re.match(rb"\w*('''|\"\"\")", start) else range(0)

    @cached_property
    def block(self) -> Block:
        """Return the whole text as a block."""
        return self.body(self.tree.body, range(len(self.lines)))

    def body(self, statements: Sequence[ast.stmt], span: range) -> Block:
        """Return statements as a block; `span` are its lines, 0-based."""
        units: list[Unit] = []
        cursor = span.start
        groups = list(_groups(statements))
        for number, group in enumerate(groups):
            start, stop = _first(group[0]) - 1, group[-1].end_lineno or 0
            limit = _first(groups[number + 1][0]) - 1 if number + 1 < len(groups) else span.stop
            if isinstance(group[-1], _COMPOUND):
                stop = self._deeper(stop, limit, len(indent_of(self.lines[start])))
            lead = tuple(self.lines[cursor:start])
            units.append(Unit(self, group, lead, range(start, stop)))
            cursor = stop
        indent = units[0].indent if units else ""
        return Block(tuple(units), tuple(self.lines[cursor : span.stop]), indent)

    def _deeper(self, stop: int, limit: int, depth: int) -> int:
        """Return where a compound statement ends with the comments that are indented like it."""
        end = stop
        for at in range(stop, limit):
            line = self.lines[at]
            if line.strip() and len(indent_of(line)) <= depth:
                break
            if line.strip():
                end = at + 1
        return end

    def clauses(self, node: ast.stmt, span: range) -> Iterator[Clause]:
        """Yield the clauses of a compound statement; none when a body shares a header's line."""
        parts = list(self._parts(node))
        starts = [_first(body[0]) - 1 for _, body in parts]
        heads = [self._head(at, start) for (at, _), start in zip(parts, starts, strict=True)]
        if any(
            head.stop <= head.start or not body
            for head, (_, body) in zip(heads, parts, strict=True)
        ):
            return
        ends = []
        for number in range(len(parts)):
            if number + 1 == len(parts):
                ends.append(span.stop)
                continue
            last = parts[number][1][-1].end_lineno or 0
            depth = len(indent_of(self.lines[heads[0].start]))
            ends.append(self._deeper(last, heads[number + 1].start, depth))
        for number, ((_, body), head) in enumerate(zip(parts, heads, strict=True)):
            lead = tuple(self.lines[ends[number - 1] : head.start]) if number else ()
            decorators = tuple(self.lines[span.start : head.start]) if not number else ()
            inner = self.body(body, range(head.stop, ends[number]))
            yield Clause(lead, decorators, tuple(self.lines[head.start : head.stop]), inner)

    def _parts(self, node: ast.stmt) -> Iterator[tuple[int, list[ast.stmt]]]:
        """Yield where each clause's header starts (0-based line) and its statements."""
        if isinstance(node, ast.Match):
            # A match statement's own header has no statements; it is left whole.
            return
        last: list[ast.stmt] = getattr(node, "body", [])
        yield node.lineno - 1, last
        if isinstance(node, ast.Try | ast.TryStar):
            for handler in node.handlers:
                last = handler.body
                yield handler.lineno - 1, last
        orelse: list[ast.stmt] = getattr(node, "orelse", [])
        if orelse:
            only = orelse[0]
            if isinstance(node, ast.If) and self._elif(only):
                yield from self._parts(only)
                return
            yield self._keyword("else", last, orelse), orelse
            last = orelse
        final: list[ast.stmt] = getattr(node, "finalbody", [])
        if final:
            yield self._keyword("finally", last, final), final

    def _elif(self, node: ast.stmt) -> bool:
        line = self.lines[node.lineno - 1].encode()[node.col_offset :]
        return isinstance(node, ast.If) and line.startswith(b"elif")

    def _keyword(self, word: str, before: list[ast.stmt], after: list[ast.stmt]) -> int:
        first, last = before[-1].end_lineno or 0, _first(after[0])
        for at in range(first, last):
            if re.match(rf"\s*{word}\s*:", self.lines[at]):
                return at
        return last

    def _head(self, start: int, body: int) -> range:
        """Return the lines of a header that starts here; comments before the body are not its."""
        stop = body
        while stop > start and idle(self.lines[stop - 1]):
            stop -= 1
        return range(start, stop)


@lru_cache(maxsize=16)
def source(text: str) -> Source:
    """Return a text parsed; one conflict asks for the same few texts many times.

    Raises:
        Unparsable: It is not Python.
    """
    return Source(text)


def words(text: str) -> Counter[str]:
    """Return the words and signs of a text, comments apart."""
    lines = (line for line in text.split("\n") if not line.lstrip().startswith("#"))
    return Counter(_WORD.findall("\n".join(lines)))


def _first(node: ast.stmt) -> int:
    """Return a statement's first line, 1-based, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _groups(statements: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Yield the statements, those that share a line together."""
    group: list[ast.stmt] = []
    for statement in statements:
        if group and _first(statement) > (group[-1].end_lineno or 0):
            yield group
            group = []
        group.append(statement)
    if group:
        yield group


def outdented(lines: Sequence[str], indent: str) -> Iterator[str]:
    """Yield the lines without a common indent; blank lines come out empty."""
    for line in lines:
        yield line.removeprefix(indent) if line.strip() else ""


def moved(lines: Sequence[str], old: str, new: str, quoted: frozenset[int] = frozenset()) -> Lines:
    """Return lines with one indent in place of another; lines inside strings stay."""
    if old == new:
        return tuple(lines)
    return tuple(
        line
        if at in quoted or not line.strip()
        else new + line.removeprefix(old)
        if line.startswith(old)
        else line
        for at, line in enumerate(lines)
    )
