"""Builds a recipe's Dockerfile for real: the overlay of the oci backend on a base in dockerd.

The plan is the oci backend's own: the same overlay archive is loaded, and the Dockerfile copies
from it. So both backends put the same bytes at the same paths; ids and dates of layers differ.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.base import BaseFindings, Pinned, check, look, open_base
from elsa_build.images.dockerd import Daemon
from elsa_build.images.dockerfile import CA_BUNDLE, render
from elsa_build.images.oci.archive import write_archive
from elsa_build.images.oci.layout import assembled
from elsa_build.images.oci.stored import StoredImage
from elsa_build.images.reference import check_reference
from elsa_build.model import Oid, Recipe
from elsa_build.progress import SILENT, Progress

BASES = "elsa-build-base"
"""What a base is called in the daemon that came from a file; its tag is its config's digest."""


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
    pinned: Pinned,
    *,
    recipe: Recipe,
    commit: Oid,
    cache: Path,
    progress: Progress = SILENT,
) -> BaseFindings:
    """Find SGLang in a base that the daemon has, and refuse another tree than the pinned one.

    The daemon saves the base to a file for it, once: the findings are kept by the image's id.

    Args:
        daemon: Where the base is.
        base: Its name or id.
        pinned: The package that must be there.
        recipe: Says which Python it must have and, perhaps, where the package must be.
        commit: The pin, for messages.
        cache: The folder of the blob store.
        progress: Told of every layer.

    Raises:
        ConfigError: The base holds no SGLang, or not where the recipe says (exit 5).
        FailedError: It holds another one than the pinned (exit 7).
        ToolError: The daemon lacks the base, or there is no room to save it (exit 6).
    """

    @contextmanager
    def opened() -> Iterator[StoredImage]:
        with daemon.saved(base, progress) as archive:
            yield open_base(archive)

    findings = look(
        require(daemon, base),
        opened,
        pinned,
        package_dir=recipe.package_dir,
        cache=cache,
        progress=progress,
    )
    check(findings, base=base, commit=commit, python=recipe.python)
    return findings


def bring(daemon: Daemon, layout: Path, image: StoredImage, progress: Progress = SILENT) -> str:
    """Load a base from disk into the daemon, unless it is there, and return its name there.

    Args:
        daemon: Where it goes.
        layout: A layout folder or an archive.
        image: The same, opened.
        progress: Told of the load.

    Raises:
        ToolError: The daemon refuses it, or there is no room (exit 6).
    """
    name = f"{BASES}:{image.config_digest.removeprefix('sha256:')}"
    if daemon.inspect(name):
        return name
    if daemon.inspect(image.config_digest) is None:
        with tempfile.TemporaryDirectory(prefix="elsa-base-") as folder:
            archive = layout
            if layout.is_dir():
                archive = Path(folder) / "base.tar"
                with archive.open("wb") as out:
                    write_archive(out, assembled(image, name), mtime=0)
            loaded = daemon.load(archive, progress)
        daemon.tag(loaded[0], name)
    else:
        daemon.tag(image.config_digest, name)
    return name


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
    require(daemon, base)
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


def require(daemon: Daemon, base: str) -> str:
    """Return the id of an image that the daemon must have.

    Raises:
        ToolError: It has not (exit 6).
    """
    found = daemon.inspect(check_reference(base))
    if found is None:
        raise ToolError(f"docker: the daemon has no image {base}", hint=f"docker pull {base}")
    return str(found["Id"])


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
