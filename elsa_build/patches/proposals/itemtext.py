"""Items put into a bracketed list, or taken out, in the layout that the list already has.

A list with an item a line gets another line, with the comment that stood above the item; a list on
one line gets another word.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from elsa_build.patches.proposals.layout import moved
from elsa_build.patches.proposals.parts import Part, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The text between two places becomes another one."""

    start: int
    end: int
    text: str


def with_items(  # noqa: PLR0911 - one layout after the other
    source: Text, frame: Part, after: Part | None, foreign: Text, items: Sequence[Part]
) -> Edit:
    """Return the edit that adds items of another text behind one of the list's (None: first)."""
    assert frame.inner is not None
    start, end = frame.inner
    texts = [foreign.of(item) for item in items]
    if frame.kind == "BoolOp":
        return _operands(source, frame, after, texts)
    if not frame.items:
        return Edit(start=start, end=end, text=", ".join(texts))
    first = frame.items[0]
    if not exploded(source, frame):
        if after is None:
            return Edit(start=first.start, end=first.start, text=", ".join([*texts, ""]))
        return Edit(start=after.end, end=after.end, text="".join(f", {text}" for text in texts))
    indent = indent_at(source, first.start)
    chunks = [_chunk(foreign, item, indent) for item in items]
    if after is None:
        at = _line_start(source, first)
        return Edit(start=at, end=at, text="".join(f"{a},{b}\n" for a, b in chunks))
    rest = re.match(r"(,?)([ \t]*(?:#[^\n]*)?)\n", source.between(after.end, end))
    if rest is None:
        return Edit(start=after.end, end=after.end, text="".join(f", {text}" for text in texts))
    at = after.end + rest.end()
    if rest[1]:
        return Edit(start=at, end=at, text="".join(f"{a},{b}\n" for a, b in chunks))
    # The last item has no comma: it gets one, and the new last item has none.
    (last, note), *others = reversed(chunks)
    lines = "".join(f"{a},{b}\n" for a, b in reversed(others)) + f"{last}{note}\n"
    return Edit(start=after.end, end=at, text=f",{rest[2]}\n{lines}")


def without_item(source: Text, frame: Part, number: int) -> Edit:
    """Return the edit that takes an item out, with its comma and the comments above it."""
    items = frame.items
    item = items[number]
    if exploded(source, frame):
        tail = re.match(r",[ \t]*(#[^\n]*)?\n", source.between(item.end, source.whole[1]))
        start = _line_start(source, item)
        if tail and not source.between(start, item.start).rpartition("\n")[2].strip():
            return Edit(start=start, end=item.end + tail.end(), text="")
    if number + 1 < len(items):
        return Edit(start=item.start, end=items[number + 1].start, text="")
    start = items[number - 1].end if number else item.start
    return Edit(start=start, end=item.end, text="")


def exploded(source: Text, frame: Part) -> bool:
    """Say whether the items of a list begin lines of their own."""
    assert frame.inner is not None
    return bool(frame.items) and "\n" in source.between(frame.inner[0], frame.items[0].start)


def indent_at(source: Text, at: int) -> str:
    """Return the indent of the line that holds a place."""
    line = source.between(0, at).rpartition("\n")[2]
    return line[: len(line) - len(line.lstrip())]


def _operands(source: Text, frame: Part, after: Part | None, texts: Sequence[str]) -> Edit:
    assert frame.inner is not None
    start, end = frame.inner
    word = frame.label.lower()
    if after is None:
        return Edit(start=start, end=start, text="".join(f"{text} {word} " for text in texts))
    blank = " "
    if "\n" in source.between(start, end):
        blank = f"\n{indent_at(source, after.start)}"
    text = "".join(f"{blank}{word} {text}" for text in texts)
    return Edit(start=after.end, end=after.end, text=text)


def _chunk(foreign: Text, item: Part, indent: str) -> tuple[str, str]:
    """Return an item's lines with the comments above it, and the comment behind it."""
    first, *rest = foreign.of(item).split("\n")
    lines = [indent + line for line in _comments_above(foreign, item)]
    lines += [indent + first, *moved(rest, indent_at(foreign, item.start), indent)]
    tail = re.match(r",?[ \t]*(#[^\n]*)?(?=\n)", foreign.between(item.end, foreign.whole[1]))
    return "\n".join(lines), f"  {tail[1]}" if tail and tail[1] else ""


def _line_start(source: Text, item: Part) -> int:
    """Return where the lines of an item begin, the comments above it among them."""
    at = source.between(0, item.start).rfind("\n") + 1
    for _ in _comments_above(source, item):
        at = source.between(0, at - 1).rfind("\n") + 1
    return at


def _comments_above(source: Text, item: Part) -> list[str]:
    """Return the lines of comment directly above an item that begins its line."""
    lines = source.between(0, item.start).split("\n")
    if lines[-1].strip():
        return []
    found: list[str] = []
    for line in reversed(lines[:-1]):
        if not line.strip().startswith("#"):
            break
        found.insert(0, line.strip())
    return found
