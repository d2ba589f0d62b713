"""Which statement of one version is which of another: by text, by name, by likeness.

A statement keeps its identity when it moves into an `if` or gets another argument. Equal text
comes first, then what it defines or assigns, then how many of its words a candidate shares.
"""

import ast
from collections import Counter
from collections.abc import Sequence

from elsa_build.patches.proposals.layout import Unit, words
from elsa_build.patches.proposals.sequences import equal_pairs, gaps

LIKE = 0.5
"""Share of words that two statements must have in common to be versions of one."""

SAME_BODY = 0.8
"""With another condition, only a body that is this much alike makes it the same statement."""


def likeness(left: Counter[str], right: Counter[str]) -> float:
    """Return the share of words that two texts have in common, 0 to 1."""
    total = left.total() + right.total()
    return 2 * (left & right).total() / total if total else 1.0


def name_of(unit: Unit) -> str:  # noqa: PLR0911 - one case a kind
    """Return what a statement defines, binds or imports; empty when it does nothing of these."""
    node = unit.node
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            marks = [ast.unparse(one) for one in node.decorator_list]
            special = [mark for mark in marks if mark.endswith((".setter", ".deleter", "overload"))]
            return f"def {node.name} {' '.join(special)}"
        case ast.Assign(targets=targets):
            return "= " + ", ".join(ast.unparse(target) for target in targets)
        case ast.AnnAssign(target=target):
            return "= " + ast.unparse(target)
        case ast.AugAssign(target=target):
            return "+= " + ast.unparse(target)
        case ast.ImportFrom(module=module, level=level):
            return f"from {'.' * level}{module or ''}"
        case ast.Import(names=names):
            return "import " + ", ".join(name.name for name in names)
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return "for " + ast.unparse(target)
        case ast.Return():
            return "return"
        case _:
            return ""


def kind_of(unit: Unit) -> str:
    """Return a statement's kind; an annotation does not make an assignment another one."""
    kind = type(unit.node).__name__
    return {"AnnAssign": "Assign", "AsyncFunctionDef": "FunctionDef"}.get(kind, kind)


def unit_pairs(old: Sequence[Unit], new: Sequence[Unit]) -> dict[int, int]:
    """Return which old statement became which new one, by index; the order may differ.

    Only definitions are followed out of order; other statements keep their neighbours.
    """
    same = list(equal_pairs([unit.code for unit in old], [unit.code for unit in new]))
    found = _anchored(old, new, same)
    for rows, columns in list(gaps(sorted(found.items()), len(old), len(new))):
        found.update(_in_gap(old, new, rows, columns))
    taken = set(found.values())
    names = [name_of(unit) if _defines(unit) else "" for unit in new]
    for number, unit in enumerate(old):
        if number in found or not _defines(unit):
            continue
        name = name_of(unit)
        places = [at for at, other in enumerate(names) if other == name]
        if len(places) == 1 and places[0] not in taken and _alone(old, unit):
            found[number] = places[0]
            taken.add(places[0])
    return found


def _anchored(
    old: Sequence[Unit], new: Sequence[Unit], same: list[tuple[int, int]]
) -> dict[int, int]:
    """Keep equal pairs that are worth an anchor: not a lone `pass` or `return` far from others."""
    known = dict(same)
    return {
        a: b
        for a, b in same
        if len(old[a].code) > 12
        or known.get(a - 1) == b - 1
        or known.get(a + 1) == b + 1
        or len(old) == len(new)
        or (a in (0, len(old) - 1) and b in (0, len(new) - 1))
    }


def _in_gap(
    old: Sequence[Unit], new: Sequence[Unit], rows: range, columns: range
) -> dict[int, int]:
    """Pair what lies between two anchors, in order: the best total likeness wins."""
    if not rows or not columns or len(rows) * len(columns) > 40_000:
        return {}
    table = [[0.0] * (len(columns) + 1) for _ in range(len(rows) + 1)]
    score: dict[tuple[int, int], float] = {}
    for i in range(len(rows) - 1, -1, -1):
        for j in range(len(columns) - 1, -1, -1):
            value = _score(old[rows[i]], new[columns[j]])
            score[i, j] = value
            both = value + table[i + 1][j + 1] if value else 0.0
            table[i][j] = max(both, table[i + 1][j], table[i][j + 1])
    found: dict[int, int] = {}
    i = j = 0
    while i < len(rows) and j < len(columns):
        value = score[i, j]
        if value and table[i][j] == value + table[i + 1][j + 1]:
            found[rows[i]] = columns[j]
            i, j = i + 1, j + 1
        elif table[i][j] == table[i + 1][j]:
            i += 1
        else:
            j += 1
    return found


def _score(a: Unit, b: Unit) -> float:
    """Return how surely one statement is a version of another: 0 for no, up to 2."""
    if kind_of(a) != kind_of(b):
        return 0.0
    if a.code == b.code:
        return 2.0
    name = name_of(a)
    if name and name != "return":
        if name != name_of(b):
            return 0.0
        return 1.0 + likeness(a.bag, b.bag) / 2
    like = likeness(a.bag, b.bag)
    if a.compound and b.compound:
        heads, bodies = _halves(a, b)
        if heads < LIKE and bodies < SAME_BODY:
            return 0.0
        like = max(like, (heads + bodies) / 2)
    return like if like >= LIKE else 0.0


def _halves(a: Unit, b: Unit) -> tuple[float, float]:
    """Return the likeness of the first headers and of the first bodies."""
    first, second = a.clauses[0], b.clauses[0]
    return (
        likeness(words("\n".join(first.head)), words("\n".join(second.head))),
        likeness(words("\n".join(first.body.lines)), words("\n".join(second.body.lines))),
    )


def _defines(unit: Unit) -> bool:
    return isinstance(unit.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _alone(units: Sequence[Unit], unit: Unit) -> bool:
    name = name_of(unit)
    return sum(name_of(other) == name for other in units if _defines(other)) == 1
