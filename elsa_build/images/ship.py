"""One plan, two backends: `oci` writes everything itself, `docker` runs the recipe's Dockerfile.

The docker backend looks into the base that dockerd has, writes the delta to it as an overlay image,
and lets the recipe's Dockerfile copy from that: the same bytes at the same paths.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images import base as bases
from elsa_build.images import docker_backend, dockerd, tags
from elsa_build.images.build import Built, build
from elsa_build.images.dockerfile import TEMPLATE
from elsa_build.images.plan import PACKAGE, Prepared
from elsa_build.images.publish import Destination
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
        ConfigError: The docker backend without a base in the recipe.
        FailedError: The tag names another image; the base's tree is not the pinned one.
        ToolError: No docker daemon, or a step of it failed.
    """
    if backend is Backend.OCI:
        return Shipped(built=build(prepared, destination, name=name, progress=progress))
    recipe = prepared.recipe
    if not recipe.base:
        raise ConfigError(
            f"recipe {recipe.name}: base.image: is missing, and the docker backend needs a base",
            hint="use --backend oci for an overlay image without a base",
        )
    repository, tag = tags.split(name)
    with dockerd.connect() as daemon:
        looked = _look(daemon, prepared, progress)
        overlay = build(
            looked,
            replace(destination, archive=True),
            name=f"{repository}-overlay:{tag}",
            progress=progress,
        )
        assert overlay.archive is not None
        made = docker_backend.build_on_base(
            daemon,
            recipe,
            template=root / TEMPLATE,
            overlay=overlay.archive,
            base=recipe.base,
            tag=f"{repository}:{tag}",
            package_dir=looked.package_dir,
            labels=dict(overlay.record.labels),
            progress=progress,
        )
    return Shipped(built=overlay, docker=made)


def _look(daemon: dockerd.Daemon, prepared: Prepared, progress: Progress) -> Prepared:
    """Return the inputs of the delta for a base in dockerd, after a look inside it.

    Raises:
        FailedError: The base's tree is not the pinned one.
    """
    recipe, trees, pin = prepared.recipe, prepared.trees, prepared.pin
    assert recipe.base is not None
    if daemon.inspect(recipe.base) is None:
        raise ToolError(
            f"docker: the daemon has no image {recipe.base}", hint=f"docker pull {recipe.base}"
        )
    files = trees.objects.files(trees.package(pin.tree))
    listed = {f"{PACKAGE}/{path}": entry.oid for path, entry in files}
    with daemon.saved(recipe.base, progress) as archive:
        found = bases.inspect(
            bases.open_base(archive), listed, package_dir=recipe.package_dir, progress=progress
        )
    bases.check(found, base=recipe.base, commit=pin.commit, python=recipe.python)
    return replace(prepared, base=None, below=found.paths, package_dir=found.package_dir)
