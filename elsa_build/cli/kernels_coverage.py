"""`elsa-build kernels coverage`: which libraries can run on the card, and which only weigh."""

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.image import OUTPUT
from elsa_build.cli.kernels import kernels
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode
from elsa_build.images.gpucode import find
from elsa_build.kernels.allowances import DEFAULT, load
from elsa_build.kernels.census import census
from elsa_build.kernels.coverage import audit
from elsa_build.kernels.coverage_findings import findings
from elsa_build.kernels.target import target
from elsa_build.reports import kernels_coverage as words


@command(
    kernels,
    "coverage",
    example="elsa-build kernels coverage sglang_kernel-0.4.10-cp310-abi3-manylinux2014_x86_64.whl\n"
    "elsa-build kernels coverage .venv/lib/python3.12/site-packages --require common_ops\n"
    "elsa-build kernels coverage elsa-v1.7 --arch sm_120 --json",
    schema="kernels-coverage",
)
def coverage(
    session: Session,
    *,
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|WHEEL|IMAGE|BUNDLE...",
            help="A folder, a wheel, a tar, a library, an image (layout, tar, tag, dockerd)",
        ),
    ],
    arch: Annotated[str, typer.Option(metavar="ARCH", help="Which card")] = "sm_120",
    allow: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="More allowances, besides our own; repeatable"),
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A library (common_ops) or family that must be there; repeatable"
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where tags are looked up (default: dist)")
    ] = None,
) -> Result:
    """Read every fat binary and cubin, and say what the card finds in each library.

    Exit 7 when a library has nothing that runs, only PTX, or the wrong suffix, and no allowance
    says why; also when a required one is missing. A line shows how many of the library's fat
    binaries have code for the card, what of them is dead weight, and the forms that are there.
    """
    card = target(arch)
    allowances = load((DEFAULT, *(allow or ())))
    place = output or session.root / OUTPUT
    found = chain.from_iterable(find(name, place, progress=session.progress) for name in places)
    with session.progress.task(f"reading {', '.join(places)}") as advance:
        seen = census(found, advance)
    done = audit(seen, card, allowances=allowances, require=require or ())
    said = findings(done)
    wrong = bool(errors(said))
    return Result(
        data=words.document(done),
        view=(lambda: words.table(done)) if done.judged else "",
        closing=words.totals(done),
        status="failed" if wrong else "ok",
        code=ExitCode.FAILED if wrong else ExitCode.OK,
        diagnostics=said,
    )
