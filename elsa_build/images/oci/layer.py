"""A layer's bytes depend on its members alone: not on who writes it, where, when, in what order.

What is promised: the plain tar (diff id) is equal on every machine; the gzip blob is equal where
the compressor is the same by name, level and version, which `Compressor.label` records. Folders
are written once, with mode 755 and owned by root unless the layers below have them otherwise; to
leave them out would not do, since docker 20.10 then makes them 755 on top of the base's. A deletion
is a whiteout file, and a layer never makes a folder opaque.
Source: OCI image spec, layer.md (whiteouts); RFC 1952 (gzip header).
"""

import hashlib
import importlib
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from elsa_build.errors import ConfigError, ToolError
from elsa_build.model import Digest

OCI_LAYER_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"

_BLOCK = 512
_PIECE = 1 << 20
_GZIP_HEADER = b"\x1f\x8b\x08\x00\0\0\0\0\x00\xff"
"""Deflate, no flags (so no name), mtime 0, no extra flags, operating system 255 (unknown)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A body too large to hold: its size in bytes, and what opens it when its turn comes."""

    size: int
    open: Callable[[], IO[bytes]]

    @staticmethod
    def of(path: Path) -> "Stream":
        """Return the content of a file on disk."""
        return Stream(size=path.stat().st_size, open=lambda: path.open("rb"))


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A regular file; `body` is called when its turn comes, so that one body is held at a time."""

    path: str
    body: bytes | Callable[[], bytes] | Stream
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """How a folder is kept: nine bits of mode (and the three above them), owner and group."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0

    def __str__(self) -> str:
        return f"{self.mode:o} {self.uid}:{self.gid}"


USUAL = Folder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Symlink:
    """A symbolic link, stored as it is."""

    path: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Whiteout:
    """A path of the layers below that must not be seen: a file, or a directory with all in it."""

    path: str


Member = File | Symlink | Whiteout
"""Paths are relative to the image's root, with `/`, without a leading one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A stored layer: `digest` and `size` of the bytes as stored, `diff_id` of the plain tar."""

    digest: Digest
    diff_id: Digest
    size: int
    media_type: str = OCI_LAYER_GZIP


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """Which program deflates, at which level. zlib is in every Python, so it is the default."""

    program: str = "zlib"
    level: int = 6

    @staticmethod
    def parse(text: str) -> "Compressor":
        """Return the compressor that `zlib-6` or `isal-1` names.

        Raises:
            ConfigError: No such compressor or level, or it is not installed.
        """
        program, _, level = text.partition("-")
        levels = {"zlib": "123456789", "isal": "0123"}.get(program, "")
        if len(level) != 1 or level not in levels:
            raise ConfigError(
                f"unknown compressor '{text}'; there are zlib-1 to zlib-9 and isal-0 to isal-3"
            )
        found = Compressor(program=program, level=int(level))
        found._module()  # says now that it is not installed
        return found

    @property
    def label(self) -> str:
        """Return name, level and version: equal labels give equal blobs from equal tars."""
        if self.program == "zlib":
            return f"zlib-{self.level}/{zlib.ZLIB_RUNTIME_VERSION}"
        return f"{self.program}-{self.level}/{importlib.import_module(self.program).__version__}"

    def deflater(self) -> Any:  # noqa: ANN401 - zlib has no public name for this type
        """Return a raw deflate stream (`compress`, `flush`); the frame around it is ours."""
        return self._module().compressobj(self.level, zlib.DEFLATED, -15)

    def _module(self) -> Any:  # noqa: ANN401 - zlib, or a module with its interface
        if self.program == "zlib":
            return zlib
        try:
            return importlib.import_module("isal.isal_zlib")
        except ImportError as e:
            raise ConfigError("compressor 'isal' is not installed", hint="pip install isal") from e


class _Gzip:
    """Write plain bytes in; gzip goes out, and both sides are hashed on the way."""

    def __init__(self, out: BinaryIO, compressor: Compressor) -> None:
        self._out = out
        self._deflater = compressor.deflater()
        self._plain = hashlib.sha256()
        self._stored = hashlib.sha256()
        self._crc = 0
        self._length = 0
        self._size = 0
        self._put(_GZIP_HEADER)

    def _put(self, piece: bytes) -> None:
        self._out.write(piece)
        self._stored.update(piece)
        self._size += len(piece)

    def write(self, piece: bytes) -> None:
        self._plain.update(piece)
        self._crc = zlib.crc32(piece, self._crc)
        self._length += len(piece)
        self._put(self._deflater.compress(piece))

    def finish(self) -> Blob:
        self._put(self._deflater.flush())
        self._put(self._crc.to_bytes(4, "little") + (self._length % 2**32).to_bytes(4, "little"))
        self._out.flush()
        return Blob(
            digest=Digest(f"sha256:{self._stored.hexdigest()}"),
            diff_id=Digest(f"sha256:{self._plain.hexdigest()}"),
            size=self._size,
        )


