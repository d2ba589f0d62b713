"""`elsa-build cherry-pick`: try upstream commits on the stack or on any repository; keep them."""

from typing import Annotated, Any

import typer

from elsa_build import picking
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import ExitCode
from elsa_build.model import Outcome
from elsa_build.reports import plain, terminal


@command(
    app,
    "cherry-pick",
    example="elsa-build cherry-pick --from nightly '#36865' --into picks --with-prerequisites\n"
    "elsa-build cherry-pick --upstream ../sglang --onto v0.5.23 4f2a91c --dry-run --json",
)
def cherry_pick(
    session: Session,
    *,
    commits: Annotated[
        list[str], typer.Argument(metavar="COMMIT|PR...", help="Ids, #numbers or URLs")
    ],
    source: Annotated[
        str, typer.Option("--from", metavar="REF", help="The history where a PR is looked for")
    ] = "nightly",
    upstream: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="The repository (default: the lock's source)"),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(metavar="REV", help="What to pick onto (default: the pin and our stack)"),
    ] = None,
    into: Annotated[str, typer.Option(metavar="PATCHSET", help="Where they are kept")] = "picks",
    why: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why we carry it (default: its subject)")
    ] = None,
    with_prerequisites: Annotated[
        bool,
        typer.Option("--with-prerequisites", help="First what a conflicting one stands on"),
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Take the proposal where one conflicts")
    ] = False,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Only try")] = False,
) -> Result:
    """Pick upstream commits onto our stack and keep those that apply as patches."""
    asked = picking.Ask(
        commits=tuple(commits),
        source=source,
        upstream=upstream,
        onto=onto,
        into=into,
        why=why,
        with_prerequisites=with_prerequisites,
        accept=accept,
    )
    tried = picking.pick(session.root, asked, write=not dry_run, progress=session.progress)
    return Result(
        data={
            "onto": tried.done.onto,
            "tree": tried.done.tree,
            "into": into if tried.written else None,
            "steps": [_step(tried, number) for number in range(len(tried.done.steps))],
        },
        view=lambda: terminal.replay(tried.done),
        closing=_closing(tried, into),
        diagnostics=tried.findings,
        status="ok" if tried.done.clean else "conflict",
        code=ExitCode.OK if tried.done.clean else ExitCode.CONFLICT,
    )


def _step(tried: picking.Tried, number: int) -> dict[str, Any]:
    step, named = tried.done.steps[number], tried.wanted[number].named
    serves = tried.wanted[number].serves
    return {
        **plain.step(step),
        "commit": named.commit,
        "result": step.commit,
        "pr": named.pr,
        "reverted_by": named.reverted_by,
        "prerequisite_of": serves.commit if serves else None,
    }


def _closing(tried: picking.Tried, into: str) -> str:
    if tried.written:
        return (
            f"{len(tried.done.steps)} added to patchsets/{into}; next: elsa-build apply --dry-run"
        )
    if any(step.outcome is Outcome.PROPOSED and not step.commit for step in tried.done.steps):
        return "nothing was written; next: the same command with --accept"
    return "nothing was written"
