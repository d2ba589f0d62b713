"""A file change as the guards read it: four sources and two diffs, made when asked for."""

from collections.abc import Iterable
from functools import cached_property

from elsa_build.patches.guards.change import FileChange
from elsa_build.patches.guards.linediff import Hunk, hunks
from elsa_build.patches.guards.source import Frame, ModuleIndex, Path, Source


class Version:
    """One version of a file with the lines (1-based) that the patch removes or adds there."""

    def __init__(self, source: Source, changed: frozenset[int]) -> None:
        self.source = source
        self.changed = changed

    def code(self, line: int) -> str:
        """Return a line without blanks around it, or nothing for a comment."""
        text = self.source.lines[line - 1].strip()
        return "" if text.startswith("#") else text

    @cached_property
    def code_lines(self) -> tuple[tuple[int, str], ...]:
        """Return every line of code with its number, without comments and blank lines."""
        numbered = ((line, self.code(line)) for line in range(1, len(self.source.lines) + 1))
        return tuple((line, text) for line, text in numbered if text)

    def path(self, line: int) -> Path:
        """Return the blocks around a line; by indentation alone where the text does not parse."""
        exact = self.source.path(line)
        return self.source.rough_path(line) if exact is None else exact

    def fresh(self, frame: Frame) -> bool:
        """Say whether the header of a block is one of the changed lines."""
        return frame.head in self.changed


class Edit:
    """One side of a change: the patch as written (written to patched), or as applied."""

    def __init__(self, before: bytes | None, after: bytes | None, index: ModuleIndex) -> None:
        self._before = index.source(before or b"")
        self._after = index.source(after or b"")

    @cached_property
    def hunks(self) -> tuple[Hunk, ...]:
        """Return the changed blocks, in order."""
        return hunks(self._before.lines, self._after.lines)

    @cached_property
    def before(self) -> Version:
        """Return the text before, with the lines that go away (1-based)."""
        return Version(self._before, _lines((hunk.old_start, hunk.old_stop) for hunk in self.hunks))

    @cached_property
    def after(self) -> Version:
        """Return the text after, with the lines that are new (1-based)."""
        return Version(self._after, _lines((hunk.new_start, hunk.new_stop) for hunk in self.hunks))


class View:
    """A file change with its two edits."""

    def __init__(self, change: FileChange, index: ModuleIndex) -> None:
        self.change = change
        self.path = change.path
        self.index = index
        self.asked = Edit(change.written, change.patched, index)
        self.got = Edit(change.onto, change.merged, index)

    @property
    def untouched(self) -> bool:
        """Say whether the patch met the very text it was written on, or left the very same one."""
        change = self.change
        return change.onto == change.written or change.merged == change.patched


def _lines(spans: Iterable[tuple[int, int]]) -> frozenset[int]:
    return frozenset(line + 1 for start, stop in spans for line in range(start, stop))
