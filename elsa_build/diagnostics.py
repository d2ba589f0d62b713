"""One type for everything we have to say about a file, so that every renderer says the same.

Codes: E1xx series and patch files, E2xx lock and upstream, E3xx conflicts and guards, E4xx kernels,
E5xx images, E6xx evidence. A code keeps its meaning for life; `docs/reference/diagnostics.md` has
an anchor per code.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters: an `error` makes its step or its command fail."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One finding.

    `path` is as a person would type it (relative to the project, or inside the upstream tree),
    `line` is 1-based, `hint` is one command or one edit.
    """

    code: str
    severity: Severity
    message: str
    path: str | None = None
    line: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line) if part is not None)
        return f"{place}: {self.message}" if place else self.message


def errors(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the findings that make a step or a command fail, in their order."""
    return tuple(found for found in findings if found.severity is Severity.ERROR)
