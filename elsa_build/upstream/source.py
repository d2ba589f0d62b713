"""One interface for the two places upstream's source comes from.

A blob has the same id in both, so a patch recorded against one applies on the other.
"""

from pathlib import Path
from typing import Protocol

from elsa_build.errors import ConfigError
from elsa_build.model import Pin, SourceKind
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream.git_source import GitSource
from elsa_build.upstream.lock import Lock
from elsa_build.upstream.pip import Target
from elsa_build.upstream.release_source import ReleaseSource

DEFAULT_URL = {
    SourceKind.GIT: "https://github.com/sgl-project/sglang.git",
    SourceKind.RELEASE: "sglang",
}


class Source(Protocol):
    """Where upstream's source comes from."""

    def resolve(self, ref: str) -> Pin:
        """Return what a name a person typed stands for now, fetching what that takes.

        Raises:
            ConfigError: There is no such name.
            ToolError: The network, an outside program or the disk failed.
        """

    def ensure(self, pin: Pin) -> Path:
        """Return a bare repository that holds the pin's commit, fetching it when needed.

        Raises:
            ConfigError: The source no longer has it, or has another tree.
            ToolError: The network, an outside program or the disk failed.
        """

    def update(self, pin: Pin) -> Pin:
        """Return the pin of the newest thing of the same sort: release, branch tip, release tag.

        Raises:
            ConfigError: The pin is a single commit, which has nothing newer.
            ToolError: The network, an outside program or the disk failed.
        """


def open_source(
    kind: SourceKind,
    url: str | None,
    *,
    cache: Path,
    progress: Progress = SILENT,
    branch: str = "main",
    target: Target | None = None,
) -> Source:
    """Return a source; nothing is fetched yet.

    Args:
        kind: A git repository, or the releases of a package.
        url: The address, local path or package name; None for SGLang's own.
        cache: The folder of `elsa_build.upstream.cache.cache_dir`.
        progress: Where long work announces itself.
        branch: For git, what `nightly` means.
        target: For a release, the Python and machine whose wheel is pinned.

    Raises:
        ConfigError: The address or the name cannot be one.
    """
    address = url or DEFAULT_URL[kind]
    if kind is SourceKind.GIT:
        return GitSource(url=address, cache=cache, branch=branch, progress=progress)
    return ReleaseSource(url=address, cache=cache, target=target or Target(), progress=progress)


def open_pinned(lock: Lock, *, cache: Path, progress: Progress = SILENT) -> Path:
    """Return the bare repository that holds the lock's commit, fetching it when needed.

    The repository is shared between projects and runs: add objects, never move its refs.

    Raises:
        ConfigError: The source no longer has the pin, or has another tree.
        ToolError: The network, an outside program or the disk failed.
    """
    return open_source(lock.pin.source, lock.pin.url, cache=cache, progress=progress).ensure(
        lock.pin
    )


def open_wheel(
    lock: Lock, *, python: str, cache: Path, progress: Progress = SILENT, machine: str = "x86_64"
) -> Path:
    """Return the pinned wheel for a Python such as `3.12`, its sha256 verified.

    Raises:
        ConfigError: The pin is no release, or has no wheel for this Python.
        ToolError: The network, pip or the disk failed, or the wheel has another sha256.
    """
    if lock.pin.source is not SourceKind.RELEASE:
        raise ConfigError(
            f"the lock pins {lock.pin.ref} of a git source, which has no wheel",
            hint="elsa-build pin set latest --source release",
        )
    source = ReleaseSource(
        url=lock.pin.url,
        cache=cache,
        target=Target(python=python, machine=machine),
        progress=progress,
    )
    return source.wheel(lock.pin)
