"""Names that a joined text uses and nothing binds, or binds and nothing uses any more.

A merge can compile and be wrong: upstream renamed the parameter that the patch reads, or reads
elsewhere what the patch sets. Python's own symbol tables know; only what is new against both sides
counts, so that upstream's oddities are not laid at the patch's door.
"""

import builtins
import re
import symtable
from collections.abc import Iterator

from elsa_build.patches.proposals.layout import Unparsable

_KNOWN = frozenset(dir(builtins)) | {
    "__file__", "__name__", "__doc__", "__package__", "__spec__", "__path__", "__loader__",
    "__builtins__", "__class__", "__module__", "__qualname__", "__annotations__", "__debug__",
}  # fmt: skip

Place = tuple[str, str]
"""A scope's qualified name (empty for the module) and a name in it."""


def undefined(text: str, known: frozenset[str] = frozenset()) -> frozenset[Place]:
    """Return the names that no scope binds, each with the scope that uses it.

    `known` are names of the module that a text with only a part of it does not show.

    Raises:
        Unparsable: It is not Python.
    """
    table = _table(text)
    known = known | _KNOWN | {one.get_name() for one in table.get_symbols() if _bound(one)}
    scopes = list(_scopes(table, ""))
    for _, scope in scopes:
        known |= {
            one.get_name()
            for one in scope.get_symbols()
            if one.is_declared_global() and _bound(one)
        }
    if re.search(r"^\s*from\s+\S+\s+import\s*\(?\s*\*", text, re.MULTILINE):
        return frozenset()
    return frozenset(
        (name, symbol.get_name())
        for name, scope in scopes
        for symbol in scope.get_symbols()
        if symbol.is_referenced()
        and symbol.get_name() not in known
        and (symbol.is_global() or (scope is table and not _bound(symbol)))
    )


def unused(text: str) -> frozenset[Place]:
    """Return the local names of functions that are set or imported and never read.

    Raises:
        Unparsable: It is not Python.
    """
    return frozenset(
        (name, symbol.get_name())
        for name, scope in _scopes(_table(text), "")
        if isinstance(scope, symtable.Function)
        for symbol in scope.get_symbols()
        if symbol.is_local()
        and (symbol.is_assigned() or symbol.is_imported())
        and not symbol.is_referenced()
        and not symbol.is_parameter()
        and not symbol.is_namespace()
    )


def parameters(text: str) -> dict[str, tuple[str, ...]]:
    """Return the parameters of every function by its qualified name."""
    return {
        name: scope.get_parameters()
        for name, scope in _scopes(_table(text), "")
        if isinstance(scope, symtable.Function)
    }


def _bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _table(text: str) -> symtable.SymbolTable:
    try:
        return symtable.symtable(text, "<joined>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Unparsable(str(e)) from e


def _scopes(table: symtable.SymbolTable, name: str) -> Iterator[tuple[str, symtable.SymbolTable]]:
    yield name, table
    for child in table.get_children():
        yield from _scopes(child, f"{name}.{child.get_name()}".lstrip("."))
