"""`elsa-build verify`: hash the files inside an image again and compare."""

from pathlib import Path
from typing import Annotated

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.image import OUTPUT
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode
from elsa_build.images.opening import open_image
from elsa_build.images.verify import verify as check


@command(app, "verify", example="elsa-build verify elsa-v1.7\nelsa-build verify elsa:elsa-v1.7")
def verify(
    session: Session,
    *,
    image: Annotated[
        str, typer.Argument(help="A layout folder, a tar, a tag in dist, or a name in dockerd")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where tags are looked up (default: dist)")
    ] = None,
) -> Result:
    """Compare the files inside an image with what its record and its labels say."""
    place = output or session.root / OUTPUT
    with open_image(image, place, progress=session.progress) as (stored, stamped):
        found = check(stored, stamped=stamped, progress=session.progress)
    wrong = errors(found.findings)
    record = "with" if stamped else "without"
    return Result(
        data={
            "image": image,
            "config": stored.config_digest,
            "manifest": stored.manifest,
            "layers": [layer.diff_id for layer in stored.layers],
            "patched_files": found.files,
            "deleted_files": found.absent,
            "kernels": found.kernels,
            "record": stamped is not None,
        },
        view=(
            f"{image}: {len(wrong)} findings"
            if wrong
            else f"{image} is what it says: {len(stored.layers)} layers, {found.files} patched and "
            f"{found.absent} deleted files, {found.kernels} kernels, {record} its record"
        ),
        status="failed" if wrong else "ok",
        code=ExitCode.FAILED if wrong else ExitCode.OK,
        diagnostics=found.findings,
    )
