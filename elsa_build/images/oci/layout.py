"""An OCI image layout: the folder that skopeo, umoci, podman and we ourselves read.

Base layers travel through untouched: their bytes, their history and their dates are theirs. Only
documents about the whole (manifest, config, index) are written anew.
Source: OCI image spec v1.1, image-layout.md, manifest.md, annotations.md.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.images.oci.store import blob_path, digest_of, disk_trouble, link_or_copy
from elsa_build.images.oci.stored import (
    Document,
    Source,
    StoredImage,
    StoredLayer,
    read_document,
)
from elsa_build.model import Digest, Layer

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
REF_NAME = "org.opencontainers.image.ref.name"
FULL_NAME = "io.containerd.image.name"

_LAYERS = {
    "application/vnd.oci.image.layer.v1.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": (
        "application/vnd.oci.image.layer.v1.tar+gzip"
    ),
}
"""Media types of layers that we read, and the OCI name of the same bytes."""
_MANIFESTS = {OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json"}
_INDEXES = {OCI_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json"}
_CONFIGS = {OCI_CONFIG, "application/vnd.docker.container.image.v1+json"}


# --- writing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A whole image, ready to be written in any form.

    `layers` are the layers' digests, bottom first (two may be equal), `blobs` the file that holds
    each; `name` is `repository:tag`.
    """

    tag: str
    name: str
    config: bytes
    manifest: bytes
    platform: str
    layers: tuple[Digest, ...]
    blobs: Mapping[Digest, Path]

    @property
    def config_digest(self) -> Digest:
        """Return the digest of the config: the image's id up to Docker 28."""
        return digest_of(self.config)

    @property
    def manifest_digest(self) -> Digest:
        """Return the digest of the manifest: what a registry would call the image."""
        return digest_of(self.manifest)

    @property
    def documents(self) -> dict[Digest, bytes]:
        """Return the blobs that are documents."""
        return {self.config_digest: self.config, self.manifest_digest: self.manifest}


