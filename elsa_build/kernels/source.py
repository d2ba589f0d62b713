"""The patched tree as files, for the interpreter that compiles from it: one folder a tree, kept.

The folder's name is the tree's id, so it is written once and shared by every recipe and target.
"""

import os
import shutil
import tempfile
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.objects import EXECUTABLE, FILE, SYMLINK, TREE, ObjectStore
from elsa_build.model import Oid
from elsa_build.progress import SILENT, Progress

PACKAGE = "sglang"


def materialise(
    objects: ObjectStore,
    tree: Oid,
    folder: Path,
    *,
    prefix: str = "python",
    progress: Progress = SILENT,
) -> Path:
    """Return the folder that holds `sglang/` of a tree, written below `folder` if it is not there.

    Raises:
        ConfigError: The tree has no such package.
        ToolError: The folder cannot be written.
    """
    entry = objects.find(tree, f"{prefix}/{PACKAGE}")
    if entry is None or entry.mode != TREE:
        raise ConfigError(f"tree {tree} has no folder {prefix}/{PACKAGE}")
    place = folder / entry.oid
    if place.is_dir():
        return place
    try:
        folder.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder))
        try:
            with progress.task(f"write the patched tree {entry.oid[:12]}"):
                _write(objects, entry.oid, beside / PACKAGE)
            beside.chmod(0o755)
            os.replace(beside, place)  # noqa: PTH105 - over nothing: a full folder of the same name wins
        except OSError:
            if not place.is_dir():  # else another run was first
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as e:
        raise ToolError(f"{folder}: cannot write the patched tree: {e.strerror}") from e
    return place


def _write(objects: ObjectStore, package: Oid, folder: Path) -> None:
    files = [(path, entry) for path, entry in objects.files(package)]
    known = [(path, entry) for path, entry in files if entry.mode in (FILE, EXECUTABLE, SYMLINK)]
    bodies = objects.blobs([entry.oid for _, entry in known])
    for (path, entry), body in zip(known, bodies, strict=True):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.mode == SYMLINK:
            target.symlink_to(os.fsdecode(body))
        else:
            target.write_bytes(body)
            target.chmod(0o755 if entry.mode == EXECUTABLE else 0o644)
