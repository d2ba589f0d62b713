"""What a release's wheel holds: upstream's source, compiled extensions, and its requirements.

Source goes into git. Compiled extensions and the generated `_version.py` do not: they differ
between the wheels of one release (Python tag, build machine), the source does not.
"""

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.upstream.requirements import from_metadata

PACKAGE = "sglang"
"""The import package whose tree we take; a fork's release may differ in name, not in this."""

GENERATED = f"{PACKAGE}/_version.py"
COMPILED = (".so", ".pyd", ".dylib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of a wheel: `name` is its path in the wheel, `size` in bytes, `sha256` bare hex."""

    name: str
    size: int
    sha256: str


def sources(wheel: Path) -> tuple[tuple[str, bytes], ...]:
    """Return upstream's source files with their bytes, by path in the wheel, sorted.

    Everything is read and checked (names, CRC) before the caller gets the first one.

    Raises:
        ToolError: The wheel is truncated or corrupt.
        ConfigError: A name would leave the tree, or there is no source in it.
    """
    with _opened(wheel) as archive:
        found = {
            entry.filename: archive.read(entry)
            for entry in _files(archive, wheel)
            if entry.filename != GENERATED and not entry.filename.endswith(COMPILED)
        }
    if not found:
        raise ConfigError(f"{wheel.name}: holds no {PACKAGE}/ tree, is it the right package?")
    return tuple(sorted(found.items()))


def extensions(wheel: Path) -> tuple[Member, ...]:
    """Return the compiled extensions of a wheel, sorted by name.

    Raises:
        ToolError: The wheel is truncated or corrupt.
        ConfigError: A name would leave the tree.
    """
    with _opened(wheel) as archive:
        return tuple(
            _member(archive, entry)
            for entry in sorted(_files(archive, wheel), key=lambda entry: entry.filename)
            if entry.filename.endswith(COMPILED)
        )


def read_extension(wheel: Path, member: Member) -> bytes:
    """Return the bytes of a compiled extension, or of the generated `_version.py`.

    Raises:
        ToolError: The wheel is truncated or corrupt, or no longer holds this member.
    """
    with _opened(wheel) as archive:
        try:
            body = archive.read(member.name)
        except KeyError as e:
            raise ToolError(f"{wheel.name}: holds no {member.name}") from e
    if hashlib.sha256(body).hexdigest() != member.sha256:
        raise ToolError(f"{wheel.name}: {member.name} is not the file that was listed")
    return body


def generated(wheel: Path) -> Member | None:
    """Return the generated `_version.py` of a wheel; an image needs it, the tree lacks it.

    Raises:
        ToolError: The wheel is truncated or corrupt.
        ConfigError: A name would leave the tree.
    """
    with _opened(wheel) as archive:
        for entry in _files(archive, wheel):
            if entry.filename == GENERATED:
                return _member(archive, entry)
    return None


def requires(wheel: Path) -> tuple[str, ...]:
    """Return what the wheel's own metadata requires.

    Raises:
        ToolError: The wheel is truncated or corrupt.
        ConfigError: The wheel has no metadata.
    """
    with _opened(wheel) as archive:
        for name in archive.namelist():
            folder, _, rest = name.partition("/")
            if rest == "METADATA" and folder.endswith(".dist-info"):
                return from_metadata(archive.read(name))
    raise ConfigError(f"{wheel.name}: has no METADATA, it is not a wheel")


def check(wheel: Path) -> None:
    """Read a whole wheel, so that a broken download is refused before it is kept.

    Raises:
        ToolError: The wheel is truncated or corrupt.
        ConfigError: A name would leave the tree.
    """
    with _opened(wheel) as archive:
        for _ in _files(archive, wheel):
            pass
        if bad := archive.testzip():
            raise zipfile.BadZipFile(f"bad CRC-32 for file {bad!r}")


def sha256(path: Path) -> str:
    """Return the sha256 of a file as bare hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as e:
        raise ToolError(
            f"{wheel.name}: the wheel is truncated or corrupt: {e}",
            hint="the same command again downloads it afresh",
        ) from e
    except OSError as e:
        raise ToolError(f"{wheel}: cannot read the wheel: {e.strerror or e}") from e


def _files(archive: zipfile.ZipFile, wheel: Path) -> Iterator[zipfile.ZipInfo]:
    """Yield the files of the package's tree; a bad name anywhere in the wheel refuses all of it."""
    seen = set()
    for entry in archive.infolist():
        name = entry.filename
        parts = name.removesuffix("/").split("/")
        if (
            name.startswith("/")
            or "\\" in name
            or ":" in parts[0]
            or not name.isprintable()
            or any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
        ):
            raise ConfigError(f"{wheel.name}: the name {name!r} would leave the tree")
        if name in seen:
            raise ConfigError(f"{wheel.name}: holds {name!r} twice")
        seen.add(name)
        if not entry.is_dir() and parts[0] == PACKAGE:
            yield entry


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    body = archive.read(entry)
    return Member(name=entry.filename, size=len(body), sha256=hashlib.sha256(body).hexdigest())
