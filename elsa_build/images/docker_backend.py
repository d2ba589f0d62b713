"""Builds a recipe's Dockerfile for real: the overlay of the oci backend on a base in dockerd.

The plan is the oci backend's own: the same overlay archive is loaded, and the Dockerfile copies
from it. So both backends put the same bytes at the same paths; ids and dates of layers differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.base import BaseFindings, check, inspect, open_base
from elsa_build.images.dockerd import Daemon
from elsa_build.images.dockerfile import CA_BUNDLE, render
from elsa_build.images.reference import check_reference
from elsa_build.model import Oid, Recipe
from elsa_build.progress import SILENT, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What the docker backend made. `image` is the daemon's id of it, `overlay` what it loaded."""

    image: str
    tag: str
    overlay: str
    dockerfile: str


def look_inside(
    daemon: Daemon,
    base: str,
    tree: Mapping[str, Oid],
    *,
    recipe: Recipe,
    commit: Oid,
    progress: Progress = SILENT,
) -> BaseFindings:
    """Find SGLang in a base that the daemon has, and refuse another tree than the pinned one.

    Args:
        daemon: Where the base is.
        base: Its name or id.
        tree: The pinned package: `sglang/...` to git id.
        recipe: Says which Python it must have and, perhaps, where the package must be.
        commit: The pin, for messages.
        progress: Told of every layer.

    Raises:
        ConfigError: The base holds no SGLang, or not where the recipe says (exit 5).
        FailedError: It holds another one than the pinned (exit 7).
        ToolError: The daemon lacks the base, or there is no room to save it (exit 6).
    """
    _require(daemon, base)
    with daemon.saved(base, progress) as archive:
        findings = inspect(
            open_base(archive), tree, package_dir=recipe.package_dir, progress=progress
        )
    check(findings, base=base, commit=commit, python=recipe.python)
    return findings


def build_on_base(
    daemon: Daemon,
    recipe: Recipe,
    *,
    template: Path,
    overlay: Path,
    base: str,
    tag: str,
    package_dir: str | None = None,
    labels: Mapping[str, str] | None = None,
    progress: Progress = SILENT,
) -> Built:
    """Load an overlay archive and build the recipe's Dockerfile with it on a base.

    Args:
        daemon: Where to build.
        recipe: What the image is.
        template: The project's `Dockerfile.j2`.
        overlay: An archive that the oci backend wrote without a base. No layer of it may delete
            what is not below it: overlayfs lists such a whiteout, cannot read it, and COPY stops.
        base: Name or id of an image that the daemon has.
        tag: Name of the image to make.
        package_dir: Where the base keeps `sglang/`, as found by a look inside.
        labels: True facts about this build.
        progress: Told of every step.

    Raises:
        ConfigError: A name that docker would refuse, a missing CA bundle (exit 5).
        ToolError: The daemon lacks the base, or a step failed (exit 6).
    """
    check_reference(tag)
    _require(daemon, base)
    loaded = daemon.load(overlay, progress)
    if len(loaded) != 1:
        raise ToolError(f"docker: {overlay} holds {len(loaded)} images, an overlay is one")
    text = render(
        recipe,
        template,
        overlay=loaded[0],
        base=base,
        package_dir=package_dir,
        labels=labels,
    )
    image = daemon.build(
        {"Dockerfile": text.encode(), **_ca_bundle(recipe)},
        tag=tag,
        network=recipe.build.network,
        progress=progress,
    )
    return Built(image=image, tag=tag, overlay=loaded[0], dockerfile=text)


def _require(daemon: Daemon, base: str) -> None:
    if daemon.inspect(check_reference(base)) is None:
        raise ToolError(f"docker: the daemon has no image {base}", hint=f"docker pull {base}")


def _ca_bundle(recipe: Recipe) -> dict[str, bytes]:
    path = recipe.build.ca_bundle
    if path is None:
        return {}
    try:
        return {CA_BUNDLE: path.read_bytes()}
    except OSError as e:
        raise ConfigError(
            f"{recipe.path.parent.name}/{recipe.path.name}: build.ca_bundle: {path}: {e.strerror}"
        ) from e
