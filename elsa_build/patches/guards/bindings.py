"""What the statements of a text import, and which names they may bind.

Kept apart from the syntax tree, which is dropped after parsing: thousands of live nodes would cost
more in garbage collection than the parsing did.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Guard(IntEnum):
    """What happens when an import fails, worst first."""

    NONE = 0
    TYPING = 1
    FALLBACK = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One name of an import statement and its line, 1-based in the text."""

    name: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An import statement, lines 1-based in the text.

    `module` is None for `import a, b`, where the names are the modules; it is empty for
    `from . import a`. `level` counts the leading dots.
    """

    module: str | None
    level: int
    names: tuple[Alias, ...]
    first: int
    last: int
    guard: Guard


def imports(body: Iterable[ast.stmt], guard: Guard = Guard.NONE) -> Iterator[Import]:
    """Yield the import statements of a body and of everything inside it."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield _import(node, guard)
            case ast.Try() | ast.TryStar() if any(map(_catches, node.handlers)):
                caught = max(guard, Guard.FALLBACK)
                yield from imports(node.body, caught)
                for handler in node.handlers:
                    yield from imports(handler.body, caught)
                yield from imports(node.orelse + node.finalbody, guard)
            case ast.With() if any(map(_suppresses, node.items)):
                yield from imports(node.body, max(guard, Guard.FALLBACK))
            case ast.If() if _named(node.test) == "TYPE_CHECKING":
                yield from imports(node.body, max(guard, Guard.TYPING))
                yield from imports(node.orelse, guard)
            case _:
                yield from imports(_inside(node), guard)


def _import(node: ast.Import | ast.ImportFrom, guard: Guard) -> Import:
    return Import(
        module=(node.module or "") if isinstance(node, ast.ImportFrom) else None,
        level=node.level if isinstance(node, ast.ImportFrom) else 0,
        names=tuple(Alias(name=alias.name, line=alias.lineno) for alias in node.names),
        first=node.lineno,
        last=node.end_lineno or node.lineno,
        guard=guard,
    )


def _inside(node: ast.stmt) -> list[ast.stmt]:
    """Return the statements inside a statement, of all its branches."""
    found: list[ast.stmt] = []
    for name in ("body", "orelse", "finalbody"):
        found += getattr(node, name, [])
    for name in ("handlers", "cases"):
        for part in getattr(node, name, []):
            found += part.body
    return found


def _catches(handler: ast.ExceptHandler) -> bool:
    """Say whether a handler catches a failed import."""
    match handler.type:
        case None:
            return True
        case ast.Tuple(elts=several):
            return any(_named(one) in _CAUGHT for one in several)
        case one:
            return _named(one) in _CAUGHT


def _suppresses(item: ast.withitem) -> bool:
    """Say whether a `with` swallows a failed import (`contextlib.suppress`)."""
    match item.context_expr:
        case ast.Call(func=func, args=args) if _named(func) == "suppress":
            return any(_named(one) in _CAUGHT for one in args)
        case _:
            return False


def _named(node: ast.expr) -> str:
    """Return the last part of a dotted name, or nothing."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield every name that statements of module level may bind, in any branch."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0]
            case (
                ast.Assign(targets=[ast.Name(id="__all__")])
                | ast.AugAssign(target=ast.Name(id="__all__"))
            ):
                for child in ast.walk(node):
                    if isinstance(child, ast.Constant) and isinstance(child.value, str):
                        yield child.value
            case _:
                yield from _bound_inside(node)


def _bound_inside(node: ast.AST) -> Iterator[str]:
    match node:
        case (
            ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
            | ast.MatchMapping(rest=str(name))
        ):
            yield name
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.stmt():
                yield from bound([child])
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case _:
                yield from _bound_inside(child)
