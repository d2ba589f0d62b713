"""What a scan or a watch of upstream found, as rows for people and as values for scripts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from elsa_build.model import Outcome
from elsa_build.nightly.reverts import Finding
from elsa_build.nightly.scan import Candidate
from elsa_build.reports import plain
from elsa_build.reports.terminal import SIGNS

if TYPE_CHECKING:
    from rich.console import RenderableType


def document(one: Candidate) -> dict[str, Any]:
    """Return a candidate as JSON values."""
    needed = one.prerequisites
    return {
        "commit": one.commit.oid,
        "pr": one.commit.pr,
        "author": one.commit.author,
        "date": one.commit.date,
        "subject": one.commit.subject,
        "reasons": list(one.reasons),
        "files": len(one.commit.changes),
        "added": one.added,
        "removed": one.removed,
        "hot": [{"path": path, "patches": list(ids)} for path, ids in one.hot],
        "alone": str(one.alone),
        "stacked": str(one.stacked),
        "conflicts": list(one.conflicts),
        "objections": [plain.finding(found) for found in one.objections],
        "prerequisites": [
            {"commit": c.oid, "pr": c.pr, "subject": c.subject} for c in needed.commits
        ]
        if needed
        else [],
        "no_prerequisites": needed.reason if needed else None,
        "reverted_by": one.reverted.oid if one.reverted else None,
        "carried": one.carried,
        "in_pin": one.in_pin,
    }


def table(found: Sequence[Candidate]) -> "RenderableType":
    """Return two lines a candidate, oldest first: what it is, and what becomes of it here."""
    from rich.text import Text  # noqa: PLC0415 - keeps --help fast

    text = Text()
    for one in found:
        sign, style = SIGNS[one.alone]
        text.append(f"{sign} {one.alone:<8} ", style=style)
        text.append(one.commit.oid, style="bold")
        text.append(f"  {one.commit.subject}\n")
        text.append(f"    {'; '.join(_facts(one))}\n", style="dim")
    return text


def _facts(one: Candidate) -> Iterable[str]:
    if one.reverted:
        yield f"reverted by {one.reverted.oid}"
    if one.carried:
        yield f"carried as {one.carried}"
    if one.in_pin:
        yield "in the pin already"
    if one.objections:
        yield f"but {one.objections[0]}"
    if one.stacked is not one.alone:
        yield f"{one.stacked} with the candidates before it"
    if one.prerequisites:
        names = [f"#{c.pr}" if c.pr else c.oid for c in one.prerequisites.commits]
        yield f"needs {', '.join(names)}" if names else str(one.prerequisites.reason)
    hot = list(dict.fromkeys(name for _, ids in one.hot for name in ids))
    if hot:
        yield f"touches files of {', '.join(hot)}"
    yield f"{one.commit.date[:10]} {one.commit.author}"
    yield f"+{one.added} -{one.removed} in {len(one.commit.changes)} files"
    yield one.reasons[0]


def totals(found: Sequence[Candidate], commits: int) -> str:
    """Return one line on all candidates, and the next command."""
    alone = sum(one.alone is Outcome.CLEAN and not one.objections for one in found)
    stacked = Counter(one.stacked for one in found)
    with_more = sum(bool(one.prerequisites and one.prerequisites.commits) for one in found)
    words = (
        f"{len(found)} of {commits} commits matter: {alone} apply alone, "
        f"{with_more} more with prerequisites; {stacked[Outcome.CLEAN]} apply in order"
    )
    return f"{words}\nnext: elsa-build cherry-pick --from nightly COMMIT... --with-prerequisites"


def findings(found: Sequence[Finding]) -> "RenderableType":
    """Return a line a patch that upstream took back, and what happened in turn."""
    from rich.text import Text  # noqa: PLC0415 - keeps --help fast

    text = Text()
    for one in found:
        word = "landed again" if one.again else str(one.absorption.verdict)
        text.append(f"! {word:<17} ", style="yellow" if one.again else "bold red")
        text.append(f"{one.patch.id}\n", style="bold")
        for line in one.absorption.evidence:
            text.append(f"    {line}\n")
    return text
