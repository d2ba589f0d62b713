"""Files to look into, wherever they lie: a folder, a wheel, a tar, or a stream of someone else's.

An audit reads the first bytes of every file and a few headers of some. A file on disk is read by
place, never mapped: a mapped file that another process cuts short would kill this one. A packed
file is unpacked only if its first bytes promise GPU code, into memory or a temporary file.
"""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from elsa_build.errors import ConfigError
from elsa_build.kernels.fatbin import Readable

HEAD = 64
"""What is looked at of every file, in bytes: an ELF header."""
IN_MEMORY = 16 << 20
"""A larger packed file goes to a temporary file, in bytes."""

_ZIP, _ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"
_PACKED_TAR = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
_USTAR = slice(257, 262)
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a compression that zipfile does not know
    RuntimeError,  # an encrypted member
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file: `name` within its source, `path` as far as it is known, `size` in bytes.

    Members of a tar can be opened only until the next one is taken.
    """

    name: str
    path: str
    size: int
    open: Callable[[], AbstractContextManager[Readable]]


def members(source: Path) -> Iterator[Member]:
    """Yield the files of a folder, a wheel or zip, a tar (plain, gz, bz2, xz), or a single file.

    Symbolic links are left out, and so is the second name of one file.

    Raises:
        ConfigError: There is nothing, or an archive that is broken or of an unknown kind (exit 5).
    """
    if source.is_dir():
        yield from folder(source)
        return
    try:
        with source.open("rb") as file:
            magic = file.read(_USTAR.stop)
    except OSError as e:
        raise ConfigError(f"{source}: cannot read: {e.strerror or e}") from e
    if magic.startswith(_ZSTD):
        raise ConfigError(
            f"{source}: compressed with zstd", hint=f"zstd -d {source}, then name the tar"
        )
    if magic.startswith(_ZIP):
        yield from wheel(source)
    elif magic.startswith(_PACKED_TAR) or magic[_USTAR] == b"ustar":
        yield from tar(source)
    else:
        yield _on_disk(source, source.name, source.stat().st_size)


# --- on disk ------------------------------------------------------------------------------------


class _File:
    """A file on disk, read by place."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size

    def at(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`."""
        if offset >= self.size:  # also what is too large for the system call
            return b""
        return os.pread(self._descriptor, min(count, self.size - offset), offset)


@contextmanager
def _opened(path: Path) -> Iterator[Readable]:
    # Not to wait for a pipe that took the file's place.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # Headers lie far apart: reading ahead would fetch the whole library from a cold disk.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        before = os.fstat(descriptor)
        yield _File(descriptor, before.st_size)
        after = os.fstat(descriptor)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise ConfigError(f"{path}: changed while it was read")
    finally:
        os.close(descriptor)


def _on_disk(path: Path, name: str, size: int) -> Member:
    return Member(name=name, path=str(path.absolute()), size=size, open=lambda: _opened(path))


def folder(root: Path) -> Iterator[Member]:
    """Yield the files below a folder, by name; what cannot be listed fails when it is opened."""
    unlisted: list[OSError] = []
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(root, onerror=unlisted.append):
        folders.sort()
        for name in sorted(files):
            path = Path(place, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                continue
            if status.st_nlink > 1:
                seen.add((status.st_dev, status.st_ino))
            yield _on_disk(path, path.relative_to(root).as_posix(), status.st_size)
    for failure in unlisted:
        closed = Path(failure.filename)
        yield _on_disk(closed, f"{closed.relative_to(root).as_posix()}/", 0)


# --- packed -------------------------------------------------------------------------------------


class _Packed:
    """A stream whose first bytes are there at once, and the rest only if it is asked for."""

    def __init__(self, stream: IO[bytes], size: int, name: str) -> None:
        self.size = size
        self._stream, self._name = stream, name
        self._file: IO[bytes] | None = None
        self._body = self._read(HEAD)

    def at(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`."""
        if offset + count > len(self._body) and len(self._body) < self.size:
            self._unpack()
        if self._file is None or offset >= self.size:
            return self._body[offset : offset + count]
        return os.pread(self._file.fileno(), count, offset)

    def _unpack(self) -> None:
        if self._file is not None:
            return
        if self.size <= IN_MEMORY:
            self._body += self._read(self.size - len(self._body))
            self.size = len(self._body)
            return
        self._file = tempfile.TemporaryFile(prefix="elsa-build-coverage-")  # noqa: SIM115 - close()
        self._file.write(self._body)
        while piece := self._read(1 << 20):
            self._file.write(piece)
        self._file.flush()
        self.size = self._file.tell()

    def _read(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except _BROKEN as e:
            raise ConfigError(f"{self._name}: broken: {e}") from e

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()


@contextmanager
def packed(opened: Callable[[], IO[bytes] | None], size: int, name: str) -> Iterator[Readable]:
    """Open a stream as something to read by place; unpacks it only when that is needed.

    Raises:
        ConfigError: The archive is broken here (exit 5); also while it is read.
    """
    try:
        stream = opened()
    except _BROKEN as e:
        raise ConfigError(f"{name}: broken: {e}") from e
    if stream is None:
        raise ConfigError(f"{name}: has no content")
    with stream:
        body = _Packed(stream, size, name)
        try:
            yield body
        finally:
            body.close()


def wheel(path: Path) -> Iterator[Member]:
    """Yield the files of a wheel, or of any zip.

    Raises:
        ConfigError: The zip's directory is broken (exit 5).
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as e:
        raise ConfigError(f"{path}: not a wheel or zip: {e}") from e
    with archive:
        for entry in archive.infolist():
            if entry.is_dir() or stat.S_ISLNK(entry.external_attr >> 16):
                continue
            yield _of_zip(archive, entry)


def _of_zip(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    name, size = entry.filename, entry.file_size
    return Member(
        name=name,
        path=name,
        size=size,
        open=lambda: packed(lambda: archive.open(entry), size, name),
    )


def tar(path: Path) -> Iterator[Member]:
    """Yield the files of a tar, in its order.

    Raises:
        ConfigError: The tar is broken, or cut short anywhere (exit 5).
    """
    try:
        # tarfile's own decompression takes the end of the file for the end of the archive.
        with _plain(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                if entry.isreg():
                    yield of_tar(archive, entry, entry.name.removeprefix("./"))
            while stream.read(1 << 20):
                pass
            if stream.tell() < archive.offset + tarfile.BLOCKSIZE:
                raise ConfigError(f"{path}: a broken tar: cut short, it has no end")
    except (*_BROKEN, OSError) as e:
        raise ConfigError(f"{path}: a broken tar: {e}") from e


def _plain(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        magic = file.read(HEAD)
    if magic.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.open(path, "rb"), 1 << 20)
    if magic.startswith(b"BZh"):
        return bz2.open(path, "rb")
    return lzma.open(path, "rb") if magic.startswith(b"\xfd7zXZ") else path.open("rb")


def of_tar(archive: tarfile.TarFile, entry: tarfile.TarInfo, name: str) -> Member:
    """Return a regular file of an open tar as a member."""
    return Member(
        name=name,
        path=name,
        size=entry.size,
        open=lambda: packed(lambda: archive.extractfile(entry), entry.size, name),
    )
