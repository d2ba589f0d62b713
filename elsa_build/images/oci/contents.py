"""What a person would see inside an image at some paths, without unpacking anything to disk.

Layers are read from the top down, so that what the upper layers decide needs no look at the lower
ones; reading ends as soon as every asked path is decided. Source: OCI image spec, layer.md.
"""

import tarfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import IO

from elsa_build.errors import ConfigError
from elsa_build.images.oci.cover import Cover
from elsa_build.images.oci.store import digest_of, digest_of_stream
from elsa_build.images.oci.stored import StoredImage, StoredLayer
from elsa_build.model import Digest


class Sort(StrEnum):
    """What stands at a path."""

    FILE = "file"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What stands at one path: `digest` of a file's bytes, `target` of a link.

    `layer` counts from 0 at the bottom; `body` is there only for paths that were asked to be kept.
    """

    sort: Sort
    layer: int
    mode: int
    digest: Digest | None = None
    target: str | None = None
    body: bytes | None = None


def clean_name(name: str) -> str:
    """Return a tar member's name as a path relative to the root: `./usr/` is `usr`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


Entry = tuple[str, tarfile.TarInfo, tarfile.TarFile]
"""A member of a layer: its path, its header, and the tar to read its body from."""


@contextmanager
def entries(image: StoredImage, layer: StoredLayer) -> Iterator[Iterator[Entry]]:
    """Open a layer and iterate over its members in order; bodies are read inside the block.

    Raises:
        ConfigError: The layer is cut off or damaged; also where the block reads a body.
    """
    try:
        with image.plain(layer) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            yield _entries(tar)
    except tarfile.TarError as e:
        raise ConfigError(f"{image.source.place}: {layer.file}: broken layer: {e}") from e


def _entries(tar: tarfile.TarFile) -> Iterator[Entry]:
    while (member := tar.next()) is not None:
        yield clean_name(member.name), member, tar
        # Constant memory: a base has some hundred thousand members.
        vars(tar)["members"].clear()


def visible(
    image: StoredImage,
    wanted: Callable[[str], bool],
    *,
    only: Collection[str] | None = None,
    keep: Collection[str] = (),
    measure: Callable[[IO[bytes], int], Digest] = lambda stream, _: digest_of_stream(stream)[0],
) -> dict[str, Seen]:
    """Return what stands at the wanted paths after all layers; directories are left out.

    Args:
        image: The image.
        wanted: Says of a path (relative to the root) whether it is asked for.
        only: All the paths that `wanted` can ask for, if they are known: reading stops when each
            is decided.
        keep: Paths whose bytes are returned as well.
        measure: Makes `digest` from a file's stream and size; sha256 unless told otherwise.

    Raises:
        ConfigError: A layer that had to be read is broken or cannot be decompressed.
    """
    found: dict[str, Seen] = {}
    cover = Cover()
    for number in range(len(image.layers) - 1, -1, -1):
        if only is not None and all(path in found or cover.hides(path) for path in only):
            break
        below = Cover()
        with entries(image, image.layers[number]) as members:
            for path, member, tar in members:
                shown = below.take(path, folder=member.isdir()) and not member.isdir()
                if shown and wanted(path) and not cover.hides(path):
                    found[path] = _look(member, tar, number, None if path in keep else measure)
        cover.extend(below)
    return found


def _look(
    member: tarfile.TarInfo,
    tar: tarfile.TarFile,
    number: int,
    measure: Callable[[IO[bytes], int], Digest] | None,
) -> Seen:
    """Return what a member is; without `measure` its bytes are kept."""
    if member.issym():
        return Seen(sort=Sort.SYMLINK, layer=number, mode=member.mode, target=member.linkname)
    stream = tar.extractfile(member) if member.isreg() else None
    if stream is None:
        return Seen(sort=Sort.OTHER, layer=number, mode=member.mode)
    body = None if measure else stream.read()
    digest = measure(stream, member.size) if measure else digest_of(body or b"")
    return Seen(sort=Sort.FILE, layer=number, mode=member.mode, digest=digest, body=body)
