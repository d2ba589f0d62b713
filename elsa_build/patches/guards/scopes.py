"""The map of a Python text: which classes, functions and branches hold a line.

A patch tool knows lines; a person means "in the sampling branch of `verify`". The map is made from
the syntax tree, statements only, and a block is known across versions by a key without layout.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class BlockKind(StrEnum):
    """What a block is. Branches of one `if` chain are siblings, not nested."""

    CLASS = "class"
    FUNCTION = "def"
    FIELD = "field"
    IF = "if"
    ELSE = "else"
    LOOP = "loop"
    WITH = "with"
    TRY = "try"
    EXCEPT = "except"
    FINALLY = "finally"
    CASE = "case"
    STATEMENT = "statement"


SCOPES = frozenset({BlockKind.CLASS, BlockKind.FUNCTION})
LEAVES = frozenset({BlockKind.STATEMENT, BlockKind.FIELD})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """A run of lines with one header; lines are 1-based in the text that was mapped.

    `key` tells whether it is the same block in another version, `words` says it to a person.
    `first` counts decorators, `head` is the line of the keyword itself. `split` says that the
    children are not here but in pieces of their own. Blocks are equal only to themselves.
    """

    kind: BlockKind
    key: str
    words: str
    first: int
    head: int
    last: int
    decorators: tuple[str, ...] = ()
    children: tuple["Block", ...] = ()
    split: bool = False


def blocks(tree: ast.Module, lines: Sequence[str]) -> tuple[Block, ...]:
    """Return the outermost blocks of a parsed text; `lines` is that text by line."""
    return tuple(_Mapper(lines).many(tree.body))


def indented(lines: Sequence[str], line: int) -> tuple[Block, ...]:
    """Return the classes and functions around a line by indentation alone, outermost first.

    For a text that does not parse. `last` of each block is unknown and set to `line`.
    """
    path: list[Block] = []
    limit = _indent(lines[line - 1]) if line <= len(lines) else 0
    for at in range(min(line, len(lines)), 0, -1):
        text = lines[at - 1].strip()
        indent = _indent(lines[at - 1])
        if not text or (indent >= limit and at != line):
            continue
        limit = min(limit, indent)
        words = text.removeprefix("async ").split(maxsplit=1)
        if len(words) == 2 and words[0] in ("def", "class"):
            kind = BlockKind.FUNCTION if words[0] == "def" else BlockKind.CLASS
            name = words[1].partition("(")[0].partition(":")[0].strip()
            path.append(Block(kind=kind, key=name, words=f"`{name}`", first=at, head=at, last=line))
        if not indent:
            break
    return tuple(reversed(path))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _Mapper:
    """Turn statements into blocks; keys are cut from the text where that is cheaper."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines

    def many(self, body: Iterable[ast.stmt], *, fields: bool = False) -> Iterator[Block]:
        for statement in body:
            yield from self._one(statement, fields=fields)

    def _one(self, node: ast.stmt, *, fields: bool) -> Iterator[Block]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield self._definition(node)
            case ast.If():
                yield from self._if(node, self._text(node.test))
            case ast.For() | ast.AsyncFor() | ast.While():
                yield from self._loop(node)
            case ast.With() | ast.AsyncWith():
                items = ", ".join(self._text(item.context_expr) for item in node.items)
                yield self._block(BlockKind.WITH, f"with {items}", node.lineno, node.body)
            case ast.Try() | ast.TryStar():
                yield from self._try(node)
            case ast.Match():
                yield from self._match(node)
            case _:
                yield from self._simple(node, fields=fields)

    def _simple(self, node: ast.stmt, *, fields: bool) -> Iterator[Block]:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if fields:
                yield self._leaf(BlockKind.FIELD, name, node)
            case ast.Expr(value=ast.Constant()):  # a docstring holds no code
                pass
            case _ if (node.end_lineno or 0) > node.lineno:
                yield self._leaf(BlockKind.STATEMENT, self._lines[node.lineno - 1].strip(), node)
            case _:
                pass

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Block:
        of_class = isinstance(node, ast.ClassDef)
        return Block(
            kind=BlockKind.CLASS if of_class else BlockKind.FUNCTION,
            key=node.name,
            words=f"`{node.name}`",
            first=min([node.lineno, *(item.lineno for item in node.decorator_list)]),
            head=node.lineno,
            last=_last(node.body),
            decorators=tuple(self._text(item) for item in node.decorator_list),
            children=tuple(self.many(node.body, fields=of_class)),
        )

    def _block(
        self,
        kind: BlockKind,
        words: str,
        first: int,
        body: Sequence[ast.stmt],
        head: int | None = None,
    ) -> Block:
        return Block(
            kind=kind,
            key=_squeezed(words),
            words=f"`{words}`",
            first=first,
            head=head or first,
            last=_last(body),
            children=tuple(self.many(body)),
        )

    def _leaf(self, kind: BlockKind, words: str, node: ast.stmt) -> Block:
        last = node.end_lineno or node.lineno
        return Block(
            kind=kind,
            key=_squeezed(words),
            words=f"`{words}`",
            first=node.lineno,
            head=node.lineno,
            last=last,
        )

    def _tail(
        self, keyword: str, of: str, after: Sequence[ast.stmt], body: list[ast.stmt]
    ) -> Block:
        """Return the block of an `else` or `finally`, which the tree gives no line of its own."""
        first = _last(after) + 1
        head = next(
            (
                at
                for at in range(first, body[0].lineno + 1)
                if self._lines[at - 1].lstrip().startswith(keyword)
            ),
            body[0].lineno,
        )
        kind = BlockKind.FINALLY if keyword == "finally" else BlockKind.ELSE
        block = self._block(kind, f"{keyword} of {of}", head, body)
        return Block(
            kind=kind,
            key=block.key,
            words=f"{keyword} of `{of}`",
            first=head,
            head=head,
            last=block.last,
            children=block.children,
        )

    def _if(self, node: ast.If, opening: str) -> Iterator[Block]:
        test = self._text(node.test)
        yield self._block(BlockKind.IF, f"if {test}", node.lineno, node.body)
        if not node.orelse:
            return
        inner = node.orelse[0]
        if isinstance(inner, ast.If) and self._at(inner).startswith("elif"):
            yield from self._if(inner, opening)
        else:
            yield self._tail("else", f"if {opening}", node.body, node.orelse)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> Iterator[Block]:
        if isinstance(node, ast.While):
            words = f"while {self._text(node.test)}"
        else:
            words = f"for {self._text(node.target)} in {self._text(node.iter)}"
        yield self._block(BlockKind.LOOP, words, node.lineno, node.body)
        if node.orelse:
            yield self._tail("else", words, node.body, node.orelse)

    def _try(self, node: ast.Try | ast.TryStar) -> Iterator[Block]:
        yield self._block(BlockKind.TRY, "try", node.lineno, node.body)
        for handler in node.handlers:
            words = f"except {self._text(handler.type)}" if handler.type else "except"
            yield self._block(BlockKind.EXCEPT, words, handler.lineno, handler.body)
        before = node.handlers[-1].body if node.handlers else node.body
        if node.orelse:
            yield self._tail("else", "try", before, node.orelse)
        if node.finalbody:
            yield self._tail("finally", "try", node.orelse or before, node.finalbody)

    def _match(self, node: ast.Match) -> Iterator[Block]:
        subject = self._text(node.subject)
        for case in node.cases:
            pattern = self._text(case.pattern)
            guard = f" if {self._text(case.guard)}" if case.guard else ""
            words = f"match {subject}: case {pattern}{guard}"
            yield self._block(BlockKind.CASE, words, case.pattern.lineno, case.body)

    def _at(self, node: ast.stmt) -> str:
        return self._lines[node.lineno - 1].lstrip()

    def _text(self, node: ast.expr | ast.pattern) -> str:
        """Return an expression on one line; columns of the tree are UTF-8 bytes."""
        if node.end_lineno != node.lineno:  # layout and comments: let Python say it again
            return ast.unparse(node)
        line = self._lines[node.lineno - 1].encode("utf-8", "replace")
        text = line[node.col_offset : node.end_col_offset].decode("utf-8", "replace")
        return " ".join(text.split())


def _last(body: Sequence[ast.stmt]) -> int:
    return body[-1].end_lineno or body[-1].lineno


def _squeezed(words: str) -> str:
    """Return words without what a formatter changes: blanks, trailing commas, quote style."""
    text = "".join(words.split()).replace("'", '"')
    return text.replace(",)", ")").replace(",]", "]").replace(",}", "}")
