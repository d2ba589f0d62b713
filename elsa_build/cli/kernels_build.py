"""`elsa-build kernels build`: compile the planned kernels and seal them as a bundle."""

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build import prebuilding, precompiling, project
from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.kernels import kernels
from elsa_build.cli.kernels_plan import Arch, Python, RecipeName
from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ExitCode, UsageError
from elsa_build.kernels.jobs import Family
from elsa_build.reports import kernels_build as words

if TYPE_CHECKING:
    from rich.console import RenderableType

FAILED_KERNEL = "E402"
USUAL_CPU = "20m"
"""Everything but FlashInfer's largest modules, on the patched tree of elsa-1.7."""


@command(
    kernels,
    "build",
    example="elsa-build kernels build\n"
    "elsa-build kernels build --all --jobs 8\n"
    "elsa-build kernels build --only triton --arch sm_90 --first-config -o out/sm_90\n"
    "elsa-build kernels build --all --scheduler tcp://builder:8786",
    schema="kernels-build",
)
def build(
    session: Session,
    *,
    recipe: RecipeName = None,
    arch: Arch = None,
    python: Python = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="The bundle (dist/kernels/RECIPE)"),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that is planned, however long it takes")
    ] = False,
    cpu: Annotated[
        str, typer.Option(metavar="TIME", help="CPU time to spend, by estimates, cheapest first")
    ] = USUAL_CPU,
    only: Annotated[
        list[Family] | None, typer.Option(metavar="FAMILY", help="One family; repeat for more")
    ] = None,
    first_config: Annotated[
        bool,
        typer.Option(
            "--first-config", help="Ship tuners' first configuration where no card timed them"
        ),
    ] = False,
    jobs: Annotated[
        int | None, typer.Option("-j", "--jobs", min=1, help="Processes (default: one a core)")
    ] = None,
    memory: Annotated[
        int | None, typer.Option(metavar="MIB", min=1, help="Memory to use (default: what is free)")
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Build on the workers of this Dask")
    ] = None,
    cuda_home: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The CUDA toolkit (default: the usual)")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Say what would be built, build nothing")
    ] = False,
) -> Result:
    """Compile the planned kernels with no GPU and seal them as a bundle for the image.

    Planned again when the patched tree is no longer the plan's. What was finished before is not
    compiled again, whether the run before ended well or was killed. What `kernels record` harvested
    goes into the bundle as well, unless --only names a family.
    """
    chosen = project.choose_recipe(session.root, name=recipe)
    wanted = prebuilding.Wanted(
        cpu_s=None if everything else seconds(cpu),
        families=tuple(only or Family),
        first_config=first_config,
        workers=jobs,
        memory_mib=memory,
        scheduler=scheduler,
    )
    with precompiling.workplace(
        session.root,
        chosen,
        python=python,
        arch=arch,
        cuda_home=cuda_home,
        environ=os.environ,
        progress=session.progress,
    ) as place:
        plan = precompiling.current(session.root, place, dry_run=dry_run, progress=session.progress)
        wanted = replace(
            wanted,
            timings=precompiling.timings(session.root, place),
            harvest=None if only else precompiling.harvested(session.root, place),
        )
        if dry_run:
            choice = prebuilding.choose(place, plan, wanted, session.progress)
            return Result(data=words.chosen(choice), view=lambda: words.choice_table(choice))
        folder = output or project.bundle_folder(session.root, chosen.name)
        began = time.monotonic()
        done = prebuilding.build(place, plan, wanted, folder, session.progress)
        seconds_taken = time.monotonic() - began
        remarks = place.remarks

    def view() -> "RenderableType":
        return words.table(done)

    failed = done.failed
    return Result(
        data={**words.document(done), "seconds": round(seconds_taken, 1)},
        view=view,
        closing=f"{words.told(done)}; bundle {folder}; next: elsa-build image --tag {chosen.tag}",
        status="failed" if failed else "ok",
        code=ExitCode.FAILED if failed else ExitCode.OK,
        diagnostics=remarks
        + done.remarks
        + tuple(
            Diagnostic(
                code=FAILED_KERNEL,
                severity=Severity.ERROR,
                message=f"{one.work.family}: {one.work.name}: {one.error}",
            )
            for one in failed
        ),
    )


def seconds(text: str) -> float:
    """Return a time as people type it (`90`, `90s`, `20m`, `2h`) in seconds.

    Raises:
        UsageError: It is none (exit 2).
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise UsageError(f"--cpu {text}: is no time", hint="--cpu 20m")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
