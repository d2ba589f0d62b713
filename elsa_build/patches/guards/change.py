"""What a guard looks at: one file of a step in its four versions, and the merged tree.

Whatever applied the patch (three-way merge, a stored resolution, GNU patch), the guards see only
the texts before and after, so that they judge the result and not the tool.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file that a step touched; None means that the file is absent in that version.

    `path` is the file's place in `onto` and in the merged tree (after upstream's renames).
    `written` and `patched` are the patch's own pre-image and post-image, `onto` and `merged` the
    file before and after applying.
    """

    path: str
    written: bytes | None
    patched: bytes | None
    onto: bytes | None
    merged: bytes | None

    @property
    def python(self) -> bool:
        """Say whether the file is Python by its name."""
        return self.path.endswith((".py", ".pyi"))


class TreeReader(Protocol):
    """The merged tree, by path."""

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file, or None when there is none."""

    def is_dir(self, path: str) -> bool:
        """Say whether the path is a directory with something in it."""
