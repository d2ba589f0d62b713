"""`elsa-build image`: from the pin, the series and a recipe to a tagged image."""

from pathlib import Path
from typing import Annotated, Any

import typer

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode
from elsa_build.images import gpucode, tags
from elsa_build.images.build import forecast
from elsa_build.images.oci.layout import read_layout
from elsa_build.images.oci.stored import FolderSource
from elsa_build.images.publish import Destination
from elsa_build.images.ship import Backend, Shipped, on_base, ship

OUTPUT = "dist"


@command(
    app,
    "image",
    example="elsa-build image --tag elsa-v1.7\n"
    "elsa-build image --tag elsa-v1.7 --base sglang-base/ --replace-local",
)
def image(
    session: Session,
    *,
    tag: Annotated[str, typer.Option("--tag", help="TAG or REPOSITORY:TAG")],
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which recipe (default: the tag's, else the only one)"),
    ] = None,
    backend: Annotated[Backend, typer.Option(help="Who writes the image")] = Backend.OCI,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Base instead of the recipe's: a layout folder, a tar, or an image in dockerd",
        ),
    ] = None,
    package_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where the base keeps sglang/ (default: look inside)"),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none",
            help="Compiled kernels to ship (default: dist/kernels/RECIPE, where it exists)",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where it goes (default: dist)")
    ] = None,
    archive: Annotated[
        bool, typer.Option("--archive/--no-archive", help="Write TAG.tar for docker load as well")
    ] = True,
    replace_local: Annotated[
        bool,
        typer.Option("--replace-local", help="Move a tag whose image was built here before"),
    ] = False,
    audit: Annotated[
        bool,
        typer.Option("--audit/--no-audit", help="Look for libraries of the base without our arch"),
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Say which layers would be made, write nothing")
    ] = False,
    locked: Annotated[bool, typer.Option("--locked", help="Refuse to change the lock")] = False,
) -> Result:
    """Build a tagged image from the pin, the series and a recipe."""
    name = tags.split(tag)
    chosen = project.choose_recipe(session.root, tag=name[1], name=recipe)
    destination = Destination(
        output=output or session.root / OUTPUT,
        lock=session.root / tags.FILENAME,
        archive=archive,
        replace_local=replace_local,
    )
    with (
        on_base(
            chosen, base, backend=backend, package_dir=package_dir, progress=session.progress
        ) as settled,
        project.prepare(
            session.root,
            settled,
            locked=locked,
            dry_run=dry_run,
            kernels=kernels,
            progress=session.progress,
        ) as ready,
    ):
        if dry_run:
            layers = [
                {"name": layer.name, "key": layer.key, "cached": layer.cached}
                for layer in forecast(ready)
            ]
            lines = [
                f"{layer['name']}  {layer['key']}  {'cached' if layer['cached'] else 'to be made'}"
                for layer in layers
            ]
            return Result(
                data={"tag": name[1], "recipe": chosen.name, "layers": layers},
                view="\n".join(lines),
                closing="nothing was written",
                diagnostics=ready.findings,
            )
        shipped = ship(
            ready,
            destination,
            name=":".join(name),
            backend=backend,
            root=session.root,
            progress=session.progress,
        )
        found = shipped.built.findings
        if audit and ready.base is not None:
            image = read_layout(FolderSource(shipped.built.layout))
            found += gpucode.audited(image, chosen.arch, session.progress)
    wrong = bool(errors(found))
    return Result(
        data=_plain(shipped, chosen.name),
        view=_words(shipped),
        closing=_closing(shipped),
        status="failed" if wrong else "ok",
        code=ExitCode.FAILED if wrong else ExitCode.OK,
        diagnostics=found,
    )


def _plain(shipped: Shipped, recipe: str) -> dict[str, Any]:
    built, docker = shipped.built, shipped.docker
    return {
        "recipe": recipe,
        "tag": built.record.tag,
        "name": built.name,
        "manifest": built.record.manifest,
        "config": built.record.config,
        "compressor": built.compressor,
        "layout": str(built.layout),
        "archive": str(built.archive) if built.archive else None,
        "layers": [
            {
                "name": layer.name,
                "key": layer.key,
                "digest": layer.digest,
                "diff_id": layer.diff_id,
                "size": layer.size,
                "made": layer.name in built.made,
            }
            for layer in built.record.layers
        ],
        "made_bytes": built.moved,
        "docker": {"image": docker.image, "tag": docker.tag} if docker else None,
    }


def _words(shipped: Shipped) -> str:
    built = shipped.built
    lines = [
        f"{layer.name}  {layer.diff_id}  {layer.size:,} B"
        f"  {'made' if layer.name in built.made else 'unchanged'}"
        for layer in built.record.layers
    ]
    lines += [f"config    {built.record.config}", f"manifest  {built.record.manifest}"]
    if shipped.docker:
        lines.append(f"docker    {shipped.docker.image}  {shipped.docker.tag}")
    return "\n".join(lines)


def _closing(shipped: Shipped) -> str:
    built = shipped.built
    if shipped.docker:
        return f"next: elsa-build verify {shipped.docker.tag}"
    load = f"\n      docker load -i {built.archive}" if built.archive else ""
    return f"{built.layout} is {built.name}\nnext: elsa-build verify {built.layout}{load}"
