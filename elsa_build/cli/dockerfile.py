"""`elsa-build dockerfile`: the Dockerfile that a recipe renders to."""

from pathlib import Path
from typing import Annotated

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.images import dockerfile as dockerfiles
from elsa_build.images import recipe as recipes
from elsa_build.images.ingredients import OVERLAY_DIR
from elsa_build.images.tags import REPOSITORY

RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", metavar="NAME", help="Which recipe (default: the only one)"),
]
Out = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there, not to stdout")
]
DryRun = Annotated[
    bool, typer.Option("-n", "--dry-run", help="Print the Dockerfile, write nothing")
]
Base = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Base, instead of the recipe's (or ARG BASE)")
]
Overlay = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Overlay image (default: the recipe's tag)")
]
PackageDir = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Where the base keeps sglang/, instead of the recipe's"),
]


@command(app, "dockerfile", example="elsa-build dockerfile --recipe elsa-1.7 -o Dockerfile")
def dockerfile(
    session: Session,
    recipe: RecipeName = None,
    output: Out = None,
    dry_run: DryRun = False,
    base: Base = None,
    overlay: Overlay = None,
    package_dir: PackageDir = None,
) -> Result:
    """Render the Dockerfile that puts the overlay image on a base."""
    found = recipes.find(session.root, name=recipe)
    named = overlay or f"{REPOSITORY}:{found.tag}"
    text = dockerfiles.render(
        found,
        session.root / dockerfiles.TEMPLATE,
        overlay=named,
        base=base,
        package_dir=package_dir,
        overlay_dir=found.package_dir or OVERLAY_DIR,
    )
    written = output is not None and not dry_run
    if output is not None and written:
        dockerfiles.write(output, text)
    wanted = "" if base or found.base else "--build-arg BASE=NAME@sha256:... "
    # The classic builder would send the whole folder; only a CA bundle has to be sent.
    context = f"-f {output} FOLDER_OF_CA_BUNDLE" if found.build.ca_bundle else f"- < {output}"
    return Result(
        data={
            "recipe": found.name,
            "dockerfile": text,
            "base": base or found.base,
            "overlay": named,
            "package_dir": package_dir or found.package_dir,
            "path": str(output) if output else None,
            "written": written,
        },
        view="" if written else text,
        closing=f"wrote {output}\nnext: docker build {wanted}{context}" if written else "",
    )
