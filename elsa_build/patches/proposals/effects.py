"""What a statement binds and reads, so that two additions at one place are known to be independent.

Two sides may both add lines after the same line; in which order they must run only a person knows,
unless neither touches what the other uses.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence

from elsa_build.patches.proposals.layout import Unit

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_DECLARED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


def ends(node: ast.stmt) -> bool:
    """Say whether nothing behind this statement is reached."""
    return isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break)


def clash(one: Sequence[Unit], other: Sequence[Unit]) -> str:
    """Return why two runs of new statements depend on each other, or nothing."""
    left, right = _effects(one), _effects(other)
    both = left.bound & right.bound
    if both:
        return f"both sides set `{min(both)}`"
    crossed = (left.changed & right.read) | (right.changed & left.read)
    if crossed:
        return f"both sides use `{min(crossed)}`, which one of them sets"
    if left.jumps and right.jumps:
        return "both sides add a way out"
    return ""


def lost(removed: Iterable[Unit], kept: Iterable[Unit], fresh: Sequence[Unit]) -> str:
    """Return a name that only removed statements bound and that new ones read, or nothing."""
    gone = _effects(removed).bound - _effects(kept).bound
    needed = {name for name in gone & _effects(fresh).read if "." not in name}
    return min(needed, default="")


class _Effects:
    def __init__(self) -> None:
        self.bound: set[str] = set()
        self.changed: set[str] = set()
        self.read: set[str] = set()
        self.jumps = False


def _effects(units: Iterable[Unit]) -> _Effects:
    found = _Effects()
    for unit in units:
        node = unit.node
        declared = isinstance(node, _DECLARED)
        bound = set(bound_by(node))
        found.bound |= bound
        if not declared:
            found.changed |= bound
            found.read |= set(_read(node))
            found.jumps = found.jumps or ends(node)
    return found


def bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names and dotted attributes that a statement binds, in any branch."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
            return
        case ast.Lambda():
            return
        case ast.Import() | ast.ImportFrom():
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Attribute(ctx=ast.Store() | ast.Del()):
            yield ast.unparse(node)
        case ast.Subscript(ctx=ast.Store() | ast.Del()):
            yield ast.unparse(node)
        case ast.ExceptHandler(name=str(name)):
            yield name
        case _:
            pass
    for child in ast.iter_child_nodes(node):
        yield from bound_by(child)


def _read(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        match child:
            case ast.Name(id=name, ctx=ast.Load()):
                yield name
            case ast.Attribute(ctx=ast.Load()) | ast.Subscript(ctx=ast.Load()):
                yield ast.unparse(child)
            case _:
                pass
