"""One plan, two backends: `oci` writes everything itself, `docker` runs the recipe's Dockerfile.

The docker backend looks into the base that dockerd has, writes the delta to it as an overlay image,
and lets the recipe's Dockerfile copy from that: the same bytes at the same paths. Either takes its
base from where it is: a layout folder, an archive, or dockerd.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from elsa_build.errors import ConfigError
from elsa_build.images import docker_backend, dockerd, tags
from elsa_build.images.build import Built, build
from elsa_build.images.dockerfile import TEMPLATE
from elsa_build.images.ingredients import Prepared
from elsa_build.images.opening import DAEMON
from elsa_build.images.publish import Destination
from elsa_build.images.reference import check_reference, wrong_folder
from elsa_build.model import Recipe
from elsa_build.progress import SILENT, Progress


class Backend(StrEnum):
    """Who writes the image."""

    OCI = "oci"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """What came of it; `docker` is there when the docker backend made an image on a base."""

    built: Built
    docker: docker_backend.Built | None = None


@contextmanager
def on_base(
    recipe: Recipe,
    base: str | None,
    *,
    backend: Backend,
    package_dir: str | None = None,
    progress: Progress = SILENT,
) -> Iterator[Recipe]:
    """Have a recipe with another base than its own while the block runs.

    Args:
        recipe: What the image is.
        base: A layout folder, an archive, or the name of an image in dockerd (with
            `docker-daemon:` before it when a file has that name, too). None: the recipe's.
        backend: Who writes the image: `oci` needs the bytes of a base in dockerd, so saves it.
        package_dir: Where the base keeps `sglang/`; None: as the recipe says of its own base, and
            found by a look inside of another one.
        progress: Told when dockerd saves the base.

    Raises:
        ConfigError: There is no such file, and the name is none that docker would take.
        ToolError: dockerd does not answer, or lacks the base.
    """
    wrong = wrong_folder(package_dir) if package_dir else None
    if wrong:
        raise ConfigError(f"package_dir: {wrong}")
    if base is None:
        yield replace(recipe, package_dir=package_dir or recipe.package_dir)
        return
    name = base.removeprefix(DAEMON)
    if name == base and Path(base).exists():
        yield replace(recipe, base=None, base_layout=Path(base), package_dir=package_dir)
        return
    there = replace(recipe, base=check_reference(name), base_layout=None, package_dir=package_dir)
    if backend is Backend.DOCKER:
        yield there
        return
    with dockerd.connect() as daemon:
        docker_backend.require(daemon, name)
        with daemon.saved(name, progress) as archive:
            # What dockerd gives out has no manifest: the digest of a name cannot be compared.
            yield replace(there, base=name.partition("@")[0], base_layout=archive)


def ship(
    prepared: Prepared,
    destination: Destination,
    *,
    name: str,
    backend: Backend,
    root: Path,
    progress: Progress = SILENT,
) -> Shipped:
    """Build an image with a backend.

    Args:
        prepared: What goes in.
        destination: Where layout, tar and record go; for docker, those of the overlay.
        name: `TAG` or `REPOSITORY:TAG`.
        backend: Who writes it.
        root: The project, for its `Dockerfile.j2`.
        progress: Told of every step.

    Raises:
        ConfigError: The docker backend without a base.
        FailedError: The tag names another image; the base's tree is not the pinned one.
        ToolError: No docker daemon, or a step of it failed.
    """
    if backend is Backend.OCI:
        return Shipped(built=build(prepared, destination, name=name, progress=progress))
    repository, tag = tags.split(name)
    with dockerd.connect() as daemon:
        base, looked = _base_in(daemon, prepared, progress)
        overlay = build(
            looked,
            replace(destination, archive=True),
            name=f"{repository}-overlay:{tag}",
            progress=progress,
        )
        assert overlay.archive is not None
        made = docker_backend.build_on_base(
            daemon,
            prepared.recipe,
            template=root / TEMPLATE,
            overlay=overlay.archive,
            base=base,
            tag=f"{repository}:{tag}",
            package_dir=looked.package_dir,
            labels=dict(overlay.record.labels),
            progress=progress,
        )
    return Shipped(built=overlay, docker=made)


def _base_in(
    daemon: dockerd.Daemon, prepared: Prepared, progress: Progress
) -> tuple[str, Prepared]:
    """Return the base's name in dockerd and the inputs of the delta to it.

    Raises:
        ConfigError: The recipe has no base.
        FailedError: The base's tree is not the pinned one.
    """
    recipe, base = prepared.recipe, prepared.base
    if base and recipe.base_layout:
        # It was looked into on disk.
        name = docker_backend.bring(daemon, recipe.base_layout, base.image, progress)
        return name, replace(prepared, base=None, below=base.paths)
    if not recipe.base:
        raise ConfigError(
            f"recipe {recipe.name}: base.image: is missing, and the docker backend needs a base",
            hint="--base IMAGE, or --backend oci for an overlay image without a base",
        )
    found = docker_backend.look_inside(
        daemon,
        recipe.base,
        prepared.trees.pinned(),
        recipe=recipe,
        commit=prepared.pin.commit,
        cache=prepared.cache,
        progress=progress,
    )
    looked = replace(
        prepared, base=None, below=found.paths, package_dir=found.package_dir, compiled=None
    )
    return recipe.base, looked
