"""`elsa-build apply`: put the series on the pin where a person can work."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import ExitCode, UsageError
from elsa_build.patches import checkout
from elsa_build.reports import plain, terminal


@command(
    app,
    "apply",
    example="elsa-build apply --to ../patched\n"
    "elsa-build apply --branch elsa --upstream ../sglang\n"
    "elsa-build apply --without mamba-copy --to ../arm-b",
)
def apply(
    session: Session,
    *,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe whose patchsets apply (default: the only one)")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Make DIR a work tree of the result")
    ] = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="Point a branch at the result")
    ] = None,
    upstream: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The repository of --branch (default: the mirror)"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this patch of the recipe; repeatable"),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="All but this patch; repeatable")
    ] = None,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Write nothing")] = False,
    locked: Annotated[bool, typer.Option("--locked", help="Refuse to change the lock")] = False,
) -> Result:
    """Replay the series on the pin; write it to a folder or a branch.

    Without --to and --branch the result is only reported, and recorded in the lock. A part of the
    series (--only, --without) is never recorded.
    """
    if to and branch:
        raise UsageError("--to and --branch exclude each other")
    if upstream and not branch:
        raise UsageError("--upstream says where --branch goes", hint="add --branch NAME")
    chosen = project.choose_recipe(session.root, name=recipe)
    if to:
        checkout.refuse_foreign(to)
    closing = ""
    with project.replayed(
        session.root,
        recipe=chosen,
        locked=locked,
        only=only or (),
        without=without or (),
        progress=session.progress,
    ) as (stack, quarantine):
        done = stack.done
        if not stack.clean:
            closing = "nothing was written; next: elsa-build patch show ID"
        elif not dry_run:
            target = project.Target(folder=to, branch=branch, repository=upstream)
            before = project.write(
                session.root,
                stack,
                quarantine,
                target,
                now=int(time.time()),
                locked=locked,
                progress=session.progress,
            )
            closing = _closing(stack, target, before)
    return Result(
        data={"recipe": chosen.name, "to": str(to) if to else None, **plain.replay(done)},
        view=lambda: terminal.replay(done),
        closing=closing,
        diagnostics=stack.probes,
        status=_status(stack),
        code=ExitCode[{"ok": "OK", "conflict": "CONFLICT", "failed": "FAILED"}[_status(stack)]],
    )


def _closing(stack: project.Stack, target: project.Target, before: str | None) -> str:
    if target.folder:
        there = shlex.quote(str(target.folder))
        return f"{target.folder} holds the patched tree; next: git -C {there} log elsa-base.."
    if target.branch:
        where = target.repository or stack.repository
        moved = f"; it was at {before}" if before else ""
        return f"branch '{target.branch}' of {where} is at {stack.done.head}{moved}"
    return f"next: elsa-build image --tag {stack.recipe.tag}" if stack.recipe else ""


def _status(stack: project.Stack) -> str:
    if not stack.done.clean:
        return "conflict"
    return "ok" if stack.clean else "failed"
