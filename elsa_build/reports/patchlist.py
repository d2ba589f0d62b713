"""Patches for people and for scripts: the list, and one patch in full."""

from typing import TYPE_CHECKING, Any

from elsa_build.model import Patch, Series, Status

if TYPE_CHECKING:
    from rich.console import RenderableType

SIGNS = {
    Status.CANDIDATE: ("?", "cyan"),
    Status.KEPT: ("+", "green"),
    Status.DROPPED: ("-", "dim"),
    Status.ABSORBED: ("=", "blue"),
}


def document(patch: Patch) -> dict[str, Any]:
    """Return a patch as JSON values, in the words of `series.yaml`."""
    return {
        "id": patch.id,
        "patchset": patch.patchset,
        "file": patch.file.name if patch.file else None,
        "line": patch.line,
        "kind": str(patch.kind),
        "status": str(patch.status),
        "subject": patch.subject,
        "why": patch.why,
        "base": patch.base,
        "origin": {"commit": patch.origin.commit, "pr": patch.origin.pr},
        "unresolved": patch.unresolved,
        "drop_when": patch.drop_when,
        "requires": list(patch.requires),
        "conflicts_with": list(patch.conflicts_with),
        "hot_path": patch.hot_path,
        "tests": list(patch.tests),
        "evidence": list(patch.evidence),
    }


def table(series: Series) -> "RenderableType":
    """Return a line a patch, in order: sign, id, kind, status, subject; totals last."""
    from rich.text import Text  # noqa: PLC0415 - keeps --help fast

    ids = max((len(patch.id) for patch in series.patches), default=0)
    text = Text()
    patchset = None
    for patch in series.patches:
        if patch.patchset != patchset:
            patchset = patch.patchset
            text.append(f"{patchset}\n", style="bold")
        sign, style = SIGNS[patch.status]
        text.append(f"{sign} {patch.id:{ids}}", style=style)
        number = f"#{patch.origin.pr}: " if patch.unresolved else ""
        text.append(f"  {patch.kind:11}  {patch.status:9}  {number}{patch.subject}\n")
    counts = dict.fromkeys(Status, 0)
    for patch in series.patches:
        counts[patch.status] += 1
    totals = [f"{count} {status}" for status, count in counts.items() if count]
    waiting = sum(patch.unresolved for patch in series.patches)
    if waiting:
        totals.append(f"{waiting} of them without a commit yet (unresolved)")
    text.append(", ".join(totals))
    return text


def page(patch: Patch, diff: str) -> str:
    """Return one patch in full: what the series says of it, its message, its diff."""
    rows = {
        "patch": patch.id,
        "patchset": patch.patchset,
        "file": patch.file.name if patch.file else None,
        "kind": patch.kind,
        "status": patch.status,
        "commit": patch.origin.commit,
        "pr": patch.origin.pr,
        "why": patch.why,
        "drop when": patch.drop_when,
        "requires": ", ".join(patch.requires),
        "evidence": ", ".join(patch.evidence),
    }
    lines = [f"{key:10} {value}" for key, value in rows.items() if value]
    if patch.mail:
        author = patch.mail.author
        lines.append(f"{'author':10} {author.name} <{author.email}>")
        lines += ["", *(f"    {line}".rstrip() for line in patch.mail.message.split("\n"))]
    return "\n".join([*lines, "", diff])
