"""Compiled Python beside the sources: a patched file must never meet the old file's bytecode.

Python trusts an unchecked `.pyc` without a look at the source, and a `.pyc` in the place of a
deleted module still imports; so every layer that changes a source hides what was compiled from it.

Shipping bytecode of our own is off unless a recipe asks for it. It can only be made by the Python
that will run it, and an image must not depend on which Python ran elsa-build: with no `.pyc` the
bytes are equal on every machine, and the first import writes them where the folder is writable.
"""

import importlib.util
import marshal
import sys
from collections.abc import Collection, Iterable

from elsa_build.errors import ConfigError

CACHE_FOLDER = "__pycache__"
_UNCHECKED_HASH = 0b01
"""PEP 552: hash-based, the source is not looked at; so the bytes do not depend on an mtime."""


def stale_pyc(lower: Iterable[str], changed: Collection[str]) -> tuple[str, ...]:
    """Return the compiled files that a change of their source leaves behind, sorted.

    Args:
        lower: Every path of the layers below.
        changed: The paths of sources that are changed or deleted.

    Returns:
        `__pycache__/X.<any tag>.pyc` for every changed `X.py`, and a bare `X.pyc` beside it.
    """
    modules = {path.removesuffix(".py") for path in changed if path.endswith(".py")}
    return tuple(sorted(path for path in lower if module_of(path) in modules))


def module_of(path: str) -> str | None:
    """Return the path of the source, without `.py`, that a `.pyc` was made from; else None."""
    if not path.endswith(".pyc"):
        return None
    folder, _, name = path.rpartition("/")
    if folder.rpartition("/")[2] == CACHE_FOLDER:
        folder = folder.rpartition("/")[0]
        return f"{folder}/{name.partition('.')[0]}" if folder else name.partition(".")[0]
    return path.removesuffix(".pyc")


def pyc_path(path: str, python: str) -> str:
    """Return where one Python version (`3.12`) looks for the bytecode of a source."""
    folder, _, name = path.rpartition("/")
    tag = f"cpython-{python.replace('.', '')}"
    return f"{folder}/{CACHE_FOLDER}/{name.removesuffix('.py')}.{tag}.pyc".lstrip("/")


def runs_here(python: str) -> bool:
    """Say whether this process is that version of Python (`3.12`)."""
    return python == f"{sys.version_info.major}.{sys.version_info.minor}"


def compiled(path: str, source: bytes, python: str) -> tuple[str, bytes] | None:
    """Return the path and the bytes of a source's `.pyc`, or None when it does not compile.

    Args:
        path: Where the source will be, relative to the root of the image; it is in tracebacks.
        source: The source.
        python: The version that will run it (`3.12`).

    Raises:
        ConfigError: This process is another version of Python.
    """
    if not runs_here(python):
        raise ConfigError(
            f"bytecode of Python {python} cannot be made by {sys.version_info.major}."
            f"{sys.version_info.minor}",
            hint=f"run elsa-build with Python {python}, or leave bytecode out",
        )
    try:
        code = compile(source, f"/{path}", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError):
        return None  # upstream ships templates that end in .py; Python meets them never
    # Version 2 has no back references, whose number depends on what else this process has loaded.
    body = marshal.dumps(code, 2)
    header = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little")
    return pyc_path(path, python), header + importlib.util.source_hash(source) + body
