"""Paths as a diff writes them, and which of them may leave the diff.

A patch comes from strangers: a path that climbs out of the tree or into `.git` would let it write
where no patch may. Source: git's `quote.c` for the quoting, `verify_path` for what git refuses.
"""

import re

_ESCAPES = {
    b"a": b"\a",
    b"b": b"\b",
    b"t": b"\t",
    b"n": b"\n",
    b"v": b"\v",
    b"f": b"\f",
    b"r": b"\r",
    b'"': b'"',
    b"\\": b"\\",
}
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_IGNORABLE = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that some file systems drop from a name, so that `.g\u200cit` would be `.git`."""


def unquoted(raw: bytes) -> bytes | None:
    """Return the bytes that a C-quoted name stands for, or None when the quoting is broken."""
    found = _QUOTED.fullmatch(raw)
    if not found:
        return None
    escapes = {match[1] for match in _ESCAPE.finditer(found[1])}
    if any(len(escape) == 1 and escape not in _ESCAPES for escape in escapes):
        return None
    return _ESCAPE.sub(
        lambda match: bytes([int(match[1], 8)]) if len(match[1]) == 3 else _ESCAPES[match[1]],
        found[1],
    )


def named(raw: bytes, prefix: bytes) -> str | None:
    """Return the path of a `--- a/path` or `+++ b/path` field, or None when it has no such form.

    `prefix` is `a/`, `b/` or nothing (for `rename from`).
    """
    # git ends a name that holds a blank with a tab, so that patch(1) can read it.
    name = unquoted(raw) if raw.startswith(b'"') else raw.removesuffix(b"\t")
    if name is None or not name.startswith(prefix):
        return None
    return name[len(prefix) :].decode("utf-8", "surrogateescape")


def both_named(raw: bytes) -> tuple[str, str] | None:
    """Return the two paths of a `diff --git` line, or None when only other lines can tell.

    Unquoted names with blanks are ambiguous unless both are the same, as they are but for renames.
    """
    for first in (rb'("(?:[^"\\]|\\.)*") (.+)', rb'(.+?) ("(?:[^"\\]|\\.)*")'):
        found = re.fullmatch(first, raw)
        if found:
            old, new = named(found[1], b"a/"), named(found[2], b"b/")
            return (old, new) if old is not None and new is not None else None
    half = (len(raw) - 1) // 2
    old, new = named(raw[:half], b"a/"), named(raw[half + 1 :], b"b/")
    if len(raw) % 2 and raw[half : half + 1] == b" " and old is not None and old == new:
        return old, old
    fields = raw.split(b" ")
    if len(fields) == 2:
        old, new = named(fields[0], b"a/"), named(fields[1], b"b/")
        return (old, new) if old is not None and new is not None else None
    return None


def problem(path: str) -> str | None:
    """Return why a path may not be written, or None when it may.

    Refused: absolute, a drive letter, NUL or a backslash, and components that are empty, `.`,
    `..` or any spelling of `.git`.
    """
    if not path or path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "an empty or absolute path"
    if "\0" in path or "\\" in path:
        return "a path with NUL or a backslash"
    wrong = (_component_problem(part) for part in path.split("/"))
    return next(filter(None, wrong), None)


def _component_problem(part: str) -> str | None:
    if part in ("", "."):
        return "an empty path component"
    if part == "..":
        return "a path outside the tree"
    plain = _IGNORABLE.sub("", part).partition(":")[0].rstrip(". ").lower()
    return "a path inside .git" if plain in (".git", "git~1") else None
