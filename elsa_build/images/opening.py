"""Finds the image that a person names: a layout folder, a tar, a tag of ours, or one in dockerd."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.dockerd import connect
from elsa_build.images.oci.archive import read_archive
from elsa_build.images.oci.layout import read_layout
from elsa_build.images.oci.stored import FolderSource, StoredImage
from elsa_build.images.record import Stamped, read
from elsa_build.progress import SILENT, Progress

DAEMON = "docker-daemon:"
"""Says that a name is meant in dockerd, as skopeo and podman write it."""


@contextmanager
def open_image(
    name: str, output: Path, *, progress: Progress = SILENT
) -> Iterator[tuple[StoredImage, Stamped | None]]:
    """Open an image, with the record that lies beside it or that its tag has in `output`.

    Args:
        name: A layout folder, a tar of ours or of `docker save`, a tag with a layout in `output`,
            or a name or id in dockerd (`docker-daemon:NAME` when a file has that name, too).
        output: Where images are built: `dist`.
        progress: Told of what is fetched from dockerd.

    Raises:
        ConfigError: There is no such image, or it is broken.
        ToolError: dockerd is needed and does not answer.
    """
    path = next((p for p in (Path(name), output / name) if p.exists()), None)
    if path is None or name.startswith(DAEMON):
        with _from_daemon(name.removeprefix(DAEMON), progress) as image:
            beside = output / f"{image.tag}.json"
            stamped = read(beside) if beside.is_file() else None
            # Another image may have the same tag in another repository: an overlay beside it.
            yield image, stamped if stamped and stamped.name == name.removeprefix(DAEMON) else None
        return
    image = read_layout(FolderSource(path)) if path.is_dir() else read_archive(path)
    stem = path.name if path.is_dir() else path.name.removesuffix(".tar")
    beside = path.resolve().parent / f"{stem}.json"
    yield image, read(beside) if beside.is_file() else None


@contextmanager
def _from_daemon(name: str, progress: Progress) -> Iterator[StoredImage]:
    """Read an image out of dockerd, through a temporary file."""
    try:
        daemon = connect()
    except ToolError as e:
        raise ConfigError(
            f"no file, folder or tag '{name}' here, and {e}",
            hint="elsa-build image --tag TAG makes an image",
        ) from e
    with daemon:
        if daemon.inspect(name) is None:
            raise ConfigError(
                f"no file, folder or tag '{name}' here, and the docker daemon has no such image",
                hint="docker load -i dist/TAG.tar",
            )
        with daemon.saved(name, progress) as saved:
            yield read_archive(saved)
