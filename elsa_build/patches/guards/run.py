"""All guards on one step: a clean merge is not a right merge."""

from collections.abc import Iterable, Iterator

from elsa_build.diagnostics import Diagnostic
from elsa_build.patches.guards import definitions, imports, landing, names, presence, syntax
from elsa_build.patches.guards.change import FileChange, TreeReader
from elsa_build.patches.guards.modules import Modules
from elsa_build.patches.guards.pairing import pairing
from elsa_build.patches.guards.source import ModuleIndex
from elsa_build.patches.guards.view import View

__all__ = ["FileChange", "ModuleIndex", "TreeReader", "examine"]


def examine(
    changes: Iterable[FileChange],
    tree: TreeReader,
    *,
    roots: tuple[str, ...] = ("python",),
    index: ModuleIndex | None = None,
) -> tuple[Diagnostic, ...]:
    """Return what the guards find on the files of one applied patch, by path and line.

    Args:
        changes: The files that the step touched, each in its four versions.
        tree: The merged tree of this step.
        roots: Directories whose packages are the tree's own; imports of others are not looked at.
        index: What earlier steps parsed; share one over a replay.
    """
    index = index or ModuleIndex()
    modules = Modules(tree, roots, index)
    found = [one for change in changes for one in _on_file(change, modules, index)]
    return tuple(sorted(found, key=lambda one: (one.path or "", one.line or 0, one.code)))


def _on_file(change: FileChange, modules: Modules, index: ModuleIndex) -> Iterator[Diagnostic]:
    if not change.python:
        return
    view = View(change, index)
    yield from syntax.check(view)
    if change.merged is None or change.patched is None:
        yield from presence.check_files(view)
        return
    if not view.untouched:
        pairs = pairing(view)
        yield from landing.check(view, pairs)
        yield from presence.check(view, pairs)
        yield from names.check(view, modules)
    yield from imports.check(view, modules)
    yield from definitions.check(view)
