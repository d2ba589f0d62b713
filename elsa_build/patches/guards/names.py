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
from elsa_build.patches.guards.view import Version, View

CODE = "E317"
_MAY_BIND = re.compile(r"[^\s#]|.*\bimport\b|\s+\w+(?: as \w+)?,?\s*$")
_BUILTIN = frozenset(dir(builtins)) | {"reveal_type"}


def check(view: View, modules: Modules) -> Iterator[Diagnostic]:
    """Yield a finding for each name that a merged function uses and nothing defines."""
    merged, patched, onto = view.got.after.source, view.asked.after.source, view.got.before.source
    suspects = _changed(merged, onto)
    if _unbinds(view.got.before):
        suspects += [piece for piece in _changed(merged, patched) if piece not in suspects]
    package = view.path.rpartition("/")[0]
    missing = _undefined(merged, suspects, modules, package)
    same = {piece.code for piece in suspects}
    for side in (patched, onto) if missing else ():
        own = _changed(side, merged) + [piece for piece in side.pieces if piece.code in same]
        missing -= _undefined(side, own, modules, package)
    for piece in suspects:
        for name, line in sorted(_used(piece).items() if missing else ()):
            if name in missing:
                yield Diagnostic(
                    code=CODE,
                    severity=Severity.ERROR,
                    message=f"uses `{name}`, which nothing defines here; each side of the merge "
                    "alone has it or does without it",
                    path=view.path,
                    line=_line(view, name, line + piece.shift),
                    hint=f"git log --oneline -G '\\b{name}\\b' -- {view.path}",
                )


def _changed(source: Source, other: Source) -> list[Piece]:
    """Return the pieces of a text that another does not have."""
    known = {piece.code for piece in other.pieces}
    return [piece for piece in source.pieces if piece.code not in known]


def _unbinds(version: Version) -> bool:
    """Say whether the patch removes a line that may have bound a name of the module."""
    lines = (version.source.lines[line - 1] for line in version.changed)
    return any(map(_MAY_BIND.match, lines))


def _undefined(source: Source, some: list[Piece], modules: Modules, package: str) -> frozenset[str]:
    """Return the names that some pieces of a text use and the text does not define."""
    used = frozenset(name for piece in some for name in _used(piece))
    defined = modules.names_in(source, package) if used else None
    return frozenset() if defined is None else used - defined


def _used(piece: Piece) -> dict[str, int]:
    """Return the names that functions of a piece take from the module, builtins aside.

    With the line of the first function that does, 1-based in the piece's code.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = symtable.symtable(piece.code, "<merged>", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    used: dict[str, int] = {}
    for name, line in _taken(table):
        if name not in _BUILTIN:
            used.setdefault(name, line)
    return used


def _taken(table: symtable.SymbolTable) -> Iterator[tuple[str, int]]:
    if table.get_type() == "function":
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.is_referenced() and not symbol.is_declared_global():
                yield symbol.get_name(), table.get_lineno()
    for child in table.get_children():
        yield from _taken(child)


def _line(view: View, name: str, function: int) -> int:
    """Return the first line with a name from the line of a function on."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    merged = view.got.after
    lines = range(function, len(merged.source.lines) + 1)
    return next((line for line in lines if word.search(merged.code(line))), function)
