"""A tree of git as the guards read it: files by path, without a work tree."""

from elsa_build.git.door import Git
from elsa_build.git.objects import TREE
from elsa_build.model import Oid


class GitTree:
    """One tree; it is a `guards.change.TreeReader`."""

    def __init__(self, git: Git, tree: Oid) -> None:
        self._git = git
        self._tree = tree

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file, or None when there is none."""
        entry = self._git.objects.find(self._tree, path)
        return self._git.objects.blob(entry.oid) if entry and entry.mode != TREE else None

    def is_dir(self, path: str) -> bool:
        """Say whether the path is a directory."""
        entry = self._git.objects.find(self._tree, path)
        return entry is not None and entry.mode == TREE
