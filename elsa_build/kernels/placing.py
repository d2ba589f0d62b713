"""What in a bundle depends on where it lies, written anew for each place.

Triton's group files name their kernels by absolute path, and a lookup reads those: moved as it is,
a cache misses every kernel, or, worse, hits in the old place while that still exists. FlashInfer
is told of its folder by a module of ours. All other files are the same everywhere: SGLang's JIT
keys by tokens instead of paths, and an AOT library is loaded without a look at times.
"""

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import replace

from elsa_build.errors import ConfigError
from elsa_build.kernels.bundle import Held, Manifest, is_group
from elsa_build.kernels.inside.flashinfer import AOT, aot_provider
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.target import target

PYTHON = "python"
"""The folder of a bundle that belongs on PYTHONPATH."""

Bodies = dict[str, bytes]
"""Files by path, with their bytes."""


def group(path: str, body: bytes, files: Collection[str], prefix: str) -> bytes:
    """Return a group file of Triton's with its children beside it below another prefix.

    Raises:
        ConfigError: It is damaged, or has a child that is not among the files (exit 5).
    """
    folder = path.rpartition("/")[0]
    try:
        names = sorted(json.loads(body)["child_paths"])
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{path}: not a group file of Triton: {e!r}") from e
    lost = [name for name in names if f"{folder}/{name}" not in files]
    if lost or not names:
        raise ConfigError(f"{path}: names {lost or 'nothing'}, which the bundle does not have")
    children = {name: f"{prefix}/{folder}/{name}" for name in names}
    return json.dumps({"child_paths": children}).encode()


def metadata(body: bytes) -> bytes:
    """Return Triton's facts of a kernel without the builder's path to libdevice.

    Triton reads them when it loads the kernel, but not that path: the library is in the cubin.
    """
    facts = json.loads(body)
    for library in facts.get("extern_libs") or ():
        library[1] = library[1][library[1].rfind("/triton/") + 1 :]
    return json.dumps(facts).encode()


def provider(manifest: Manifest, prefix: str) -> Bodies:
    """Return the module that tells FlashInfer where its libraries are, if there are any."""
    if not manifest.of(Family.FLASHINFER):
        return {}
    version = str(manifest.toolchain["flashinfer"])
    gencode = target(manifest.target).gencode
    texts = aot_provider(version, f"{prefix}/{AOT}", gencode)
    return {f"{PYTHON}/{name}": body.encode() for name, body in texts.items()}


def relocated(
    manifest: Manifest, prefix: str, body: Callable[[str], bytes]
) -> tuple[Manifest, Bodies]:
    """Return the manifest for another place, and the files that are not as they were.

    Args:
        manifest: A sealed one.
        prefix: The absolute folder at which a server will see the bundle.
        body: Reads a file of the bundle, by path.

    Raises:
        ConfigError: A group file is damaged (exit 5).
    """
    if prefix == manifest.prefix:
        return manifest, {}
    groups = filter(is_group, manifest.files)
    bodies = {path: group(path, body(path), manifest.files, prefix) for path in groups}
    bodies |= provider(manifest, prefix)
    return replace(manifest, prefix=prefix, files={**manifest.files, **held(bodies)}), bodies


def held(bodies: Bodies) -> dict[str, Held]:
    """Return what some files are."""
    return {
        path: Held(sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        for path, body in bodies.items()
    }
