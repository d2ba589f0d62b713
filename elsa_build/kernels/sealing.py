"""Turns a build folder into a bundle: the named files, the document, all of it or nothing.

Of one input every seal gives the same bytes: only files that a kernel names are taken, what depends
on the builder's paths is rewritten, and nothing of the clock goes in. A bundle is written beside
its place and exchanged with the one that is there, so a reader sees one or the other.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels.bundle import (
    DOCUMENT,
    REBUILD,
    Bundle,
    Held,
    Kernel,
    Manifest,
    check_paths,
    check_prefix,
    is_group,
    is_metadata,
    text,
)
from elsa_build.kernels.machine_code import arch_of, code_of
from elsa_build.kernels.placing import Bodies, group, held, metadata, provider

_PIECE = 1 << 20
_EXCHANGE = 2


def seal(build: Path, output: Path, manifest: Manifest, harvest: Path | None = None) -> Bundle:
    """Write a bundle of what was built, and of what was harvested.

    Args:
        build: The folder of the caches as the builders filled it; it is only read.
        output: The bundle's folder; an older bundle there is replaced.
        manifest: What was built; `files`, and of each kernel `arch` and `size`, are filled in here.
        harvest: The folder that has what the manifest calls harvested.

    Raises:
        ConfigError: A kernel names a path outside, or a group file is damaged (exit 5).
        ToolError: A file that a kernel names is not there, the disk is full or cannot be written,
            or `output` is a folder of something else (exit 6).
    """
    homes = {path: build for kernel in manifest.kernels for path in kernel.files}
    for path in chain.from_iterable(manifest.harvested.values()):
        homes.setdefault(path, harvest or build)
    paths = sorted(homes)
    try:
        check_prefix(manifest.prefix)
        check_paths(paths)
    except ValueError as e:
        raise ConfigError(f"{output}: cannot be sealed: {e}") from e
    with staged(output) as stage:
        bodies = provider(manifest, manifest.prefix)
        files: dict[str, Held] = {}
        for path in paths:
            source = _wanted(homes[path] / path)
            if is_group(path):
                bodies[path] = group(path, source.read_bytes(), paths, manifest.prefix)
            elif is_metadata(path):
                bodies[path] = metadata(source.read_bytes())
            else:
                files[path] = copy(source, stage / path)
        files |= write(bodies, stage)
        kernels = (_measured(kernel, stage, files) for kernel in manifest.kernels)
        order = sorted(kernels, key=lambda one: (one.family, one.name, one.id))
        missing = sorted(manifest.missing, key=lambda one: (one.family, one.name))
        done = replace(
            manifest,
            kernels=tuple(order),
            missing=tuple(missing),
            files=dict(sorted(files.items())),
        )
        write({DOCUMENT: text(done)}, stage)
    return Bundle(folder=output, manifest=done)


def _wanted(path: Path) -> Path:
    if path.is_symlink() or not path.is_file():
        raise ToolError(f"{path}: a kernel names it, and it is not there", hint=REBUILD)
    return path


def _measured(kernel: Kernel, stage: Path, files: dict[str, Held]) -> Kernel:
    codes = (code_of((stage / path).read_bytes()) for path in kernel.files if _machine(path))
    return replace(
        kernel,
        files=tuple(sorted(kernel.files)),
        arch=arch_of(code for code in codes if code),
        size=sum(files[path].size for path in kernel.files),
    )


def _machine(path: str) -> bool:
    return path.endswith((".cubin", ".so"))


# --- files ------------------------------------------------------------------------------------


def copy(source: Path, to: Path) -> Held:
    """Copy a file into a new bundle, readable for everyone, and return what it is."""
    to.parent.mkdir(parents=True, exist_ok=True)
    hasher, size = hashlib.sha256(), 0
    with source.open("rb") as stream, to.open("xb") as out:
        while piece := stream.read(_PIECE):
            hasher.update(piece)
            size += out.write(piece)
    to.chmod(0o644)
    return Held(sha256=hasher.hexdigest(), size=size)


def write(bodies: Bodies, folder: Path) -> dict[str, Held]:
    """Write files into a new bundle, readable for everyone, and return what they are."""
    for path, body in bodies.items():
        to = folder / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(body)
        to.chmod(0o644)
    return held(bodies)


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Give a folder beside `output` to be filled, and put it in its place at the end.

    When the block fails, all is as before. What a killed run left is removed by the next one.

    Raises:
        ToolError: The disk is full, read-only, or another person's; or `output` is a folder that is
            no bundle (exit 6).
    """
    output = output.absolute()
    stage = output.with_name(f".{output.name}.new")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with _alone(output):
            if output.is_symlink() or (output.exists() and not _replaceable(output)):
                raise ToolError(
                    f"{output}: is not a bundle, so it is not replaced", hint="name another folder"
                )
            shutil.rmtree(stage, ignore_errors=True)
            stage.mkdir()
            try:
                yield stage
                for folder, _, _ in os.walk(stage):
                    Path(folder).chmod(0o755)
                _swap(stage, output)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
    except OSError as e:
        hint = f"free space on the disk of {output}" if e.errno == errno.ENOSPC else None
        raise ToolError(f"cannot write {output}: {e.strerror or e}", hint=hint) from e


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Let a second writer of this folder's bundles wait while the block runs."""
    handle = os.open(output.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replaceable(output: Path) -> bool:
    return output.is_dir() and ((output / DOCUMENT).is_file() or not any(output.iterdir()))


def _swap(new: Path, output: Path) -> None:
    """Put a folder in the place of another, which is then where the new one was."""
    if not output.exists():
        new.rename(output)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    here = -100  # AT_FDCWD: paths are taken as they are
    if libc.renameat2(here, os.fsencode(new), here, os.fsencode(output), _EXCHANGE) == 0:
        return
    # A file system that cannot exchange (some network ones): for a moment there is none.
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    output.rename(old)
    try:
        new.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
