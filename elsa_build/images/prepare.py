"""Puts together what an image is made of, from a pin, a recipe and a replay that came out clean."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from elsa_build.git.objects import ObjectStore
from elsa_build.images import base as bases
from elsa_build.images.oci.layout import to_json
from elsa_build.images.oci.store import digest_of
from elsa_build.images.plan import PACKAGE, Base, Compiled, Prepared, SourceTrees
from elsa_build.images.provenance import applied_patches
from elsa_build.model import Pin, Recipe, Replay
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
        progress: Told of the look into the base.

    Raises:
        ConfigError: The base is broken or holds no SGLang.
        FailedError: The base's tree is not the pinned one.
    """
    trees = SourceTrees(objects=objects, upstream=pin.tree, patched=done.tree)
    base = findings = None
    if recipe.base_layout:
        image = bases.open_base(recipe.base_layout)
        package = trees.package(pin.tree)
        listed = {f"{PACKAGE}/{path}": entry.oid for path, entry in objects.files(package)}
        findings = bases.inspect(image, listed, package_dir=recipe.package_dir, progress=progress)
        name = (recipe.base or str(recipe.base_layout.name)).partition("@")[0]
        bases.check(findings, base=name, commit=pin.commit, python=recipe.python)
        base = Base(name=name, image=image, paths=findings.paths)
    return Prepared(
        pin=pin,
        recipe=recipe,
        recipe_digest=digest_of(recipe.path.read_bytes()),
        trees=trees,
        head=done.head,
        series=applied_patches(done),
        lock=lock,
        epoch=int(datetime.fromisoformat(pin.date).timestamp()),
        base=base,
        package_dir=findings.package_dir if findings else None,
        compiled=compiled_files(wheel) if wheel and base is None else None,
        platform=base.image.platform if base else "linux/amd64",
        cache=cache,
    )


def compiled_files(wheel: Path) -> Compiled:
    """Return what a wheel has beside the source tree: extensions, and the generated version."""
    stamp = wheels.generated(wheel)
    members = [*wheels.extensions(wheel), *([stamp] if stamp else [])]

    def read() -> Iterable[tuple[str, bytes]]:
        for member in members:
            path = member.name.removeprefix(f"{PACKAGE}/")
            yield path, wheels.read_extension(wheel, member)

    return Compiled(
        digest=digest_of(to_json({member.name: member.sha256 for member in members})),
        paths=tuple(member.name.removeprefix(f"{PACKAGE}/") for member in members),
        read=read,
    )
