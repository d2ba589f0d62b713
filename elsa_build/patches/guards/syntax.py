"""Whether every touched Python file still compiles.

A clean text merge can leave half a statement, or one keyword argument twice. Only what changed is
compiled; a suspicion is confirmed on the whole file before it is said.
"""

from collections.abc import Iterator

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.parsing import Fault
from elsa_build.patches.guards.source import Source
from elsa_build.patches.guards.view import View

CODE = "E312"


def check(view: View) -> Iterator[Diagnostic]:
    """Yield a finding when the merged file does not compile."""
    change = view.change
    if change.merged is None or change.merged == change.onto:
        return
    source = view.index.source(change.merged)
    fault = _fault(view, source)
    if fault is None:
        return
    before = view.index.source(change.onto).fault if change.onto is not None else None
    own = view.index.source(change.patched).fault if change.patched is not None else None
    if before is not None:
        severity, more = Severity.NOTE, "; upstream's own file does not either"
    else:
        severity = Severity.ERROR
        more = "; nor does the file as the patch was written" if own is not None else ""
    yield Diagnostic(
        code=CODE,
        severity=severity,
        message=f"the file does not compile: {fault.message}{more}",
        path=view.path,
        line=fault.line,
        hint=f"python3 -m py_compile {view.path}",
    )


def _fault(view: View, source: Source) -> Fault | None:
    if source.unreadable:
        return source.fault
    onto = view.change.onto
    known = {piece.code for piece in view.index.source(onto).pieces} if onto is not None else set()
    suspects = (piece for piece in source.pieces if piece.code not in known)
    if any(view.index.compile(piece.code) for piece in suspects):
        return source.fault
    return None
