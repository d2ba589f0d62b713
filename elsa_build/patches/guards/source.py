"""Python texts parsed piece by piece, each piece once, however many versions share it.

A guard needs the syntax of a few functions in each of four versions of a file; parsing whole files
would cost more than the merge that is being judged. Where a statement starts at column 0 (or a
method at its class's indent) and no string is open, a text may be cut: what parses alone there
means the same in the whole.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from elsa_build.patches.guards.parsing import Fault, Parsed, compiled, decoded, parsed
from elsa_build.patches.guards.pieces import Piece, pieces
from elsa_build.patches.guards.scopes import SCOPES, Block, BlockKind, indented

_OPENS = re.compile(r"\s*(?:async +def|def|class) +")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A block with its place in the file: add `offset` to the block's lines."""

    block: Block
    offset: int

    @property
    def kind(self) -> BlockKind:
        """Return the block's kind."""
        return self.block.kind

    @property
    def key(self) -> str:
        """Return the block's key."""
        return self.block.key

    @property
    def head(self) -> int:
        """Return the line of the block's keyword, 1-based in the file."""
        return self.block.head + self.offset

    @property
    def lines(self) -> range:
        """Return the block's lines, 1-based in the file, decorators included."""
        return range(self.block.first + self.offset, self.block.last + self.offset + 1)

    def like(self, other: "Frame") -> bool:
        """Say whether another block has the same kind and key."""
        return self.kind is other.kind and self.key == other.key


Path = tuple[Frame, ...]
"""The blocks around a line, outermost first."""

Keys = tuple[tuple[BlockKind, str], ...]
"""What a path is, without lines: equal in two versions when the place is the same."""


def keys(path: Path) -> Keys:
    """Return the path's identity across versions."""
    return tuple((frame.kind, frame.key) for frame in path)


class ModuleIndex:
    """Everything parsed so far. Share one between steps: versions of a file share most pieces."""

    def __init__(self) -> None:
        self._sources: dict[bytes, Source] = {}
        self._parsed: dict[str, Parsed | Fault] = {}
        self._faults: dict[str, Fault | None] = {}

    def source(self, body: bytes) -> "Source":
        """Return a file's source; the same bytes give the same object."""
        known = self._sources.get(body)
        if known is None:
            known = self._sources[body] = Source(body, self.parse, self.compile)
        return known

    def parse(self, text: str) -> Parsed | Fault:
        """Return what a text holds, or why it does not parse."""
        known = self._parsed.get(text)
        if known is None:
            known = self._parsed[text] = parsed(text)
        return known

    def compile(self, text: str) -> Fault | None:
        """Return why a text does not compile, which asks more than parsing."""
        if text not in self._faults:
            self._faults[text] = compiled(text)
        return self._faults[text]


