"""Whether the patch is in the result once: not zero times, not twice.

"Applied" has meant "file unchanged" in other tools, and a fuzzy one applies again what upstream has
taken. Both end with 0 there.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.pairing import Pairing, telling
from elsa_build.patches.guards.scopes import SCOPES
from elsa_build.patches.guards.source import Keys, keys
from elsa_build.patches.guards.view import Version, View

CODE = "E316"
_REWORDED = 0.6
"""From this likeness a lost line counts as one that the merge combined with upstream's."""


def check(view: View, pairs: Pairing) -> Iterator[Diagnostic]:
    """Yield findings for lines that are nowhere in the result, and for lines that came twice."""
    yield from _lost(view, pairs)
    yield from _twice(view)


def check_files(view: View) -> Iterator[Diagnostic]:
    """Yield a finding when the file itself is missing from the result, or should be."""
    patched, merged = view.change.patched, view.change.merged
    if patched is not None and merged is None:
        yield _finding(view, 1, "the patch changes this file, but the result has none", "")
    elif patched is None and merged is not None:
        yield _finding(view, 1, "the patch deletes this file, but the result still has it", "")


def _finding(
    view: View, line: int, message: str, more: str, severity: Severity = Severity.ERROR
) -> Diagnostic:
    return Diagnostic(
        code=CODE,
        severity=severity,
        message=message + more,
        path=view.path,
        line=line,
        hint="elsa-build patch show ID",
    )


def _lost(view: View, pairs: Pairing) -> Iterator[Diagnostic]:
    if not pairs.lost:
        return
    asked, got = view.asked.after, view.got.after
    present = {text for _, text in got.code_lines}
    fresh = [got.code(line) for line in got.changed]
    for hunk in view.asked.hunks:
        lines = range(hunk.new_start + 1, hunk.new_stop + 1)
        added = [line for line in lines if telling(asked.code(line))]
        lost = [
            line
            for line in added
            if line in pairs.lost
            and asked.code(line) not in present
            and not _reworded(asked.code(line), fresh)
        ]
        if lost:
            count = f"{len(lost)} of {len(added)} added lines"
            yield _finding(
                view,
                _near(view, lost[0]),
                f"the hunk at line {lost[0]} of the patched file did not arrive: {count} are "
                "nowhere in the result, the first is ",
                f"`{asked.code(lost[0])}`",
                Severity.ERROR if len(lost) == len(added) else Severity.WARNING,
            )


def _near(view: View, line: int) -> int:
    """Return a line that exists in the result, as near to a line of the patched file as known."""
    return min(line, len(view.got.after.source.lines))


def _reworded(text: str, fresh: list[str]) -> bool:
    matcher = SequenceMatcher(None, "", text, autojunk=False)
    for other in fresh:
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() >= _REWORDED and matcher.ratio() >= _REWORDED:
            return True
    return False


def _twice(view: View) -> Iterator[Diagnostic]:
    """Find added blocks that upstream has added too, to the same function, since the base."""
    onto, merged = view.got.before, view.got.after
    for hunk in view.got.hunks:
        numbered = _code_lines(merged, range(hunk.new_start + 1, hunk.new_stop + 1))
        block = [text for _, text in numbered]
        said = sum(telling(text) for text in block)
        if not said or block[0].startswith(("def ", "async def ", "class ", "@")):
            continue
        if not all(text in onto.source.text for text in block):
            continue
        scope = _scope(merged, numbered[0][0])
        before = _places(onto, block, scope)
        if len(before) <= len(_places(view.asked.before, block, scope)):
            continue
        after = _places(merged, block, scope)
        if len(after) <= max(len(before), len(_places(view.asked.after, block, scope))):
            continue
        yield _finding(
            view,
            numbered[0][0],
            f"the change at lines {', '.join(map(str, after))} stands {len(after)} times in one "
            "place: upstream has it already",
            "",
            Severity.ERROR if said > 1 else Severity.WARNING,
        )


def _code_lines(version: Version, lines: range) -> list[tuple[int, str]]:
    return [(line, version.code(line)) for line in lines if version.code(line)]


def _scope(version: Version, line: int) -> Keys:
    return tuple(key for key in keys(version.path(line)) if key[0] in SCOPES)


def _places(version: Version, block: list[str], scope: Keys) -> list[int]:
    """Return the lines where a block of code stands in a scope, comments and blanks aside."""
    code = version.code_lines
    texts = [text for _, text in code]
    found = []
    at = -1
    while block[0] in texts[at + 1 :]:
        at = texts.index(block[0], at + 1)
        if texts[at : at + len(block)] == block and _scope(version, code[at][0]) == scope:
            found.append(code[at][0])
    return found
