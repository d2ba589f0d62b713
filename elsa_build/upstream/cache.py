"""Where upstream's sources are kept between runs, and how two runs share that place.

A mirror is a bare repository a source, found by its address alone, so that every project of a
person shares it. Everything here can be deleted at any time; the next run makes it again.
"""

import fcntl
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elsa_build.errors import ConfigError, ElsaError, ToolError
from elsa_build.git.door import Git
from elsa_build.progress import Progress

VARIABLE = "ELSA_BUILD_CACHE"


def cache_dir(env: Mapping[str, str]) -> Path:
    """Return the cache folder: `ELSA_BUILD_CACHE`, else the platform's place for caches."""
    if chosen := env.get(VARIABLE):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path  # noqa: PLC0415 - not needed where the variable is set

    return user_cache_path("elsa-build", appauthor=False)


def mirror_path(cache: Path, address: str) -> Path:
    """Return where the mirror of an address lives: a readable name and a hash that decides."""
    tail = re.split(r"[/:]", address.rstrip("/"))[-1].removesuffix(".git")
    slug = re.sub(r"[^a-z0-9]+", "-", tail.lower()).strip("-")[:40] or "upstream"
    return cache / "upstream" / f"{slug}-{hashlib.sha256(address.encode()).hexdigest()[:12]}.git"


@contextmanager
def open_mirror(path: Path, progress: Progress) -> Iterator[Git]:
    """Open a mirror for one process at a time, made first where there is none.

    Raises:
        ToolError: The cache cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path.with_suffix(".lock"), progress), _git(path) as git:
            yield git
    except (OSError, subprocess.CalledProcessError) as e:
        reason = e.strerror if isinstance(e, OSError) else f"git init ended with {e.returncode}"
        raise ToolError(f"{path}: cannot use the cache: {reason}", hint=ELSEWHERE) from e


def _git(path: Path) -> Git:
    """Open a mirror; one that is absent, or whose making was interrupted, is made."""
    try:
        return Git(path)
    except ConfigError:
        return Git.init(path)


ELSEWHERE = f"{VARIABLE}=DIR elsa-build ... puts the cache on another disk"


@contextmanager
def hold(path: Path, progress: Progress) -> Iterator[None]:
    """Hold an advisory lock while the block runs; the system frees it when a process dies."""
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().decode("ascii", "replace").strip() or "unknown"
            with progress.task(f"waiting for process {owner}, which uses {path.stem} in the cache"):
                fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        yield


def disk_full(error: ElsaError, what: str) -> ElsaError:
    """Return an error with the way out when its text says that the disk is full, else itself."""
    if "No space left on device" in str(error):
        return ToolError(f"{what}: no space left on device", hint=ELSEWHERE)
    return error
