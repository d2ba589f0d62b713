"""Whether each hunk lies where it was written: the same class, function and branch.

Text tools match lines, and SGLang has the same lines in many places: GNU patch puts a change for a
sampling branch into the greedy one, 300 lines off, and ends with 0. The syntax trees of both sides
know the difference.
"""

from collections.abc import Iterator, Sequence

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.pairing import Pair, Pairing
from elsa_build.patches.guards.places import Misplaced, Surveyor, words
from elsa_build.patches.guards.view import Edit, Version, View

CODE = "E311"


def check(view: View, pairs: Pairing) -> Iterator[Diagnostic]:
    """Yield a finding for each place where the patch meant one block and changed another.

    An error says that the block it was written in is still there, or that the two are unlike; a
    warning says that upstream moved, renamed or reworded the block and the hunk went along.
    """
    said: set[tuple[str, str]] = set()
    for added, asked, got, lines in (
        (True, view.asked.after, view.got.after, pairs.added),
        (False, view.asked.before, view.got.before, pairs.removed),
    ):
        for (written_line, landed_line), found in _misplaced(asked, got, lines):
            written, landed = words(found.written), words(found.landed)
            if written == landed:
                written += f" of line {found.written[-1].head}"
                landed += f" of line {found.landed[-1].head}"
            if (written, landed) in said:
                continue
            said.add((written, landed))
            where = "patched file" if added else "file before the patch, which it removes,"
            yield Diagnostic(
                code=CODE,
                severity=found.severity,
                message=f"the hunk at line {written_line} of the {where} was written in {written}, "
                f"but landed in {landed} (line {landed_line}){_why(found)}",
                path=view.path,
                line=landed_line if added else after_line(view.got, landed_line),
                hint=_hint(found, view.path),
            )


def _misplaced(
    asked: Version, got: Version, lines: Sequence[Pair]
) -> Iterator[tuple[Pair, Misplaced]]:
    surveyor = Surveyor(asked, got)
    for pair in sorted(lines, key=lambda pair: pair[1]):
        found = surveyor.compare(*pair)
        if found is not None:
            yield pair, found


def after_line(edit: Edit, line: int) -> int:
    """Return where a line of the text before is in the text after, 1-based."""
    moved = 0
    for hunk in edit.hunks:
        if hunk.old_start >= line:
            break
        if line <= hunk.old_stop:
            return hunk.new_start + 1
        moved = hunk.new_stop - hunk.old_stop
    return line + moved


def _why(found: Misplaced) -> str:
    if found.severity is Severity.ERROR:
        return ""
    return "; upstream seems to have moved or reworded that block"


def _hint(found: Misplaced, path: str) -> str:
    if found.home is not None and found.severity is Severity.ERROR:
        return f"put it into {words(found.written)}, now at {path}:{found.home.head}"
    return "elsa-build patch show ID"
