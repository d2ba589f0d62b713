"""Reads which GPU code some places hold, before any question of which card is asked.

One entry a library, and one for all single cubins of a family: Triton writes a file a kernel, and
one of them alone says nothing of what is missing.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from elsa_build.errors import ConfigError
from elsa_build.kernels.fatbin import Code, GpuCode, read
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.members import Member
from elsa_build.progress import Advance

_SOURCES = "c cc cpp cu cuh h hpp inl json md pxd py pyc pyi rst txt typed yaml"
TEXT = tuple(f".{kind}" for kind in _SOURCES.split())
"""Files that nothing loads as GPU code: nine of ten, and each opening waits for a cold disk."""

Container = tuple[Code, ...]
"""The entries of one fat binary; at run time the driver takes one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One file with GPU code, or all single cubins of a family together (`files` of them).

    `family` is who looks it up: a `Family` of ours, else the Python package; `size` is in bytes.
    `unlinked` is only weight (`elsa_build.kernels.fatbin.GpuCode`).
    """

    name: str
    path: str
    family: str
    size: int
    containers: tuple[Container, ...]
    unlinked: tuple[Container, ...] = ()
    problems: tuple[str, ...] = ()
    files: int = 1
    cubins: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A file that could not be looked at, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What some places hold; `files` and `size` count everything that was looked at."""

    libraries: tuple[Library, ...]
    unread: tuple[Unread, ...]
    files: int
    size: int


def census(members: Iterable[Member], advance: Advance = lambda _: None) -> Census:
    """Read the headers of every file that holds GPU code.

    Args:
        members: The files.
        advance: Told of each file.

    Raises:
        ConfigError: A source as a whole is broken; a broken file in it is noted instead.
    """
    found, unread, files, size = list[Library](), list[Unread](), 0, 0
    for member in members:
        files += 1
        size += member.size
        advance(1)
        if member.name.endswith(TEXT):
            continue
        try:
            with member.open() as file:
                code = read(file)
        except (OSError, ConfigError) as e:
            why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
            unread.append(Unread(name=member.name, why=why))
            code = None
        if code:
            found.append(_library(member, code))
    return Census(libraries=_gather(found), unread=tuple(unread), files=files, size=size)


def _library(member: Member, code: GpuCode) -> Library:
    return Library(
        name=member.name,
        path=member.path,
        family=family_of(member.path),
        size=member.size,
        containers=code.containers,
        unlinked=code.unlinked,
        problems=code.problems,
        cubins=code.cubin,
    )


def _gather(found: Sequence[Library]) -> tuple[Library, ...]:
    """Put the single cubins of a family together: one alone says nothing of what is missing."""
    libraries = [one for one in found if not one.cubins]
    cubins = sorted((one for one in found if one.cubins), key=lambda one: one.family)
    for family, group in groupby(cubins, key=lambda one: one.family):
        parts = list(group)
        libraries.append(
            Library(
                name=f"{family}/*.cubin",
                path=f"{family}/*.cubin",
                family=family,
                size=sum(one.size for one in parts),
                containers=tuple(c for one in parts for c in one.containers),
                problems=tuple(f"{one.name}: {text}" for one in parts for text in one.problems),
                files=len(parts),
                cubins=True,
            )
        )
    return tuple(sorted(libraries, key=lambda one: (one.family, one.name)))


_PLACES = (
    (
        re.compile(r"(^|/)(flashinfer_aot|flashinfer/data/aot|\.cache/flashinfer)/"),
        Family.FLASHINFER,
    ),
    (re.compile(r"(^|/)jit/sm\d+[af]?/"), Family.SGLANG_JIT),
    (re.compile(r"(^|/)(triton|\.triton/cache)/[A-Z2-7]{20,}/[^/]+$"), Family.TRITON),
)
_PACKAGE = re.compile(
    r"(?:^|.*/)(?:site-packages|dist-packages|[^/]+\.data/(?:purelib|platlib))/(.+)"
)


def family_of(path: str) -> str:
    """Return who looks a file up: a family of ours by its cache folder, else the package.

    Example: `usr/lib/python3/dist-packages/nvidia/cudnn/lib/x.so` is of `nvidia/cudnn`.
    """
    for pattern, family in _PLACES:
        if pattern.search(path):
            return str(family)
    installed = _PACKAGE.fullmatch(path)
    if installed is None and path.startswith("/"):
        return PurePosixPath(path).parent.name or "/"
    first, *rest = (installed[1] if installed else path).split("/")
    if not rest:
        return first.partition(".")[0]
    return f"{first}/{rest[0]}" if first == "nvidia" and len(rest) > 1 else first
