"""`elsa-build kernels verify`: hash and audit a bundle again; hand it on, packed or unpacked."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build import project
from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.kernels import kernels
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode
from elsa_build.kernels import bundle_verify
from elsa_build.kernels.target import target
from elsa_build.kernels.unpacking import archive, opened, unpack
from elsa_build.reports import kernels_bundle as words

if TYPE_CHECKING:
    from rich.console import RenderableType


@command(
    kernels,
    "verify",
    example="elsa-build kernels verify\n"
    "elsa-build kernels verify dist/kernels/elsa-1.7 --pack elsa-1.7-kernels.tar.gz\n"
    "elsa-build kernels verify elsa-1.7-kernels.tar.gz --unpack /srv/kernels",
    schema="kernels-verify",
)
def verify(
    session: Session,
    *,
    bundle: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE", help="A folder or its tar (default: the recipe's in dist/kernels)"
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Compare the sources with this recipe's tree (default: the only)"
        ),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(metavar="ARCH", help="Which card (default: the bundle's)")
    ] = None,
    pack: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it as one .tar, .tar.gz or .tar.zst, if right"),
    ] = None,
    unpacked: Annotated[
        Path | None,
        typer.Option("--unpack", metavar="DIR", help="Put it there, so that it hits, if right"),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="What a server will call DIR, inside a container"),
    ] = None,
) -> Result:
    """Hash every file of a bundle, read its machine code and compare its sources with the tree.

    Exit 7 when a file is not what was sealed, when code is not for the card or needs more shared
    memory than it has, or when a kernel was compiled from other sources than the recipe's patched
    tree. The sources are compared unless a BUNDLE is named without --recipe.
    """
    chosen = None
    if recipe or bundle is None:
        chosen = project.choose_recipe(session.root, name=recipe)
    place = bundle or project.bundle_folder(session.root, chosen.name if chosen else "")
    with opened(place) as held:
        manifest = held.manifest
        card = target(arch or manifest.target)
        found = bundle_verify.verify(held, card, session.progress)
        if chosen:
            outdated = project.outdated(session.root, chosen, manifest, progress=session.progress)
            found += bundle_verify.of_sources(outdated, chosen.name)
        wrong = errors(found)
        written = []
        if pack and not wrong:
            archive(held, pack)
            written.append(f"wrote {pack}")
        if unpacked and not wrong:
            moved = unpack(held, unpacked, prefix=prefix, target=card.name)
            written.append(f"{unpacked} is for {moved.manifest.prefix}")

        def view() -> "RenderableType":
            return words.table(held)

        return Result(
            data={"place": str(place), **words.document(held)},
            view=view,
            closing="\n".join(written) or f"{place}: {len(wrong)} findings",
            status="failed" if wrong else "ok",
            code=ExitCode.FAILED if wrong else ExitCode.OK,
            diagnostics=(*found, *bundle_verify.of_missing(manifest)),
        )
