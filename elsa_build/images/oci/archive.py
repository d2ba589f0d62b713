"""One tar that three families read: `docker load`, podman and skopeo, and OCI layout tools.

Docker up to 28 looks for `manifest.json` and takes the blobs' paths from it; podman, skopeo and
newer Dockers look for `oci-layout` and `index.json`. Both stand in one tar over the same blobs.
Reading also takes what `docker save` wrote before Docker 25: `<id>/layer.tar`, not compressed.
"""

import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, BytesIO, RawIOBase
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from elsa_build.errors import ConfigError
from elsa_build.images.oci.layout import LAYOUT_MARK, Assembled, index_of, read_layout, to_json
from elsa_build.images.oci.store import digest_of, disk_trouble
from elsa_build.images.oci.stored import (
    GZIP_MAGIC,
    ZSTD_MAGIC,
    Document,
    StoredImage,
    StoredLayer,
    read_document,
)
from elsa_build.model import Digest

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PLAIN = "application/vnd.oci.image.layer.v1.tar"

# --- writing ----------------------------------------------------------------------------------


def write_archive(out: BinaryIO, image: Assembled, *, mtime: int) -> None:
    """Write an image as one tar; the documents come first, so that a reader knows early.

    Args:
        out: Where the tar goes.
        image: What to write.
        mtime: Seconds since the epoch, of every entry.

    Raises:
        ToolError: The disk is full or not writable.
    """
    docker = {
        "RepoTags": [image.name],
        "Config": _member(image.config_digest),
        "Layers": [_member(digest) for digest in image.layers],
    }
    with (
        disk_trouble(Path(getattr(out, "name", "archive"))),
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, body in (
            ("oci-layout", LAYOUT_MARK),
            ("index.json", index_of(image)),
            ("manifest.json", to_json([docker])),
        ):
            tar.addfile(_info(name, mtime, size=len(body)), BytesIO(body))
        for folder in ("blobs", "blobs/sha256"):
            tar.addfile(_info(folder, mtime, kind=tarfile.DIRTYPE, mode=0o755))
        for digest, body in image.documents.items():
            tar.addfile(_info(_member(digest), mtime, size=len(body)), BytesIO(body))
        for digest, path in sorted(image.blobs.items()):
            with path.open("rb") as stream:
                tar.addfile(_info(_member(digest), mtime, size=path.stat().st_size), stream)


def _member(digest: Digest) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _info(
    name: str, mtime: int, *, size: int = 0, kind: bytes = tarfile.REGTYPE, mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.type, info.mode = size, mtime, kind, mode
    return info


# --- reading ----------------------------------------------------------------------------------


class _Window(RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, path: Path, start: int, length: int) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self._start, self._length, self._at = start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET, /) -> int:
        origin = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._length}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: "Buffer", /) -> int:
        view = memoryview(buffer).cast("B")
        self._file.seek(self._start + self._at)
        piece = self._file.read(max(0, min(len(view), self._length - self._at)))
        view[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True, slots=True)
class TarSource:
    """The members of one tar, by name; links inside it are followed."""

    place: Path
    members: Mapping[str, tarfile.TarInfo] = field(repr=False)

    def _find(self, name: str) -> tarfile.TarInfo | None:
        for _ in range(8):  # docker save links equal layers to each other
            member = self.members.get(name)
            if member is None or not (member.issym() or member.islnk()):
                return member if member and member.isfile() else None
            folder = posixpath.dirname(name) if member.issym() else ""
            name = posixpath.normpath(posixpath.join(folder, member.linkname))
        return None

    def size(self, name: str) -> int | None:
        """Return a member's size in bytes, or None when there is no such file."""
        member = self._find(name)
        return member.size if member else None

    def open(self, name: str) -> IO[bytes]:
        """Open a member that `size` knows."""
        member = self._find(name)
        assert member is not None
        return BufferedReader(_Window(self.place, member.offset_data, member.size), 1 << 20)

    def path(self, name: str) -> Path | None:
        """Return None: a member has no path of its own."""
        del name
        return None


def read_archive(path: Path, *, tag: str | None = None) -> StoredImage:
    """Read the one image of a tar: ours, another tool's OCI archive, or `docker save`'s.

    Raises:
        ConfigError: Not such a tar, cut off, several images, or a broken document in it.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            members = {posixpath.normpath(member.name): member for member in tar}
    except (tarfile.TarError, OSError, EOFError) as e:
        raise ConfigError(f"{path}: not a tar of an image, or cut off: {e}") from e
    end = path.stat().st_size
    cut = next((m for m in members.values() if m.offset_data + m.size > end), None)
    if cut:
        raise ConfigError(f"{path}: {cut.name}: the tar ends inside it; truncated?")
    source = TarSource(path, members)
    docker = source.size("manifest.json") is not None
    if source.size("index.json") is not None and source.size("oci-layout") is not None:
        try:
            return read_layout(source, tag=tag)
        except ConfigError:
            # Docker 29 nests an index per platform; its manifest.json names the one image.
            if not docker or not _nested(source):
                raise
    if not docker:
        raise ConfigError(f"{path}: has neither index.json nor manifest.json; not an image")
    return _read_docker(source, tag)


def _nested(source: TarSource) -> bool:
    entries = read_document(source, "index.json").get("manifests", kind=list)
    return any("index" in str(e.get("mediaType")) for e in entries if isinstance(e, dict))


def _read_docker(source: TarSource, tag: str | None) -> StoredImage:
    """Read by `manifest.json`: config and layers by the names that it gives."""
    with source.open("manifest.json") as stream:
        listed = Document(b'{"images":' + stream.read() + b"}", f"{source.place}: manifest.json")
    images = [image for image in listed.get("images", kind=list) if isinstance(image, dict)]
    if tag:
        images = [i for i in images if any(t.endswith(f":{tag}") for t in i.get("RepoTags") or [])]
    if len(images) != 1:
        raise ConfigError(f"{listed.where}: {len(images)} images; one is needed")
    name, files = str(images[0].get("Config")), images[0].get("Layers") or []
    config = read_document(source, name)
    with source.open(name) as stream:
        config_digest = digest_of(stream.read())
    stem = posixpath.basename(name).removesuffix(".json")
    if config_digest != f"sha256:{stem}":
        raise ConfigError(f"{config.where}: is not what its name says; truncated or edited")
    diff_ids = config.get("rootfs", "diff_ids", kind=list)
    if len(files) != len(diff_ids):
        raise ConfigError(f"{listed.where}: {len(files)} layers, the config has {len(diff_ids)}")
    layers = []
    for file, diff_id in zip(files, diff_ids, strict=True):
        size = source.size(file)
        if size is None:
            raise ConfigError(f"{source.place}: {file}: missing, though manifest.json names it")
        with source.open(file) as stream:
            magic = stream.read(4)
        # A tar that is not compressed is stored as what its diff id says.
        packed = magic == ZSTD_MAGIC or magic.startswith(GZIP_MAGIC)
        layers.append(
            StoredLayer(
                file=file,
                diff_id=Digest(diff_id),
                size=size,
                media_type=_PLAIN,
                digest=None if packed else Digest(diff_id),
            )
        )
    names = images[0].get("RepoTags") or []
    return StoredImage(
        source=source,
        config_digest=config_digest,
        config=config.fields,
        layers=tuple(layers),
        tag=names[0].rpartition(":")[2] if names else None,
    )
