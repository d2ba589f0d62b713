"""An image as something to read, wherever it is stored: a layout folder or a tar.

Nothing is trusted: documents are hashed when they are read, sizes are compared, and every complaint
names the file and the field.
"""

import gzip
import importlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from elsa_build.errors import ConfigError
from elsa_build.images.oci.store import digest_of
from elsa_build.model import Digest

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Source(Protocol):
    """Named files to read: a folder, or the members of a tar."""

    @property
    def place(self) -> Path:
        """Return what a person would call it."""

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None when there is no such file."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file that `size` knows."""

    def path(self, name: str) -> Path | None:
        """Return the file's own path on disk, if it has one."""


@dataclass(frozen=True, slots=True)
class FolderSource:
    """The files of one folder."""

    place: Path

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None when there is no such file."""
        path = self.place / name
        return path.stat().st_size if path.is_file() else None

    def open(self, name: str) -> IO[bytes]:
        """Open a file that `size` knows."""
        return (self.place / name).open("rb")

    def path(self, name: str) -> Path | None:
        """Return the file's own path on disk."""
        return self.place / name


class UnreadableLayerError(ConfigError):
    """A layer is fine as far as we know, but compressed by something that is not installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayer:
    """One layer of a stored image; `digest` is absent where the format does not say it.

    `file` is its name in the source, `size` the stored bytes.
    """

    file: str
    diff_id: Digest
    size: int
    media_type: str
    digest: Digest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image that can be read, bottom layer first.

    `manifest` is absent for a `docker save` of the old kind, which has none.
    """

    source: Source
    config_digest: Digest
    config: Mapping[str, Any]
    layers: tuple[StoredLayer, ...]
    manifest: Digest | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    tag: str | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the image's config."""
        return (self.config.get("config") or {}).get("Labels") or {}

    @property
    def platform(self) -> str:
        """Return `os/architecture`."""
        return f"{self.config.get('os')}/{self.config.get('architecture')}"

    @contextmanager
    def plain(self, layer: StoredLayer) -> Iterator[IO[bytes]]:
        """Open a layer's tar, without its compression.

        Raises:
            UnreadableLayerError: It is compressed with zstd and no zstd module is installed.
            ConfigError: It ends early or is not what it says; raised while it is read.
        """
        where = f"{self.source.place}: {layer.file}"
        with self.source.open(layer.file) as raw:
            magic = raw.read(4)
            raw.seek(0)
            try:
                if magic == ZSTD_MAGIC:
                    yield _zstd(raw, where)
                elif magic.startswith(GZIP_MAGIC):
                    with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
                        yield io.BufferedReader(stream, 1 << 20)
                else:
                    yield raw
            except (EOFError, zlib.error, gzip.BadGzipFile) as e:
                raise ConfigError(f"{where}: broken layer: {e}") from e


def _zstd(raw: IO[bytes], where: str) -> IO[bytes]:
    try:
        module: Any = importlib.import_module("zstandard")
    except ImportError as e:
        raise UnreadableLayerError(
            f"{where}: compressed with zstd, which is not installed", hint="pip install zstandard"
        ) from e
    stream: IO[bytes] = module.ZstdDecompressor().stream_reader(raw)
    return stream


class Document:
    """A JSON object of an image, read field by field with the place in every complaint."""

    def __init__(self, body: bytes, where: str) -> None:
        self.where = where
        try:
            value = json.loads(body)
        except ValueError as e:
            raise ConfigError(f"{where}: not JSON: {e}") from e
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: not a JSON object")
        self.fields: dict[str, Any] = value

    def get(self, *keys: str, kind: type = object, default: Any = None) -> Any:  # noqa: ANN401 - JSON
        """Return the value below these keys.

        Raises:
            ConfigError: It is there but not of this kind, or absent without a default.
        """
        value: Any = self.fields
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None and default is not None:
            return default
        if value is None or not isinstance(value, kind):
            complaint = "missing" if value is None else f"not a {kind.__name__}"
            raise ConfigError(f"{self.where}: {'.'.join(keys)}: {complaint}")
        return value


def read_document(source: Source, name: str, digest: Digest | None = None) -> Document:
    """Read a JSON file of a source, and check its digest when one is given.

    Raises:
        ConfigError: It is missing, not JSON, or not the bytes of its digest.
    """
    where = f"{source.place}: {name}"
    if source.size(name) is None:
        raise ConfigError(f"{where}: missing")
    with source.open(name) as stream:
        body = stream.read()
    if digest and digest_of(body) != digest:
        raise ConfigError(f"{where}: is not what its digest says; truncated or edited")
    return Document(body, where)
