"""The layers of an image and the key of each, before anything is written.

A key is the digest of everything that decides a layer's content, so that an unchanged key needs no
new layer and a changed one can say what changed. Bottom to top: the base as it is (or, without one,
upstream's tree at the pin), kernels, the patched files only, and on top the proof of all of it.
Editing a patch therefore moves the patched files and the proof, some kilobytes.

All source comes from git objects. No work tree is read, so no editor's backup file, mode or date of
one machine can reach an image.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from elsa_build.errors import ConfigError
from elsa_build.git.objects import EXECUTABLE, FILE, SYMLINK, Entry, ObjectStore
from elsa_build.images.base import OURS
from elsa_build.images.bytecode import module_of, pyc_path
from elsa_build.images.delta import Delta, bytecode_of, delta_of, parents
from elsa_build.images.ingredients import Compiled, PlannedLayer, Prepared
from elsa_build.images.oci.layer import File, Member, Symlink, Whiteout
from elsa_build.images.survey import PACKAGE
from elsa_build.model import Oid

UPSTREAM = "upstream"
PATCHES = "patches"
PATCH_LAYERS = 32
"""Into how many layers the patched files may fall; docker takes 127 in all, a base some fifty."""


def layers(prepared: Prepared) -> tuple[PlannedLayer, ...]:
    """Return the layers above the base but for the proof, bottom first.

    Raises:
        ConfigError: The source holds what an image cannot (a submodule, a name like `.wh.x`).
    """
    alone = prepared.base is None and prepared.below is None
    upstream = (upstream_layer(prepared),) if alone else ()
    # What kernels write is only known when they are read: any folder of ours may be among it.
    below = [OURS, *(prepared.base.folders if prepared.base else ())]
    ours = [f"{folder}/any" for folder in below if f"{folder}/".startswith(f"{OURS}/")]
    kernels = (on_folders(layer, prepared, ours) for layer in prepared.kernels)
    return (*upstream, *kernels, *patch_layers(prepared, delta_of(prepared)))


def on_folders(layer: PlannedLayer, prepared: Prepared, paths: Iterable[str]) -> PlannedLayer:
    """Return a layer that leaves the base's folders above its paths as they are.

    Docker 20.10 gives a folder of the image the mode and the owner of its topmost entry, and makes
    one of 755 and root where a layer has none: so the layer says again what the base says.
    """
    held = prepared.base.folders if prepared.base else {}
    kept = {folder: held[folder] for path in paths for folder in parents(path) if folder in held}
    if not kept:
        return layer
    shown = {folder: str(kept[folder]) for folder in sorted(kept)}
    # What a layer says of a folder itself is meant: a cache belongs to who runs the server.
    said = {**kept, **layer.folders}
    return replace(layer, inputs={**layer.inputs, "folders": shown}, folders=said)


# --- upstream ---------------------------------------------------------------------------------


def upstream_layer(prepared: Prepared) -> PlannedLayer:
    """Return the layer of the package as upstream has it: no patch has a part in its key."""
    trees, root = prepared.trees, prepared.where.strip("/")
    package = trees.package(trees.upstream)

    def members() -> Iterator[Member]:
        files = {f"{PACKAGE}/{path}": entry for path, entry in trees.objects.files(package)}
        yield from _sources(trees.objects, root, files)
        if prepared.bytecode:
            yield from bytecode_of(prepared, files).values()
        yield from _compiled_members(prepared.compiled, root)

    return PlannedLayer(
        name=UPSTREAM,
        inputs={
            "package_dir": prepared.where,
            "date": prepared.epoch,
            "tree": package,
            "compiled": prepared.compiled.digest if prepared.compiled else None,
            "bytecode": prepared.bytecode,
        },
        members=members,
    )


def _compiled_members(found: Compiled | None, root: str) -> Iterator[Member]:
    if found:
        for file in found.files:
            yield File(path=f"{root}/{PACKAGE}/{file.path}", body=partial(found.read, file))


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


def _reader(objects: ObjectStore, oid: Oid) -> Callable[[], bytes]:
    return lambda: objects.blob(oid)


# --- patches ----------------------------------------------------------------------------------


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
        layer = PlannedLayer(
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
        made = [pyc_path(path, prepared.bytecode) for path in written] if prepared.bytecode else []
        spoken = (f"{root}/{path}" for path in (*written, *absent, *made))
        layers.append(on_folders(layer, prepared, spoken))
    return tuple(layers)


def _patch_members(
    prepared: Prepared, root: str, written: Mapping[str, Entry], absent: tuple[str, ...]
) -> Iterator[Member]:
    yield from _sources(prepared.trees.objects, root, written)
    yield from bytecode_of(prepared, written).values()
    yield from (Whiteout(path=f"{root}/{path}") for path in absent)


def _slot(path: str) -> int:
    """Return the number of a path's layer; bytecode, new or hidden, is with its source."""
    module = module_of(path)
    name = path if module is None else f"{module}.py"
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:4]) % PATCH_LAYERS
