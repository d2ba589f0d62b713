"""`elsa-build rebase`: what another upstream does to the series; with --write, move there."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from elsa_build import project, rebasing
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode, UsageError
from elsa_build.model import Outcome, Recipe, Replay
from elsa_build.reports import forms, plain, terminal


@command(
    app,
    "rebase",
    example="elsa-build rebase --onto v0.5.23 --report out\n"
    "elsa-build rebase --onto nightly --write",
)
def rebase(
    session: Session,
    *,
    onto: Annotated[str, typer.Option(metavar="REF", help="The new upstream")],
    upstream: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="Where REF is (default: the lock's source)"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only its patchsets (default: all)")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the reports: HTML, Markdown, SARIF, JUnit, ..."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Move the patchsets and the lock, if all is well")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Write nothing; the default")
    ] = False,
) -> Result:
    """Replay the series on another upstream and report every patch.

    Nothing moves without --write, and then only when every patch applies.
    """
    if write and dry_run:
        raise UsageError("--write and --dry-run exclude each other")
    lock = project.read_lock(session.root)
    chosen: Recipe | None = None
    if recipe:
        chosen = project.choose_recipe(session.root, name=recipe)
    target = rebasing.find_onto(onto, lock=lock, upstream=upstream, progress=session.progress)
    with rebasing.rebased(session.root, target, recipe=chosen, progress=session.progress) as (
        found,
        quarantine,
    ):
        done = found.done
        broken = errors(found.probes)
        closing = f"nothing was written; next: elsa-build rebase --onto {onto} --write"
        if not done.clean:
            closing = f"nothing was written; next: elsa-build {_next(done)} --onto {onto}"
        elif broken:
            closing = f"nothing was written; next: {broken[0].hint}"
        elif write:
            rebasing.write(session.root, found, quarantine)
            closing = "patchsets and lock moved; next: elsa-build check, then git diff"
        if report and not dry_run:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            seen = rebasing.reviewed(found, quarantine, now=now, progress=session.progress)
            forms.store(report, seen)
            closing += f"\nreports: {report / forms.FILES[forms.Form.HTML]}"
    return Result(
        data={
            "base": found.base.commit,
            "ref": onto,
            "written": write and done.clean and not broken,
            **plain.replay(done),
        },
        view=lambda: terminal.replay(done),
        closing=closing,
        diagnostics=found.probes,
        status="conflict" if not done.clean else "failed" if broken else "ok",
        code=_code(done, failed=bool(broken)),
    )


def _code(done: Replay, *, failed: bool) -> ExitCode:
    if not done.clean:
        return ExitCode.CONFLICT
    return ExitCode.FAILED if failed else ExitCode.OK


def _next(done: Replay) -> str:
    """Return what to do about the first patch that needs a person."""
    for step in done.steps:
        if step.failed:
            accept = " --accept" if step.outcome is Outcome.PROPOSED else ""
            return f"resolve {step.patch.id}{accept}"
    return "check"
