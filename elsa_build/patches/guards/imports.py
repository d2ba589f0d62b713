"""Whether what an added line imports exists in the merged tree.

Upstream moves modules every week; the text merges cleanly and the import fails at run time, often
inside a function that only one GPU ever enters.
"""

import re
from collections.abc import Iterator

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.bindings import Guard, Import
from elsa_build.patches.guards.modules import Module, Modules
from elsa_build.patches.guards.view import View

NO_MODULE = "E313"
NO_NAME = "E314"

_SEVERITY = {
    Guard.NONE: Severity.ERROR,
    Guard.TYPING: Severity.WARNING,
    Guard.FALLBACK: Severity.NOTE,
}
_SAID = {
    Guard.NONE: "",
    Guard.TYPING: " (for type checkers only)",
    Guard.FALLBACK: " (its fallback will be taken, in silence)",
}
_MAY_IMPORT = re.compile(r".*\bimport\b.*|\w+(?: as \w+)?,?(?: *#.*)?")
"""An added line of an import statement looks like this; most added lines do not."""


def check(view: View, modules: Modules) -> Iterator[Diagnostic]:
    """Yield a finding for each module or name that an added import line asks for in vain."""
    if view.change.merged is None or view.change.merged == view.change.onto:
        return
    for found, shift in _added_imports(view):
        if found.module is None:
            for alias in found.names:
                if alias.line + shift in view.got.after.changed:
                    places = modules.places(alias.name)
                    if places and not any(map(modules.at, places)):
                        yield _no_module(view, found, alias.name, alias.line + shift, places[0])
        else:
            yield from _from_import(view, found, shift, modules)


def _added_imports(view: View) -> Iterator[tuple[Import, int]]:
    """Yield the imports that stand, at least in part, on added lines, and what to add to a line."""
    merged = view.got.after
    suspects = [line for line in merged.changed if _MAY_IMPORT.fullmatch(merged.code(line))]
    held = filter(None, map(merged.source.holding, suspects))
    for piece, parsed in {piece.offset: (piece, parsed) for piece, parsed in held}.values():
        for found in parsed.imports:
            lines = range(found.first + piece.shift, found.last + piece.shift + 1)
            if not merged.changed.isdisjoint(lines):
                yield found, piece.shift


def _from_import(view: View, found: Import, shift: int, modules: Modules) -> Iterator[Diagnostic]:
    assert found.module is not None
    dotted = "." * found.level + found.module
    package = view.path.rpartition("/")[0]
    places = modules.targets(found, package)
    changed = view.got.after.changed
    module = next(filter(None, map(modules.at, places or ())), None)
    if module is None:
        if places != () and found.first + shift in changed:
            place = places[0] if places else package
            yield _no_module(view, found, dotted, found.first + shift, place)
        return
    for alias in found.names:
        line = alias.line + shift
        if line in changed and alias.name != "*" and not modules.holds(module, alias.name):
            yield _no_name(view, found, dotted, alias.name, line, module)


def _no_module(view: View, found: Import, dotted: str, line: int, place: str) -> Diagnostic:
    severity, said = _SEVERITY[found.guard], _SAID[found.guard]
    before = view.got.before.source.text
    usual = rf"^\s*(?:from|import)\s+{re.escape(dotted)}\b"
    if severity is Severity.ERROR and re.search(usual, before, re.MULTILINE):
        severity, said = Severity.WARNING, "; upstream imports it here too (made by a build?)"
    return Diagnostic(
        code=NO_MODULE,
        severity=severity,
        message=f"imports module `{dotted}`, which is not in the tree{said}",
        path=view.path,
        line=line,
        hint=f"git log --oneline --diff-filter=DR -- {place}.py",
    )


def _no_name(
    view: View, found: Import, dotted: str, name: str, line: int, module: Module
) -> Diagnostic:
    return Diagnostic(
        code=NO_NAME,
        severity=_SEVERITY[found.guard],
        message=f"imports `{name}` from `{dotted}`, which has no such name{_SAID[found.guard]}",
        path=view.path,
        line=line,
        hint=f"git log --oneline -G '\\b{name}\\b' -- {module.path}",
    )
