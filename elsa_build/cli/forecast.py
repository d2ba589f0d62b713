"""`elsa-build forecast`: which upstream commit breaks which patch first."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elsa_build import project, rebasing
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.foreseen import foresee
from elsa_build.patches.forecast import Break, Forecast
from elsa_build.upstream.cache import cache_dir

if TYPE_CHECKING:
    from rich.table import Table


@command(app, "forecast", example="elsa-build forecast --until nightly")
def forecast(
    session: Session,
    *,
    until: Annotated[str, typer.Option(metavar="REF", help="How far to look")],
    upstream: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="Where REF is (default: the lock's source)"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only its patchsets (default: all)")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Processes (default: one a core)")
    ] = None,
) -> Result:
    """Name the first upstream commit that breaks each patch, and what it did."""
    lock = project.read_lock(session.root)
    names = project.choose_recipe(session.root, name=recipe).patchsets if recipe else None
    series = project.read_series(session.root, names)
    onto = rebasing.find_onto(until, lock=lock, upstream=upstream, progress=session.progress)
    steps = rebasing.steps_between(lock, onto, progress=session.progress)
    seen = foresee(
        (onto.repository, project.pinned_repository(lock)),
        series,
        lock.pin.commit,
        steps,
        cache=cache_dir(os.environ),
        workers=jobs,
        progress=session.progress,
    )
    return Result(
        data={
            "base": seen.base,
            "until": onto.commit,
            "commits": seen.commits,
            "patches": list(seen.patches),
            "breaks": [_plain(one) for one in seen.breaks],
        },
        view=(lambda: _table(seen)) if seen.breaks else "",
        closing=_closing(seen, until),
    )


def _plain(one: Break) -> dict[str, Any]:
    return {
        "patch": one.patch,
        "outcome": str(one.outcome),
        "class": str(one.breakage),
        "commit": one.commit.oid,
        "author": one.commit.author,
        "date": one.commit.date,
        "subject": one.commit.subject,
        "pr": one.commit.pr,
        "paths": list(one.paths),
    }


def _table(seen: Forecast) -> "Table":
    from rich import box  # noqa: PLC0415 - only when something is shown
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("patch", "what", "commit", "upstream's subject"):
        table.add_column(heading, overflow="fold")
    for one in seen.breaks:
        table.add_row(one.patch, str(one.breakage), one.commit.oid[:12], one.commit.subject)
    return table


def _closing(seen: Forecast, until: str) -> str:
    well = len(seen.patches) - len(seen.breaks)
    words = f"{well} of {len(seen.patches)} patches survive {seen.commits} upstream commits"
    return f"{words}; next: elsa-build rebase --onto {until}"
