"""What an image says about itself, so that it can be checked against itself years later.

`/opt/elsa/build.json` names every input and every file that the patches touch, with digests;
`verify` compares. Labels are derived from that document and from nothing else, so that they cannot
tell another story. The compressor is not in it: it decides how a layer is stored, not what the
image is, and the config digest must not depend on it (the record beside the image names it).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from elsa_build import __version__
from elsa_build.git.objects import SYMLINK
from elsa_build.images.base import OURS
from elsa_build.images.delta import Delta
from elsa_build.images.dockerfile import STALE, stale_list
from elsa_build.images.ingredients import AppliedPatch, Base, Compiled, PlannedLayer, Prepared
from elsa_build.images.oci.layer import File
from elsa_build.images.oci.store import digest_of
from elsa_build.images.plan import on_folders
from elsa_build.images.sbom import bill
from elsa_build.model import Layer, Replay

BUILD = f"{OURS}/build.json"
SCHEMA = "elsa-build/build/1"


def applied_patches(done: Replay) -> tuple[AppliedPatch, ...]:
    """Return what provenance says of each patch of a replay; reads the patch files."""
    return tuple(
        AppliedPatch(
            id=step.patch.id,
            patchset=step.patch.patchset,
            kind=str(step.patch.kind),
            outcome=str(step.outcome),
            tree=step.tree,
            paths=step.paths,
            sha256=hashlib.sha256(step.patch.file.read_bytes()).hexdigest()
            if step.patch.file
            else None,
            origin=step.patch.origin.commit,
        )
        for step in done.steps
    )


def iso(epoch: int) -> str:
    """Return seconds since the epoch as the UTC time that OCI documents use."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def document(
    prepared: Prepared,
    delta: Delta,
    planned: Sequence[PlannedLayer],
    layers: Sequence[Layer],
    companions: Mapping[str, bytes],
) -> dict[str, Any]:
    """Return the content of `build.json`.

    Args:
        prepared: All inputs.
        delta: What the patches change.
        planned: The layers that we made, bottom first: for their keys' inputs.
        layers: The same layers as stored.
        companions: The files that stand beside it, by path in the image.
    """
    pin, recipe, root = prepared.pin, prepared.recipe, prepared.where
    return {
        "schema": SCHEMA,
        "tool": {"name": "elsa-build", "version": __version__},
        "created": iso(prepared.epoch),
        "tag": recipe.tag,
        "upstream": {
            "source": str(pin.source),
            "ref": pin.ref,
            "commit": pin.commit,
            "tree": pin.tree,
            "artifacts": {artifact.filename: artifact.sha256 for artifact in pin.artifacts},
        },
        "result": {
            "commit": prepared.head,
            "tree": prepared.trees.patched,
            "package": prepared.trees.package(prepared.trees.patched),
        },
        "recipe": {
            "name": recipe.name,
            "digest": prepared.recipe_digest,
            "arch": recipe.arch,
            "labels": dict(recipe.labels),
        },
        "base": _base(prepared.base) if prepared.base else None,
        "series": [_patch(patch) for patch in prepared.series],
        "layers": [
            {"name": plan.name, "key": layer.key, "diff_id": layer.diff_id, "inputs": plan.inputs}
            for plan, layer in zip(planned, layers, strict=True)
        ],
        "package_dir": root,
        "kernels": prepared.kernels_summary,
        "compiled": [_compiled(prepared.compiled)] if prepared.compiled else [],
        "files": {f"{root}/{path}": shown for path, shown in _written(prepared, delta).items()},
        "deleted": [f"{root}/{path}" for path in delta.deleted],
        "outside": list(prepared.trees.outside()),
        "companions": {f"/{path}": digest_of(body) for path, body in companions.items()},
    }


def _base(base: Base) -> dict[str, Any]:
    """Return what a base is; an image that never was in a registry has no manifest digest."""
    return {
        "name": base.name,
        "digest": base.image.manifest,
        "config": base.image.config_digest,
    }


def _compiled(compiled: Compiled) -> dict[str, Any]:
    return {
        "wheel": compiled.wheel,
        "sha256": compiled.wheel_sha256,
        "files": [
            {"path": file.path, "size": file.size, "digest": file.digest} for file in compiled.files
        ],
    }


