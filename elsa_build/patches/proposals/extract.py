"""What differs between versions of a file, so that only this is looked at closely.

SGLang has files of 8,000 lines; tokenizing four versions of one takes a second, and a patch touches
two functions.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from elsa_build.patches.proposals.layout import Block, Source, Unit

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def extracts(versions: Sequence[Source]) -> tuple[str, ...]:
    """Return each version without the functions and methods that are the same in all of them.

    A function that a version defines twice stays in all.
    """
    found = [list(_functions(version.block)) for version in versions]
    common = set.intersection(*(set(functions) for functions in found))
    for functions in found:
        names = Counter(name for name, _ in functions)
        common = {(name, code) for name, code in common if names[name] < 2}
    return tuple("\n".join(_kept(version.block, common, "")) + "\n" for version in versions)


def _functions(block: Block, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the qualified name and the text of each function outside of others."""
    for unit in block.units:
        if isinstance(unit.node, _FUNCTIONS):
            yield place + unit.node.name, unit.code
        elif isinstance(unit.node, ast.ClassDef) and unit.compound:
            yield from _functions(unit.clauses[0].body, f"{place}{unit.node.name}.")


def _kept(block: Block, common: set[tuple[str, str]], place: str) -> list[str]:
    lines: list[str] = []
    for unit in block.units:
        if isinstance(unit.node, _FUNCTIONS):
            if (place + unit.node.name, unit.code) not in common:
                lines += unit.lines
        elif isinstance(unit.node, ast.ClassDef) and unit.compound:
            lines += _class(unit, unit.node.name, common, place)
        else:
            lines += unit.lines
    return lines


def _class(unit: Unit, name: str, common: set[tuple[str, str]], place: str) -> list[str]:
    clause = unit.clauses[0]
    body = _kept(clause.body, common, f"{place}{name}.")
    return [*clause.decorators, *clause.head, *(body or [clause.body.indent + "pass"])]
