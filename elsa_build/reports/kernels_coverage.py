"""An audit of GPU code for people and for scripts: a line a library by family, totals last."""

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from elsa_build.kernels.allowances import Verdict
from elsa_build.kernels.coverage import Audit, Judged, split
from elsa_build.kernels.coverage_findings import forms, words

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

SIGNS = {
    Verdict.COMPLETE: ("+", "green"),
    Verdict.PARTIAL: ("~", "yellow"),
    Verdict.FOREIGN: ("-", "dim"),
    Verdict.PLAIN: ("?", "yellow"),
    Verdict.ONLY_PTX: ("!", "red"),
    Verdict.WRONG_SUFFIX: ("!", "red"),
    Verdict.NOTHING: ("!", "bold red"),
    Verdict.DAMAGED: ("!", "bold red"),
}
"""One sign and style a verdict; the word always stands beside it."""

_MB = 1e6


def document(done: Audit) -> dict[str, Any]:
    """Return an audit as JSON values; sizes in bytes."""
    return {
        "arch": done.target.name,
        "runs": list(done.target.runs),
        "files": done.census.files,
        "bytes": done.census.size,
        "libraries": [_library(one) for one in done.judged],
        "families": [{"name": name, "verdict": str(verdict)} for name, verdict in done.families],
        "required": [
            {
                "name": one.name,
                "verdict": str(one.verdict) if one.verdict else None,
                "libraries": [judged.library.name for judged in one.found],
            }
            for one in done.required
        ],
        "unread": [{"name": one.name, "why": one.why} for one in done.census.unread],
        "gpu_code_bytes": sum(one.total for one in done.judged),
        "fits_bytes": sum(one.fits for one in done.judged),
        "dead_bytes": sum(one.dead for one in done.judged),
        "failing": [one.library.name for one in done.judged if one.failing],
    }


def _library(one: Judged) -> dict[str, Any]:
    entries: Counter[tuple[str, str]] = Counter()
    weight: Counter[tuple[str, str]] = Counter()
    for container in one.library.containers:
        for code in container:
            entries[str(code.kind), code.form] += 1
            weight[str(code.kind), code.form] += code.size
    return {
        "name": one.library.name,
        "family": one.library.family,
        "verdict": str(one.verdict),
        "allowed": one.allowed,
        "files": one.library.files,
        "bytes": one.library.size,
        "containers": len(one.library.containers),
        "covered": one.covered,
        "fits_bytes": one.fits,
        "dead_bytes": one.dead,
        "gpu_code_bytes": one.total,
        "unlinked_bytes": sum(code.size for part in one.library.unlinked for code in part),
        "entries": [
            {"kind": kind, "arch": f"sm_{form}", "count": count, "bytes": weight[kind, form]}
            for (kind, form), count in sorted(
                entries.items(), key=lambda item: (item[0][0], split(item[0][1]))
            )
        ],
        "problems": list(one.library.problems),
    }


def table(done: Audit) -> "RenderableType":
    """Return a line a library, below its family; an allowance's reason under it."""
    from rich.text import Text  # noqa: PLC0415 - keeps --help fast

    text = Text()
    width = max((len(one.library.name) for one in done.judged), default=0)
    verdicts = dict(done.families)
    for family, group in groupby(done.judged, key=lambda one: one.library.family):
        text.append(f"{family}: {verdicts[family]}\n", style="bold")
        for one in group:
            _line(text, one, done, width)
    if done.judged:
        text.right_crop(1)
    return text


def _line(text: "Text", one: Judged, done: Audit, width: int) -> None:
    sign, style = SIGNS[one.verdict] if one.allowed is None else ("=", "dim")
    files = f" ({one.library.files} files)" if one.library.cubins else ""
    there = ", ".join(
        f"{form} x{count}"
        for form, count in sorted(forms(one.library).items(), key=lambda item: split(item[0]))
    )
    text.append(f"  {sign} {one.verdict:<12} ", style=style)
    text.append(f"{one.library.name:<{width}}{files}")
    text.append(
        f"  {one.covered} of {len(one.library.containers)}"
        f"  dead {one.dead / _MB:,.1f} of {one.total / _MB:,.1f} MB  {there or 'no machine code'}\n"
    )
    if one.allowed is not None:
        text.append(f"      allowed: {one.allowed}\n", style="dim")
    elif one.failing:
        text.append(f"      {words(one, done.target)}\n", style=style)


def totals(done: Audit) -> str:
    """Return the sums: what was looked at, what is dead weight, what could be left out."""
    counted = Counter(str(one.verdict) for one in done.judged)
    kinds = ", ".join(f"{counted[v]} {v}" for v in map(str, Verdict) if counted[v]) or "none"
    fits, dead, total = (
        sum(getattr(one, name) for one in done.judged) / _MB for name in ("fits", "dead", "total")
    )
    share = f" ({dead / total:.0%})" if total else ""
    said = (
        f"{len(done.judged)} libraries with GPU code in {done.census.files:,} files,"
        f" {done.census.size / 1e9:.2f} GB: {kinds}\n"
        f"{total:,.1f} MB of GPU code: {fits:,.1f} MB for {done.target.name},"
        f" {dead:,.1f} MB{share} dead weight there"
    )
    useless = [one for one in done.judged if one.verdict is Verdict.NOTHING]
    if useless:
        size = sum(one.library.size for one in useless) / _MB
        said += f"\n{size:,.1f} MB are whole files with nothing for {done.target.name}"
    return said
