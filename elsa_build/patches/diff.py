"""What a diff does to the files that it was made from, and to nothing else.

`git apply` would forgive an offset and patch(1) fuzz; on real SGLang code that put hunks into the
wrong branch with exit 0. Here a hunk either lands where it says or nowhere, and each post-image
must have the blob id that its index line names. No process per patch, so that a replay of 68 takes
a second.
"""

from collections.abc import Iterator

from elsa_build.git.door import Git
from elsa_build.git.objects import GITLINK, Change, Entry, blob_id
from elsa_build.model import Oid
from elsa_build.patches.binary import applied
from elsa_build.patches.diffparse import DiffError, FileDiff, Hunk, MissingBlobError, parse

__all__ = ["DiffError", "FileDiff", "Hunk", "MissingBlobError", "changes", "parse", "patched"]

_ABSENT = "0" * 40


def patched(file: FileDiff, preimage: bytes) -> bytes:
    """Return the post-image of exactly this pre-image: no fuzz, no offset, line ends exact.

    Raises:
        DiffError: The pre-image is another one (exit 5).
    """
    if file.binary:
        if file.content is None:
            raise DiffError(file.line, f"{file.path}: a binary file without its content")
        try:
            return applied(file.content, preimage)
        except ValueError as e:
            raise DiffError(file.line, f"{file.path}: {e}") from e
    before = _lines(preimage)
    after: list[bytes] = []
    at = 0
    for hunk in file.hunks:
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        old, new = hunk.side(b"-"), hunk.side(b"+")
        end = start + hunk.old_count
        if start < at or before[start:end] != old:
            raise DiffError(hunk.line, f"{file.path}: the hunk does not fit its pre-image")
        after += before[at:start]
        if len(after) != (hunk.new_start - 1 if hunk.new_count else hunk.new_start):
            raise DiffError(hunk.line, f"{file.path}: the hunk's new line number is wrong")
        bare = [number for number, line in enumerate(new) if not line.endswith(b"\n")]
        if bare and (bare != [len(new) - 1] or end < len(before)):
            raise DiffError(hunk.line, f"{file.path}: a line end is missing inside the file")
        after += new
        at = end
    after += before[at:]
    return b"".join(after)


def _lines(text: bytes) -> list[bytes]:
    """Split on LF only (`splitlines` also splits on CR and form feed), keeping the line ends."""
    lines = [line + b"\n" for line in text.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def changes(git: Git, diff: bytes) -> tuple[Change, ...]:
    """Return what a diff does, path by path in path order; post-image blobs are written to `git`.

    A rename is a deletion and a new file. Nothing but the diff's own pre-images is looked at, so
    the result does not depend on any tree.

    Raises:
        MissingBlobError: The repository lacks a pre-image: it lacks the base (exit 5).
        DiffError: The diff is damaged or is not what git made (exit 5).
    """
    found: dict[str, Change] = {}
    for file in parse(diff):
        old, new = _entries(git, file)
        for change in _of_file(file, old, new):
            known = found.get(change.path)
            if known is None:
                found[change.path] = change
            elif known.new is None and change.old is None:
                # git writes a change of type (file to symlink) as a deletion and a new file.
                found[change.path] = Change(change.path, known.old, change.new)
            else:
                raise DiffError(file.line, f"{change.path}: changed twice")
    return tuple(found[path] for path in sorted(found))


def _of_file(file: FileDiff, old: Entry | None, new: Entry | None) -> Iterator[Change]:
    if file.old_path == file.new_path:
        yield Change(file.path, old, new)
        return
    if file.new_path:
        yield Change(file.new_path, None, new)
    if file.old_path and (file.renamed or not file.new_path):
        yield Change(file.old_path, old, None)


def _entries(git: Git, file: FileDiff) -> tuple[Entry | None, Entry | None]:
    """Return what one file was and is, with its post-image stored."""
    old = Entry(file.old_mode, file.old_oid) if file.old_mode and file.old_oid else None
    new = Entry(file.new_mode, file.new_oid) if file.new_mode and file.new_oid else None
    if (file.old_path and not old) or (file.new_path and not new):
        raise DiffError(
            file.line,
            f"{file.path}: no index line with full ids and a mode",
            hint="elsa-build patch refresh ID writes the file anew",
        )
    if (old and old.oid == _ABSENT) or (new and new.oid == _ABSENT):
        raise DiffError(file.line, f"{file.path}: an index line of zeroes")
    preimage = _content(git, file, old)
    postimage = patched(file, preimage) if file.hunks or file.binary else preimage
    if new is None:
        if postimage:
            raise DiffError(file.line, f"{file.path}: deleted, but not all of its lines")
    elif new.mode == GITLINK:
        if postimage != _gitlink(new.oid):
            raise DiffError(file.line, f"{file.path}: the submodule's line and its id differ")
    elif blob_id(postimage) != new.oid:
        raise DiffError(
            file.line,
            f"{file.path}: the hunks give blob {blob_id(postimage)}, the index line says {new.oid}",
        )
    else:
        git.objects.write("blob", postimage)
    return old, new


def _content(git: Git, file: FileDiff, old: Entry | None) -> bytes:
    if old is None:
        return b""
    if old.mode == GITLINK:
        return _gitlink(old.oid)
    found = git.objects.get(old.oid)
    if found is None or found[0] != "blob":
        raise MissingBlobError(file.line, file.path, old.oid)
    return found[1]


def _gitlink(oid: Oid) -> bytes:
    """Return the line that stands for a submodule's commit in a diff."""
    return f"Subproject commit {oid}\n".encode()
