"""Blobs by digest, and which key made which blob, so that an unchanged layer is never tarred twice.

A folder in the user's cache, shared by every project and by runs at the same time: each file
arrives by a rename, is read-only, and its name decides its content. What a killed run left half
written is known by its lock, which died with it, and is swept away by the next run.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from errno import ENOSPC
from pathlib import Path
from typing import IO, BinaryIO

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.oci.layer import Blob
from elsa_build.model import Digest

_CHUNK = 1 << 20


@contextmanager
def disk_trouble(path: Path) -> Iterator[None]:
    """Turn an operating system error of the block into one that says what could not be written.

    Raises:
        ToolError: The block raised an OSError (disk full, no permission, ...).
    """
    try:
        yield
    except OSError as e:
        hint = f"free space on the disk of {path}" if e.errno == ENOSPC else None
        raise ToolError(f"cannot write {path}: {e.strerror or e}", hint=hint) from e


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder while the block runs; the system frees it when a process dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(folder: Path, prefix: str) -> None:
    """Remove what dead runs left in a folder: entries of this prefix that nobody holds locked.

    Call it with the folder locked; who makes such an entry locks it before letting the folder go.
    """
    for path in folder.glob(f"{prefix}*"):
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its run has just finished
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def digest_of(body: bytes) -> Digest:
    """Return the digest of some bytes."""
    return Digest(f"sha256:{hashlib.sha256(body).hexdigest()}")


def digest_of_stream(stream: IO[bytes], copy: IO[bytes] | None = None) -> tuple[Digest, int]:
    """Return the digest and the length of what is left in a stream; write it to `copy` as well."""
    hasher, length = hashlib.sha256(), 0
    while piece := stream.read(_CHUNK):
        hasher.update(piece)
        length += len(piece)
        if copy:
            copy.write(piece)
    return Digest(f"sha256:{hasher.hexdigest()}"), length


def blob_path(root: Path, digest: Digest) -> Path:
    """Return where a layout or the store keeps a blob."""
    return root / "blobs" / "sha256" / digest.removeprefix("sha256:")


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it where the file system cannot link."""
    try:
        target.hardlink_to(source)
    except FileExistsError:
        return
    except OSError:  # another disk, or one without links
        shutil.copyfile(source, target)
        target.chmod(0o444)


def write_whole(path: Path, text: str) -> None:
    """Put a text at a path at once, so that nobody reads half of it.

    Raises:
        OSError: The folder is missing or not writable, or the disk is full; nothing is left.
    """
    handle, fresh = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(fresh).chmod(0o644)
        Path(fresh).replace(path)
    finally:
        Path(fresh).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class BlobStore:
    """The blob cache below one folder."""

    root: Path

    @contextmanager
    def _fresh(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Open a new file beside the blobs; it is gone afterwards unless it was renamed."""
        folder = self.root / "blobs" / "sha256"
        with disk_trouble(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                sweep(folder, ".new-")
                handle, name = tempfile.mkstemp(prefix=".new-", dir=folder)
                fcntl.flock(handle, fcntl.LOCK_EX)
            try:
                with os.fdopen(handle, "wb") as out:
                    yield Path(name), out
            finally:
                Path(name).unlink(missing_ok=True)

    def path(self, digest: Digest) -> Path:
        """Return where a blob is, or would be."""
        return blob_path(self.root, digest)

    def add(self, write: Callable[[BinaryIO], Blob]) -> Blob:
        """Store what `write` writes under the digest that it returns.

        Raises:
            ToolError: The disk is full or not writable; nothing is left behind.
        """
        with self._fresh() as (fresh, out):
            blob = write(out)
            out.flush()
            fresh.chmod(0o444)
            fresh.replace(self.path(blob.digest))
        return blob

    def take(
        self, source: Callable[[], IO[bytes]], digest: Digest, size: int, path: Path | None = None
    ) -> Path:
        """Store a foreign blob untouched, after checking that it is what its digest says.

        A blob that is already here with the right size was checked when it came. `path` is the
        source's own file, when it has one: then it is linked instead of copied.

        Raises:
            ConfigError: The bytes have another digest or size.
            ToolError: The disk is full or not writable.
        """
        final = self.path(digest)
        if final.is_file() and final.stat().st_size == size:
            return final
        with self._fresh() as (fresh, out):
            with source() as stream:
                found, length = digest_of_stream(stream, None if path else out)
            if (found, length) != (digest, size):
                raise ConfigError(
                    f"blob {digest} ({size} bytes) is really {found} ({length} bytes)"
                )
            out.flush()
            if path:
                fresh.unlink()
                link_or_copy(path, fresh)
            fresh.replace(final)
        return final

    # --- keys -------------------------------------------------------------------------------

    def _entry(self, key: Digest, compressor: str) -> Path:
        name = f"{key.removeprefix('sha256:')}.{compressor.replace('/', '-')}.json"
        return self.root / "keys" / name

    def recall(self, key: Digest, compressor: str) -> Blob | None:
        """Return the blob that this key made with this compressor, if it is still here whole."""
        try:
            blob = Blob(**json.loads(self._entry(key, compressor).read_bytes()))
            whole = self.path(blob.digest).stat().st_size == blob.size
        except (OSError, ValueError, TypeError):
            return None
        return blob if whole else None

    def remember(self, key: Digest, compressor: str, blob: Blob) -> None:
        """Note which blob a key made."""
        entry = self._entry(key, compressor)
        with disk_trouble(entry):
            entry.parent.mkdir(parents=True, exist_ok=True)
            write_whole(entry, json.dumps(asdict(blob), sort_keys=True))
