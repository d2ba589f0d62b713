"""`elsa-build bisect`: which patch of ours breaks a command."""

from typing import Annotated

import typer

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import ExitCode, UsageError
from elsa_build.stacks.bisect import Bisection, Mark
from elsa_build.stacks.bisect import bisect as find

_SIGNS = {Mark.GOOD: "+", Mark.BAD: "!", Mark.SKIP: "-"}


@command(
    app,
    "bisect",
    example="elsa-build bisect --run 'python -m pytest -q $PROJECT/tests/test_pool.py'\n"
    "elsa-build bisect --patchset elsa-1.7 --run ./smoke.sh",
)
def bisect(
    session: Session,
    *,
    run: Annotated[
        str, typer.Option(metavar="CMD", help="A shell command; 0 is good, 125 skips, others bad")
    ],
    recipe: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only its patchsets (default: all)")
    ] = None,
    patchset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these patchsets; repeatable")
    ] = None,
) -> Result:
    """Find the first patch with which a command fails, by halves of the series.

    The command runs in the patched tree, whose path is also in ELSA_PATCHED_TREE. The pin without
    patches must be good and the whole series bad; both are tried first. Nothing is written.
    """
    if recipe and patchset:
        raise UsageError("--recipe and --patchset exclude each other")
    found = find(
        session.root,
        run,
        recipe=project.choose_recipe(session.root, name=recipe) if recipe else None,
        patchsets=tuple(patchset) if patchset else None,
        progress=session.progress,
    )
    certain = len(found.suspects) == 1
    return Result(
        data={
            "first_bad": found.suspects[0] if certain else None,
            "suspects": list(found.suspects),
            "trials": [
                {"patches": one.count, "last": one.last, "mark": str(one.mark)}
                for one in found.trials
            ],
        },
        view=_view(found),
        closing=f"next: elsa-build patch show {found.suspects[0]}" if certain else "",
        status="ok" if certain else "inconclusive",
        code=ExitCode.OK if certain else ExitCode.FAILED,
    )


def _view(found: Bisection) -> str:
    lines = [
        f"{_SIGNS[one.mark]} {one.mark:<5} {one.count:>4} patches, to {one.last or 'the pin'}"
        for one in found.trials
    ]
    if len(found.suspects) == 1:
        return "\n".join([*lines, f"first bad patch: {found.suspects[0]}"])
    names = ", ".join(found.suspects)
    return "\n".join([*lines, f"first bad patch: one of {names} (the others were skipped)"])
