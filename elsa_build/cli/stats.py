"""`elsa-build stats`: what the stack costs to carry, and how that went."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.stacks.statistics import DAY_S, Point, Statistics, statistics

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@command(app, "stats", example="elsa-build stats\nelsa-build stats --limit 200 --json")
def stats(
    session: Session,
    *,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Revisions of ours to look at, newest first")
    ] = 50,
) -> Result:
    """Count what we carry: lines, files, ages, and the conflicts of each rebase so far."""
    found = statistics(session.root, limit=limit, progress=session.progress)
    now = int(time.time())
    added, removed = found.lines
    rebases = [point for point in found.points if point.rebase]
    return Result(
        data={
            "patches": [
                {**asdict(one), "files": list(one.files), "age_days": (now - one.since) // DAY_S}
                for one in found.loads
            ],
            "references": found.references,
            "added": added,
            "removed": removed,
            "hot": [{"path": path, "patches": list(ids)} for path, ids in found.hot],
            "trend": [{**asdict(one), "conflicts": list(one.conflicts)} for one in found.points],
            "unreadable": list(found.unreadable),
        },
        view=lambda: _view(found, now),
        closing=f"{len(found.loads)} patches ({found.references} references), "
        f"+{added} -{removed} lines; {len(rebases)} rebases in {len(found.points)} revisions",
    )


def _view(found: Statistics, now: int) -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415 - only when something is shown

    loads = _table("patch", "lines", "files", "days")
    for load in found.loads:
        age = str((now - load.since) // DAY_S)
        loads.add_row(load.id, f"+{load.added} -{load.removed}", str(len(load.files)), age)
    hot = _table("file of several patches", "patches")
    for path, ids in found.hot:
        hot.add_row(path, "\n".join(ids))
    trend = _table("revision", "day", "pin", "patches", "lines", "conflicts of the rebase")
    for point in found.points:
        trend.add_row(*_row(point))
    shown = [table for table in (loads, hot, trend) if table.row_count]
    return Group(*shown) if shown else "no active patches"


def _table(*heads: str) -> "Table":
    from rich import box  # noqa: PLC0415 - only when something is shown
    from rich.table import Table  # noqa: PLC0415 - same

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold")
    return table


def _row(point: Point) -> tuple[str, ...]:
    day = datetime.fromtimestamp(point.date, UTC).date().isoformat()
    conflicts = ""
    if point.rebase:
        conflicts = f"{len(point.conflicts)}: {', '.join(point.conflicts)}".rstrip(": ")
    lines = f"+{point.added} -{point.removed}"
    return point.commit, day, point.ref, str(point.patches), lines, conflicts
