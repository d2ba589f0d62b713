"""Looks into a base for the SGLang that it holds: where it lives, and whether it is the pinned one.

A patch that lands beside the package that runs does nothing, silently; a patch on another tree than
the one it was replayed on is untested. So the place is found, not assumed, and every file's git id
is compared with the pin's tree before a delta goes on top.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from elsa_build.errors import ConfigError, FailedError
from elsa_build.images.notes import Fields, Notebook
from elsa_build.images.oci.archive import read_archive
from elsa_build.images.oci.layer import Folder
from elsa_build.images.oci.layout import read_layout
from elsa_build.images.oci.stored import FolderSource, StoredImage
from elsa_build.images.survey import PACKAGE, Survey, choose, python_of
from elsa_build.model import Oid
from elsa_build.progress import SILENT, Progress

SHOWN = 20
"""How many differing files an error names; it always says how many there are."""

_GENERATED = re.compile(r"sglang/_version\.py|.*\.(so|pyd|pyc)|(.*/)?__pycache__/.*")
"""What an installation makes and no source tree holds: compiled files, the version stamp."""

OURS = "opt/elsa"
"""Where every image of ours keeps the proof of what it is, and its caches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """The package as it is pinned: its git tree, and its files when they are needed.

    `files` returns path relative to the package's folder (`sglang/...`) to git id.
    """

    tree: Oid
    files: Callable[[], Mapping[str, Oid]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFindings:
    """What a base holds.

    `package_dir` is absolute; `python` is None where no path tells; the file lists are relative to
    `package_dir` (`sglang/...`), sorted. `paths` are all the package's files there, generated and
    compiled ones too: what a delta may have to hide. `folders` are those that a delta may write
    into and that are not 755 and root's, by path from the image's root.
    """

    package_dir: str
    python: str | None
    editable: bool
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    paths: frozenset[str] = frozenset()
    folders: Mapping[str, Folder] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Say whether the base's tree is the pinned one."""
        return not (self.changed or self.missing or self.extra)


def open_base(path: Path) -> StoredImage:
    """Return the only image of an OCI layout folder, or of an archive of any kind.

    Raises:
        ConfigError: It is neither, a blob is missing or cut short, it holds several images, or the
            image is not for linux/amd64 (exit 5).
    """
    if path.is_dir():
        image = read_layout(FolderSource(path))
    elif path.is_file():
        image = read_archive(path)
    else:
        raise ConfigError(f"base {path}: no such file or folder")
    if image.platform != "linux/amd64":
        raise ConfigError(f"base {path} is for {image.platform}, not linux/amd64")
    return image


def inspect(
    image: StoredImage,
    tree: Mapping[str, Oid],
    *,
    package_dir: str | None = None,
    progress: Progress = SILENT,
) -> BaseFindings:
    """Find SGLang in a base and compare it with a tree.

    Args:
        image: The base; its layers are read as streams, once each, the top one first.
        tree: The pinned package: path relative to the package's folder (`sglang/...`) to git id.
        package_dir: Where the package must be; None finds it.
        progress: Told of every layer.

    Returns:
        The place and the differences, which are not an error here; see `check`.

    Raises:
        ConfigError: No SGLang is there, not where the recipe says, or in several places; a link
            stands where our own folder must be; or a layer is broken (exit 5).
    """
    survey = Survey()
    for number, layer in enumerate(reversed(image.layers), 1):
        with progress.task(f"look into layer {number} of {len(image.layers)} of the base"):
            survey.read(image, layer)
    for folder in (*_parents(OURS), OURS):
        if folder in survey.links:
            raise ConfigError(f"the base has a link at /{folder}, where our folder must be")
    where = choose(survey, package_dir)
    prefix = f"{where.lstrip('/')}/" if where != "/" else ""
    inside = {
        path.removeprefix(prefix): oid
        for path, oid in survey.files.items()
        if path.startswith(f"{prefix}{PACKAGE}/")
    }
    found = {path: oid for path, oid in inside.items() if not _GENERATED.fullmatch(path)}
    wanted = {path: oid for path, oid in tree.items() if not _GENERATED.fullmatch(path)}
    return BaseFindings(
        package_dir=where,
        python=python_of(where, survey),
        editable=where in survey.editable,
        changed=tuple(sorted(p for p in found.keys() & wanted.keys() if found[p] != wanted[p])),
        missing=tuple(sorted(wanted.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - wanted.keys())),
        paths=frozenset(inside),
        folders={
            path: folder
            for path, folder in sorted(survey.unusual().items())
            if _written_into(path, where.strip("/"))
        },
    )


def look(
    identity: str,
    opened: Callable[[], AbstractContextManager[StoredImage]],
    pinned: Pinned,
    *,
    package_dir: str | None,
    cache: Path,
    progress: Progress = SILENT,
) -> BaseFindings:
    """Return what a base holds; the second look at the same base is a note in the cache.

    Args:
        identity: The digest that decides the base's content.
        opened: Opens the base, when it has to be read.
        pinned: The package that must be there.
        package_dir: Where the package must be; None finds it.
        cache: The folder of the blob store.
        progress: Told of every layer.

    Raises:
        ConfigError: As `inspect` (exit 5).
    """

    def find() -> BaseFindings:
        with opened() as image:
            return inspect(image, pinned.files(), package_dir=package_dir, progress=progress)

    key = {"image": identity, "package_dir": package_dir, "tree": pinned.tree}
    return _LOOKS.look_up(cache, key, find)


def check(findings: BaseFindings, *, base: str, commit: str, python: str) -> None:
    """Refuse a base that is not what the series was replayed on.

    Raises:
        FailedError: Files differ (the first 20 named, all counted), or the base's Python is
            another one than the recipe's (exit 7).
    """
    if findings.python and findings.python != python:
        raise FailedError(f"base {base} has Python {findings.python}, the recipe says {python}")
    if findings.equal:
        return
    lines = [
        *(f"  changed  {path}" for path in findings.changed),
        *(f"  missing  {path}" for path in findings.missing),
        *(f"  extra    {path}" for path in findings.extra),
    ]
    more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    raise FailedError(
        f"base {base}: {findings.package_dir}/{PACKAGE} is not the pinned tree of {commit}: "
        f"{len(lines)} files differ ({len(findings.changed)} changed, {len(findings.missing)} "
        f"missing, {len(findings.extra)} extra)\n" + "\n".join([*lines[:SHOWN], *more]),
        hint="pin the release that the base holds: elsa-build pin set REF",
    )


def _parents(path: str) -> Iterator[str]:
    """Yield every folder above a path, the root left out."""
    while path := path.rpartition("/")[0]:
        yield path


def _written_into(folder: str, where: str) -> bool:
    """Say whether a layer of ours may write into a folder of the base, or below it."""
    package = f"{where}/{PACKAGE}".lstrip("/")
    return any(
        f"{root}/".startswith(f"{folder}/") or f"{folder}/".startswith(f"{root}/")
        for root in (package, OURS)
    )


# --- notes ------------------------------------------------------------------------------------


def _plain(found: BaseFindings) -> Fields:
    return {
        "package_dir": found.package_dir,
        "python": found.python,
        "editable": found.editable,
        "changed": found.changed,
        "missing": found.missing,
        "extra": found.extra,
        "paths": sorted(found.paths),
        "folders": {path: [f.mode, f.uid, f.gid] for path, f in found.folders.items()},
    }


def _findings(fields: Fields) -> BaseFindings:
    return BaseFindings(
        package_dir=fields["package_dir"],
        python=fields["python"],
        editable=fields["editable"],
        changed=tuple(fields["changed"]),
        missing=tuple(fields["missing"]),
        extra=tuple(fields["extra"]),
        paths=frozenset(fields["paths"]),
        folders={
            path: Folder(mode=mode, uid=uid, gid=gid)
            for path, (mode, uid, gid) in fields["folders"].items()
        },
    )


_LOOKS = Notebook(subject="base", edition=1, dump=_plain, load=_findings)
