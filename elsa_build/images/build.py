"""From prepared inputs to an image on disk, all of it or nothing.

Layers are made in the cache, where an unchanged key finds its blob; what becomes of them as a whole
is a config, a manifest and a record, published at the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError
from elsa_build.images import tags
from elsa_build.images.config import config
from elsa_build.images.delta import delta_of
from elsa_build.images.ingredients import PlannedLayer, Prepared
from elsa_build.images.oci.layer import Compressor, write_layer
from elsa_build.images.oci.layout import Assembled, manifest_of
from elsa_build.images.oci.store import BlobStore
from elsa_build.images.oci.stored import StoredImage, StoredLayer
from elsa_build.images.plan import layers
from elsa_build.images.provenance import (
    BUILD,
    companions,
    document,
    labels,
    pretty,
    provenance_layer,
)
from elsa_build.images.publish import Destination, free_bytes, publish
from elsa_build.images.record import Stamped
from elsa_build.model import Digest, ImageRecord, Layer
from elsa_build.progress import SILENT, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A finished build. `made` names the layers that had to be written, `moved` their bytes."""

    record: ImageRecord
    name: str
    compressor: str
    layout: Path
    archive: Path | None
    made: tuple[str, ...]
    moved: int
    findings: tuple[Diagnostic, ...] = ()


def build(
    prepared: Prepared,
    destination: Destination,
    *,
    name: str | None = None,
    compressor: Compressor = Compressor(),  # noqa: B008 - frozen
    progress: Progress = SILENT,
    free: Callable[[Path], int] = free_bytes,
) -> Built:
    """Build the image and return what it is.

    Args:
        prepared: What goes in.
        destination: Where it goes.
        name: `repository:tag`; the tag must be the recipe's. None: the usual repository.
        compressor: Decides the blobs and the manifest, but neither config nor diff ids.
        progress: Told of every layer and document.
        free: How many bytes a folder's disk can take.

    Raises:
        ConfigError: A tag that docker refuses, a base with a broken blob.
        FailedError: The tag already names another image.
        ToolError: The disk is full or not writable.
    """
    repository, tag = tags.split(name or prepared.recipe.tag)
    prepared = replace(prepared, recipe=replace(prepared.recipe, tag=tag))
    store = BlobStore(prepared.cache)
    base = _take_base(prepared, store, progress)
    ours, made, said = _make_layers(prepared, store, compressor, progress)
    body = config(prepared, ours, said)
    image = Assembled(
        tag=tag,
        name=f"{repository}:{tag}",
        config=body,
        manifest=manifest_of(body, [*base, *ours], said),
        platform=prepared.platform,
        layers=tuple(layer.digest for layer in (*base, *ours)),
        blobs={layer.digest: store.path(layer.digest) for layer in (*base, *ours)},
    )
    record = ImageRecord(
        tag=tag,
        manifest=image.manifest_digest,
        config=image.config_digest,
        layers=(*base, *ours),
        labels=tuple(sorted(said.items())),
    )
    stamped = Stamped(record=record, name=image.name, compressor=compressor.label)
    publish(image, stamped, destination, prepared.epoch, progress, free)
    return Built(
        record=record,
        name=image.name,
        compressor=compressor.label,
        layout=destination.output / tag,
        archive=destination.output / f"{tag}.tar" if destination.archive else None,
        made=made,
        moved=sum(layer.size for layer in ours if layer.name in made) + len(body),
        findings=(*prepared.findings, *_findings(base)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One layer that a build would have, and whether the store has it already."""

    name: str
    key: Digest
    cached: bool


def forecast(prepared: Prepared, compressor: Compressor | None = None) -> tuple[Forecast, ...]:
    """Return the layers that a build would have above the base, but for the proof on top."""
    store, label = BlobStore(prepared.cache), (compressor or Compressor()).label
    return tuple(
        Forecast(name=plan.name, key=plan.key, cached=store.recall(plan.key, label) is not None)
        for plan in layers(prepared)
    )


# --- layers -----------------------------------------------------------------------------------


def _take_base(prepared: Prepared, store: BlobStore, progress: Progress) -> tuple[Layer, ...]:
    """Bring the base's blobs into the store, untouched and checked."""
    if prepared.base is None:
        return ()
    image, place = prepared.base.image, prepared.base.image.source.place
    pinned = (prepared.recipe.base or "").partition("@")[2]
    if pinned and pinned != image.manifest:
        raise ConfigError(
            f"{place}: is {image.manifest or 'without a manifest'}, the recipe's base is {pinned}",
            hint=f"skopeo copy --preserve-digests docker://{prepared.recipe.base} oci:{place}",
        )
    return tuple(_take(image, stored, store, progress) for stored in image.layers)


def _take(image: StoredImage, stored: StoredLayer, store: BlobStore, progress: Progress) -> Layer:
    source, digest = image.source, stored.digest
    if digest is None:
        raise ConfigError(
            f"{source.place}: {stored.file}: a compressed layer without a digest of its own",
            hint="skopeo copy docker-archive:FROM oci:TO",
        )
    with progress.task(f"base layer {digest}", stored.size, "B"):
        store.take(lambda: source.open(stored.file), digest, stored.size, source.path(stored.file))
    return Layer(
        name="base",
        key=digest,
        digest=digest,
        diff_id=stored.diff_id,
        size=stored.size,
        media_type=stored.media_type,
    )


def _make_layers(
    prepared: Prepared, store: BlobStore, compressor: Compressor, progress: Progress
) -> tuple[tuple[Layer, ...], tuple[str, ...], dict[str, str]]:
    """Return our layers, the names of those that were new, and the image's labels."""
    planned = list(layers(prepared))
    ours: list[Layer] = []
    made: list[str] = []

    def make(plan: PlannedLayer) -> None:
        layer, fresh = _make(plan, prepared.epoch, store, compressor, progress)
        ours.append(layer)
        made.extend([plan.name] if fresh else [])

    for plan in planned:
        make(plan)
    delta = delta_of(prepared)
    beside = companions(prepared, delta)
    build_json = document(prepared, delta, planned, ours, beside)
    make(provenance_layer(prepared, {BUILD: pretty(build_json), **beside}))
    return tuple(ours), tuple(made), labels(build_json)


def _make(
    plan: PlannedLayer, epoch: int, store: BlobStore, compressor: Compressor, progress: Progress
) -> tuple[Layer, bool]:
    """Return a layer, from the store if its key is known there, and whether it was written now."""
    known = store.recall(plan.key, compressor.label)
    blob = known
    if blob is None:
        with progress.task(f"layer {plan.name}"):
            blob = store.add(
                lambda out: write_layer(
                    plan.members(), out, mtime=epoch, compressor=compressor, folders=plan.folders
                )
            )
        store.remember(plan.key, compressor.label, blob)
    return (
        Layer(
            name=plan.name,
            key=plan.key,
            digest=blob.digest,
            diff_id=blob.diff_id,
            size=blob.size,
            media_type=blob.media_type,
        ),
        known is None,
    )


def _findings(base: Sequence[Layer]) -> Iterator[Diagnostic]:
    zstd = [layer.digest for layer in base if layer.media_type.endswith("zstd")]
    if zstd:
        yield Diagnostic(
            code="E520",
            severity=Severity.WARNING,
            message=f"{len(zstd)} base layers are zstd, which Docker before 23 cannot load",
            hint="skopeo copy --dest-compress-format gzip --dest-decompress oci:BASE oci:GZIP",
        )
