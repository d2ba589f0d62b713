"""The content of a `GIT binary patch`, so that a patch may carry an image or a kernel file.

git can write a file whole (`literal`) or as copies out of the pre-image (`delta`). Source: git's
`apply.c` for the framing, `patch-delta.c` and gitformat-pack(5) for the delta.
"""

import base64
import zlib
from dataclasses import dataclass

MAX_SIZE = 256 * 1024 * 1024
"""Bytes; a patch that unpacks to more is an attack or does not belong in a series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryChange:
    """One direction of a binary hunk: the whole post-image, or a delta against the pre-image."""

    delta: bool
    content: bytes


def decode(lines: list[bytes], size: int, *, delta: bool) -> BinaryChange:
    """Return the content of a binary hunk's lines; `size` is what its header promises, in bytes.

    Raises:
        ValueError: A line is damaged, or the content has another size.
    """
    packed = b"".join(map(_line, lines))
    if size > MAX_SIZE:
        raise ValueError(f"a binary file of {size} bytes")
    try:
        content = zlib.decompressobj().decompress(packed, size + 1)
    except zlib.error as e:
        raise ValueError("damaged binary content") from e
    if len(content) != size:
        raise ValueError(f"binary content is not {size} bytes long")
    return BinaryChange(delta=delta, content=content)


def applied(change: BinaryChange, preimage: bytes) -> bytes:
    """Return the post-image.

    Raises:
        ValueError: The delta does not fit this pre-image.
    """
    if not change.delta:
        return change.content
    delta = change.content
    try:
        expected, at = _varint(delta, 0)
        size, at = _varint(delta, at)
        if expected != len(preimage):
            raise ValueError(f"the binary delta is for a file of {expected} bytes")
        parts: list[bytes] = []
        while at < len(delta):
            part, at = _instruction(delta, at, preimage)
            parts.append(part)
    except IndexError as e:
        raise ValueError("the binary delta ends early") from e
    result = b"".join(parts)
    if len(result) != size:
        raise ValueError(f"the binary delta gives {len(result)} bytes, not {size}")
    return result


def _line(line: bytes) -> bytes:
    """Decode one line: a length letter (A-Z 1-26, a-z 27-52) and base 85."""
    letter = line[:1]
    if letter.isupper():
        length = letter[0] - ord("A") + 1
    elif letter.islower():
        length = letter[0] - ord("a") + 27
    else:
        raise ValueError("a binary line without its length letter")
    try:
        body = base64.b85decode(line[1:])
    except ValueError as e:
        raise ValueError("a binary line that is not base 85") from e
    if not length <= len(body) < length + 4:
        raise ValueError("a binary line of the wrong length")
    return body[:length]


def _varint(delta: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = delta[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _instruction(delta: bytes, at: int, preimage: bytes) -> tuple[bytes, int]:
    """Read one instruction: insert the next 1-127 bytes, or copy a range of the pre-image."""
    command, at = delta[at], at + 1
    if not command & 0x80:
        if command == 0 or at + command > len(delta):
            raise ValueError("damaged binary delta")
        return delta[at : at + command], at + command
    fields = [0] * 7
    for bit in range(7):
        if command & (1 << bit):
            fields[bit], at = delta[at], at + 1
    offset = int.from_bytes(fields[:4], "little")
    size = int.from_bytes(fields[4:], "little") or 0x10000
    if offset + size > len(preimage):
        raise ValueError("the binary delta copies from beyond the pre-image")
    return preimage[offset : offset + size], at
