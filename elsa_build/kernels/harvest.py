"""Takes over what only a boot on the card can give: timings, tactics, and what inductor compiled.

A builder without the card cannot time a kernel, inductor's key has the card's name, and C for the
host needs the server's own Python and driver. So after a recording boot those files are copied from
the caches of the command, each with its size and digest. All of it is found by content: where it
does not fit, it is not found, and does no harm.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels.bundle import check_paths

LISTING = "harvest.json"
VERSION = 1
AUTOTUNE = "autotune"
"""The family of Triton's own files of timings. They are kept to be looked at: a bundle's are made
anew from the recording, since their keys hold the tree."""
FOR_THE_HOST = ("cuda_utils.", "__triton_launcher.")
"""How names of modules begin that Triton compiles into its cache with the C compiler: once a
machine, in 3.6 a launcher a signature as well. No GPU code is in them. Source: triton 3.6.0 and
3.8.0 backends/nvidia/driver.py."""

_DEFAULTS: Mapping[str, str] = {
    "TRITON_CACHE_DIR": "triton",
    "SGLANG_JIT_CACHE_DIR": "jit",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "nv",
    "FLASHINFER_WORKSPACE_BASE": "",
}
"""Below SGLANG_CACHE_DIR. Source: sglang v0.5.23 srt/environ.py, third_party_cache_defaults; its
own JIT has another default (sgl-project/sglang 35621)."""
_AGAIN = "elsa-build kernels record"


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvested:
    """One file: where it is below the harvest and below a bundle, whose it is, and bytes."""

    path: str
    family: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What was copied, sorted by path.

    `archs` are the cards of the Triton kernels that the boots looked up, as `sm_120`; `unread` says
    which files could not be copied, and why.
    """

    folder: Path
    files: tuple[Harvested, ...]
    archs: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


def caches(environ: Mapping[str, str], base: Path) -> dict[str, str]:
    """Return the variables that put every family's cache in a place that is known.

    What the environment says stays; the rest comes to lie below its SGLANG_CACHE_DIR, or `base`.
    """
    root = environ.get("SGLANG_CACHE_DIR") or str(base)
    defaults = {name: str(Path(root) / folder) for name, folder in _DEFAULTS.items()}
    found = {"SGLANG_CACHE_DIR": root, "TRITON_CACHE_AUTOTUNING": "1", **defaults}
    return {name: environ.get(name) or value for name, value in found.items()}


def sources(
    variables: Mapping[str, str], unplanned: Iterable[str] = ()
) -> Iterator[tuple[str, Path, str]]:
    """Yield family, folder and pattern of what is worth keeping, by `caches`' variables.

    `unplanned` are folders of Triton's cache whose kernels no plan can have.
    """
    triton = Path(variables["TRITON_CACHE_DIR"])
    yield AUTOTUNE, triton, "*/*.autotune.json"
    for name in FOR_THE_HOST:
        yield "host", triton, f"*/{name}*.so"
    for name in sorted(unplanned):
        yield "triton", triton, f"{name}/*"
    yield "inductor", Path(variables["TORCHINDUCTOR_CACHE_DIR"]), "**/*"
    yield "flashinfer-tactics", Path(variables["SGLANG_CACHE_DIR"], "flashinfer"), "autotune/**/*"


_PLACES = {"inductor": "inductor", "flashinfer-tactics": "flashinfer"}
"""Folders of a harvest, and of a bundle; what is not named here is Triton's."""


def harvest(
    variables: Mapping[str, str],
    to: Path,
    *,
    unplanned: Iterable[str] = (),
    seen: Iterable[str] = (),
) -> Harvest:
    """Copy what is worth keeping into a folder, which is replaced, and list it in `harvest.json`.

    A file that cannot be read (of another user, gone meanwhile) is named and passed over.

    Args:
        variables: Those of `caches`, as the boots had them.
        to: The folder.
        unplanned: Folders of Triton's cache whose kernels no plan can have.
        seen: Folders of Triton's cache of which anything was looked up: they tell the card.

    Raises:
        ToolError: The folder cannot be written (exit 6).
    """
    fresh = to.with_name(f".{to.name}.{os.getpid()}")
    found: dict[str, Harvested] = {}
    unread: dict[str, str] = {}
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for family, folder, pattern in sources(variables, unplanned):
            for path in _files(folder, pattern, unread):
                name = f"{_PLACES.get(family, 'triton')}/{path.relative_to(folder)}"
                try:
                    body = path.read_bytes()
                except OSError as e:
                    unread[str(path)] = e.strerror or str(e)
                    continue
                found[name] = _kept(fresh / name, name, family, body)
        done = Harvest(
            folder=to,
            files=tuple(found[name] for name in sorted(found)),
            archs=_archs(Path(variables["TRITON_CACHE_DIR"]), seen),
            unread=unread,
        )
        (fresh / LISTING).write_text(_text(done), encoding="utf-8")
        shutil.rmtree(to, ignore_errors=True)
        fresh.rename(to)
    except OSError as e:
        raise ToolError(f"{e.filename}: cannot be written: {e.strerror}") from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


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


def _archs(cache: Path, folders: Iterable[str]) -> tuple[str, ...]:
    """Return which cards the kernels in these folders are for, by Triton's facts beside them."""
    found = set()
    for name in folders:
        for path in (cache / name).glob("*.json"):
            try:
                found.add(f"sm_{int(json.loads(path.read_bytes())['target']['arch'])}")
            except (OSError, ValueError, KeyError, TypeError):
                continue  # a group file, or gone meanwhile
    return tuple(sorted(found))


def _text(done: Harvest) -> str:
    listed: dict[str, Any] = {
        "version": VERSION,
        "archs": done.archs,
        "files": [asdict(one) for one in done.files],
    }
    return json.dumps(listed, indent=1, sort_keys=True) + "\n"


# --- into a bundle ----------------------------------------------------------------------------


def read(folder: Path) -> Harvest | None:
    """Return what was harvested into a folder, every file compared with its digest; or None.

    Raises:
        ConfigError: The listing is damaged, or a file is not what was harvested (exit 5).
    """
    path = folder / LISTING
    try:
        listed = json.loads(path.read_bytes())
        files = tuple(Harvested(**one) for one in listed["files"])
        check_paths([one.path for one in files])
        version, archs = listed["version"], tuple(listed["archs"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{path}: not a harvest: {e!r}", hint=_AGAIN) from e
    if version != VERSION:
        raise ConfigError(f"{path}: version: {version!r} is not {VERSION}", hint=_AGAIN)
    found = Harvest(folder=folder, files=files, archs=archs)
    for one in found.files:
        file = folder / one.path
        try:
            same = hashlib.sha256(file.read_bytes()).hexdigest() == one.sha256
        except OSError as e:
            raise ConfigError(f"{file}: cannot be read: {e.strerror}", hint=_AGAIN) from e
        if not same:
            raise ConfigError(f"{file}: is not what was harvested", hint=_AGAIN)
    return found


def for_bundle(found: Harvest, made: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return by family the paths that a bundle takes: none that its builders `made`."""
    taken: dict[str, list[str]] = {}
    for one in found.files:
        if one.family != AUTOTUNE and one.path not in made:
            taken.setdefault(one.family, []).append(one.path)
    return {family: tuple(paths) for family, paths in sorted(taken.items())}
