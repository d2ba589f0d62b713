"""Takes over what only a boot on the card can give: timings, tactics, and what inductor compiled.

A builder without the card cannot time a kernel, and inductor's key has the card's name. So after a
recording boot those files are copied from the caches of the command, each with its size and digest.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from elsa_build.errors import ToolError

LISTING = "harvest.json"

_DEFAULTS: Mapping[str, str] = {
    "TRITON_CACHE_DIR": "triton",
    "SGLANG_JIT_CACHE_DIR": "jit",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "nv",
    "FLASHINFER_WORKSPACE_BASE": "",
}
"""Below SGLANG_CACHE_DIR. Source: sglang v0.5.23 srt/environ.py, third_party_cache_defaults; its
own JIT has another default (sgl-project/sglang 35621)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvested:
    """One file: where it is below the harvest, whose it is, and how large (bytes)."""

    path: str
    family: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What was copied, sorted by path; `unread` says which files could not be, and why."""

    files: tuple[Harvested, ...]
    unread: Mapping[str, str]


def caches(environ: Mapping[str, str], base: Path) -> dict[str, str]:
    """Return the variables that put every family's cache in a place that is known.

    What the environment says stays; the rest comes to lie below its SGLANG_CACHE_DIR, or `base`.
    """
    root = environ.get("SGLANG_CACHE_DIR") or str(base)
    defaults = {name: str(Path(root) / folder) for name, folder in _DEFAULTS.items()}
    found = {"SGLANG_CACHE_DIR": root, "TRITON_CACHE_AUTOTUNING": "1", **defaults}
    return {name: environ.get(name) or value for name, value in found.items()}


def sources(variables: Mapping[str, str]) -> Iterator[tuple[str, Path, str]]:
    """Yield family, folder and pattern of what is worth keeping, by `caches`' variables."""
    yield "autotune", Path(variables["TRITON_CACHE_DIR"]), "*/*.autotune.json"
    yield "inductor", Path(variables["TORCHINDUCTOR_CACHE_DIR"]), "**/*"
    yield "flashinfer-tactics", Path(variables["SGLANG_CACHE_DIR"], "flashinfer"), "autotune/**/*"


_PLACES = {"autotune": "triton", "inductor": "inductor", "flashinfer-tactics": "flashinfer"}


def harvest(variables: Mapping[str, str], to: Path) -> Harvest:
    """Copy what is worth keeping into a folder, which is replaced, and list it in `harvest.json`.

    A file that cannot be read (of another user, gone meanwhile) is named and passed over.

    Raises:
        ToolError: The folder cannot be written (exit 6).
    """
    fresh = to.with_name(f".{to.name}.{os.getpid()}")
    found: list[Harvested] = []
    unread: dict[str, str] = {}
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for family, folder, pattern in sources(variables):
            for path in _files(folder, pattern, unread):
                name = f"{_PLACES[family]}/{path.relative_to(folder)}"
                try:
                    body = path.read_bytes()
                except OSError as e:
                    unread[str(path)] = e.strerror or str(e)
                    continue
                found.append(_kept(fresh / name, name, family, body))
        listed = sorted(found, key=lambda one: one.path)
        text = json.dumps([asdict(one) for one in listed], indent=1, sort_keys=True)
        (fresh / LISTING).write_text(text + "\n", encoding="utf-8")
        shutil.rmtree(to, ignore_errors=True)
        fresh.rename(to)
    except OSError as e:
        raise ToolError(f"{e.filename}: cannot be written: {e.strerror}") from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Harvest(files=tuple(listed), unread=unread)


def _files(folder: Path, pattern: str, unread: dict[str, str]) -> list[Path]:
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        unread[str(folder)] = "Permission denied"
        return []
    return [path for path in sorted(folder.glob(pattern)) if path.is_file()]


def _kept(path: Path, name: str, family: str, body: bytes) -> Harvested:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    digest = hashlib.sha256(body).hexdigest()
    return Harvested(path=name, family=family, size=len(body), sha256=digest)