def write_layer(
    members: Iterable[Member],
    out: BinaryIO,
    *,
    mtime: int,
    compressor: Compressor,
    folders: Mapping[str, Folder] | None = None,
) -> Blob:
    """Write a gzip-compressed tar and return its digests, in one pass.

    Args:
        members: In any order; the layer sorts them.
        out: Where the blob goes; bytes are written from its present position on.
        mtime: Seconds since the epoch, of every entry.
        compressor: What deflates.
        folders: How the layers below keep folders that are not 755 and root's, by path.

    Raises:
        ConfigError: A path that a layer cannot hold, or two members at one path.
        ToolError: A streamed body has another size than was said.
    """
    sink = _Gzip(out, compressor)
    for member in tar_order(members):
        if isinstance(member, str):
            sink.write(_folder(member, mtime, (folders or {}).get(member, USUAL)))
            continue
        for piece in _entry(member, mtime):
            sink.write(piece)
    sink.write(bytes(2 * _BLOCK))
    return sink.finish()


def tar_order(members: Iterable[Member]) -> Iterator["Member | str"]:
    """Yield the members sorted, each directory (as its path) once before what is in it.

    Raises:
        ConfigError: A path that a layer cannot hold, or two members at one path.
    """
    taken: set[str] = set()
    folders: set[str] = set()
    for member in sorted(members, key=lambda member: member.path.split("/")):
        _check_path(member.path)
        parts = member.path.split("/")
        parents = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        clash = next((path for path in (*parents, member.path) if path in taken), None)
        if clash or member.path in folders:
            raise ConfigError(f"two members of one layer at {clash or member.path}")
        for parent in parents:
            if parent not in folders:
                folders.add(parent)
                yield parent
        taken.add(member.path)
        yield member


def _check_path(path: str) -> None:
    parts = path.split("/")
    if any(part in {"", ".", ".."} for part in parts) or "\0" in path:
        raise ConfigError(f"{path!r} is not a path inside an image")
    if any(part.startswith(WHITEOUT) for part in parts):
        raise ConfigError(f"{path!r}: a layer reads a name that begins '.wh.' as a deletion")
    try:
        path.encode()
    except UnicodeEncodeError as e:
        raise ConfigError(f"{path!r} is not UTF-8, which an image needs") from e


def _folder(path: str, mtime: int, kept: Folder) -> bytes:
    return _header(
        f"{path}/", mtime, kind=tarfile.DIRTYPE, mode=kept.mode, owner=(kept.uid, kept.gid)
    )


def _entry(member: Member, mtime: int) -> Iterator[bytes]:
    if isinstance(member, Symlink):
        yield _header(member.path, mtime, kind=tarfile.SYMTYPE, mode=0o777, target=member.target)
    elif isinstance(member, Whiteout):
        folder, slash, name = member.path.rpartition("/")
        yield _header(f"{folder}{slash}{WHITEOUT}{name}", mtime)
    else:
        body = member.body() if callable(member.body) else member.body
        size = body.size if isinstance(body, Stream) else len(body)
        yield _header(member.path, mtime, mode=0o755 if member.executable else 0o644, size=size)
        yield from _pieces(member.path, body) if isinstance(body, Stream) else (body,)
        yield bytes(-size % _BLOCK)


def _pieces(path: str, body: Stream) -> Iterator[bytes]:
    length = 0
    with body.open() as stream:
        while piece := stream.read(_PIECE):
            length += len(piece)
            yield piece
    if length != body.size:
        raise ToolError(f"{path}: {length} bytes, not {body.size}; it changed while it was read")


def _header(
    name: str,
    mtime: int,
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    size: int = 0,
    target: str = "",
    owner: tuple[int, int] = (0, 0),
) -> bytes:
    """Return a tar header: owners as numbers; PAX records only where ustar cannot say it."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.mtime, info.linkname = kind, mode, size, mtime, target
    info.uid, info.gid = owner
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
