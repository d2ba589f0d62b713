"""Where a Python text may be cut so that each piece parses alone and means the same.

After a complete statement at column 0 Python's tokenizer is in its first state again, so a text is
the sum of its top-level statements; inside a class the same holds for the methods, once a class
line stands before them. Only triple quotes can hide a line at column 0, and they are counted; when
quotes inside of another string mislead the count, a piece does not parse and the whole is taken.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_STARTS = ("def ", "class ", "async ", "@")
_CUT = re.compile(
    r"^(?:(@|(?:async +def|def|class)\b)|(?!(?:else|elif|except|finally)\b)\w)", re.MULTILINE
)
_METHOD = re.compile(r"^    (@|(?:async +def|def|class)\b)", re.MULTILINE)
_DEFINITION = re.compile(r"^(async +def|def|class)\b", re.MULTILINE)
_OTHER_INDENT = re.compile(r"^(?: {1,3}|\t)\S", re.MULTILINE)
_LARGE = 4_000
"""A class of more characters is cut into methods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A cut of a text.

    `offset` is the number of lines before it, `last` its last line that is not blank (1-based in
    the file). `class_offset` is the offset of the class that it is a part of. `code` is what to
    parse: a method stands in a class line, the opening of a class has a body. Add `shift` to a
    line of `code` to get the line in the file.
    """

    text: str
    offset: int
    code: str
    shift: int
    class_offset: int | None = None

    @property
    def definition(self) -> bool:
        """Say whether this is (a part of) one function or class of module level."""
        return self.class_offset is not None or self.text.startswith(_STARTS)

    @property
    def last(self) -> int:
        """Return the last line with text, 1-based in the file."""
        return self.offset + self.text.rstrip().count("\n") + 1


def pieces(text: str) -> Iterator[Piece]:
    """Yield the pieces of a text in order; joined their texts are the text."""
    offset = 0
    for part in _split(text, _cuts(text, _CUT)):
        if _cuttable(part):
            yield from _methods(part, offset)
        else:
            yield Piece(text=part, offset=offset, code=part, shift=offset)
        offset += part.count("\n")


def _cuttable(text: str) -> bool:
    """Say whether this is one large class whose body is indented by four blanks."""
    return (
        len(text) > _LARGE
        and text.startswith(("class ", "@"))
        and [found[1] for found in _DEFINITION.finditer(text)] == ["class"]
        and _OTHER_INDENT.search(text) is None
    )


def _methods(text: str, class_offset: int) -> Iterator[Piece]:
    offset = class_offset
    for number, part in enumerate(_split(text, _cuts(text, _METHOD))):
        opening = number == 0
        yield Piece(
            text=part,
            offset=offset,
            code=f"{part}    pass\n" if opening else f"class _:\n{part}",
            shift=offset if opening else offset - 1,
            class_offset=class_offset,
        )
        offset += part.count("\n")


def _split(text: str, cuts: Iterator[int]) -> Iterator[str]:
    start = 0
    for cut in cuts:
        yield text[start:cut]
        start = cut
    yield text[start:]


class _Inside(Enum):
    """What the text before a line is in the middle of."""

    STATEMENTS = auto()
    DECORATORS = auto()
    DEFINITION = auto()


def _cuts(text: str, pattern: re.Pattern[str]) -> Iterator[int]:
    """Yield the offsets where a definition starts, or a statement that follows one.

    Before a cut triple quotes come in pairs, so that no cut lies inside a long string; decorators
    stay with what they decorate.
    """
    inside = _Inside.STATEMENTS
    open_double = open_single = False
    seen = 0
    for found in pattern.finditer(text):
        start, word = found.start(), found[1]
        open_double ^= bool(text.count('"""', seen, start) % 2)
        open_single ^= bool(text.count("'''", seen, start) % 2)
        seen = start
        if open_double or open_single or (inside is _Inside.DECORATORS and not word):
            continue
        if start and (word or inside is _Inside.DEFINITION) and inside is not _Inside.DECORATORS:
            yield start
        if word:
            inside = _Inside.DECORATORS if word == "@" else _Inside.DEFINITION
        else:
            inside = _Inside.STATEMENTS
