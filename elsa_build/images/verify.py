"""A label is only a claim: the files inside an image are hashed again and compared.

From the outside in: the blobs against their digests, the layers against the config, `build.json`
against the labels and the layers, the patched files against `build.json`, the kernels against their
list and, by their machine code, against the card; and what must be gone is gone: deleted files, and
bytecode of what a patch replaced. An overlay image holds the whole
package, so its git tree is computed from the image and compared as well, and the compiled files of
the release, which no tree holds, one by one.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError
from elsa_build.git.objects import EXECUTABLE, FILE, SYMLINK, Entry, blob_id
from elsa_build.images.bytecode import module_of
from elsa_build.images.kernel_check import kernels
from elsa_build.images.oci.contents import Seen, Sort, visible
from elsa_build.images.oci.store import digest_of_stream
from elsa_build.images.oci.stored import StoredImage, UnreadableLayerError
from elsa_build.images.plan import UPSTREAM
from elsa_build.images.provenance import BUILD, SCHEMA, labels
from elsa_build.images.record import Stamped
from elsa_build.images.survey import PACKAGE
from elsa_build.images.treeid import tree_id
from elsa_build.model import Digest, Oid
from elsa_build.progress import SILENT, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was looked at and what was found wrong; `build` is the image's own `build.json`.

    `files`, `absent` and `kernels` count what it names: patched files, deleted ones, kernels.
    """

    image: StoredImage
    build: Mapping[str, Any]
    files: int
    absent: int
    kernels: int
    findings: tuple[Diagnostic, ...]


def verify(
    image: StoredImage, *, stamped: Stamped | None = None, progress: Progress = SILENT
) -> Verified:
    """Compare an image with what it says of itself and with its record, if there is one."""
    findings = list(_blobs(image, progress))
    broken = any(found.code == "E521" for found in findings)
    build: Mapping[str, Any] = {}
    # What a broken layer holds says nothing; the digests have said all.
    if not broken:
        try:
            build = read_build(image)
            with progress.task("patched files"):
                findings += _contents(image, build)
            if build.get("kernels"):
                with progress.task("kernels"):
                    findings += kernels(image, build["kernels"])
            findings += [*_labels(image, build), *_layers(image, build)]
            whole = any(layer["name"] == UPSTREAM for layer in build["layers"])
            if whole and not _copied(image, build):
                findings += _package(image, build)
        except UnreadableLayerError as e:
            findings.append(_finding("E530", str(e), severity=Severity.WARNING, hint=e.hint))
        except ConfigError as e:
            findings.append(_finding("E522", str(e), hint=e.hint))
        except (KeyError, TypeError, AttributeError, ValueError) as e:
            findings.append(_finding("E522", f"a field is missing or wrong: {e!r}", f"/{BUILD}"))
    if stamped:
        findings += _record(image, stamped)
    return Verified(
        image=image,
        build=build,
        files=len(build.get("files", ())),
        absent=len(build.get("deleted", ())),
        kernels=sum(((build.get("kernels") or {}).get("counts") or {}).values()),
        findings=tuple(findings),
    )


def read_build(image: StoredImage) -> dict[str, Any]:
    """Return the `build.json` inside an image.

    Raises:
        ConfigError: It has none, or not one that we wrote.
    """
    seen = visible(image, lambda path: path == BUILD, only={BUILD}, keep={BUILD}).get(BUILD)
    place = image.source.place
    if seen is None or seen.body is None:
        raise ConfigError(f"{place}: has no /{BUILD}, so elsa-build did not make it")
    try:
        build = json.loads(seen.body)
        schema = build["schema"]
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{place}: /{BUILD}: is not what elsa-build writes: {e!r}") from e
    if schema != SCHEMA:
        raise ConfigError(f"{place}: /{BUILD}: schema: '{schema}' is not '{SCHEMA}'")
    return dict(build)


def _finding(
    code: str,
    message: str,
    path: str | None = None,
    *,
    severity: Severity = Severity.ERROR,
    hint: str | None = None,
) -> Diagnostic:
    return Diagnostic(code=code, severity=severity, message=message, path=path, hint=hint)


# --- from the outside in ----------------------------------------------------------------------


def _blobs(image: StoredImage, progress: Progress) -> Iterator[Diagnostic]:
    """Hash every layer as stored and as plain tar."""
    for layer in image.layers:
        with progress.task(f"layer {layer.diff_id}", layer.size, "B"):
            if layer.digest:
                with image.source.open(layer.file) as raw:
                    stored, _ = digest_of_stream(raw)
                if stored != layer.digest:
                    yield _finding("E521", f"holds {stored}; damaged or edited", layer.file)
                    continue
                if stored == layer.diff_id:
                    continue  # it is not compressed
            try:
                with image.plain(layer) as stream:
                    plain, _ = digest_of_stream(stream)
            except UnreadableLayerError as e:
                yield _finding("E530", str(e), severity=Severity.WARNING, hint=e.hint)
                continue
            except ConfigError as e:
                yield _finding("E521", str(e))
                continue
        if plain != layer.diff_id:
            yield _finding("E521", f"unpacks to {plain}, not {layer.diff_id}", layer.file)


def _labels(image: StoredImage, build: Mapping[str, Any]) -> Iterator[Diagnostic]:
    expected = labels(build)
    for where, found in (("label", image.labels), ("annotation", image.annotations)):
        if where == "annotation" and image.manifest is None:
            continue  # docker save keeps no manifest
        for key, value in expected.items():
            if where == "annotation" and not found:
                break  # dockerd writes a manifest of its own, without annotations
            if found.get(key) != value:
                said = f"'{found[key]}'" if key in found else "absent"
                yield _finding("E526", f"{where} {key} is {said}, build.json says '{value}'")


