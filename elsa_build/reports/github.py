"""A review as GitHub annotations: lines that a workflow prints, shown beside the files.

GitHub shows ten of a kind a step and drops the rest in silence, so the worst nine are printed and
a tenth that counts the others. The place is the patch's entry in `series.yaml`, a file that is in
the repository; the place in upstream's tree is in the text.
"""

from collections.abc import Iterator

from elsa_build.diagnostics import Severity
from elsa_build.patches.review import Review
from elsa_build.reports import wording
from elsa_build.reports.sidebyside import visible
from elsa_build.reports.wording import Problem

MOST = 10
"""Annotations of a kind that one step may have."""

_KINDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def render(review: Review) -> str:
    """Return the annotations, a line each; nothing where nothing is wrong."""
    found = wording.problems(review)
    lines = []
    for severity in _KINDS:
        lines += list(_of_kind([p for p in found if p.finding.severity is severity], severity))
    return "".join(f"{line}\n" for line in lines)


def _of_kind(found: list[Problem], severity: Severity) -> Iterator[str]:
    shown = found if len(found) <= MOST else found[: MOST - 1]
    for problem in shown:
        patch = problem.step.patch
        yield annotation(
            _KINDS[severity],
            str(problem.finding),
            file=wording.series_file(patch),
            line=patch.line,
            title=f"{problem.finding.code} {patch.id}",
        )
    rest = len(found) - len(shown)
    if rest:
        words = f"{rest} more: the whole list is in the report"
        yield annotation(_KINDS[severity], words, title=f"{rest} more of this kind")


def annotation(
    kind: str, message: str, *, file: str | None = None, line: int | None = None, title: str = ""
) -> str:
    """Return one workflow command with everything escaped that would end or split it."""
    named = {"file": file, "line": line, "title": title or None}
    given = {key: _property(str(value)) for key, value in named.items() if value is not None}
    properties = ",".join(f"{key}={value}" for key, value in given.items())
    return f"::{kind} {properties}::{_message(message)}"


def _message(text: str) -> str:
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return visible(escaped)


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
