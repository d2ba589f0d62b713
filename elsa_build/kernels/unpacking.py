"""A bundle on its way: one deterministic tar, and a bundle at another place that still hits.

Nothing in an archive is trusted. Its first member is the document; after that only the files that
it names are taken, each once, with the size and the digest that it gives. So a link, a `..`, a
swapped or a cut-off file ends the reading, and nothing is left behind.
"""

import gzip
import hashlib
import importlib
import io
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels import placing
from elsa_build.kernels.bundle import DOCUMENT, REBUILD, Bundle, Held, Manifest, parse, read, text
from elsa_build.kernels.fitting import misfits, require
from elsa_build.kernels.sealing import copy, staged, write

_PIECE = 1 << 20
_LARGEST_DOCUMENT = 256 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BROKEN = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


def unpack(
    bundle: Bundle,
    to: Path,
    *,
    prefix: str | None = None,
    target: str | None = None,
    toolchain: Mapping[str, Any] | None = None,
) -> Bundle:
    """Put a bundle at another place, so that its kernels are found there.

    Args:
        bundle: Where it is; every file is hashed on the way.
        to: The new folder; a bundle that is there is replaced.
        prefix: What a server will call that folder (a container sees another path than its host);
            None: the folder's own absolute path.
        target: The architecture there; None: not compared.
        toolchain: What is known of the toolchain there, by the fingerprint's names.

    Raises:
        StaleError: The kernels of a family are for another architecture or toolchain (exit 4).
        ConfigError: A file is not what the document says (exit 5).
        ToolError: The place cannot be written (exit 6).
    """
    manifest = bundle.manifest
    found = misfits(manifest, target=target, toolchain=toolchain)
    require(found, str(bundle.folder), manifest.recipe)
    place = prefix or str(to.absolute())
    # The originals are checked before anything is made of them.
    moved, bodies = placing.relocated(manifest, place, lambda path: sealed_body(bundle, path))
    with staged(to) as stage:
        for path, held in manifest.files.items():
            if path not in bodies and copy(bundle.folder / path, stage / path) != held:
                raise changed(bundle.folder / path)
        write({**bodies, DOCUMENT: text(moved)}, stage)
    return Bundle(folder=to, manifest=moved)


def sealed_body(bundle: Bundle, path: str) -> bytes:
    """Return the bytes of a file after comparing them with its digest.

    Raises:
        ConfigError: They are not what was sealed (exit 5).
    """
    body = (bundle.folder / path).read_bytes()
    if hashlib.sha256(body).hexdigest() != bundle.manifest.files[path].sha256:
        raise changed(bundle.folder / path)
    return body


def changed(path: Path) -> ConfigError:
    """Return the error for a file that is not what the document says."""
    return ConfigError(f"{path}: is not what was sealed: changed or damaged", hint=REBUILD)


# --- archives ---------------------------------------------------------------------------------


def archive(bundle: Bundle, out: Path) -> None:
    """Write a bundle as one file, `.tar`, `.tar.gz` or `.tar.zst`; equal bundles give equal bytes.

    Raises:
        ConfigError: Another ending, or zstd is not installed (exit 5).
        ToolError: The file cannot be written (exit 6).
    """
    fresh = out.with_name(f".{out.name}.new")
    try:
        with ExitStack() as held:
            raw = held.enter_context(fresh.open("wb"))
            held.callback(fresh.unlink, missing_ok=True)
            with _packer(raw, out) as stream:
                tar = tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)
                body = text(bundle.manifest)
                tar.addfile(_member(DOCUMENT, len(body)), io.BytesIO(body))
                for path, file in sorted(bundle.manifest.files.items()):
                    with (bundle.folder / path).open("rb") as source:
                        tar.addfile(_member(path, file.size), source)
                tar.close()
            raw.flush()
            fresh.replace(out)
    except OSError as e:
        raise ToolError(f"cannot write {out}: {e.strerror or e}") from e


