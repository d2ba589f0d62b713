"""The layers of an image and the key of each, before anything is written.

A key is the digest of everything that decides a layer's content, so that an unchanged key needs no
new layer and a changed one can say what changed. Bottom to top: the base as it is (or, without one,
upstream's tree at the pin), kernels, the patched files only, and on top the proof of all of it.
Editing a patch therefore moves the patched files and the proof, some kilobytes.

All source comes from git objects. No work tree is read, so no editor's backup file, mode or date of
one machine can reach an image.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.git.objects import EXECUTABLE, FILE, GITLINK, SYMLINK, TREE, Entry, ObjectStore
from elsa_build.images.bytecode import CACHE_FOLDER, compiled, module_of, pyc_path, stale_pyc
from elsa_build.images.oci.layer import File, Member, Symlink, Whiteout
from elsa_build.images.oci.layout import to_json
from elsa_build.images.oci.store import digest_of
from elsa_build.images.oci.stored import StoredImage
from elsa_build.model import Digest, Oid, Pin, Recipe

PACKAGE = "sglang"
OVERLAY_DIR = "/opt/elsa/overlay/python"
"""Where an overlay image keeps the folder that holds `sglang/`, when the recipe does not say."""
PATCHES = "patches"
PATCH_LAYERS = 32
"""Into how many layers the patched files may fall; docker takes 127 in all, a base some fifty."""
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

    def outside(self) -> tuple[str, ...]:
        """Return the changed paths that are not in the package, so in no image: tests, docs."""
        inside = f"{self.prefix}{PACKAGE}/"
        changes = self.objects.changes(self.upstream, self.patched)
        return tuple(change.path for change in changes if not change.path.startswith(inside))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The compiled extensions of a release, which its tree leaves out.

    `digest` decides the content (of the wheel that has them), `paths` are below `sglang/`;
    `read` is only called when the layer has to be made.
    """

    digest: Digest
    paths: tuple[str, ...]
    read: Callable[[], Iterable[tuple[str, bytes]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """An image that already holds SGLang at the pinned commit, and what it holds.

    `name` is what the recipe calls it, without the digest; `paths` are the base's files below the
    folder that holds `sglang/` (so `sglang/...`, compiled copies included).
    """

    name: str
    image: StoredImage
    paths: frozenset[str]


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
    """One layer to be: `inputs` decide the content, `members` makes it when the key is new."""

    name: str
    inputs: Mapping[str, Any]
    members: Callable[[], Iterable[Member]]

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
    `bytecode` is the Python version to compile for, None for none (see `images.bytecode`). `cache`
    is the folder of the blob store.
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
    bytecode: str | None = None
    platform: str = "linux/amd64"
    cache: Path

    @property
    def where(self) -> str:
        """Return the absolute folder in the image that holds `sglang/`."""
        return self.package_dir or self.recipe.package_dir or OVERLAY_DIR


def layers(prepared: Prepared) -> tuple[PlannedLayer, ...]:
    """Return the layers above the base but for the proof, bottom first.

    Raises:
        ConfigError: The source holds what an image cannot (a submodule, a name like `.wh.x`).
    """
    alone = prepared.base is None and prepared.below is None
    upstream = (upstream_layer(prepared),) if alone else ()
    return (*upstream, *prepared.kernels, *patch_layers(prepared, delta_of(prepared)))


# --- upstream ---------------------------------------------------------------------------------


def upstream_layer(prepared: Prepared) -> PlannedLayer:
    """Return the layer of the package as upstream has it: no patch has a part in its key."""
    trees, root = prepared.trees, prepared.where.strip("/")
    package = trees.package(trees.upstream)

    def members() -> Iterator[Member]:
        files = {f"{PACKAGE}/{path}": entry for path, entry in trees.objects.files(package)}
        yield from _sources(trees.objects, root, files)
        if prepared.bytecode:
            yield from _bytecode(prepared, files).values()
        for path, body in prepared.compiled.read() if prepared.compiled else ():
            yield File(path=f"{root}/{PACKAGE}/{path}", body=body)

    return PlannedLayer(
        name="upstream",
        inputs={
            "package_dir": prepared.where,
            "date": prepared.epoch,
            "tree": package,
            "compiled": prepared.compiled.digest if prepared.compiled else None,
            "bytecode": prepared.bytecode,
        },
        members=members,
    )


def _sources(objects: ObjectStore, root: str, files: Mapping[str, Entry]) -> Iterator[Member]:
    """Yield files of git below a folder of the image; bodies are read when their turn comes."""
    for path, entry in files.items():
        place = f"{root}/{path}"
        if entry.mode == SYMLINK:
            target = objects.blob(entry.oid).decode("utf-8", "surrogateescape")
            yield Symlink(path=place, target=target)
        elif entry.mode in (FILE, EXECUTABLE):
            yield File(
                path=place, body=_reader(objects, entry.oid), executable=entry.mode == EXECUTABLE
            )
        else:
            raise ConfigError(f"{path}: mode {entry.mode} of git cannot be in an image")


def _bytecode(prepared: Prepared, files: Mapping[str, Entry]) -> dict[str, File]:
    """Return what the sources among these files compile to, by path as `sglang/...`."""
    root = prepared.where.strip("/")
    made: dict[str, File] = {}
    for path, entry in files.items():
        if prepared.bytecode and path.endswith(".py") and entry.mode in (FILE, EXECUTABLE):
            source = prepared.trees.objects.blob(entry.oid)
            done = compiled(f"{root}/{path}", source, prepared.bytecode)
            if done:
                made[done[0].removeprefix(f"{root}/")] = File(path=done[0], body=done[1])
    return made


def _reader(objects: ObjectStore, oid: Oid) -> Callable[[], bytes]:
    return lambda: objects.blob(oid)


# --- patches ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What the patches change in the package: paths are `sglang/...`.

    `deleted` are sources that go; `absent` is what the layers hide for it: those of them that are
    below, stale compiled files, or whole folders that would be left empty.
    """

    written: Mapping[str, Entry]
    deleted: tuple[str, ...]
    absent: tuple[str, ...]


def delta_of(prepared: Prepared) -> Delta:
    """Return what the patched package differs in from the layers below."""
    trees = prepared.trees
    written: dict[str, Entry] = {}
    deleted = []
    for change in trees.objects.changes(
        trees.package(trees.upstream), trees.package(trees.patched), f"{PACKAGE}/"
    ):
        if change.new:
            if change.new.mode == GITLINK:
                raise ConfigError(f"{change.path}: a submodule cannot be in an image")
            written[change.path] = change.new
        else:
            deleted.append(change.path)
    lower = _lower_paths(prepared)
    gone = {path for path in deleted if path in lower}
    gone.update(stale_pyc(lower, [*written, *deleted]))
    made = _bytecode(prepared, written)
    return Delta(
        written=written,
        deleted=tuple(deleted),
        # A whiteout does not survive COPY: there the Dockerfile removes what is listed for it.
        absent=() if prepared.below is not None else hidden(gone, [*written, *made], lower),
    )


def _lower_paths(prepared: Prepared) -> Collection[str]:
    if prepared.base:
        return prepared.base.paths
    if prepared.below is not None:
        return prepared.below
    trees = prepared.trees
    package = trees.package(trees.upstream)
    paths = {f"{PACKAGE}/{path}" for path, _ in trees.objects.files(package)}
    if prepared.bytecode:
        paths.update([pyc_path(path, prepared.bytecode) for path in paths if path.endswith(".py")])
    if prepared.compiled:
        paths.update(f"{PACKAGE}/{path}" for path in prepared.compiled.paths)
    return paths


def hidden(
    gone: Collection[str], written: Collection[str], lower: Collection[str]
) -> tuple[str, ...]:
    """Return the fewest paths to hide so that `gone` cannot be seen, sorted.

    A folder of which nothing is left goes as a whole: an empty one would still import, as a
    namespace package. A path that a written file replaces, or that has become a folder of written
    files, needs no marker: the new entry hides the old one, and a marker beside it is a clash.
    """
    kept = {folder for path in [*written, *(set(lower) - set(gone))] for folder in _parents(path)}
    marks = set()
    for path in gone:
        if path in kept or path in written:
            continue
        parents = _parents(path)
        if not any(parent in written for parent in parents):
            empty = (p for p in parents if p not in kept and not p.endswith(CACHE_FOLDER))
            marks.add(next(empty, path))
    return tuple(sorted(marks))


def _parents(path: str) -> list[str]:
    """Return the folders above a path, the topmost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def patch_layers(prepared: Prepared, delta: Delta) -> tuple[PlannedLayer, ...]:
    """Return the layers of the patched files only.

    SGLang's files are large, fifty kilobytes each when compressed, and a layer moves as a whole. So
    each path has a layer by its name alone, one of `PATCH_LAYERS`: an edit moves the files that it
    touches and few others, whatever else the series holds. Their order decides nothing, since no
    two of them speak of one path.
    """
    root = prepared.where.strip("/")
    layers = []
    for number in range(PATCH_LAYERS):
        written = {path: e for path, e in delta.written.items() if _slot(path) == number}
        absent = tuple(path for path in delta.absent if _slot(path) == number)
        if not (written or absent):
            continue
        shown = {path: f"{entry.mode} {entry.oid}" for path, entry in written.items()}
        layers.append(
            PlannedLayer(
                name=f"{PATCHES}-{number:02}",
                inputs={
                    "package_dir": prepared.where,
                    "date": prepared.epoch,
                    "written": shown,
                    "absent": list(absent),
                    "bytecode": prepared.bytecode,
                },
                members=partial(_patch_members, prepared, root, written, absent),
            )
        )
    return tuple(layers)


def _patch_members(
    prepared: Prepared, root: str, written: Mapping[str, Entry], absent: tuple[str, ...]
) -> Iterator[Member]:
    yield from _sources(prepared.trees.objects, root, written)
    yield from _bytecode(prepared, written).values()
    yield from (Whiteout(path=f"{root}/{path}") for path in absent)


def _slot(path: str) -> int:
    """Return the number of a path's layer; bytecode, new or hidden, is with its source."""
    module = module_of(path)
    name = path if module is None else f"{module}.py"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:4]) % PATCH_LAYERS
