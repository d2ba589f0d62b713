"""What lies between two images: which layers and files, and which input is the reason.

The layers say what a pull moves, `build.json` says why: a layer's key has named inputs, and each
patch says which files it touches. Images of other tools are compared by their layers alone.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.images.kernel_check import listed
from elsa_build.images.oci.contents import Seen, entries, visible
from elsa_build.images.oci.layer import OPAQUE, WHITEOUT
from elsa_build.images.oci.stored import StoredImage, StoredLayer
from elsa_build.images.verify import read_build
from elsa_build.kernels.staleness import changes, reasons
from elsa_build.model import Digest
from elsa_build.progress import SILENT, Progress


class Fate(StrEnum):
    """What became of a layer or a file on the way from the old image to the new one."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"
    MOVED = "moved"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDiff:
    """One layer: `size` is what a pull of the new image moves for it, in stored bytes."""

    name: str
    fate: Fate
    old: Digest | None
    new: Digest | None
    size: int = 0
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """One file, by its absolute path in the new image; `source` is where a moved one was."""

    path: str
    fate: Fate
    patches: tuple[str, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDiff:
    """Everything that differs, layers bottom first, files by path; `moved` in stored bytes."""

    layers: tuple[LayerDiff, ...]
    files: tuple[FileDiff, ...]
    moved: int

    @property
    def same(self) -> bool:
        """Say whether the two images hold the same layers."""
        return all(layer.fate is Fate.SAME for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One image with names for its layers; `build` is empty for an image that is not ours."""

    image: StoredImage
    build: Mapping[str, Any]
    names: tuple[str, ...]

    def layers(self) -> dict[str, StoredLayer]:
        return dict(zip(self.names, self.image.layers, strict=True))


def compare(old: StoredImage, new: StoredImage, *, progress: Progress = SILENT) -> ImageDiff:
    """Return what a pull of the new image moves on a host that has the old one, and why.

    Raises:
        ConfigError: A layer that has to be read is broken or cannot be decompressed.
    """
    sides = [_side(old), _side(new)]
    layers = tuple(_layers(*sides))
    with progress.task("files"):
        files = tuple(_files(*sides))
    return ImageDiff(layers=layers, files=files, moved=sum(layer.size for layer in layers))


def _side(image: StoredImage) -> _Side:
    try:
        build = read_build(image)
        ours = [str(layer["name"]) for layer in build["layers"]] + ["provenance"]
    except (ConfigError, KeyError, TypeError):
        build, ours = {}, []
    count = len(image.layers) - len(ours)
    if count < 0:
        build, ours, count = {}, [], len(image.layers)
    names = (*(f"base {number}" for number in range(1, count + 1)), *ours)
    return _Side(image=image, build=build, names=names)


# --- layers -----------------------------------------------------------------------------------


def _layers(old: _Side, new: _Side) -> Iterator[LayerDiff]:
    before, after = old.layers(), new.layers()
    held = {layer.diff_id for layer in old.image.layers}
    for name in dict.fromkeys([*after, *before]):
        was, now = before.get(name), after.get(name)
        if now is None:
            fate = Fate.REMOVED
        elif was is None:
            fate = Fate.ADDED
        else:
            fate = Fate.SAME if was.diff_id == now.diff_id else Fate.CHANGED
        yield LayerDiff(
            name=name,
            fate=fate,
            old=was.diff_id if was else None,
            new=now.diff_id if now else None,
            size=now.size if now and now.diff_id not in held else 0,
            why=(*_why(name, old.build, new.build), *_kernels(name, old, new))
            if fate is not Fate.SAME
            else (),
        )


def _why(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if not (old and new):
        return
    if name == "provenance":
        fields = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        yield f"build.json: {', '.join(fields)}"
        return
    inputs: list[Mapping[str, Any]] = [
        next((layer["inputs"] for layer in build["layers"] if layer["name"] == name), {})
        for build in (old, new)
    ]
    for key in sorted({*inputs[0], *inputs[1]}):
        was, now = inputs[0].get(key), inputs[1].get(key)
        if was != now and None not in (was, now) and key not in ("written", "absent"):
            yield f"{key}: {was} -> {now}"
    # The names of what a layer of patched files speaks of lead to the patches that touch them.
    paths = _paths(inputs[0]) ^ _paths(inputs[1])
    touching = {name for path, _ in paths for name in _touching(path, (old, new), inside=True)}
    yield from (reason for name, reason in _series(old, new) if name in touching)


def _kernels(name: str, old: _Side, new: _Side) -> Iterator[str]:
    """Yield which kernels of a layer came, went, or were compiled again, and why."""
    family = name.removeprefix("kernels-")
    if family == name:
        return
    was, now = listed(old.image, old.build), listed(new.image, new.build)
    if was and now:
        found = changes(was, now)
        yield from reasons(one for one in found if str(one.kernel.family) == family)


def _paths(inputs: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return what a layer of patched files does, as (path in the package's folder, what)."""
    written: Mapping[str, str] = inputs.get("written") or {}
    return {*written.items(), *((path, "absent") for path in inputs.get("absent") or ())}


def _series(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each patch that came, went, changed or applied differently, and what it did."""
    was, now = ({patch["id"]: patch for patch in build["series"]} for build in (old, new))
    for name in dict.fromkeys([*was, *now]):
        if name not in now:
            yield name, f"patch {name} removed"
        elif name not in was:
            yield name, f"patch {name} added"
        elif _identity(was[name]) != _identity(now[name]):
            yield name, f"patch {name} changed"
    if [name for name in was if name in now] != [name for name in now if name in was]:
        yield from ((name, "patches reordered") for name in now)


def _identity(patch: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(patch.get(key) for key in ("sha256", "origin", "outcome"))


# --- files ------------------------------------------------------------------------------------


def _files(old: _Side, new: _Side) -> Iterator[FileDiff]:
    """Compare what the two images show at every path that a differing layer speaks of."""
    common = {layer.diff_id for layer in old.image.layers} & {
        layer.diff_id for layer in new.image.layers
    }
    paths: set[str] = set()
    for side in (old, new):
        for layer in side.image.layers:
            if layer.diff_id not in common:
                paths |= _spoken_of(side.image, layer)
        paths |= {path.strip("/") for path in side.build.get("deleted", ())}
    before, after = (visible(side.image, paths.__contains__, only=paths) for side in (old, new))
    removed = {path for path in before if path not in after}
    added = {path for path in after if path not in before}
    moved = dict(_moves(before, after, removed, added))
    for path in sorted(paths):
        touching = _touching(path, (old.build, new.build))
        if path in moved:
            source = f"/{moved[path]}"
            yield FileDiff(path=f"/{path}", fate=Fate.MOVED, patches=touching, source=source)
        elif path in added:
            yield FileDiff(path=f"/{path}", fate=Fate.ADDED, patches=touching)
        elif path in removed and path not in moved.values():
            yield FileDiff(path=f"/{path}", fate=Fate.REMOVED, patches=touching)
        elif path in before and path in after and _differ(before[path], after[path]):
            yield FileDiff(path=f"/{path}", fate=Fate.CHANGED, patches=touching)


def _spoken_of(image: StoredImage, layer: StoredLayer) -> set[str]:
    """Return the files that a layer writes or hides."""
    paths = set()
    with entries(image, layer) as members:
        for path, member, _ in members:
            folder, slash, name = path.rpartition("/")
            if name != OPAQUE and not member.isdir():
                paths.add(f"{folder}{slash}{name.removeprefix(WHITEOUT)}")
    return paths


def _moves(
    before: Mapping[str, Seen], after: Mapping[str, Seen], removed: set[str], added: set[str]
) -> Iterator[tuple[str, str]]:
    """Yield (new path, old path) of files that only changed their place."""
    homes: dict[Digest, list[str]] = {}
    for path in sorted(removed, reverse=True):
        digest = before[path].digest
        if digest:
            homes.setdefault(digest, []).append(path)
    for path in sorted(added):
        digest = after[path].digest
        if digest and homes.get(digest):
            yield path, homes[digest].pop()


def _differ(was: Seen, now: Seen) -> bool:
    return (was.sort, was.mode, was.digest, was.target) != (
        now.sort,
        now.mode,
        now.digest,
        now.target,
    )


def _touching(
    path: str, builds: Iterable[Mapping[str, Any]], *, inside: bool = False
) -> tuple[str, ...]:
    """Return the patches, of either image, that touch a file; `inside` its package's folder."""
    found: dict[str, None] = {}
    for build in builds:
        root = str(build.get("package_dir", "/")).strip("/") + "/"
        if not (inside or path.startswith(root)):
            continue
        name = path if inside else path.removeprefix(root)
        for patch in build["series"]:
            if any(
                f"/{touched}".endswith(f"/{name}") or f"/{name}/" in f"/{touched}"
                for touched in patch["paths"]
            ):
                found[patch["id"]] = None
    return tuple(found)
