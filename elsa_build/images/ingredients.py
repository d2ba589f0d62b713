"""What an image is made of, resolved, as values: everything that planning and building look at."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elsa_build.diagnostics import Diagnostic
from elsa_build.errors import ConfigError
from elsa_build.git.objects import TREE, ObjectStore
from elsa_build.images.base import Pinned
from elsa_build.images.oci.layer import Folder, Member
from elsa_build.images.oci.layout import to_json
from elsa_build.images.oci.store import digest_of
from elsa_build.images.oci.stored import StoredImage
from elsa_build.images.survey import PACKAGE
from elsa_build.model import Digest, Oid, Pin, Recipe

OVERLAY_DIR = "/opt/elsa-overlay/python"
"""Where an overlay image keeps the folder that holds `sglang/`, when the recipe does not say.

Not below `OURS`, which a Dockerfile copies whole.
"""
LAYER_FORMAT = 1
"""Part of every key: raise it when the same inputs shall give other bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTrees:
    """Upstream's tree and the patched one; `prefix` is the folder that holds `sglang/` in both."""

    objects: ObjectStore
    upstream: Oid
    patched: Oid
    prefix: str = "python/"

    def package(self, tree: Oid) -> Oid:
        """Return the tree of the package itself.

        Raises:
            ConfigError: The source tree has no such folder.
        """
        entry = self.objects.find(tree, f"{self.prefix}{PACKAGE}")
        if entry is None or entry.mode != TREE:
            raise ConfigError(f"tree {tree} has no folder {self.prefix}{PACKAGE}")
        return entry.oid

    def pinned(self) -> Pinned:
        """Return upstream's package as a base must hold it."""
        package = self.package(self.upstream)
        return Pinned(
            tree=package,
            files=lambda: {
                f"{PACKAGE}/{path}": entry.oid for path, entry in self.objects.files(package)
            },
        )

    def outside(self) -> tuple[str, ...]:
        """Return the changed paths that are not in the package, so in no image: tests, docs."""
        inside = f"{self.prefix}{PACKAGE}/"
        changes = self.objects.changes(self.upstream, self.patched)
        return tuple(change.path for change in changes if not change.path.startswith(inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledFile:
    """One file of a wheel that no tree holds: `path` is below `sglang/`, `size` in bytes."""

    path: str
    size: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The compiled extensions of a release, which its tree leaves out.

    `wheel` is the file that has them, `wheel_sha256` bare hex; `read` returns the bytes of one of
    `files`, and is only called when the layer has to be made.
    """

    wheel: str
    wheel_sha256: str
    files: tuple[CompiledFile, ...]
    read: Callable[[CompiledFile], bytes]

    @property
    def digest(self) -> Digest:
        """Return what decides the content, whichever wheel it came in."""
        return digest_of(to_json({file.path: file.digest for file in self.files}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """An image that already holds SGLang at the pinned commit, and what it holds.

    `name` is what the recipe calls it, without the digest; `paths` are the base's files below the
    folder that holds `sglang/` (so `sglang/...`, compiled copies included); `folders` are those
    that a layer may write into and that are not 755 and root's, by path from the root.
    """

    name: str
    image: StoredImage
    paths: frozenset[str]
    folders: Mapping[str, Folder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedPatch:
    """One patch as the image has it: `sha256` of its file, `tree` after it, `paths` it touches.

    `sha256` is None for a cherry-pick that is kept as a reference; then `origin` is its identity.
    """

    id: str
    patchset: str
    kind: str
    outcome: str
    tree: Oid
    paths: tuple[str, ...]
    sha256: str | None = None
    origin: Oid | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLayer:
    """One layer to be: `inputs` decide the content, `members` makes it when the key is new.

    `folders` are those that it writes into and that the base keeps otherwise than 755 and root's.
    """

    name: str
    inputs: Mapping[str, Any]
    members: Callable[[], Iterable[Member]]
    folders: Mapping[str, Folder] = field(default_factory=dict)

    @property
    def key(self) -> Digest:
        """Return the digest of everything that decides the content."""
        return digest_of(to_json({"format": LAYER_FORMAT, "inputs": self.inputs}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that an image is made of, resolved; building looks at nothing else.

    `epoch` is the pin's date in seconds: the date of every file. `head` is the commit that the
    replay ended with. `lock` is `upstream.lock` as bytes. `recipe_digest` is of the recipe's file.
    `below` are a base's paths (as in `Base`) when a Dockerfile will put the layers on it: then the
    image is the delta alone. `package_dir` is where the look into the base found `sglang/`.
    `kernels` are the layers of compiled kernels, `kernels_summary` what provenance says of them,
    `findings` what a person should know of what was gathered. `bytecode` is the Python version to
    compile for, None for none (see `images.bytecode`). `cache` is the folder of the blob store.
    """

    pin: Pin
    recipe: Recipe
    recipe_digest: Digest
    trees: SourceTrees
    head: Oid
    series: tuple[AppliedPatch, ...]
    lock: bytes
    epoch: int
    base: Base | None = None
    below: frozenset[str] | None = None
    package_dir: str | None = None
    compiled: Compiled | None = None
    kernels: tuple[PlannedLayer, ...] = ()
    kernels_summary: Mapping[str, Any] | None = None
    findings: tuple[Diagnostic, ...] = ()
    bytecode: str | None = None
    platform: str = "linux/amd64"
    cache: Path

    @property
    def where(self) -> str:
        """Return the absolute folder in the image that holds `sglang/`."""
        return self.package_dir or self.recipe.package_dir or OVERLAY_DIR