def _patch(patch: AppliedPatch) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": patch.id,
        "patchset": patch.patchset,
        "kind": patch.kind,
        "outcome": patch.outcome,
        "tree": patch.tree,
        "paths": list(patch.paths),
    }
    identity = {"sha256": patch.sha256, "origin": patch.origin}
    return shown | {key: value for key, value in identity.items() if value}


def _written(prepared: Prepared, delta: Delta) -> dict[str, dict[str, str]]:
    """Return what the image must hold at every patched path: a file's digest or a link's target."""
    shown: dict[str, dict[str, str]] = {}
    for path, entry in delta.written.items():
        body = prepared.trees.objects.blob(entry.oid)
        if entry.mode == SYMLINK:
            shown[path] = {"target": body.decode("utf-8", "surrogateescape")}
        else:
            shown[path] = {"digest": digest_of(body), "mode": entry.mode[-3:]}
    return shown


def pretty(value: object) -> bytes:
    """Return JSON for people and for diffs: indented, sorted, a final newline."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def companions(prepared: Prepared, delta: Delta) -> dict[str, bytes]:
    """Return the files beside `build.json`, by path in the image without the leading slash.

    An overlay also lists what a Dockerfile must remove from the base that it is copied to.
    """
    files = {
        f"{OURS}/patches.lock": patches_lock(prepared).encode(),
        f"{OURS}/sbom.cdx.json": pretty(bill(prepared, __version__)),
        f"{OURS}/upstream.lock": prepared.lock,
    }
    if prepared.base is None:
        files[STALE.strip("/")] = stale_list(delta.written, delta.deleted, delta.emptied)
    return files


def patches_lock(prepared: Prepared) -> str:
    """Return the series as a lock: what each patch was and which tree it gave, in order."""
    lines = ["# made by elsa-build; do not edit", "version = 1"]
    lines += [f'upstream = "{prepared.pin.commit}"', f'tree = "{prepared.trees.patched}"']
    for patch in prepared.series:
        lines += ["", "[[patch]]", f'id = "{patch.id}"', f'patchset = "{patch.patchset}"']
        lines += [f'sha256 = "{patch.sha256}"'] if patch.sha256 else []
        lines += [f'origin = "{patch.origin}"'] if patch.origin else []
        lines += [f'outcome = "{patch.outcome}"', f'tree = "{patch.tree}"']
    return "\n".join(lines) + "\n"


def provenance_layer(prepared: Prepared, files: Mapping[str, bytes]) -> PlannedLayer:
    """Return the topmost layer: `build.json` and what stands beside it."""
    layer = PlannedLayer(
        name="provenance",
        inputs={
            "date": prepared.epoch,
            "files": {path: digest_of(body) for path, body in files.items()},
        },
        members=lambda: [File(path=path, body=body) for path, body in files.items()],
    )
    return on_folders(layer, prepared, files)


def labels(build: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that a `build.json` stands for.

    A recipe may choose title, licences and labels of its own; what is a fact it cannot change.

    Raises:
        KeyError: The document lacks a field; so do TypeError and AttributeError for a wrong one.
    """
    upstream, result, recipe = build["upstream"], build["result"], build["recipe"]
    usual = {
        "org.opencontainers.image.title": recipe["name"],
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    facts = {
        "org.opencontainers.image.created": build["created"],
        "org.opencontainers.image.revision": result["commit"],
        "org.opencontainers.image.version": build["tag"],
        "ai.elsa-build.arch": recipe["arch"],
        "ai.elsa-build.recipe": recipe["name"],
        "ai.elsa-build.recipe.digest": recipe["digest"],
        "ai.elsa-build.series": " ".join(patch["id"] for patch in build["series"]),
        "ai.elsa-build.tool.version": build["tool"]["version"],
        "ai.elsa-build.tree": result["tree"],
        "ai.elsa-build.upstream.commit": upstream["commit"],
        "ai.elsa-build.upstream.ref": upstream["ref"],
        "ai.elsa-build.upstream.tree": upstream["tree"],
    }
    if build.get("kernels"):
        facts["ai.elsa-build.kernels"] = build["kernels"]["digest"]
    if build["base"]:
        facts["org.opencontainers.image.base.name"] = build["base"]["name"]
        if build["base"]["digest"]:
            facts["org.opencontainers.image.base.digest"] = build["base"]["digest"]
    return {**usual, **recipe["labels"], **facts}
