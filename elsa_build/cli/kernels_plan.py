"""`elsa-build kernels plan`: what the patched tree will compile on the card, without a card."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build import precompiling, project
from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.kernels import kernels
from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ExitCode
from elsa_build.reports import kernels_plan as words

if TYPE_CHECKING:
    from rich.console import RenderableType

FAILED_DRIVE = "E401"

RecipeName = Annotated[
    str | None, typer.Option("--recipe", metavar="NAME", help="Whose kernels (default: the only)")
]
Arch = Annotated[
    str | None, typer.Option(metavar="ARCH", help="Another card than the recipe's, as sm_90")
]
Python = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="The interpreter with torch (default: .venv-kernels)"),
]


@command(
    kernels,
    "plan",
    example="elsa-build kernels plan\nelsa-build kernels plan --arch sm_90 --dry-run --json",
    schema="kernels-plan",
)
def plan(
    session: Session,
    *,
    recipe: RecipeName = None,
    arch: Arch = None,
    python: Python = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 4 when the plan on disk is another")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show the plan, write nothing")
    ] = False,
) -> Result:
    """List what the patched tree will compile on the target card; no GPU is needed.

    Its own wrappers are called with the model's shapes under a stub of the card, and what real
    boots recorded is added. Written to kernels/NAME.lock and one file a family. A plan for another
    card than the recipe's is shown and never written.
    """
    chosen = project.choose_recipe(session.root, name=recipe)
    with precompiling.workplace(
        session.root,
        chosen,
        python=python,
        arch=arch,
        environ=os.environ,
        progress=session.progress,
    ) as place:
        shown_only = dry_run or check or place.target.name != chosen.arch
        found = precompiling.replan(
            session.root, place, dry_run=shown_only, progress=session.progress
        )

    def view() -> "RenderableType":
        return words.table(found.plan)

    written = ", ".join(str(path.relative_to(session.root)) for path in found.written)
    change = f"{len(found.change.new)} new, {len(found.change.gone)} gone"
    kept = f"wrote {written}" if written else "nothing was written"
    stale = check and bool(found.change.new or found.change.gone)
    return Result(
        data=words.document(found.plan, found.change),
        view=view,
        status="stale" if stale else "ok",
        code=ExitCode.STALE if stale else ExitCode.OK,
        closing=f"{change}; {kept}; next: elsa-build kernels build",
        diagnostics=tuple(
            Diagnostic(
                code=FAILED_DRIVE,
                severity=Severity.WARNING,
                message=f"drive {name} failed, so its kernels are not in the plan: {why}",
            )
            for name, why in found.plan.failures.items()
        ),
    )
