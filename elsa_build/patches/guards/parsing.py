"""Text to syntax: what a text holds, or why it is none.

The running Python is the judge, as on the machine that will serve; the caller compares with the
text before a patch, so that syntax newer than this Python is not laid at the patch's door.
"""

import ast
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO

from elsa_build.patches.guards.bindings import Import, bound, imports
from elsa_build.patches.guards.scopes import Block, blocks

_BROKEN = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why a text does not parse; `line` is 1-based in that text."""

    message: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a text holds; lines are 1-based in the text. `names` are those bound at its top."""

    blocks: tuple[Block, ...]
    imports: tuple[Import, ...]
    names: frozenset[str]


def parsed(text: str) -> Parsed | Fault:
    """Parse a text."""
    try:
        with _quiet():
            tree = ast.parse(text)
        return Parsed(
            blocks=blocks(tree, text.split("\n")),
            imports=tuple(imports(tree.body)) if "import" in text else (),
            names=frozenset(bound(tree.body)),
        )
    except _BROKEN as e:
        return _fault(e)


def compiled(text: str) -> Fault | None:
    """Compile a text and return why it cannot be: more than the grammar is asked.

    A keyword argument given twice, `return` outside of a function and two parameters of one name
    all parse.
    """
    try:
        with _quiet():
            compile(text, "<merged>", "exec", dont_inherit=True)
    except _BROKEN as e:
        return _fault(e)
    return None


def decoded(body: bytes) -> tuple[str, str]:
    """Return a file's text as Python reads it, and why it cannot be read (then as Latin-1)."""
    try:
        return body.removeprefix(b"\xef\xbb\xbf").decode("utf-8"), ""
    except UnicodeDecodeError as e:
        reason = f"byte {e.start} is not UTF-8 and the file declares no encoding"
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(body).readline)
        return body.decode(encoding), ""
    except (SyntaxError, UnicodeDecodeError):
        return body.decode("latin-1"), reason


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings about upstream's escapes and comparisons away from our user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _fault(e: Exception) -> Fault:
    if isinstance(e, SyntaxError):
        return Fault(message=e.msg, line=e.lineno or 1)
    return Fault(message=str(e) or type(e).__name__, line=1)
