"""The compiled kernels of an image: a layer a family, and the list that says what they are.

They lie below the patched files, and no patch has a part in their keys: an edit of a patch that
touches no kernel's source moves none of them. A family has a layer of its own since they change at
different times: FlashInfer's libraries, the largest, only with FlashInfer; what was harvested, with
each recording. The list is apart, since it names the tree that it was built from.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import StaleError
from elsa_build.images import serving
from elsa_build.images.base import OURS
from elsa_build.images.ingredients import PlannedLayer, SourceTrees
from elsa_build.images.oci.layer import File, Folder, Member, Stream
from elsa_build.images.oci.layout import to_json
from elsa_build.images.oci.store import digest_of, digest_of_stream
from elsa_build.kernels.bundle import REBUILD, Bundle, Held, Manifest, text
from elsa_build.kernels.bundle_verify import of_missing, of_sources
from elsa_build.kernels.fitting import misfits, require
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.placing import Bodies, relocated
from elsa_build.kernels.staleness import Stale, stale
from elsa_build.kernels.unpacking import changed, sealed_body
from elsa_build.model import Oid, Pin, Recipe

LIST = f"{OURS}/kernels/bundle.json"
"""Where an image keeps the bundle's document."""
ROOT = serving.CACHE.strip("/")

_HOMES = {"triton": Family.TRITON, "jit": Family.SGLANG_JIT}
_HARVESTED = "harvested"
_PACKAGES = {
    "torch": "torch",
    "triton": "triton",
    "flashinfer-python": "flashinfer",
    "apache-tvm-ffi": "tvm_ffi",
    "nvidia-mathdx": "mathdx",
}
"""What a fingerprint calls the packages that upstream pins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """The kernels that an image gets: the manifest as it is there, and where the files are now.

    `bodies` are the files that are not as the bundle has them.
    """

    bundle: Bundle
    manifest: Manifest
    bodies: Bodies

    @property
    def list(self) -> bytes:
        """Return the document as the image keeps it."""
        return text(self.manifest)


def settle(bundle: Bundle, recipe: Recipe, pin: Pin, trees: SourceTrees) -> Shipped:
    """Return what an image ships of a bundle.

    Raises:
        StaleError: The bundle is for another card, Python or FlashInfer, or was compiled from other
            sources than the patched tree's; what differs is named (exit 4).
        ConfigError: A file of it is damaged (exit 5).
    """
    place = str(bundle.folder)
    require(
        misfits(bundle.manifest, target=recipe.arch, toolchain=known(recipe, pin)),
        place,
        recipe.name,
    )
    found = outdated(bundle.manifest, trees)
    if found:
        paths = sorted({path for one in found for path in one.paths})
        failure = StaleError(
            f"{place}: {len(found)} kernels were not compiled from this tree: {', '.join(paths)}",
            hint=f"{REBUILD} --recipe {recipe.name}",
        )
        failure.findings = of_sources(found, recipe.name)
        raise failure
    manifest, bodies = relocated(bundle.manifest, serving.CACHE, partial(sealed_body, bundle))
    return Shipped(bundle=bundle, manifest=manifest, bodies=bodies)


def outdated(manifest: Manifest, trees: SourceTrees) -> tuple[Stale, ...]:
    """Return the kernels that were compiled from other sources than the patched tree's."""

    def oid(path: str) -> Oid | None:
        entry = trees.objects.find(trees.patched, f"{trees.prefix}{path}")
        return entry.oid if entry else None

    return stale(manifest, oid, trees.objects.blob)


def known(recipe: Recipe, pin: Pin) -> dict[str, str]:
    """Return what is known of an image's toolchain before it exists, by a fingerprint's names."""
    found = {"python": recipe.python}
    for line in pin.requires:
        needed = Requirement(line)
        name = _PACKAGES.get(canonicalize_name(needed.name))
        exact = re.fullmatch(r"===?([^*]+)", str(needed.specifier))
        if name and exact and needed.marker is None:
            found[name] = exact[1]
    return found