def _layers(image: StoredImage, build: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Compare the layers with `build.json`, which knows all but the one that it is in."""
    if _copied(image, build):
        yield _finding(
            "E532",
            "no layer is ours: a Dockerfile copied the files in; they were compared one by one",
            severity=Severity.NOTE,
        )
        return
    listed = build["layers"]
    ours = image.layers[len(image.layers) - len(listed) - 1 : -1]
    if len(ours) != len(listed):
        yield _finding("E528", f"{len(image.layers)} layers, too few for build.json's {listed}")
        return
    for layer, expected in zip(ours, listed, strict=True):
        if layer.diff_id != expected["diff_id"]:
            yield _finding(
                "E528",
                f"layer {expected['name']} is {layer.diff_id}, build.json says "
                f"{expected['diff_id']}",
            )


def _copied(image: StoredImage, build: Mapping[str, Any]) -> bool:
    """Say whether the files came by COPY from an overlay image, so in layers of docker's own."""
    held = {layer.diff_id for layer in image.layers}
    return not any(layer["diff_id"] in held for layer in build["layers"])


def _record(image: StoredImage, stamped: Stamped) -> Iterator[Diagnostic]:
    record = stamped.record
    pairs: list[tuple[str, object, object]] = [("config", image.config_digest, record.config)]
    if image.annotations:  # else the manifest is another tool's, over the same config and layers
        pairs.append(("manifest", image.manifest, record.manifest))
    found = [layer.diff_id for layer in image.layers]
    pairs.append(("diff ids", found, [layer.diff_id for layer in record.layers]))
    for what, is_now, was in pairs:
        if is_now != was:
            yield _finding("E527", f"{what}: {is_now}, the record says {was}", f"{record.tag}.json")


# --- files ------------------------------------------------------------------------------------


def _contents(image: StoredImage, build: Mapping[str, Any]) -> Iterator[Diagnostic]:
    files: dict[str, Any] = {path.strip("/"): entry for path, entry in build["files"].items()}
    deleted = {path.strip("/") for path in build["deleted"]}
    beside: dict[str, str] = {
        path.strip("/"): digest for path, digest in build["companions"].items()
    }
    exact = {*files, *deleted, *beside}
    modules = {p.removesuffix(".py") for p in {*files, *deleted} if p.endswith(".py")}
    seen = visible(image, lambda path: path in exact or module_of(path) in modules)
    for path, entry in sorted(files.items()):
        yield from _file(path, entry, seen.get(path))
    for path in sorted(deleted & seen.keys()):
        yield _finding("E524", "is in the image though a patch deletes it", f"/{path}")
    for path, digest in sorted(beside.items()):
        if path not in seen or seen[path].digest != digest:
            yield _finding("E529", f"is not {digest}, which build.json names", f"/{path}")
    for path in sorted(seen):
        module = module_of(path)
        if module in modules and _older(seen[path], seen.get(f"{module}.py")):
            yield _finding(
                "E525", "is bytecode of the file as it was before the patches", f"/{path}"
            )


def _file(path: str, entry: Mapping[str, str], seen: Seen | None) -> Iterator[Diagnostic]:
    if seen is None:
        yield _finding("E523", "is missing; a patch writes it", f"/{path}")
    elif "target" in entry:
        if seen.sort is not Sort.SYMLINK or seen.target != entry["target"]:
            yield _finding("E523", f"is not a link to {entry['target']}", f"/{path}")
    elif seen.sort is not Sort.FILE or seen.digest != entry["digest"]:
        held = seen.digest or f"a {seen.sort}"
        yield _finding("E523", f"is {held}, the patches made {entry['digest']}", f"/{path}")
    elif seen.mode & 0o777 != int(entry["mode"], 8):
        yield _finding("E523", f"has mode {seen.mode & 0o777:o}, not {entry['mode']}", f"/{path}")


def _older(bytecode: Seen, source: Seen | None) -> bool:
    return source is None or bytecode.layer < source.layer


def _package(image: StoredImage, build: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Compute the git tree of the whole package as the image shows it; hash what is compiled."""
    root = f"{build['package_dir'].strip('/')}/{PACKAGE}/"
    compiled: dict[str, str] = {
        f"{root}{file['path']}": file["digest"]
        for wheel in build["compiled"]
        for file in wheel["files"]
    }
    seen = visible(
        image,
        lambda path: path.startswith(root) and path not in compiled and module_of(path) is None,
        measure=_git_id,
    )
    entries: dict[str, Entry] = {}
    for path, held in seen.items():
        if held.sort is Sort.SYMLINK:
            entry = Entry(SYMLINK, blob_id((held.target or "").encode("utf-8", "surrogateescape")))
        else:
            entry = Entry(EXECUTABLE if held.mode & 0o100 else FILE, Oid(str(held.digest)))
        entries[path.removeprefix(root)] = entry
    found, expected = tree_id(entries), build["result"]["package"]
    if found != expected:
        yield _finding(
            "E531",
            f"is git tree {found}, the patched package is {expected}",
            f"/{root.rstrip('/')}",
        )
    shown = visible(image, compiled.__contains__, only=compiled)
    for path, digest in sorted(compiled.items()):
        there = shown[path].digest if path in shown else None
        if there != digest:
            yield _finding("E533", f"is {there or 'missing'}, the wheel has {digest}", f"/{path}")


def _git_id(stream: IO[bytes], size: int) -> Digest:
    """Return the id that git gives a file."""
    hasher = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while piece := stream.read(1 << 20):
        hasher.update(piece)
    return Digest(hasher.hexdigest())
