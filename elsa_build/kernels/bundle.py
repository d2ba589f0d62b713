"""The compiled kernels of one recipe as a value and as `bundle.json`: what, for what, and why.

A bundle is a folder: the cache trees as each family's run time looks them up, and the document that
names every file with its digest. The document is all that is trusted, so it is read strictly; its
seal shows an edit, and its digests show every other change.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.kernels.jobs import Family

VERSION = 2
DOCUMENT = "bundle.json"
PREFIX = "/opt/elsa/cache"
"""Where an image has the caches, and so the place that a bundle is sealed for."""
REBUILD = "elsa-build kernels build"

_GROUP = re.compile(r"triton/[^/]+/__grp__[^/]+")
_METADATA = re.compile(r"triton/[^/]+/(?!__grp__)[^/]+(?<!\.autotune)\.json")
_LARGEST = 256 << 20
"""A document of more bytes than this is none of ours (1,000 kernels take some 3 MB)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel or module, compiled.

    `id` is the plan's name of it, `key` what its run time looks it up by, `files` are its own, by
    path in the bundle. `arch` is what its machine code is for (`sm_120a`), read from the code
    itself, and `size` that of its files in bytes. `shared` is shared memory in bytes, where the
    family says. `cpu_s` is the plan's estimate: a measured one would make each bundle another.
    `parts` are the fields of the key, to explain a miss; `sources` the git ids of the files whose
    text is in it, by path from the folder that holds `sglang/`.
    """

    family: Family
    id: str
    name: str
    key: str
    files: tuple[str, ...]
    arch: str = ""
    size: int = 0
    phases: tuple[str, ...] = ()
    why: str = ""
    cpu_s: float = 0.0
    shared: int | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A planned kernel that the bundle does not have, and why."""

    family: Family
    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a file is: bare hex, and bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle says of itself.

    `tree` is the patched tree that it was built from, `prefix` the absolute folder at which a
    server will see it, `toolchain` the fingerprint of what compiled it. `harvested` are paths of
    files by family that no builder made: they were copied from a boot on the card. `files` is empty
    until the bundle is sealed; it has every file but the document, by path.
    """

    recipe: str
    target: str
    tree: str
    toolchain: Mapping[str, Any]
    kernels: tuple[Kernel, ...]
    missing: tuple[Missing, ...] = ()
    harvested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files: Mapping[str, Held] = field(default_factory=dict)
    prefix: str = PREFIX

    def of(self, family: Family) -> tuple[Kernel, ...]:
        """Return the kernels of one family."""
        return tuple(kernel for kernel in self.kernels if kernel.family is family)

    def counts(self) -> dict[str, int]:
        """Return how many kernels there are of each family that has any."""
        return {str(family): len(self.of(family)) for family in Family if self.of(family)}

    def harvests(self) -> dict[str, int]:
        """Return by family how many files were harvested from a boot."""
        return {family: len(paths) for family, paths in self.harvested.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle on disk."""

    folder: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """Return the digest of the document, and with it of everything; `sha256:` and hex."""
        return f"sha256:{hashlib.sha256(text(self.manifest)).hexdigest()}"

    @property
    def size(self) -> int:
        """Return the bytes of all files but the document."""
        return sum(held.size for held in self.manifest.files.values())


def is_group(path: str) -> bool:
    """Say whether Triton keeps absolute paths in this file of a bundle."""
    return _GROUP.fullmatch(path) is not None


def is_metadata(path: str) -> bool:
    """Say whether this file of a bundle is Triton's description of a kernel."""
    return _METADATA.fullmatch(path) is not None


# --- the document -----------------------------------------------------------------------------


def text(manifest: Manifest) -> bytes:
    """Return `bundle.json`: sorted, one field a line, sealed by the digest of the rest."""
    document = _document(manifest)
    return _json({**document, "seal": _seal(document)})


def _document(manifest: Manifest) -> dict[str, Any]:
    document = asdict(manifest) | {"version": VERSION}
    for kernel in document["kernels"]:
        kernel["bytes"] = kernel.pop("size")
    return document


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json(document)).hexdigest()


