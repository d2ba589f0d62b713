"""Objects in and out of a repository without a process per object.

A replay reads and writes some thousand small objects; `git cat-file` and `git hash-object` at 2 ms
a call would cost more than the merging. Reads go through one `git cat-file --batch` (which also
fetches what a partial clone lacks); writes are loose objects, git's simplest public format.
Source: gitformat-loose(5), gitformat-index(5) for the order of tree entries.
"""

import hashlib
import os
import subprocess
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from elsa_build.errors import ToolError
from elsa_build.model import Oid

TREE = "040000"
FILE = "100644"
EXECUTABLE = "100755"
SYMLINK = "120000"
GITLINK = "160000"

_AT_ONCE = 500
"""Objects asked for at once: 41 bytes each, which a pipe holds (64 KiB) though nobody reads yet."""


class Entry(NamedTuple):
    """What a tree holds under one name: a six-digit octal mode and an object."""

    mode: str
    oid: Oid


class Change(NamedTuple):
    """What happens to one path between two trees; None means that the path is absent there."""

    path: str
    old: Entry | None
    new: Entry | None


def encode(kind: str, body: bytes) -> tuple[Oid, bytes]:
    """Return the id of an object and its bytes with git's header in front."""
    framed = b"%s %d\0%s" % (kind.encode(), len(body), body)
    return Oid(hashlib.sha1(framed, usedforsecurity=False).hexdigest()), framed


def blob_id(body: bytes) -> Oid:
    """Return the id that git gives to these bytes as a blob."""
    return encode("blob", body)[0]


