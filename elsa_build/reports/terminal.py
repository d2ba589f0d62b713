"""A replay in a terminal: a line a patch, then each conflict as two diffs, totals last.

A conflict is shown as what upstream did and what the patch does, both against their common base,
because two diffs are read faster than three texts.
"""

import difflib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from elsa_build.diagnostics import Severity
from elsa_build.model import Conflict, Outcome, Replay, Step, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SIGNS = {
    Outcome.CLEAN: ("+", "green"),
    Outcome.PROPOSED: ("?", "cyan"),
    Outcome.CONFLICT: ("!", "bold red"),
    Outcome.ABSORBED: ("=", "blue"),
    Outcome.PARTIAL: ("~", "yellow"),
    Outcome.EMPTY: ("0", "yellow"),
    Outcome.BLOCKED: (">", "red"),
    Outcome.SKIPPED: ("-", "dim"),
}
"""One sign and style an outcome; the word always stands beside it."""


CONTEXT = 3
"""Lines shown around a change in a region."""
LONGEST = 24
"""Lines of one diff that a terminal gets; a report has all of them."""


def replay(done: Replay) -> "RenderableType":
    """Return the whole replay: series, conflicts, findings, totals."""
    from rich.console import Group  # noqa: PLC0415 - only when something is shown

    width = max((len(step.patch.id) for step in done.steps), default=0)
    parts: list[RenderableType] = [_line(step, width) for step in done.steps]
    for step in done.steps:
        parts.extend(details(step))
    parts.append(_totals(done))
    return Group(*parts)


def _line(step: Step, width: int) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    sign, style = SIGNS[step.outcome]
    line = Text(no_wrap=False)
    line.append(f"{sign} {step.outcome:<8} ", style=style)
    line.append(f"{step.patch.id:<{width}}  ", style="bold")
    line.append(step.patch.subject)
    if step.blocked_by:
        line.append(f"  (blocked by {step.blocked_by})", style="red")
    return line


def details(step: Step) -> Iterator["Text"]:
    """Yield the conflicts of a step, each as two diffs, and its findings."""
    from rich.text import Text  # noqa: PLC0415

    if step.absorption and step.absorption.verdict is not Verdict.CARRIED:
        yield Text(f"\n{step.patch.id}: {step.absorption.verdict}", style="bold blue")
        yield from (Text(f"  {line}") for line in step.absorption.evidence)
    for conflict in step.conflicts:
        yield Text(f"\n{step.patch.id}: {conflict.path}: {conflict.reason}", style="bold")
        yield from _regions(conflict)
    if step.proposal:
        yield Text(f"\n{step.patch.id}: a proposal", style="bold cyan")
        yield from (Text(f"  {line}") for line in step.proposal.how)
        yield from (Text(f"  {f.severity}[{f.code}] {f}") for f in step.proposal.findings)
    for found in step.findings:
        style = {"error": "red", "warning": "yellow", "note": "dim"}[found.severity]
        if found.severity is not Severity.NOTE:
            yield Text(f"{found.severity}[{found.code}] {step.patch.id}: {found}", style=style)


def _regions(conflict: Conflict) -> Iterator["Text"]:
    from rich.text import Text  # noqa: PLC0415

    for region in conflict.regions:
        yield Text(f"  line {region.line}: upstream", style="cyan")
        yield from _diff(region.base, region.ours)
        yield Text(f"  line {region.line}: this patch", style="cyan")
        yield from _diff(region.base, region.theirs)


def _diff(old: str, new: str) -> Iterator["Text"]:
    from rich.text import Text  # noqa: PLC0415

    styles = {"+": "green", "-": "red", "@": "dim"}
    diff = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=CONTEXT))
    for line in diff[2 : 2 + LONGEST]:
        shown = "..." if line[0] == "@" else f"{line[0]} {line[1:]}"
        yield Text(f"    {shown}", style=styles.get(line[0], ""))
    if len(diff) > 2 + LONGEST:
        rest = len(diff) - 2 - LONGEST
        yield Text(f"    ... {rest} more lines: elsa-build report", style="dim")


def _totals(done: Replay) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    counted = Counter(step.outcome for step in done.steps)
    failed = sum(step.failed for step in done.steps)
    words = ", ".join(f"{counted[o]} {o}" for o in Outcome if counted[o])
    style = "bold red" if failed else "bold green"
    count = f"{len(done.steps)} patch{'' if len(done.steps) == 1 else 'es'}"
    return Text(f"\n{count}: {words or 'none'}; tree {done.tree}", style=style)
