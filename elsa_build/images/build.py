"""From prepared inputs to an image on disk, all of it or nothing.

Layers are made in the cache, where an unchanged key finds its blob; everything else is written to a
folder of its own beside the results and renamed into place at the end, with the tag's lock. A run
that ends early, by an error, by ^C or by a full disk, leaves the previous image as it was.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, ToolError
from elsa_build.images import tags
from elsa_build.images.config import config
from elsa_build.images.oci.archive import write_archive
from elsa_build.images.oci.layer import Compressor, write_layer
from elsa_build.images.oci.layout import Assembled, manifest_of, write_layout
from elsa_build.images.oci.store import BlobStore, disk_trouble, locked, sweep
from elsa_build.images.oci.stored import StoredImage, StoredLayer
from elsa_build.images.plan import PlannedLayer, Prepared, delta_of, layers
from elsa_build.images.provenance import (
    BUILD,
    companions,
    document,
    labels,
    pretty,
    provenance_layer,
)
from elsa_build.images.record import Stamped, read, render
from elsa_build.model import Digest, ImageRecord, Layer
from elsa_build.progress import SILENT, Progress

_BUILDING = ".building-"
_SPARE_BYTES = 16 << 20
"""What may be left on the disk after a build: the documents, and the file system's own needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where an image goes: `output` gets `TAG/`, `TAG.tar` and `TAG.json`; `lock` is `tags.lock`.

    `archive` False leaves the tar out. `replace_local` moves a tag that was built here before.
    """

    output: Path
    lock: Path
    archive: bool = True
    replace_local: bool = False


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


def free_bytes(folder: Path) -> int:
    """Return what a person may still write to the disk of a folder."""
    return shutil.disk_usage(folder).free


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
    _write(image, stamped, destination, prepared.epoch, progress, free)
    return Built(
        record=record,
        name=image.name,
        compressor=compressor.label,
        layout=destination.output / tag,
        archive=destination.output / f"{tag}.tar" if destination.archive else None,
        made=made,
        moved=sum(layer.size for layer in ours if layer.name in made) + len(body),
        findings=tuple(_findings(base)),
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
            f"{source.place}: an old docker save cannot be a base, its layers have no digest",
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
                lambda out: write_layer(plan.members(), out, mtime=epoch, compressor=compressor)
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


# --- writing ----------------------------------------------------------------------------------


def _write(
    image: Assembled,
    stamped: Stamped,
    destination: Destination,
    epoch: int,
    progress: Progress,
    free: Callable[[Path], int],
) -> None:
    """Write layout, tar, record and lock: all, or none."""
    output = destination.output
    record = stamped.record
    with disk_trouble(output):
        output.mkdir(parents=True, exist_ok=True)
        _settled(destination, record)  # refuse early, before anything large is written
        _require_space(image, destination, free)
        with _staging(output, record.tag) as stage:
            with progress.task("OCI layout"):
                write_layout(stage / record.tag, image)
            names = [record.tag]
            if destination.archive:
                with (
                    progress.task("archive"),
                    (stage / f"{record.tag}.tar").open("wb") as out,
                ):
                    write_archive(out, image, mtime=epoch)
                names.append(f"{record.tag}.tar")
            (stage / f"{record.tag}.json").write_text(render(stamped), encoding="utf-8")
            names.append(f"{record.tag}.json")
            with progress.task("publish"), ExitStack() as held:
                for folder in sorted({output.resolve(), destination.lock.parent.resolve()}):
                    held.enter_context(locked(folder))
                claims = tags.render(_settled(destination, record))
                _swap(
                    [(stage / name, output / name) for name in names],
                    stage / "old",
                    lambda: _replace(destination.lock, claims),
                )


def _settled(destination: Destination, record: ImageRecord) -> dict[str, tags.Claim]:
    beside = destination.output / f"{record.tag}.json"
    here = tags.claim_of(read(beside).record) if beside.is_file() else None
    return tags.settle(
        tags.read(destination.lock),
        record.tag,
        tags.claim_of(record),
        here=here,
        replace_local=destination.replace_local,
    )


def _require_space(image: Assembled, destination: Destination, free: Callable[[Path], int]) -> None:
    """Refuse before writing when the results cannot fit.

    Raises:
        ToolError: The disk of the output has too few bytes left.
    """
    output = destination.output
    sizes = {path: path.stat() for path in image.blobs.values()}
    copied = sum(s.st_size for s in sizes.values() if s.st_dev != output.stat().st_dev)
    needed = copied + _SPARE_BYTES
    if destination.archive:
        needed += sum(status.st_size for status in sizes.values())
    left = free(output)
    if left < needed:
        raise ToolError(
            f"{output}: {left / 2**20:.0f} MiB free, the image needs {needed / 2**20:.0f} MiB",
            hint="free some space, or --output DIR on another disk",
        )


@contextmanager
def _staging(output: Path, tag: str) -> Iterator[Path]:
    """Make a folder beside the results that goes away at the end, whatever happens."""
    with locked(output):
        sweep(output, _BUILDING)
        stage = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{tag}-", dir=output))
        handle = os.open(stage, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(handle)


def _swap(moves: Sequence[tuple[Path, Path]], old: Path, last: Callable[[], None]) -> None:
    """Rename new over old, pair by pair, and run the last step; undo all of it when one fails.

    ^C waits for these few renames: between two of them the results would not fit together.
    """
    old.mkdir()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    done: list[tuple[Path, Path]] = []
    try:
        for new, target in moves:
            if target.exists():
                target.rename(old / target.name)
                done.append((old / target.name, target))
            new.rename(target)
            done.append((target, new))
        last()
    except OSError:
        for now, before in reversed(done):
            now.rename(before)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _replace(path: Path, text: str) -> None:
    handle, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        Path(fresh).chmod(0o644)
        Path(fresh).replace(path)
    finally:
        Path(fresh).unlink(missing_ok=True)
