"""A git diff as values, read strictly: what git would not have written is an error with its line.

Tools that repair what they read (a wrong count, a blank line that lost its blank) hide damage that
changes code. Source: git-diff(1), "generating patch text with -p"; git's `apply.c`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from elsa_build.errors import ConfigError
from elsa_build.model import Oid
from elsa_build.patches import diffpath
from elsa_build.patches.binary import BinaryChange, decode

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?")
_MODE = re.compile(rb"100644|100755|120000|160000")
_INDEX = re.compile(rb"([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d{6}))?")


class DiffError(ConfigError):
    """A diff cannot be used. `line` is 1-based in the diff, `reason` the words without it."""

    def __init__(self, line: int, reason: str, *, hint: str | None = None) -> None:
        super().__init__(f"diff line {line}: {reason}", hint=hint)
        self.line = line
        self.reason = reason


class MissingBlobError(DiffError):
    """The diff is well, but the repository lacks a file as the patch's author saw it."""

    def __init__(self, line: int, path: str, oid: Oid) -> None:
        super().__init__(
            line,
            f"{path}: its pre-image, blob {oid}, is not in the repository",
            hint="fetch the commit that 'base' in series.yaml names",
        )
        self.path = path
        self.oid = oid


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """One hunk. Each of `lines` has its sign, and its LF unless the file ends without one.

    `line` is where the `@@` stands, 1-based in the diff.
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[bytes, ...]
    line: int

    def side(self, sign: bytes) -> list[bytes]:
        """Return the lines of the pre-image (`-`) or of the post-image (`+`), without signs."""
        return [line[1:] for line in self.lines if line[:1] in (b" ", sign)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """What a diff does to one file; the old side is None for a new file, the new for a deletion.

    `line` is where its `diff --git` stands. `content` is a binary file's change; it is None for
    text, and for a diff made without `--binary`.
    """

    old_path: str | None
    new_path: str | None
    old_mode: str | None
    new_mode: str | None
    old_oid: Oid | None
    new_oid: Oid | None
    hunks: tuple[Hunk, ...]
    binary: bool
    renamed: bool
    line: int
    content: BinaryChange | None = None

    @property
    def path(self) -> str:
        """Return the path that the file has afterwards, or had."""
        path = self.new_path or self.old_path
        assert path is not None
        return path


# --- reading ----------------------------------------------------------------------------------


def parse(diff: bytes) -> tuple[FileDiff, ...]:
    """Return the files of a git diff, in its order.

    Raises:
        DiffError: It is not exactly what git writes, it names a path that no patch may write, or
            it ends early (exit 5).
    """
    lines = diff.split(b"\n")
    if lines.pop():
        raise DiffError(len(lines) + 1, "the last line has no line end: the file is truncated")
    if lines and all(line.endswith(b"\r") for line in lines):
        raise DiffError(1, "all lines end in CRLF: a mailer or an editor damaged the patch")
    reader = _Reader(lines)
    files: list[FileDiff] = []
    while not reader.ended:
        files.append(_file(reader))
    return tuple(files)


@dataclass(slots=True)
class _Reader:
    lines: list[bytes]
    at: int = 0

    @property
    def ended(self) -> bool:
        return self.at >= len(self.lines)

    @property
    def number(self) -> int:
        """Return the 1-based number of the line that comes next."""
        return self.at + 1

    def peek(self) -> bytes:
        return self.lines[self.at] if self.at < len(self.lines) else b""

    def take(self, prefix: bytes) -> bytes | None:
        """Return what follows a prefix on the next line and step over it, or None."""
        if self.ended or not self.lines[self.at].startswith(prefix):
            return None
        self.at += 1
        return self.lines[self.at - 1][len(prefix) :]


@dataclass(slots=True)
class _Header:
    """What the extended header lines of one file have said so far."""

    line: int
    names: tuple[str, str] | None
    old_mode: str | None = None
    new_mode: str | None = None
    oids: tuple[Oid, Oid] | None = None
    new: bool = False
    deleted: bool = False
    moved: dict[bytes, str] = field(default_factory=dict)


def _file(reader: _Reader) -> FileDiff:
    line = reader.number
    rest = reader.take(b"diff --git ")
    if rest is None:
        raise DiffError(line, f"not a diff: {shown(reader.peek())}")
    if rest.endswith(b"\r"):
        raise DiffError(line, "the line ends in CRLF: a mailer or an editor damaged the patch")
    header = _Header(line, diffpath.both_named(rest))
    while not reader.ended and _header_line(reader, header):
        pass
    old, new = _names(reader, header)
    content, is_binary = _binary(reader)
    hunks = () if is_binary else tuple(_hunks(reader))
    return FileDiff(
        old_path=None if header.new else old,
        new_path=None if header.deleted else new,
        old_mode=None if header.new else header.old_mode,
        new_mode=None if header.deleted else header.new_mode,
        old_oid=header.oids[0] if header.oids and not header.new else None,
        new_oid=header.oids[1] if header.oids and not header.deleted else None,
        hunks=hunks,
        binary=is_binary,
        renamed=b"rename to " in header.moved,
        line=line,
        content=content,
    )


def _header_line(reader: _Reader, header: _Header) -> bool:
    """Read one extended header line; say whether there was one."""
    line = reader.number
    for prefix in (b"old mode ", b"new mode ", b"new file mode ", b"deleted file mode "):
        mode = reader.take(prefix)
        if mode is None:
            continue
        if not _MODE.fullmatch(mode):
            raise DiffError(line, f"unknown file mode {shown(mode)}")
        header.new |= prefix.startswith(b"new file")
        header.deleted |= prefix.startswith(b"deleted")
        if prefix.startswith(b"new"):
            header.new_mode = mode.decode()
        else:
            header.old_mode = mode.decode()
        return True
    for prefix in (b"rename from ", b"rename to ", b"copy from ", b"copy to "):
        name = reader.take(prefix)
        if name is not None:
            header.moved[prefix] = _safe(diffpath.named(name, b""), line, name)
            return True
    if reader.take(b"similarity index ") or reader.take(b"dissimilarity index "):
        return True
    return _index_line(reader, header)


def _index_line(reader: _Reader, header: _Header) -> bool:
    line = reader.number
    index = reader.take(b"index ")
    if index is None:
        return False
    found = _INDEX.fullmatch(index)
    if not found or len(found[1]) != 40 or len(found[2]) != 40:
        raise DiffError(line, f"index line without two full ids: {shown(index)}")
    header.oids = (Oid(found[1].decode()), Oid(found[2].decode()))
    if found[3]:
        if not _MODE.fullmatch(found[3]):
            raise DiffError(line, f"unknown file mode {shown(found[3])}")
        header.old_mode = header.new_mode = found[3].decode()
    return True


def _names(reader: _Reader, header: _Header) -> tuple[str, str]:
    """Return the old and the new path, from whichever lines name them, all of which must agree."""
    line = reader.number
    names = header.names
    for kind in (b"rename", b"copy"):
        moved = header.moved.get(kind + b" from "), header.moved.get(kind + b" to ")
        if moved[0] is not None and moved[1] is not None:
            names = moved[0], moved[1]
    raw_old = reader.take(b"--- ")
    if raw_old is not None:
        raw_new = reader.take(b"+++ ")
        if raw_new is None:
            raise DiffError(reader.number, "'---' without '+++'")
        old = None if raw_old == b"/dev/null" else diffpath.named(raw_old, b"a/")
        new = None if raw_new == b"/dev/null" else diffpath.named(raw_new, b"b/")
        stray = (old is None) != header.new or (new is None) != header.deleted
        if stray or (names and not {old, new} <= {*names, None}):
            raise DiffError(line, f"names that do not fit 'diff --git': {shown(raw_old)}")
        names = names or (old or new or "", new or old or "")
    if names is None:
        raise DiffError(header.line, "no readable file names")
    return _safe(names[0], header.line, b""), _safe(names[1], header.line, b"")


def _safe(path: str | None, line: int, raw: bytes) -> str:
    if path is None:
        raise DiffError(line, f"no readable file name: {shown(raw)}")
    wrong = diffpath.problem(path)
    if wrong:
        raise DiffError(line, f"{wrong}: {shown(path.encode('utf-8', 'surrogateescape'))}")
    return path


def _hunks(reader: _Reader) -> Iterator[Hunk]:
    while not reader.ended and not reader.peek().startswith(b"diff --git "):
        line = reader.number
        found = _HUNK.fullmatch(reader.peek())
        if not found:
            raise DiffError(line, f"neither a hunk nor a file: {shown(reader.peek())}")
        reader.at += 1
        old_start, new_start = int(found[1]), int(found[3])
        old_count = int(found[2]) if found[2] else 1
        new_count = int(found[4]) if found[4] else 1
        yield Hunk(
            old_start=old_start,
            old_count=old_count,
            new_start=new_start,
            new_count=new_count,
            lines=tuple(_hunk_lines(reader, old_count, new_count, line)),
            line=line,
        )


def _hunk_lines(reader: _Reader, old: int, new: int, start: int) -> list[bytes]:
    """Read as many lines as the hunk's header promises, each with its line end."""
    lines: list[bytes] = []
    while old or new:
        line, sign = reader.peek(), reader.peek()[:1]
        if reader.ended:
            raise DiffError(reader.number, f"the hunk of line {start} ends early: truncated file")
        old -= sign in (b" ", b"-")
        new -= sign in (b" ", b"+")
        if sign not in (b" ", b"-", b"+") or old < 0 or new < 0:
            raise DiffError(reader.number, f"corrupt hunk: {shown(line)}")
        reader.at += 1
        bare = reader.peek().startswith(b"\\ ")
        reader.at += bare
        lines.append(line if bare else line + b"\n")
    if not lines or all(line.startswith(b" ") for line in lines):
        raise DiffError(start, "a hunk that changes nothing")
    return lines


def _binary(reader: _Reader) -> tuple[BinaryChange | None, bool]:
    if reader.take(b"Binary files ") is not None:
        return None, True
    if reader.take(b"GIT binary patch") is None:
        return None, False
    forward = _binary_hunk(reader)
    if reader.peek().startswith((b"literal ", b"delta ")):
        _binary_hunk(reader)
    return forward, True


def _binary_hunk(reader: _Reader) -> BinaryChange:
    line = reader.number
    found = re.fullmatch(rb"(literal|delta) (\d{1,12})", reader.peek())
    if not found:
        raise DiffError(line, f"corrupt binary hunk: {shown(reader.peek())}")
    reader.at += 1
    start = reader.at
    while reader.peek():
        reader.at += 1
    if reader.ended:
        raise DiffError(reader.number, f"the binary hunk of line {line} ends early: truncated file")
    try:
        content = decode(reader.lines[start : reader.at], int(found[2]), delta=found[1] == b"delta")
    except ValueError as e:
        raise DiffError(line, str(e)) from e
    reader.at += 1
    return content


def shown(raw: bytes) -> str:
    """Return bytes as a person can read them in a message."""
    return repr(raw.decode("utf-8", "backslashreplace"))
