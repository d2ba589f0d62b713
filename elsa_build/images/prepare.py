"""Puts together what an image is made of, from a pin, a recipe and a replay that came out clean."""

from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from elsa_build.git.objects import ObjectStore
from elsa_build.images import base as bases
from elsa_build.images import kernel_layer
from elsa_build.images.ingredients import Base, Compiled, CompiledFile, Prepared, SourceTrees
from elsa_build.images.notes import Fields, Notebook
from elsa_build.images.oci.store import digest_of
from elsa_build.images.provenance import applied_patches
from elsa_build.images.survey import PACKAGE
from elsa_build.kernels.bundle import Bundle
from elsa_build.model import Digest, Pin, Recipe, Replay
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream import wheel as wheels


def prepare(
    *,
    pin: Pin,
    recipe: Recipe,
    done: Replay,
    objects: ObjectStore,
    lock: bytes,
    cache: Path,
    wheel: Path | None = None,
    kernels: Bundle | None = None,
    progress: Progress = SILENT,
) -> Prepared:
    """Return everything that an image is made of.

    Args:
        pin: What upstream is.
        recipe: What the image is; with `base_layout` the delta goes on that base.
        done: The recipe's series on the pin, clean.
        objects: Where both trees are; must stay open while the image is built.
        lock: `upstream.lock` as it is on disk.
        cache: The folder of the blob store.
        wheel: The pinned release's wheel for the recipe's Python: its compiled files go into an
            overlay. None for a git source, whose tree is all there is.
        kernels: The compiled kernels to ship; must stay where it is while the image is built.
        progress: Told of the look into the base.

    Raises:
        ConfigError: The base is broken or holds no SGLang.
        FailedError: The base's tree is not the pinned one.
        StaleError: The kernels are for another card, Python or tree.
    """
    trees = SourceTrees(objects=objects, upstream=pin.tree, patched=done.tree)
    shipped = kernel_layer.settle(kernels, recipe, pin, trees) if kernels else None
    base = package_dir = None
    if recipe.base_layout:
        image = bases.open_base(recipe.base_layout)
        found = bases.look(
            image.manifest or image.config_digest,
            lambda: nullcontext(image),
            trees.pinned(),
            package_dir=recipe.package_dir,
            cache=cache,
            progress=progress,
        )
        name = (recipe.base or recipe.base_layout.name).partition("@")[0]
        bases.check(found, base=name, commit=pin.commit, python=recipe.python)
        base = Base(name=name, image=image, paths=found.paths, folders=found.folders)
        package_dir = found.package_dir
    epoch = int(datetime.fromisoformat(pin.date).timestamp())
    return Prepared(
        pin=pin,
        recipe=recipe,
        recipe_digest=digest_of(recipe.path.read_bytes()),
        trees=trees,
        head=done.head,
        series=applied_patches(done),
        lock=lock,
        epoch=epoch,
        base=base,
        package_dir=package_dir,
        compiled=compiled_files(wheel, pin, cache) if wheel and base is None else None,
        kernels=kernel_layer.layers(shipped, epoch=epoch, user=recipe.user) if shipped else (),
        kernels_summary=kernel_layer.summary(shipped),
        findings=tuple(kernel_layer.findings(shipped, recipe)) if shipped else (),
        platform=base.image.platform if base else "linux/amd64",
        cache=cache,
    )


# --- compiled files ---------------------------------------------------------------------------


def compiled_files(wheel: Path, pin: Pin, cache: Path) -> Compiled:
    """Return what a wheel has beside the source tree: extensions, and the generated version.

    A wheel is unpacked to hash them once; then there is a note of it in the cache.
    """
    locked = {artifact.filename: artifact.sha256 for artifact in pin.artifacts}
    sha256 = locked.get(wheel.name) or wheels.sha256(wheel)
    members = _SCANS.look_up(cache, {"wheel": sha256}, lambda: _scan(wheel))
    below = {_below(member): member for member in members}
    return Compiled(
        wheel=wheel.name,
        wheel_sha256=sha256,
        files=tuple(
            CompiledFile(path=path, size=member.size, digest=Digest(f"sha256:{member.sha256}"))
            for path, member in below.items()
        ),
        read=lambda file: wheels.read_extension(wheel, below[file.path]),
    )


def _scan(wheel: Path) -> tuple[wheels.Member, ...]:
    stamp = wheels.generated(wheel)
    return (*wheels.extensions(wheel), *([stamp] if stamp else []))


def _below(member: wheels.Member) -> str:
    return member.name.removeprefix(f"{PACKAGE}/")


def _plain(members: tuple[wheels.Member, ...]) -> Fields:
    return {"members": [[member.name, member.size, member.sha256] for member in members]}


def _members(fields: Fields) -> tuple[wheels.Member, ...]:
    listed: list[list[Any]] = fields["members"]
    return tuple(
        wheels.Member(name=name, size=size, sha256=sha256) for name, size, sha256 in listed
    )


_SCANS = Notebook(subject="wheel", edition=1, dump=_plain, load=_members)
