"""What the patches change in the package, and what must be hidden of the layers below for it.

A layer cannot delete; it can hide. So a deleted file is hidden where one is below, stale bytecode
is, and a folder of which nothing is left goes as a whole.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elsa_build.errors import ConfigError
from elsa_build.git.objects import EXECUTABLE, FILE, GITLINK, Entry
from elsa_build.images.bytecode import CACHE_FOLDER, compiled, pyc_path, stale_pyc
from elsa_build.images.ingredients import Prepared
from elsa_build.images.oci.layer import File
from elsa_build.images.survey import PACKAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What the patches change in the package: paths are `sglang/...`.

    `deleted` are sources that go, `emptied` the folders of which nothing would be left; `absent` is
    what the layers hide for it: either, where it is below, and stale compiled files.
    """

    written: Mapping[str, Entry]
    deleted: tuple[str, ...]
    absent: tuple[str, ...]
    emptied: tuple[str, ...] = ()


def delta_of(prepared: Prepared) -> Delta:
    """Return what the patched package differs in from the layers below."""
    trees = prepared.trees
    written: dict[str, Entry] = {}
    deleted = []
    for change in trees.objects.changes(
        trees.package(trees.upstream), trees.package(trees.patched), f"{PACKAGE}/"
    ):
        if change.new:
            if change.new.mode == GITLINK:
                raise ConfigError(f"{change.path}: a submodule cannot be in an image")
            written[change.path] = change.new
        else:
            deleted.append(change.path)
    lower = _lower_paths(prepared)
    gone = {path for path in deleted if path in lower}
    gone.update(stale_pyc(lower, [*written, *deleted]))
    marks = hidden(gone, [*written, *bytecode_of(prepared, written)], lower)
    return Delta(
        written=written,
        deleted=tuple(deleted),
        # A whiteout does not survive COPY: there the Dockerfile removes what is listed for it.
        absent=() if prepared.below is not None else marks,
        emptied=tuple(path for path in marks if path not in lower),
    )


def _lower_paths(prepared: Prepared) -> Collection[str]:
    if prepared.base:
        return prepared.base.paths
    if prepared.below is not None:
        return prepared.below
    trees = prepared.trees
    package = trees.package(trees.upstream)
    paths = {f"{PACKAGE}/{path}" for path, _ in trees.objects.files(package)}
    if prepared.bytecode:
        paths.update([pyc_path(path, prepared.bytecode) for path in paths if path.endswith(".py")])
    if prepared.compiled:
        paths.update(f"{PACKAGE}/{file.path}" for file in prepared.compiled.files)
    return paths


def hidden(
    gone: Collection[str], written: Collection[str], lower: Collection[str]
) -> tuple[str, ...]:
    """Return the fewest paths to hide so that `gone` cannot be seen, sorted.

    A folder of which nothing is left goes as a whole: an empty one would still import, as a
    namespace package. A path that a written file replaces, or that has become a folder of written
    files, needs no marker: the new entry hides the old one, and a marker beside it is a clash.
    """
    kept = {folder for path in [*written, *(set(lower) - set(gone))] for folder in parents(path)}
    marks = set()
    for path in gone:
        if path in kept or path in written:
            continue
        above = parents(path)
        if not any(folder in written for folder in above):
            empty = (p for p in above if p not in kept and not p.endswith(CACHE_FOLDER))
            marks.add(next(empty, path))
    return tuple(sorted(marks))


def parents(path: str) -> list[str]:
    """Return the folders above a path, the topmost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def bytecode_of(prepared: Prepared, files: Mapping[str, Entry]) -> dict[str, File]:
    """Return what the sources among these files compile to, by path as `sglang/...`."""
    root = prepared.where.strip("/")
    made: dict[str, File] = {}
    for path, entry in files.items():
        if prepared.bytecode and path.endswith(".py") and entry.mode in (FILE, EXECUTABLE):
            source = prepared.trees.objects.blob(entry.oid)
            done = compiled(f"{root}/{path}", source, prepared.bytecode)
            if done:
                made[done[0].removeprefix(f"{root}/")] = File(path=done[0], body=done[1])
    return made