def parse(body: bytes, where: str) -> Manifest:
    """Return the manifest in the bytes of a document; `where` names it in messages.

    Raises:
        ConfigError: It is cut short, was edited, or names a path outside the bundle (exit 5).
    """
    if len(body) > _LARGEST:
        raise ConfigError(f"{where}: {len(body):,} bytes is no document of ours")
    try:
        document = json.loads(body)
        version, sealed = document["version"], document.pop("seal")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(f"{where}: not a bundle of elsa-build: {e!r}", hint=REBUILD) from e
    if version != VERSION:
        raise ConfigError(f"{where}: version: {version!r} is not {VERSION}", hint=REBUILD)
    if _seal(document) != sealed:
        raise ConfigError(f"{where}: was edited: its seal is that of another text", hint=REBUILD)
    try:
        manifest = _manifest(document)
        _check(manifest)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{where}: not a bundle of elsa-build: {e}", hint=REBUILD) from e
    return manifest


def _manifest(document: dict[str, Any]) -> Manifest:
    del document["version"]
    kernels = [
        Kernel(
            **one
            | {
                "family": Family(one["family"]),
                "size": one.pop("bytes"),
                "files": tuple(one["files"]),
                "phases": tuple(one["phases"]),
            }
        )
        for one in document.pop("kernels")
    ]
    missing = [
        Missing(**one | {"family": Family(one["family"])}) for one in document.pop("missing")
    ]
    files = {path: Held(**held) for path, held in document.pop("files").items()}
    harvested = {family: tuple(paths) for family, paths in document.pop("harvested").items()}
    return Manifest(
        **document,
        kernels=tuple(kernels),
        missing=tuple(missing),
        harvested=harvested,
        files=files,
    )


def _check(manifest: Manifest) -> None:
    """Raise ValueError for what `seal` never writes."""
    check_prefix(manifest.prefix)
    check_paths(manifest.files)
    for path, held in manifest.files.items():
        if not (re.fullmatch(r"[0-9a-f]{64}", held.sha256) and isinstance(held.size, int)):
            raise ValueError(f"files: {path}: no digest and size")
    owners = [(f"kernels: {kernel.name}", kernel.files) for kernel in manifest.kernels]
    owners += [(f"harvested: {family}", paths) for family, paths in manifest.harvested.items()]
    for owner, paths in owners:
        lost = [path for path in paths if path not in manifest.files]
        if lost:
            raise ValueError(f"{owner}: {lost[0]!r} is not among the files")


def check_prefix(prefix: str) -> None:
    """Raise ValueError unless this is an absolute folder without `..`."""
    parts = prefix.split("/")
    if len(parts) < 2 or parts[0] or any(part in ("", ".", "..") for part in parts[1:]):
        raise ValueError(f"prefix: {prefix!r} is not an absolute folder")


def check_paths(paths: Iterable[str]) -> None:
    """Raise ValueError for a path that leaves the bundle, or that is a folder of another one."""
    known = set(paths)
    for path in known:
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or not path.isprintable():
            raise ValueError(f"files: {path!r} is not a path inside a bundle")
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))} & known
        if above or path == DOCUMENT:
            raise ValueError(f"files: {path!r} clashes with another path")


def read(folder: Path) -> Bundle:
    """Return the bundle in a folder; its files are there with the sizes that it names.

    Nothing is hashed: `bundle_verify.verify` does that.

    Raises:
        ConfigError: It is no bundle, cut short, or was edited (exit 5).
    """
    path = folder / DOCUMENT
    try:
        body = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path}: cannot read: {e.strerror}", hint=REBUILD) from e
    manifest = parse(body, str(path))
    for name, held in manifest.files.items():
        file = folder / name
        if file.is_symlink() or not file.is_file():
            raise ConfigError(f"{file}: missing, or not a file", hint=REBUILD)
        size = file.stat().st_size
        if size != held.size:
            raise ConfigError(f"{file}: {size:,} bytes, sealed with {held.size:,}", hint=REBUILD)
    return Bundle(folder=folder, manifest=manifest)