def to_json(value: object) -> bytes:
    """Return the one JSON form that we hash: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_of(config: bytes, layers: Iterable[Layer], annotations: Mapping[str, str]) -> bytes:
    """Return an OCI manifest over a config and layers, bottom first."""
    return to_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": OCI_CONFIG, "digest": digest_of(config), "size": len(config)},
            "layers": [
                {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size}
                for layer in layers
            ],
            "annotations": dict(annotations),
        }
    )


def index_of(image: Assembled) -> bytes:
    """Return the `index.json` that names one image.

    `ref.name` is the bare tag, which is what podman makes a name of; the full name stands beside it
    for containerd.
    """
    system, _, architecture = image.platform.partition("/")
    entry = {
        "mediaType": OCI_MANIFEST,
        "digest": image.manifest_digest,
        "size": len(image.manifest),
        "platform": {"os": system, "architecture": architecture},
        "annotations": {REF_NAME: image.tag, FULL_NAME: f"docker.io/library/{image.name}"},
    }
    return to_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [entry]})


def assembled(image: StoredImage, name: str) -> Assembled:
    """Return the image of a layout folder under a name, ready to be written in another form.

    Raises:
        ConfigError: It is no layout folder: its blobs are no files of their own.
    """
    place, manifest = image.source.place, image.manifest
    if manifest is None or not place.is_dir():
        raise ConfigError(f"{place}: is no layout folder")
    digests = tuple(layer.digest for layer in image.layers if layer.digest)
    return Assembled(
        tag=name.rpartition(":")[2],
        name=name,
        config=blob_path(place, image.config_digest).read_bytes(),
        manifest=blob_path(place, manifest).read_bytes(),
        platform=image.platform,
        layers=digests,
        blobs={digest: blob_path(place, digest) for digest in digests},
    )


LAYOUT_MARK = to_json({"imageLayoutVersion": "1.0.0"})


def write_layout(folder: Path, image: Assembled) -> None:
    """Write an image as a layout into a new folder; layers are hard links where that is possible.

    Raises:
        ToolError: The disk is full or not writable.
    """
    with disk_trouble(folder):
        (folder / "blobs" / "sha256").mkdir(parents=True)
        for digest, path in image.blobs.items():
            link_or_copy(path, blob_path(folder, digest))
        for digest, body in image.documents.items():
            blob_path(folder, digest).write_bytes(body)
        (folder / "oci-layout").write_bytes(LAYOUT_MARK)
        (folder / "index.json").write_bytes(index_of(image))


# --- reading ----------------------------------------------------------------------------------


def read_layout(source: Source, *, tag: str | None = None) -> StoredImage:
    """Read the one image of a layout, or the one that `tag` names.

    Every document is checked against its digest and every layer against its size. Layers
    themselves are hashed when they are used (`BlobStore.take`, `verify`).

    Raises:
        ConfigError: Not a layout, several images, a blob missing or truncated, a media type that
            is not an image's.
    """
    place = source.place
    mark = read_document(source, "oci-layout")
    if not str(mark.get("imageLayoutVersion", kind=str)).startswith("1."):
        raise ConfigError(f"{mark.where}: imageLayoutVersion: only version 1 is known")
    index = read_document(source, "index.json")
    entry = _only_image(index, tag)
    name = _blob_name(entry, index.where, source)
    manifest = read_document(source, name, Digest(entry["digest"]))
    if manifest.fields.get("mediaType", entry.get("mediaType")) not in _MANIFESTS:
        raise ConfigError(f"{manifest.where}: mediaType: not an image manifest")
    about = manifest.get("config", kind=dict)
    if about.get("mediaType") not in _CONFIGS:
        raise ConfigError(
            f"{manifest.where}: config.mediaType: '{about.get('mediaType')}' is not an image's"
        )
    config = read_document(
        source, _blob_name(about, manifest.where, source), Digest(about["digest"])
    )
    annotations = entry.get("annotations") or {}
    return StoredImage(
        source=source,
        config_digest=Digest(about["digest"]),
        config=config.fields,
        layers=_layers(source, manifest, config),
        manifest=Digest(entry["digest"]),
        annotations=manifest.get("annotations", kind=dict, default={}),
        tag=annotations.get(REF_NAME) or place.name,
    )


def _only_image(index: Document, tag: str | None) -> dict[str, Any]:
    """Return the index entry of the wanted image; attestations beside it do not count."""
    entries = index.get("manifests", kind=list)
    images = [
        entry
        for entry in entries
        if isinstance(entry, dict)
        and "vnd.docker.reference.type" not in (entry.get("annotations") or {})
    ]
    if tag:
        images = [e for e in images if (e.get("annotations") or {}).get(REF_NAME) == tag]
        if not images:
            raise ConfigError(f"{index.where}: no image is named '{tag}'")
    nested = [entry for entry in images if entry.get("mediaType") in _INDEXES]
    if nested:
        raise ConfigError(
            f"{index.where}: manifests: an index inside the index (an image for several platforms)",
            hint="skopeo copy --override-os linux --override-arch amd64 oci:FROM oci:TO",
        )
    if len(images) != 1:
        names = [_describe(entry) for entry in images]
        raise ConfigError(
            f"{index.where}: manifests: {len(images)} images ({', '.join(names)}); one is needed",
            hint="skopeo copy --override-os linux --override-arch amd64 oci:FROM:NAME oci:TO",
        )
    if images[0].get("mediaType") not in _MANIFESTS:
        raise ConfigError(
            f"{index.where}: manifests.mediaType: '{images[0].get('mediaType')}' is not an image's"
        )
    return images[0]


def _describe(entry: Mapping[str, Any]) -> str:
    platform = entry.get("platform") or {}
    name = (entry.get("annotations") or {}).get(REF_NAME, "no name")
    return f"{name} {platform.get('os', '?')}/{platform.get('architecture', '?')}"


def _blob_name(descriptor: Mapping[str, Any], where: str, source: Source) -> str:
    """Return the file of a descriptor after checking that it is there with the right size."""
    digest, size = descriptor.get("digest"), descriptor.get("size")
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ConfigError(f"{where}: digest: {digest!r} is not a sha256 digest")
    name = f"blobs/sha256/{digest.removeprefix('sha256:')}"
    found = source.size(name)
    if found is None:
        raise ConfigError(f"{source.place}: {name}: missing, though {where} names it")
    if found != size:
        raise ConfigError(f"{source.place}: {name}: {found} bytes, expected {size}; truncated?")
    return name


def _layers(source: Source, manifest: Document, config: Document) -> tuple[StoredLayer, ...]:
    listed = manifest.get("layers", kind=list)
    diff_ids = config.get("rootfs", "diff_ids", kind=list)
    if len(listed) != len(diff_ids):
        raise ConfigError(
            f"{config.where}: rootfs.diff_ids: {len(diff_ids)}, but the manifest lists "
            f"{len(listed)} layers"
        )
    layers = []
    for layer, diff_id in zip(listed, diff_ids, strict=True):
        media_type = layer.get("mediaType") if isinstance(layer, dict) else None
        if media_type not in _LAYERS:
            raise ConfigError(
                f"{manifest.where}: layers.mediaType: '{media_type}' is not a layer that we read"
            )
        layers.append(
            StoredLayer(
                file=_blob_name(layer, manifest.where, source),
                diff_id=Digest(diff_id),
                size=layer["size"],
                media_type=_LAYERS[media_type],
                digest=Digest(layer["digest"]),
            )
        )
    return tuple(layers)
