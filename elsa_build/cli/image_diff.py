"""`elsa-build image-diff`: which layers and files lie between two images, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.image import OUTPUT
from elsa_build.images.compare import Fate, ImageDiff, compare
from elsa_build.images.opening import open_image

if TYPE_CHECKING:
    from rich.console import RenderableType

_IMAGE = "A layout folder, a tar, a tag in dist, or a name in dockerd"
_MARKS = {Fate.SAME: "=", Fate.CHANGED: "~", Fate.ADDED: "+", Fate.REMOVED: "-", Fate.MOVED: ">"}


@command(app, "image-diff", example="elsa-build image-diff old/elsa-v1.7.tar dist/elsa-v1.7")
def image_diff(
    session: Session,
    *,
    old: Annotated[str, typer.Argument(metavar="A", help=_IMAGE)],
    new: Annotated[str, typer.Argument(metavar="B", help=_IMAGE)],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where tags are looked up (default: dist)")
    ] = None,
) -> Result:
    """Show what a host that has A must pull to get B, and which input is the reason."""
    place = output or session.root / OUTPUT
    with (
        open_image(old, place, progress=session.progress) as (before, _),
        open_image(new, place, progress=session.progress) as (after, _),
    ):
        found = compare(before, after, progress=session.progress)
    return Result(
        data={
            "same": found.same,
            "moved_bytes": found.moved,
            "layers": [
                {
                    "name": layer.name,
                    "fate": layer.fate,
                    "old": layer.old,
                    "new": layer.new,
                    "moved_bytes": layer.size,
                    "why": list(layer.why),
                }
                for layer in found.layers
            ],
            "files": [
                {
                    "path": file.path,
                    "fate": file.fate,
                    "from": file.source,
                    "patches": list(file.patches),
                }
                for file in found.files
            ],
        },
        view=lambda: _view(found),
        closing=f"B moves {found.moved:,} bytes to a host that has A",
        status="same" if found.same else "different",
    )


def _view(found: ImageDiff) -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415 - only when shown
    from rich.table import Table  # noqa: PLC0415 - same

    layers = Table("", "layer", "bytes moved", "why", box=None, pad_edge=False)
    for layer in found.layers:
        why = "\n".join(layer.why)
        layers.add_row(_MARKS[layer.fate], layer.name, f"{layer.size:,}", why)
    files = Table("", "file", "patches", box=None, pad_edge=False)
    for file in found.files:
        came = f"\n  from {file.source}" if file.source else ""
        files.add_row(_MARKS[file.fate], f"{file.path}{came}", ", ".join(file.patches))
    return Group(layers, "", files) if found.files else layers
