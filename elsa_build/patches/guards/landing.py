"""Whether each hunk lies where it was written: the same class, function and branch.

Text tools match lines, and SGLang has the same lines in many places: GNU patch puts a change for a
sampling branch into the greedy one, 300 lines off, and ends with 0. The syntax trees of both sides
know the difference.
"""

import re
from collections.abc import Iterator, Sequence

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.linediff import Hunk
from elsa_build.patches.guards.pairing import Pair, Pairing
from elsa_build.patches.guards.places import Misplaced, Surveyor, scopes, words
from elsa_build.patches.guards.source import Keys
from elsa_build.patches.guards.view import Edit, Version, View

CODE = "E311"
_DEFINES = re.compile(r"\s*(?:async +def|def|class)\b")


def check(view: View, pairs: Pairing) -> Iterator[Diagnostic]:
    """Yield a finding for each place where the patch meant one block and changed another.

    An error says that the block it was written in is still there, or that the two are unlike; a
    warning says that upstream moved, renamed or reworded the block and the hunk went along.
    """
    yield from _cut_in_two(view)
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
            what = f"the hunk at line {written_line} of the patched file"
            if not added:
                what = f"the removal of line {written_line} of the unpatched file"
            yield Diagnostic(
                code=CODE,
                severity=found.severity,
                message=f"{what} was written {written}, "
                f"but landed {landed} (line {landed_line}){_why(found)}",
                path=view.path,
                line=landed_line if added else after_line(view.got, landed_line),
                hint=_hint(found, view.path),
            )


def _cut_in_two(view: View) -> Iterator[Diagnostic]:
    """Yield a finding where a hunk with a definition fell into the middle of another one.

    The hunk's own lines may then have the right place (both are methods of one class), but what
    stood below it has become the end of the new function.
    """
    meant = {after for _, _, _, after in _taken_over(view.asked)}
    for hunk, line, before, after in _taken_over(view.got):
        if after in meant:
            continue
        names = [".".join(key for _, key in scope) for scope in (before, after)]
        yield Diagnostic(
            code=CODE,
            severity=Severity.ERROR,
            message=f"the hunk at line {hunk.new_start + 1} fell into the middle of `{names[0]}`: "
            f"from line {line} on its lines now belong to `{names[1] or 'the module'}`",
            path=view.path,
            line=hunk.new_start + 1,
            hint="elsa-build patch show ID",
        )


def _taken_over(edit: Edit) -> Iterator[tuple[Hunk, int, Keys, Keys]]:
    """Yield hunks below which an untouched line has come into another class or function.

    With the line in the text after, and the qualified scopes before and after.
    """
    for hunk in edit.hunks:
        touched = (
            *edit.before.source.lines[hunk.old_start : hunk.old_stop],
            *edit.after.source.lines[hunk.new_start : hunk.new_stop],
        )
        if not any(map(_DEFINES.match, touched)):
            continue
        line = _next_code(edit.after, hunk.new_stop + 1)
        if line is None:
            continue
        before = edit.before.source.path(line + hunk.old_stop - hunk.new_stop)
        after = edit.after.source.path(line)
        if before is not None and after is not None and scopes(before) != scopes(after):
            yield hunk, line, scopes(before), scopes(after)


def _next_code(version: Version, line: int) -> int | None:
    """Return the first line of code from a line on, None when a changed line comes first."""
    while line <= len(version.source.lines) and line not in version.changed:
        if version.code(line):
            return line
        line += 1
    return None


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
        return f"move it to where it was written, {words(found.written)}: {path}:{found.home.head}"
    return "elsa-build patch show ID"
