"""The files of an image for an audit of their GPU code, as a container of it would see them.

Layers are read from the top down, so that a library which an upper layer replaces or deletes is not
counted, and nothing is unpacked but what holds GPU code. A hard link counts once, by the name whose
content is in the layer.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from elsa_build.diagnostics import Diagnostic
from elsa_build.images.oci.archive import read_archive
from elsa_build.images.oci.contents import clean_name, entries
from elsa_build.images.oci.cover import Cover
from elsa_build.images.oci.layout import read_layout
from elsa_build.images.oci.stored import FolderSource, StoredImage
from elsa_build.images.opening import open_image
from elsa_build.kernels import members as files
from elsa_build.kernels.allowances import DEFAULT, load
from elsa_build.kernels.census import census
from elsa_build.kernels.coverage import audit
from elsa_build.kernels.coverage_findings import findings
from elsa_build.kernels.members import Member
from elsa_build.kernels.target import targets
from elsa_build.progress import SILENT, Progress


def members(image: StoredImage) -> Iterator[Member]:
    """Yield the regular files that a container of the image shows.

    Raises:
        ConfigError: A layer is broken or cannot be decompressed (exit 5).
    """
    cover = Cover()
    for layer in reversed(image.layers):
        below = Cover()
        with entries(image, layer) as found:
            for path, entry, archive in found:
                shown = below.take(path, folder=entry.isdir())
                if shown and entry.isreg() and not cover.hides(path):
                    yield files.of_tar(archive, entry, path)
        cover.extend(below)


def audited(image: StoredImage, arch: str, progress: Progress = SILENT) -> tuple[Diagnostic, ...]:
    """Return what of an image's GPU code its card cannot run; nothing for a card we do not know."""
    card = next((one for one in targets() if one.name == arch), None)
    if card is None:
        return ()
    with progress.task("audit the GPU code") as advance:
        seen = census(members(image), advance)
    return findings(audit(seen, card, allowances=load((DEFAULT,))))


def find(name: str, output: Path, *, progress: Progress = SILENT) -> Iterator[Member]:
    """Yield the files of what a person names: a folder, wheel, tar, library, or an image.

    Args:
        name: A path; a layout folder and a tar of an image are read as images. What is no path
            is a tag in `output`, or a name in dockerd.
        output: Where images are built: `dist`.
        progress: Told of what is fetched from dockerd.

    Raises:
        ConfigError: There is no such thing, or it is broken (exit 5).
        ToolError: dockerd is needed and does not answer (exit 6).
    """
    path = Path(name)
    if not path.exists():
        with open_image(name, output, progress=progress) as (image, _):
            yield from members(image)
    elif (path / "oci-layout").is_file():
        yield from members(read_layout(FolderSource(path)))
    elif _holds_an_image(path):
        yield from members(read_archive(path))
    else:
        yield from files.members(path)


def _holds_an_image(path: Path) -> bool:
    """Say whether a file is a tar with the documents of an image, as the archive's reader wants."""
    if not path.is_file():
        return False
    try:
        with tarfile.open(path, "r:") as tar:
            return any(clean_name(member.name) in ("oci-layout", "manifest.json") for member in tar)
    except (tarfile.TarError, OSError):
        return False
