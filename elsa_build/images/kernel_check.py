"""The kernels inside an image, hashed and audited again against the list that lies beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import IO, Any

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError
from elsa_build.images.kernel_layer import ROOT
from elsa_build.images.oci.contents import Seen as Entry
from elsa_build.images.oci.contents import Sort, visible
from elsa_build.images.oci.stored import StoredImage
from elsa_build.kernels.bundle import Manifest, parse
from elsa_build.kernels.bundle_verify import CHANGED, Seen, examine, seen
from elsa_build.kernels.target import target
from elsa_build.model import Digest

_READABLE = 0o444


def kernels(image: StoredImage, said: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Yield what is wrong with an image's kernels.

    Args:
        image: The image.
        said: What its `build.json` says of them.

    Raises:
        ConfigError: A layer is broken, or the list names an architecture that is not known.
        KeyError: A field of `build.json` is missing; so is TypeError for a wrong one.
    """
    place = str(said["list"]).strip("/")
    there = visible(image, place.__eq__, only={place}, keep={place}).get(place)
    if there is None or there.body is None or there.digest != said["digest"]:
        held = there.digest if there else "missing"
        yield _finding(f"is {held}, build.json says {said['digest']}", f"/{place}")
        return
    try:
        manifest = parse(there.body, f"/{place}")
    except ConfigError as e:
        yield _finding(str(e), f"/{place}")
        return
    entries, found = _look(image, manifest)
    for path, entry in sorted(entries.items()):
        if entry.mode & _READABLE != _READABLE:
            yield _finding(f"has mode {entry.mode & 0o777:o}: not for every user", f"/{path}")
    for one in examine(manifest, found, target(manifest.target)):
        yield replace(one, path=f"/{ROOT}/{one.path}", hint=None)


def listed(image: StoredImage, build: Mapping[str, Any]) -> Manifest | None:
    """Return the list of an image's kernels, or None when it has none that can be read."""
    place = str((build.get("kernels") or {}).get("list", "")).strip("/")
    seen = visible(image, place.__eq__, only={place}, keep={place}).get(place) if place else None
    try:
        return parse(seen.body, place) if seen and seen.body else None
    except ConfigError:
        return None


def _look(image: StoredImage, manifest: Manifest) -> tuple[dict[str, Entry], dict[str, Seen]]:
    """Return what stands in the folders of the kernels: as the image's entries, and looked into."""
    tops = tuple({f"{ROOT}/{path.split('/')[0]}/" for path in manifest.files})
    bodies: dict[str, Seen] = {}

    def measure(stream: IO[bytes], _: int) -> Digest:
        one = seen(stream.read())
        bodies[one.sha256] = one
        return Digest(one.sha256)

    entries = visible(image, lambda path: path.startswith(tops), measure=measure)
    odd = Seen(sha256="no file")
    found = {
        path.removeprefix(f"{ROOT}/"): bodies[str(entry.digest)] if entry.sort is Sort.FILE else odd
        for path, entry in entries.items()
    }
    return entries, found


def _finding(message: str, path: str) -> Diagnostic:
    return Diagnostic(code=CHANGED, severity=Severity.ERROR, message=message, path=path)
