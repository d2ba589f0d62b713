"""`elsa-build ci`: the nightly rebuild, and the one issue that tells of it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from elsa_build.ci import publish as publishing
from elsa_build.ci import rebuild, standing
from elsa_build.ci.github import Gh
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import ExitCode
from elsa_build.reports import forms

group = typer.Typer(
    help="Rebuild on the newest upstream, and tell of it once.", no_args_is_help=True
)
app.add_typer(group, name="ci")

NAME = "standing.json"


@command(
    group,
    "rebase",
    example="elsa-build ci rebase --onto nightly --report out --summary summary.md",
    schema="ci-rebase",
)
def rebase(
    session: Session,
    *,
    onto: Annotated[str, typer.Option(metavar="REF", help="The upstream to try")] = "nightly",
    upstream: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="Where REF is (default: the lock's source)"),
    ] = None,
    report: Annotated[
        Path, typer.Option(metavar="DIR", help="Where reports and the standing go")
    ] = Path("out"),
    summary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append the report, as a step summary")
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CMD", help="A command that must succeed when all applies; repeatable"
        ),
    ] = None,
) -> Result:
    """Replay on the newest upstream, report, and prove what is clean.

    What applies is moved to a copy of the project, and its images are built there. Exits with 0
    for clean and proven, 10 conflicts, 11 a guard, a test or an image failed, 12 nothing new.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    found = rebuild.run(session.root, onto, now=now, upstream=upstream, progress=session.progress)
    found = rebuild.proven(
        session.root, found, report / "moved", test or (), progress=session.progress
    )
    if found.review:
        forms.store(report, found.review)
    standing.store(report / NAME, found.standing)
    if summary and found.standing.body:
        with summary.open("a", encoding="utf-8") as out:
            out.write(found.standing.body + "\n")
    stands = found.standing
    return Result(
        data={
            "outcome": stands.code.name.lower(),
            "base": stands.base,
            "onto": stands.onto,
            "broken": list(stands.broken),
            "failed": list(stands.failed),
            "report": str(report),
        },
        view="\n".join([f"{stands.ref}: {stands.headline}", *stands.failed]),
        closing=f"next: elsa-build ci publish --report {report}",
        status=stands.code.name.lower(),
        code=stands.code,
    )


@command(
    group, "publish", example="elsa-build ci publish --report out --dry-run", schema="ci-publish"
)
def publish(
    session: Session,
    *,
    report: Annotated[
        Path, typer.Option(metavar="DIR", help="What `ci rebase --report` wrote")
    ] = Path("out"),
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Say what would be done")
    ] = False,
) -> Result:
    """Open, edit or close the one issue that says where the rebase stands."""
    del session
    stands = standing.load(report / NAME)
    forge = Gh()
    actions = publishing.plan(stands, forge.open_items(publishing.LABEL))
    touched = () if dry_run else publishing.carry_out(forge, actions)
    return Result(
        data={
            "outcome": stands.code.name.lower(),
            "actions": [{"verb": str(a.verb), "number": a.number} for a in actions],
            "touched": list(touched),
        },
        view="\n".join(f"{a.verb} {f'#{a.number}' if a.number else a.title}" for a in actions),
        closing="" if actions else "nothing to do",
        code=ExitCode.OK,
    )