def findings(shipped: Shipped | None, recipe: Recipe) -> Iterator[Diagnostic]:
    """Yield what a person should know of an image's kernels; None: it has none, by oversight."""
    if shipped is None:
        yield Diagnostic(
            code="E427",
            severity=Severity.WARNING,
            message="no compiled kernels: the first start compiles for minutes",
            hint=f"{REBUILD} --recipe {recipe.name}; or --kernels none",
        )
        return
    yield from of_missing(shipped.manifest)
    ours = serving.caches(recipe)
    for name, value in recipe.env:
        if name in ours and name != serving.PATH and value != ours[name]:
            yield Diagnostic(
                code="E428",
                severity=Severity.WARNING,
                message=f"{name} is {value}, and the image's kernels are at {ours[name]}",
                path=f"{recipe.path.parent.name}/{recipe.path.name}",
                hint=f"leave {name} out of the recipe's env",
            )


# --- layers -----------------------------------------------------------------------------------


def layers(shipped: Shipped, *, epoch: int, user: str | None) -> tuple[PlannedLayer, ...]:
    """Return the layers of kernels, bottom first, the list on top.

    Args:
        shipped: What to ship.
        epoch: The date of every file, seconds.
        user: Who runs the server, as `1000:1000`: the folders of the caches become that user's, so
            that what is not among the kernels can be compiled; None: root.
    """
    harvested = set(chain.from_iterable(shipped.manifest.harvested.values()))
    by_name: dict[str, dict[str, Held]] = {}
    for path, held in shipped.manifest.files.items():
        family = _HOMES.get(path.split("/")[0], Family.FLASHINFER)
        by_name.setdefault(_HARVESTED if path in harvested else family, {})[path] = held
    made = [
        PlannedLayer(
            name=f"kernels-{name}",
            inputs={
                "date": epoch,
                "prefix": shipped.manifest.prefix,
                "owner": user,
                "files": digest_of(to_json({path: one.sha256 for path, one in files.items()})),
            },
            members=partial(_members, shipped, files),
            folders=_owned(files, user),
        )
        for name in (*reversed(Family), _HARVESTED)
        if (files := by_name.get(name))
    ]
    listing = PlannedLayer(
        name="kernels",
        inputs={"date": epoch, "list": digest_of(shipped.list)},
        members=lambda: [File(path=LIST, body=shipped.list)],
    )
    return (*made, listing)


def _owned(files: Mapping[str, Held], user: str | None) -> dict[str, Folder]:
    if user is None:
        return {}
    uid, _, gid = user.partition(":")
    owner = Folder(uid=int(uid), gid=int(gid or uid))
    parts = (path.split("/") for path in files)
    below = {"/".join(part[:depth]) for part in parts for depth in range(1, len(part))}
    return {ROOT: owner, **{f"{ROOT}/{folder}": owner for folder in below}}


def _members(shipped: Shipped, files: Mapping[str, Held]) -> Iterator[Member]:
    """Yield the files; each is hashed first, or a changed one would be cached under a good key."""
    for path, held in files.items():
        if path in shipped.bodies:
            yield File(path=f"{ROOT}/{path}", body=shipped.bodies[path])
        else:
            yield File(path=f"{ROOT}/{path}", body=_checked(shipped.bundle.folder / path, held))


def _checked(path: Path, held: Held) -> Stream:
    with path.open("rb") as stream:
        digest, _ = digest_of_stream(stream)
    if digest != f"sha256:{held.sha256}":
        raise changed(path)
    return Stream.of(path)


# --- provenance -------------------------------------------------------------------------------


def summary(shipped: Shipped | None) -> dict[str, object] | None:
    """Return what `build.json` says of the kernels; the list in the image has the rest."""
    if shipped is None:
        return None
    manifest = shipped.manifest
    return {
        "list": f"/{LIST}",
        "digest": f"sha256:{hashlib.sha256(shipped.list).hexdigest()}",
        "target": manifest.target,
        "tree": manifest.tree,
        "toolchain": dict(manifest.toolchain),
        "counts": manifest.counts(),
        "harvested": manifest.harvests(),
        "bytes": sum(held.size for held in manifest.files.values()),
        "missing": [f"{one.family} {one.name}" for one in manifest.missing],
    }