class Source:
    """One version of a Python file, cut into pieces that are parsed when they are asked for."""

    def __init__(
        self,
        body: bytes,
        parse: Callable[[str], Parsed | Fault],
        check: Callable[[str], Fault | None],
    ) -> None:
        self._parse = parse
        self._check = check
        self.text, self.unreadable = decoded(body)
        self.lines = self.text.split("\n")
        self._classes: dict[int, Frame | None] = {}

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Return the cuts of the text in order; joined they are the text."""
        return tuple(pieces(self.text))

    @cached_property
    def _offsets(self) -> list[int]:
        return [piece.offset for piece in self.pieces]

    def _mend(self) -> bool:
        """Take the whole text as one piece after a wrong cut (quotes inside of a string)."""
        if len(self.pieces) == 1 or self.fault is not None:
            return False
        self.pieces = (Piece(text=self.text, offset=0, code=self.text, shift=0),)
        self._offsets = [0]
        self._classes = {}
        return True

    @cached_property
    def fault(self) -> Fault | None:
        """Return why the whole text does not compile."""
        if self.unreadable:
            return Fault(message=self.unreadable, line=1)
        return self._check(self.text)

    def parsed(self, piece: Piece) -> Parsed | None:
        """Return what a piece holds, or None where it does not parse."""
        found = self._parse(piece.code)
        return found if isinstance(found, Parsed) else None

    def holding(self, line: int) -> tuple[Piece, Parsed] | None:
        """Return the piece that holds a line and what is in it; None where the text is broken."""
        piece = self.piece_at(line)
        found = self.parsed(piece)
        if found is None and self._mend():
            return self.holding(line)
        return None if found is None else (piece, found)

    def piece_at(self, line: int) -> Piece:
        """Return the piece that holds a line, 1-based."""
        return self.pieces[max(bisect_right(self._offsets, line - 1) - 1, 0)]

    # --- where a line is --------------------------------------------------------------------

    def path(self, line: int) -> Path | None:
        """Return the blocks around a line, outermost first; None where the text is broken."""
        held = self.holding(line)
        if held is None:
            return None
        piece, _ = held
        outer = self.class_of(piece)
        path = [outer] if outer else []
        inside = list(self._frames(piece))
        while found := next((frame for frame in inside if line in frame.lines), None):
            path.append(found)
            inside = list(self.below(found))
        return tuple(path)

    def rough_path(self, line: int) -> Path:
        """Return the classes and functions around a line by indentation, for a broken text."""
        return tuple(Frame(block=block, offset=0) for block in indented(self.lines, line))

    # --- what is where ----------------------------------------------------------------------

    def below(self, frame: Frame) -> Iterator[Frame]:
        """Yield the blocks directly inside a block."""
        for child in frame.block.children:
            yield Frame(block=child, offset=frame.offset)
        if frame.block.split:
            for piece in self.pieces:
                if piece.class_offset == frame.offset:
                    yield from self._frames(piece)

    def named_below(self, frame: Frame, like: Frame) -> list[Frame]:
        """Return the blocks directly inside one that have the kind and key of another."""
        if not (frame.block.split and like.kind in SCOPES):
            return [found for found in self.below(frame) if found.like(like)]
        return [
            found
            for piece in self._defining(like.key, nested=True)
            if piece.class_offset == frame.offset
            for found in self._frames(piece)
            if found.like(like)
        ]

    def top(self, like: Frame) -> list[Frame]:
        """Return the outermost blocks with the kind and key of another, in order."""
        found = [piece for piece in self.pieces if not piece.definition]
        if like.kind in SCOPES:
            found = self._defining(like.key)
        return [frame for piece in found for frame in self._outer(piece) if frame.like(like)]

    def outermost(self, kind: BlockKind, key: str) -> list[Frame]:
        """Return the definitions of this name outside of others, under `if` and `try` as well."""
        return [
            found
            for piece in self._defining(key) or self._defining(key, nested=True)
            for frame in self._outer(piece)
            for found in self._not_inside(frame)
            if found.kind is kind and found.key == key
        ]

    def mentions(self, like: Frame) -> bool:
        """Say whether a definition of this name is anywhere in the text, parsed or not."""
        return bool(self._defining(like.key) or self._defining(like.key, nested=True))

    def _not_inside(self, frame: Frame) -> Iterator[Frame]:
        """Yield a definition itself, or the ones in the branches of a statement."""
        if frame.kind in SCOPES:
            yield frame
            return
        for child in self.below(frame):
            yield from self._not_inside(child)

    def _defining(self, name: str, *, nested: bool = False) -> list[Piece]:
        """Return the pieces with a definition of this name, found without parsing."""
        found: dict[int, Piece] = {}
        for word in re.finditer(rf"{re.escape(name)}\b", self.text):
            start = self.text.rfind("\n", 0, word.start()) + 1
            before = self.text[start : word.start()]
            if _OPENS.fullmatch(before) and before[0].isspace() is nested:
                piece = self.piece_at(self.text.count("\n", 0, start) + 1)
                found[piece.offset] = piece
        return list(found.values())

    def _outer(self, piece: Piece) -> Iterator[Frame]:
        """Yield the outermost blocks of a piece: the class itself for a part of a class."""
        outer = self.class_of(piece)
        if outer is None:
            yield from self._frames(piece)
        else:
            yield outer

    def _frames(self, piece: Piece) -> Iterator[Frame]:
        """Yield the blocks of a piece, for a part of a class those directly inside the class."""
        found = self.parsed(piece)
        inside = found.blocks if found else ()
        if inside and piece.class_offset is not None:
            inside = inside[0].children
        for block in inside:
            yield Frame(block=block, offset=piece.shift)

    def class_of(self, piece: Piece) -> Frame | None:
        """Return the class that a piece is a part of."""
        offset = piece.class_offset
        if offset is None:
            return None
        if offset not in self._classes:
            found = self.parsed(self.piece_at(offset + 1))
            if found is None:
                self._classes[offset] = None
            else:
                last = max(it.last for it in self.pieces if it.class_offset == offset)
                block = replace(found.blocks[0], last=last - offset, children=(), split=True)
                self._classes[offset] = Frame(block=block, offset=offset)
        return self._classes[offset]
