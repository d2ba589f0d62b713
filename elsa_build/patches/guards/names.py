"""Whether a merged function uses a name that nothing defines.

One side removes a parameter or an import, the other adds a use of it: the merge is clean, the file
compiles, and the function dies at its first call. Only what the merge made is reported, not what
upstream's or the patch's own text leaves undefined.
"""

import builtins
import re
import symtable
import warnings
from collections.abc import Iterator

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.modules import Modules
from elsa_build.patches.guards.pieces import Piece
from elsa_build.patches.guards.source import Source
from elsa_build.patches.guards.view import View

CODE = "E317"
_BUILTIN = frozenset(dir(builtins)) | {"reveal_type"}


def check(view: View, modules: Modules) -> Iterator[Diagnostic]:
    """Yield a finding for each name that a merged function uses and nothing defines."""
    merged = view.got.after.source
    sides = view.asked.after.source, view.got.before.source
    known = {piece.code for side in sides for piece in side.pieces}
    fresh = [piece for piece in merged.pieces if piece.code not in known]
    package = view.path.rpartition("/")[0]
    missing = _undefined(merged, fresh, modules, package)
    if not missing:
        return
    of_merged = {piece.code for piece in merged.pieces}
    for side in sides:
        own = [piece for piece in side.pieces if piece.code not in of_merged]
        missing -= _undefined(side, own, modules, package)
    for piece in fresh:
        for name in sorted(missing & _used(piece)):
            yield Diagnostic(
                code=CODE,
                severity=Severity.ERROR,
                message=f"uses `{name}`, which nothing defines here; each side of the merge alone "
                "has it or does without it",
                path=view.path,
                line=_line(view, piece, name),
                hint=f"git log --oneline -G '\\b{name}\\b' -- {view.path}",
            )


def _undefined(source: Source, some: list[Piece], modules: Modules, package: str) -> frozenset[str]:
    """Return the names that some pieces of a text use and the text does not define."""
    used: frozenset[str] = frozenset().union(*map(_used, some))
    defined = modules.names_in(source, package) if used else None
    return frozenset() if defined is None else used - defined


def _used(piece: Piece) -> frozenset[str]:
    """Return the names that functions of a piece take from the module, builtins aside."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = symtable.symtable(piece.code, "<merged>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(_taken(table)) - _BUILTIN


def _taken(table: symtable.SymbolTable) -> Iterator[str]:
    if table.get_type() == "function":
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.is_referenced() and not symbol.is_declared_global():
                yield symbol.get_name()
    for child in table.get_children():
        yield from _taken(child)


def _line(view: View, piece: Piece, name: str) -> int:
    """Return the first line of a piece with the name, an added one before others."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    merged = view.got.after
    lines = range(piece.offset + 1, piece.last + 1)
    with_name = [line for line in lines if word.search(merged.code(line))]
    added = [line for line in with_name if line in merged.changed]
    return next(iter(added + with_name), piece.offset + 1)
