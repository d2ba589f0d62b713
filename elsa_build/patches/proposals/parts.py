"""One statement or header as a tree of parts that know where they stand in the text.

Python's own tree is cut to what a merge needs: a label (all that is not a child), fixed children,
and at most one list whose items may come and go (arguments, parameters, elements, imported names).
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from elsa_build.patches.proposals.layout import Unparsable, parse

Span = tuple[int, int]
Placed = ast.expr | ast.stmt | ast.keyword | ast.alias | ast.ExceptHandler
"""Nodes that know where they stand."""


@dataclass(kw_only=True)
class Part:
    """One node. `parts` are fixed children in order, `items` the list, both with their places.

    `inner` is where the list may stand (between the brackets), None when the node has no list.
    `key` names an item among its siblings; empty when nothing names it.
    """

    kind: str
    start: int
    end: int
    label: str = ""
    parts: "tuple[Part, ...]" = ()
    items: "tuple[Part, ...]" = ()
    inner: Span | None = None
    key: str = ""
    code: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def walk(self) -> "Iterator[Part]":
        """Yield this node and all below."""
        yield self
        for child in (*self.parts, *self.items):
            yield from child.walk()


class Text:
    """A piece of source with its tree."""

    def __init__(self, text: str, *, header: bool = False) -> None:
        """Parse one statement, or the header of a compound one.

        Raises:
            Unparsable: It is not one statement.
        """
        self.text = text
        self.shift, self._whole, whole = _completed(text) if header else (0, text, text)
        tree = parse(whole)
        if len(tree.body) != 1:
            raise Unparsable("not one statement")
        self._starts = [0]
        for line in whole.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._lines = whole.split("\n")
        statement: ast.stmt | ast.ExceptHandler = tree.body[0]
        if header and isinstance(statement, ast.Try | ast.TryStar) and self.shift:
            statement = statement.handlers[0]
        try:
            self.root = self._header(statement) if header else self._node(statement)
        except (ValueError, IndexError, RecursionError) as e:
            # A bracket was not where the printed form of the tree has it.
            raise Unparsable(f"not understood: {tree.body[0].__class__.__name__}") from e

    def of(self, part: Part) -> str:
        """Return the text of a part."""
        return self._whole[part.start : part.end]

    def between(self, start: int, end: int) -> str:
        """Return the text between two places."""
        return self._whole[start:end]

    @property
    def whole(self) -> Span:
        """Return where the given text stands in the completed one."""
        return self.shift, self.shift + len(self.text)

    # --- places -----------------------------------------------------------------------------

    def _at(self, line: int, column: int) -> int:
        text = self._lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode("utf-8", "replace"))
        return self._starts[line - 1] + column

    def _span(self, node: "Placed") -> Span:
        end = self._at(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return self._at(node.lineno, node.col_offset), end

    # --- nodes ------------------------------------------------------------------------------

    def _header(self, node: ast.stmt | ast.ExceptHandler) -> Part:  # noqa: PLR0911 - one a kind
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._function(node)
            case ast.ClassDef():
                items = self._items([*node.bases, *node.keywords])
                inner = self._bases(node.name) if items else None
                return self._made(node, f"{node.name}", (), items, inner, whole=True)
            case ast.If(test=test) | ast.While(test=test):
                return self._made(node, "", (self._node(test),), whole=True)
            case ast.For(target=target, iter=iter_) | ast.AsyncFor(target=target, iter=iter_):
                return self._made(node, "", (self._node(target), self._node(iter_)), whole=True)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                found = tuple(self._with_item(item) for item in items)
                inner = (found[0].start, found[-1].end)
                return self._made(node, "", (), found, inner, whole=True)
            case ast.ExceptHandler():
                types = (self._node(node.type),) if node.type else ()
                return self._made(node, node.name or "", types, whole=True)
            case _:
                return self._made(node, ast.dump(node), (), whole=True)

    def _with_item(self, item: ast.withitem) -> Part:
        first = self._node(item.context_expr)
        if item.optional_vars is None:
            return first
        second = self._node(item.optional_vars)
        code = f"{first.code} as {second.code}"
        return Part(
            kind="withitem",
            start=first.start,
            end=second.end,
            parts=(first, second),
            key=second.code,
            code=code,
        )

    def _made(
        self,
        node: Placed,
        label: str,
        parts: tuple[Part, ...],
        items: tuple[Part, ...] = (),
        inner: Span | None = None,
        *,
        key: str = "",
        whole: bool = False,
    ) -> Part:
        start, end = self.whole if whole else self._span(node)
        kind = type(node).__name__
        code = (
            f"{kind}({label}|{','.join(p.code for p in parts)}|{','.join(i.code for i in items)})"
        )
        return Part(
            kind=kind,
            start=start,
            end=end,
            label=label,
            parts=parts,
            items=items,
            inner=inner,
            key=key,
            code=code,
        )

    def _items(self, nodes: "Iterable[ast.expr | ast.keyword]") -> tuple[Part, ...]:
        return tuple(sorted(map(self._node, nodes), key=lambda part: part.start))

    def _node(self, node: Placed) -> Part:  # noqa: C901, PLR0911, PLR0912 - one case a kind
        match node:
            case ast.Call():
                items = self._items([*node.args, *node.keywords])
                func = self._node(node.func)
                inner = (self._opening(func.end), self._span(node)[1] - 1)
                return self._made(node, "", (func,), items, inner)
            case ast.keyword():
                value = self._node(node.value)
                return self._made(node, node.arg or "**", (value,), key=f"{node.arg or '**'}=")
            case ast.List(elts=elts) | ast.Set(elts=elts):
                start, end = self._span(node)
                return self._made(node, "", (), self._items(elts), (start + 1, end - 1))
            case ast.Tuple():
                return self._tuple(node)
            case ast.Dict():
                start, end = self._span(node)
                return self._made(node, "", (), tuple(self._pairs(node)), (start + 1, end - 1))
            case ast.BoolOp():
                items = tuple(map(self._node, node.values))
                return self._made(
                    node, type(node.op).__name__, (), items, (items[0].start, items[-1].end)
                )
            case ast.ImportFrom():
                items = tuple(self._alias(name) for name in node.names)
                label = "." * node.level + (node.module or "")
                return self._made(node, label, (), items, self._import_inner(node, items))
            case ast.Import():
                items = tuple(self._alias(name) for name in node.names)
                return self._made(node, "", (), items, (items[0].start, items[-1].end))
            case ast.Name(id=name):
                return self._made(node, name, ())
            case ast.Constant(value=value):
                return self._made(node, repr(value), ())
            case ast.JoinedStr():
                return self._made(node, ast.dump(node), ())
            case ast.Lambda():
                return self._made(node, ast.dump(node.args), (self._node(node.body),))
            case _:
                return self._other(node)

    def _other(self, node: Placed) -> Part:
        children: list[Part] = []
        label: list[str] = []
        self._open(node, children, label)
        children.sort(key=lambda part: part.start)
        return self._made(node, ";".join(label), tuple(children))

    def _open(self, node: ast.AST, children: list[Part], label: list[str]) -> None:
        """Collect the children with a place; what has none is opened or becomes label."""
        for name, value in ast.iter_fields(node):
            values = value if isinstance(value, list) else [value]
            label.append(f"{name}{len(values)}")
            for one in values:
                if isinstance(one, ast.expr | ast.stmt | ast.keyword):
                    children.append(self._node(one))
                elif isinstance(one, ast.expr_context):
                    continue
                elif isinstance(one, ast.AST):
                    label.append(type(one).__name__)
                    if not isinstance(one, ast.operator | ast.unaryop | ast.cmpop):
                        self._open(one, children, label)
                elif one is not None:
                    label.append(repr(one))
                else:
                    label.append("-")

    def _tuple(self, node: ast.Tuple) -> Part:
        start, end = self._span(node)
        items = self._items(node.elts)
        bracketed = self._whole[start] == "(" and (not items or items[0].start > start)
        if bracketed and items and items[0].kind == "Tuple" and items[0].start == start:
            bracketed = False
        inner = (start + 1, end - 1) if bracketed else (start, end)
        return self._made(node, "", (), items, inner)

    def _pairs(self, node: ast.Dict) -> Iterator[Part]:
        for key, value in zip(node.keys, node.values, strict=True):
            right = self._node(value)
            if key is None:
                start = self._whole.rindex("**", 0, right.start)
                parts: tuple[Part, ...] = (right,)
                name = "**" + right.code
            else:
                left = self._node(key)
                start, parts, name = left.start, (left, right), left.code
            code = f"Pair({','.join(part.code for part in parts)})"
            yield Part(kind="Pair", start=start, end=right.end, parts=parts, key=name, code=code)

    def _alias(self, node: ast.alias) -> Part:
        code = f"{node.name} as {node.asname}" if node.asname else node.name
        return self._made(node, code, (), key=code)

    def _import_inner(self, node: ast.ImportFrom, items: tuple[Part, ...]) -> Span:
        end = self._span(node)[1]
        if self._whole[end - 1] == ")":
            return self._whole.rindex("(", 0, items[0].start) + 1, end - 1
        return items[0].start, items[-1].end

    def _opening(self, after: int) -> int:
        """Return where a call's arguments begin: behind its own opening bracket."""
        at = after
        while self._whole[at] != "(":
            if self._whole[at] == "#":
                at = self._whole.index("\n", at)
            at += 1
        return at + 1

    def _bases(self, name: str) -> Span:
        found = re.compile(rf"class\s+{re.escape(name)}\s*\(").search(self._whole)
        if found is None:
            raise Unparsable("type parameters")
        return found.end(), self._whole.rindex(")", 0, self.whole[1])

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Part:
        found = re.compile(rf"def\s+{re.escape(node.name)}\s*\(").search(self._whole)
        if found is None:
            raise Unparsable("type parameters")
        returns = (self._node(node.returns),) if node.returns else ()
        limit = returns[0].start if returns else self.whole[1]
        close = self._whole.rindex(")", found.end(), limit)
        if returns:
            close = self._whole.rindex(")", found.end(), self._whole.rindex("->", 0, limit))
        params = tuple(self._params(node.args, found.end()))
        return self._made(node, node.name, returns, params, (found.end(), close), whole=True)

    def _params(self, args: ast.arguments, start: int) -> Iterator[Part]:
        plain = [*args.posonlyargs, *args.args]
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
        cursor = start
        for number, (arg, default) in enumerate(
            zip(plain, [*defaults, *args.defaults], strict=True)
        ):
            part = self._param(arg, default)
            yield part
            cursor = part.end
            if number + 1 == len(args.posonlyargs):
                cursor = self._whole.index("/", cursor) + 1
                yield Part(kind="/", start=cursor - 1, end=cursor, key="/", code="/")
        if args.vararg or args.kwonlyargs:
            star = self._whole.index("*", cursor)
            if args.vararg:
                part = self._param(args.vararg, None)
                yield Part(kind="*", start=star, end=part.end, key="*", code="*" + part.code)
            else:
                yield Part(kind="*", start=star, end=star + 1, key="*", code="*")
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            yield self._param(arg, default)
        if args.kwarg:
            part = self._param(args.kwarg, None)
            star = self._whole.rindex("**", start, part.start)
            yield Part(kind="**", start=star, end=part.end, key="**", code="**" + part.code)

    def _param(self, arg: ast.arg, default: ast.expr | None) -> Part:
        start = self._at(arg.lineno, arg.col_offset)
        parts = tuple(self._node(one) for one in (arg.annotation, default) if one is not None)
        shape = f"{arg.arg}:{arg.annotation is not None}={default is not None}"
        end = parts[-1].end if parts else start + len(arg.arg)
        code = f"Param({shape}|{','.join(part.code for part in parts)})"
        return Part(
            kind="Param", start=start, end=end, label=shape, parts=parts, key=arg.arg, code=code
        )


def _completed(head: str) -> tuple[int, str, str]:
    """Return how far a header's text moved, the text with a body, and the same in a form to parse.

    `elif` without its `if` does not parse; `if` and two blanks stand in for it.
    """
    word = re.split(r"\W", head.lstrip(), maxsplit=1)[0]
    before = "try:\n pass\n" if word == "except" else ""
    shown = f"{before}{head}\n pass\n"
    return len(before), shown, re.sub(r"^elif", "if  ", shown, count=1)
