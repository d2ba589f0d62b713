"""`elsa-build nightly`: what upstream did since the pin, and what it took back of ours."""

from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ExitCode
from elsa_build.model import Recipe
from elsa_build.nightly import survey
from elsa_build.nightly.prerequisites import LIMIT
from elsa_build.reports import nightly as words
from elsa_build.reports import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

group = typer.Typer(
    help="See what upstream did since the pin, and what it took back of ours.",
    no_args_is_help=True,
)
app.add_typer(group, name="nightly")

Until = Annotated[str, typer.Option("--until", metavar="REF", help="How far to look")]
Upstream = Annotated[
    str | None,
    typer.Option(metavar="PATH|URL", help="The repository (default: the lock's source)"),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="Whose patchsets and interest (see below)"),
]


@command(
    group,
    "scan",
    example="elsa-build nightly scan\n"
    "elsa-build nightly scan --grep 'mamba|gdn' --limit 20\n"
    "elsa-build nightly scan --path 'python/sglang/srt/mem_cache/*' --json",
    schema="nightly-scan",
)
def scan(
    session: Session,
    *,
    until: Until = "nightly",
    since: Annotated[
        str | None, typer.Option(metavar="REV", help="Where to begin (default: the pin)")
    ] = None,
    upstream: Upstream = None,
    recipe: RecipeName = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Messages with this, instead of the recipe's interest"),
    ] = None,
    path: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Commits that touch this, instead; repeatable"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every commit")] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the newest N candidates")
    ] = None,
    prerequisites: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The most to look for; 0 looks for none"),
    ] = LIMIT,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Processes (default: one a core)")
    ] = None,
) -> Result:
    """List upstream's commits since the pin that matter, and try each on our stack.

    What matters is the recipe's section `nightly` (keywords, paths, without), and every file that
    a patch of ours touches. Without --recipe the only recipe counts; with several of them, all
    patchsets and the tool's own keywords.
    """
    asked = survey.Ask(
        ref=until,
        upstream=upstream,
        since=since,
        grep=grep,
        paths=tuple(path or ()),
        everything=everything,
        limit=limit,
        prerequisites=prerequisites,
        workers=jobs,
    )
    chosen = _recipe(session, recipe)
    found = survey.scan(session.root, chosen, asked, progress=session.progress)
    return Result(
        data={
            "since": found.since,
            "until": found.until,
            "commits": found.commits,
            "recipe": chosen.name if chosen else None,
            "candidates": [words.document(one) for one in found.candidates],
        },
        view=(lambda: words.table(found.candidates)) if found.candidates else "",
        closing=words.totals(found.candidates, found.commits),
    )


@command(
    group,
    "watch",
    example="elsa-build nightly watch\nelsa-build nightly watch --upstream ../sglang --until main",
    schema="nightly-watch",
)
def watch(
    session: Session,
    *,
    until: Until = "nightly",
    upstream: Upstream = None,
    recipe: RecipeName = None,
) -> Result:
    """Look for reverts of what we carry, and of what upstream had absorbed; exit 7 when found."""
    seen = survey.watch(
        session.root,
        project.choose_recipe(session.root, name=recipe) if recipe else None,
        ref=until,
        upstream=upstream,
        progress=session.progress,
    )
    lost = tuple(
        Diagnostic(
            code="W303",
            severity=Severity.WARNING,
            message=f"{patch.id}: its origin is not in the history of {seen.until}",
            path=f"patchsets/{patch.patchset}/series.yaml",
            line=patch.line,
            hint=f"elsa-build patch edit {patch.id} --commit HEX",
        )
        for patch in seen.lost
    )
    return Result(
        data={
            "until": seen.until,
            "followed": [patch.id for patch in seen.patches],
            "lost": [patch.id for patch in seen.lost],
            "findings": [
                {
                    "patch": one.patch.id,
                    "patchset": one.patch.patchset,
                    "status": str(one.patch.status),
                    "original": one.original.oid,
                    "again": one.again,
                    **plain.absorption(one.absorption),
                }
                for one in seen.findings
            ],
        },
        view=lambda: _watched(seen),
        closing=f"{len(seen.patches)} patches followed, {len(seen.findings)} taken back upstream",
        status="reverted-upstream" if seen.findings else "ok",
        code=ExitCode.FAILED if seen.findings else ExitCode.OK,
        diagnostics=lost,
    )


def _recipe(session: Session, name: str | None) -> Recipe | None:
    if name is None and len(project.recipe_names(session.root)) != 1:
        return None
    return project.choose_recipe(session.root, name=name)


def _watched(seen: survey.Watched) -> "RenderableType":
    return words.findings(seen.findings)