class ObjectStore:
    """The objects of one repository; close it (or use `with`) to end the reader process."""

    def __init__(self, batch_command: list[str], env: Mapping[str, str], objects: Path) -> None:
        self._command = batch_command
        self._env = dict(env)
        self._objects = objects
        self._reader: subprocess.Popen[bytes] | None = None
        self._trees: dict[Oid, dict[str, Entry]] = {}
        self._written: set[Oid] = set()

    def close(self) -> None:
        """End the reader process; the next read starts a new one."""
        if self._reader is not None:
            self._reader.communicate()
            self._reader = None

    def get(self, oid: Oid) -> tuple[str, bytes] | None:
        """Return the type and the bytes of an object, or None when the repository lacks it."""
        return next(self._ask((oid,)))

    def _ask(self, oids: Sequence[Oid]) -> Iterator[tuple[str, bytes] | None]:
        """Ask for objects at once and yield the answers; so few that the names fit into a pipe."""
        if self._reader is None:
            self._reader = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=self._env,
            )
        stdin, stdout = self._reader.stdin, self._reader.stdout
        assert stdin is not None
        assert stdout is not None
        answered = 0
        try:
            stdin.write("".join(f"{oid}\n" for oid in oids).encode())
            stdin.flush()
            for answered in range(len(oids)):  # noqa: B007 - the error below names it
                header = stdout.readline().split()
                if header[1:] == [b"missing"]:
                    yield None
                    continue
                body = stdout.read(int(header[2]))
                stdout.read(1)
                yield header[1].decode(), body
        except (OSError, IndexError, ValueError) as e:
            reader, self._reader = self._reader, None
            reader.kill()
            reader.communicate()
            raise ToolError(f"git cat-file ended while reading object {oids[answered]}") from e

    def blobs(self, oids: Sequence[Oid]) -> Iterator[bytes]:
        """Yield the bytes of many files; git unpacks the next while one is looked at.

        Read all of them before asking for anything else.
        """
        for at in range(0, len(oids), _AT_ONCE):
            part = oids[at : at + _AT_ONCE]
            for oid, found in zip(part, list(self._ask(part)), strict=True):
                yield self._wanted(oid, "blob", found)

    def read(self, oid: Oid, kind: str) -> bytes:
        """Return the bytes of an object of this type.

        Raises:
            ToolError: The object is missing or of another type.
        """
        return self._wanted(oid, kind, self.get(oid))

    def _wanted(self, oid: Oid, kind: str, found: tuple[str, bytes] | None) -> bytes:
        if found is None or found[0] != kind:
            raise ToolError(
                f"{kind} {oid} is not in the repository",
                hint="git fsck (a shallow or partial clone: fetch the commit that holds it)",
            )
        return found[1]

    def blob(self, oid: Oid) -> bytes:
        """Return the bytes of a file."""
        return self.read(oid, "blob")

    def tree(self, oid: Oid) -> dict[str, Entry]:
        """Return the entries of one tree by name; the result is shared, do not change it."""
        known = self._trees.get(oid)
        if known is None:
            known = self._trees[oid] = dict(_parse_tree(self.read(oid, "tree")))
        return known

    def write(self, kind: str, body: bytes) -> Oid:
        """Store an object, atomically, and return its id; storing it twice is free."""
        oid, framed = encode(kind, body)
        if oid in self._written:
            return oid
        path = self._objects / oid[:2] / oid[2:]
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            fresh = path.with_name(f"tmp_obj_{os.getpid()}_{oid[2:]}")
            try:
                fresh.write_bytes(zlib.compress(framed, 1))
                fresh.chmod(0o444)
                fresh.replace(path)
            except OSError as e:
                fresh.unlink(missing_ok=True)
                raise ToolError(f"cannot write to {self._objects}: {e.strerror}") from e
        self._written.add(oid)
        return oid

    def write_tree(self, entries: Mapping[str, Entry]) -> Oid:
        """Store one tree and return its id."""
        ordered = sorted(
            entries.items(), key=lambda kv: _raw(kv[0] + ("/" if kv[1].mode == TREE else ""))
        )
        body = b"".join(
            b"%s %s\0%s" % (entry.mode.lstrip("0").encode(), _raw(name), bytes.fromhex(entry.oid))
            for name, entry in ordered
        )
        oid = self.write("tree", body)
        self._trees.setdefault(oid, dict(entries))
        return oid

    def find(self, tree: Oid, path: str) -> Entry | None:
        """Return what a tree holds at a path, or None."""
        entry: Entry | None = Entry(TREE, tree)
        for name in path.split("/"):
            if entry is None or entry.mode != TREE:
                return None
            entry = self.tree(entry.oid).get(name)
        return entry

    def edit(self, tree: Oid | None, changes: Mapping[str, Entry | None]) -> Oid:
        """Return a tree with the given paths set or, for None, removed.

        `tree` None starts from nothing. A directory that becomes empty goes away, a file that
        stands where a directory is needed gives way.
        """
        entries = dict(self.tree(tree)) if tree else {}
        below: dict[str, dict[str, Entry | None]] = {}
        for path, entry in changes.items():
            name, _, rest = path.partition("/")
            if rest:
                below.setdefault(name, {})[rest] = entry
            elif entry is None:
                entries.pop(name, None)
            else:
                entries[name] = entry
        for name, inner in below.items():
            old = entries.get(name)
            oid = self.edit(old.oid if old and old.mode == TREE else None, inner)
            if self.tree(oid):
                entries[name] = Entry(TREE, oid)
            elif old and old.mode == TREE:
                del entries[name]
        return self.write_tree(entries)

    def changes(self, old: Oid | None, new: Oid | None, prefix: str = "") -> Iterable[Change]:
        """Yield the paths that differ between two trees, files only, in path order."""
        if old == new:
            return
        before = self.tree(old) if old else {}
        after = self.tree(new) if new else {}
        for name in sorted(before.keys() | after.keys()):
            was, now = before.get(name), after.get(name)
            if was == now:
                continue
            was_tree = was.oid if was and was.mode == TREE else None
            now_tree = now.oid if now and now.mode == TREE else None
            if was_tree or now_tree:
                yield from self.changes(was_tree, now_tree, f"{prefix}{name}/")
            was_file = None if was_tree else was
            now_file = None if now_tree else now
            if was_file != now_file:
                yield Change(prefix + name, was_file, now_file)

    def files(self, tree: Oid) -> Iterable[tuple[str, Entry]]:
        """Yield every file of a tree with its path, in path order."""
        for change in self.changes(None, tree):
            assert change.new is not None
            yield change.path, change.new


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _parse_tree(body: bytes) -> Iterable[tuple[str, Entry]]:
    at = 0
    while at < len(body):
        space = body.index(b" ", at)
        nul = body.index(b"\0", space)
        name = body[space + 1 : nul].decode("utf-8", "surrogateescape")
        oid = Oid(body[nul + 1 : nul + 21].hex())
        yield name, Entry(body[at:space].decode().rjust(6, "0"), oid)
        at = nul + 21
