"""One release of Triton for two Pythons: whether kernels of the one may be keyed for the other.

Triton's keys hold a digest of `libtriton.so`, which is compiled for one Python. All that decides a
cubin (its Python files, its ptxas) is the same file in both wheels; the wheels' own lists prove it.
"""

import base64
import csv
import json
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError

LIBTRITON = "triton/_C/libtriton.so"
_FOR_ONE_PYTHON = re.compile(
    r"triton/(_C|plugins|instrumentation)/[^/]*\.so(\.|$)|[^/]*\.dist-info/"
)
"""Compiled against one Python, or about the wheel itself."""

Record = Mapping[str, str]
"""A wheel's files and their sha256, hex."""


def record(wheel: Path) -> Record:
    """Return the list of files that a wheel carries.

    Raises:
        ToolError: It is no wheel, or is cut short (exit 6).
    """
    try:
        with zipfile.ZipFile(wheel) as file:
            name = next(n for n in file.namelist() if n.endswith(".dist-info/RECORD"))
            rows = csv.reader(file.read(name).decode().splitlines())
            return {path: _hex(digest) for path, digest, _ in rows if digest}
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile, zlib.error) as e:
        raise ToolError(f"{wheel}: cannot be read as a wheel: {e}") from e


def keep(found: Record, path: Path) -> None:
    """Keep a wheel's list, so that the wheel is downloaded once."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(found, indent=0, sort_keys=True), encoding="utf-8")
    beside.rename(path)


def kept(path: Path) -> Record:
    """Return a list that was kept.

    Raises:
        ToolError: It is damaged (exit 6).
    """
    try:
        found: Record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ToolError(f"{path}: cannot be read: {e}", hint=f"rm {path}") from e
    return found


def installed(files: Mapping[str, str]) -> Record:
    """Return the list of an installed package, digests as RECORD writes them."""
    return {path: _hex(digest) for path, digest in files.items()}


def _hex(digest: str) -> str:
    """Return a digest of RECORD (`sha256=`, base64 without padding) as hex."""
    _, _, value = digest.partition("=")
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()


def libtriton_for(ours: Record, theirs: Record) -> str:
    """Return the digest of `libtriton.so` to key for another Python's wheel.

    `ours` may be the list of the installed package, which names more files than its wheel.

    Raises:
        ConfigError: The wheels differ in what decides a cubin, so they are no one compiler.
    """
    paths = {path for path in theirs if not _FOR_ONE_PYTHON.search(path)}
    different = sorted(path for path in paths if ours.get(path) != theirs.get(path))
    if different or LIBTRITON not in theirs:
        raise ConfigError(
            f"the two wheels of Triton differ in {', '.join(different) or LIBTRITON},"
            " so kernels of the one cannot be keyed for the other",
            hint="elsa-build kernels build --python PATH   (the image's own Python)",
        )
    return theirs[LIBTRITON]