def _member(path: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = size, 0o644, 0
    return member


@contextmanager
def _packer(raw: IO[bytes], out: Path) -> Iterator[IO[bytes]]:
    if out.name.endswith(".tar"):
        yield raw
    elif out.name.endswith((".tar.gz", ".tgz")):
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as packed:
            yield packed  # type: ignore[misc]
    elif out.name.endswith(".tar.zst"):
        with _zstd().ZstdCompressor(level=9).stream_writer(raw, closefd=False) as packed:
            yield packed
    else:
        raise ConfigError(f"{out}: an archive ends in .tar, .tar.gz or .tar.zst")


@contextmanager
def _plain(raw: IO[bytes]) -> Iterator[IO[bytes]]:
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP):
        with gzip.GzipFile(fileobj=raw) as stream:
            yield stream  # type: ignore[misc]
    elif magic == _ZSTD:
        with _zstd().ZstdDecompressor().stream_reader(raw, closefd=False) as stream:
            yield stream
    else:
        yield raw


def _zstd() -> Any:  # noqa: ANN401 - it has no types
    try:
        return importlib.import_module("zstandard")
    except ImportError as e:
        raise ConfigError("zstd is not installed", hint="pip install zstandard") from e


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """Open a bundle: a folder as it is, an archive in a temporary folder while the block runs.

    Raises:
        ConfigError: It is no bundle, cut short, or was changed (exit 5).
        ToolError: The temporary folder cannot take it (exit 6).
    """
    if path.is_dir():
        yield read(path)
        return
    with tempfile.TemporaryDirectory(prefix="elsa-build-kernels-") as name:
        _extract(path, Path(name))
        yield read(Path(name))


def _extract(path: Path, to: Path) -> None:
    try:
        raw = path.open("rb")
    except OSError as e:
        raise ConfigError(f"{path}: cannot read: {e.strerror}", hint=REBUILD) from e
    with raw, ExitStack() as held:
        try:
            stream = held.enter_context(_plain(raw))
            tar = held.enter_context(tarfile.open(fileobj=stream, mode="r|"))
            manifest = _first(tar, path)
            write({DOCUMENT: text(manifest)}, to)
            left = dict(manifest.files)
            while (member := tar.next()) is not None:
                _take(tar, member, left, to, path)
        except _BROKEN as e:
            raise ConfigError(f"{path}: a broken archive: {e}", hint=REBUILD) from e
        except OSError as e:
            raise ToolError(f"cannot unpack {path} into {to}: {e.strerror or e}") from e
    if left:
        raise ConfigError(f"{path}: cut short: {len(left)} files are missing", hint=REBUILD)


def _first(tar: tarfile.TarFile, path: Path) -> Manifest:
    member = tar.next()
    stream = tar.extractfile(member) if member and member.isreg() else None
    if member is None or stream is None or member.name != DOCUMENT:
        raise ConfigError(f"{path}: does not begin with {DOCUMENT}, so it is no bundle")
    if member.size > _LARGEST_DOCUMENT:
        raise ConfigError(f"{path}: {DOCUMENT}: {member.size:,} bytes is no document of ours")
    return parse(stream.read(), f"{path}: {DOCUMENT}")


def _take(
    tar: tarfile.TarFile, member: tarfile.TarInfo, left: dict[str, Held], to: Path, path: Path
) -> None:
    """Write one member that the document names; it is then no longer among those that are left."""
    wanted = left.pop(member.name, None)
    stream = tar.extractfile(member) if member.isreg() else None
    if wanted is None or stream is None or member.size != wanted.size:
        raise ConfigError(f"{path}: {member.name!r}: its document names no such file")
    target = to / member.name
    target.parent.mkdir(parents=True, exist_ok=True)
    hasher = hashlib.sha256()
    with target.open("xb") as out:
        while piece := stream.read(_PIECE):
            hasher.update(piece)
            out.write(piece)
    os.chmod(target, 0o644)  # noqa: PTH101 - as the umask may not
    if hasher.hexdigest() != wanted.sha256:
        raise changed(path / member.name)
