"""Attributes of `self` that the patch reads and upstream's class no longer has.

Upstream moves state out of a large class every week; the patch's `self.size` still compiles and
fails when the line runs.
"""

import ast
from collections.abc import Iterator

from elsa_build.patches.proposals.layout import Source


def missing(ours: Source, theirs: Source, merged: Source) -> Iterator[str]:
    """Yield attributes that a class of the joined text reads and only the patch's class sets.

    What neither class sets comes from a base class, of which one file says nothing.
    """
    here = {unit.code for unit in ours.block.units}
    for unit in merged.block.units:
        node = unit.node
        if not isinstance(node, ast.ClassDef) or unit.code in here:
            continue
        written, own = _class(theirs, node.name), _class(ours, node.name)
        if written is None or own is None:
            continue
        gone = _bound(written) - _bound(node)
        for name in sorted((gone & _read(node)) - _read(own)):
            yield f"`self.{name}` in {node.name} is set nowhere any more"


def _class(source: Source, name: str) -> ast.ClassDef | None:
    for unit in source.block.units:
        if isinstance(unit.node, ast.ClassDef) and unit.node.name == name:
            return unit.node
    return None


def _bound(node: ast.ClassDef) -> set[str]:
    """Return what a class binds: names of its body, and attributes of `self` in its methods."""
    found: set[str] = set()
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(child.name)
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case _:
                pass
    return found


def _read(node: ast.ClassDef) -> set[str]:
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Load)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }
