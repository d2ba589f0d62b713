"""A proposal for every conflict of a step, or none: half a settled tree is no tree to build.

Each file is settled by the first way that holds (stored resolution, joined statements, upstream's
own rewording, new home), and the guards judge the whole afterwards as they judge a clean merge.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from elsa_build.diagnostics import Diagnostic
from elsa_build.git.door import Git
from elsa_build.git.objects import FILE, SYMLINK, TREE, Change, Entry
from elsa_build.model import Conflict, Oid, Proposal
from elsa_build.patches.gittree import GitTree
from elsa_build.patches.guards import presence
from elsa_build.patches.guards.run import FileChange, examine
from elsa_build.patches.proposals.attempt import FileAttempt, HunkAttempt, Versions
from elsa_build.patches.proposals.homes import Upstream
from elsa_build.patches.proposals.memory import EMPTY, Memory
from elsa_build.patches.proposals.plain import settle_words
from elsa_build.patches.proposals.settle import settle
from elsa_build.patches.proposals.views import Marked
from elsa_build.patches.threeway import Merged

LARGEST = 2_000_000
"""Bytes; what is larger is data, and joining it would take minutes."""


def propose(
    git: Git, *, before: Oid, after: Oid, onto: Oid, merged: Merged, memory: Memory = EMPTY
) -> Proposal | None:
    """Return a proposal that settles every conflict of a step, with the guards' findings.

    Args:
        git: Where the trees are; the proposal's objects are written there.
        before: The tree before the change, as it was written.
        after: The tree after it.
        onto: The tree that the change is put on.
        merged: What git's three-way merge made of it.
        memory: Stored resolutions of this patch.
    """
    tried = attempts(git, before=before, after=after, onto=onto, merged=merged, memory=memory)
    return assembled(git, before=before, after=after, onto=onto, merged=merged, tried=tried)


def attempts(
    git: Git, *, before: Oid, after: Oid, onto: Oid, merged: Merged, memory: Memory = EMPTY
) -> tuple[FileAttempt, ...]:
    """Return what can be proposed for each conflicted file, by path; part solutions as well."""
    desk = _Desk(git, before, after, onto, merged)
    return tuple(desk.attempt(conflict, memory) for conflict in merged.conflicts)


def assembled(
    git: Git,
    *,
    before: Oid,
    after: Oid,
    onto: Oid,
    merged: Merged,
    tried: tuple[FileAttempt, ...],
) -> Proposal | None:
    """Return the tree that the attempts add up to, or None when a conflict is left."""
    if not tried or merged.marked is None or not all(one.settled for one in tried):
        return None
    texts: dict[str, str] = {}
    for one in tried:
        for path, text in one.elsewhere:
            if texts.setdefault(path, text) != text:
                return None
    for one in tried:
        if one.text is not None and texts.setdefault(one.path, one.text) != one.text:
            return None
    desk = _Desk(git, before, after, onto, merged)
    edits: dict[str, Entry | None] = {one.path: None for one in tried if one.removed}
    for path, text in texts.items():
        edits[path] = Entry(desk.mode(path), git.objects.write("blob", _encoded(text)))
    tree = git.objects.edit(merged.marked, edits)
    touched = tuple(git.objects.changes(onto, tree))
    if not touched:
        return None
    return Proposal(
        tree=tree,
        how=tuple(f"{one.path}: {said}" for one in tried for said in one.how),
        paths=tuple(change.path for change in touched),
        findings=findings(git, before=before, after=after, onto=onto, merged=merged, tree=tree),
    )


def findings(
    git: Git, *, before: Oid, after: Oid, onto: Oid, merged: Merged, tree: Oid
) -> tuple[Diagnostic, ...]:
    """Return what the guards find on a tree that settles a step's conflicts, whoever made it.

    Whether every added line arrived is not asked of a conflicted file: scrutiny asked it word by
    word, and a person may leave out what upstream now does.
    """
    desk = _Desk(git, before, after, onto, merged)
    touched = tuple(git.objects.changes(onto, tree))
    found = examine(desk.files(touched), GitTree(git, tree))
    settled = {conflict.path for conflict in merged.conflicts}
    return tuple(one for one in found if one.code != presence.CODE or one.path not in settled)


class _Desk:
    """One step's trees, read by path."""

    def __init__(self, git: Git, before: Oid, after: Oid, onto: Oid, merged: Merged) -> None:
        self._git = git
        self._before, self._after, self._onto = before, after, onto
        self._merged = merged
        self._change = tuple(git.objects.changes(before, after))
        self._upstream = cache(self._read_upstream)

    def attempt(self, conflict: Conflict, memory: Memory) -> FileAttempt:
        """Return what can be proposed for one conflicted file."""
        if conflict.reason in _OF_PLACE:
            return self._suggested(conflict)
        versions = self._versions(conflict)
        if isinstance(versions, str):
            return FileAttempt(path=conflict.path, why=versions, hunks=_untouched(conflict))
        known = _remembered(versions, memory)
        if known is not None and known.settled:
            return known
        python = conflict.path.endswith((".py", ".pyi"))
        found = settle(versions, self._upstream) if python else settle_words(versions)
        return _with_memory(found, known)

    def _suggested(self, conflict: Conflict) -> FileAttempt:
        """Return a new file of the patch in the directory that upstream renamed (git's wish)."""
        assert self._merged.marked is not None
        text = self._text(self._git.objects.find(self._merged.marked, conflict.path))
        if not isinstance(text, str) or Marked(text).hunks:
            return FileAttempt(path=conflict.path, why=f"in conflict too: {conflict.reason}")
        folder = conflict.path.rpartition("/")[0]
        said = f"upstream renamed the directory to {folder}; the patch's new file goes along"
        return FileAttempt(path=conflict.path, text=text, how=(said,))

    def _versions(self, conflict: Conflict) -> Versions | str:
        """Return a conflict's texts, or why it is not one of text."""
        assert self._merged.marked is not None
        written = self._written(conflict.path)
        if conflict.reason not in _OF_TEXT:
            return f"a conflict of another kind: {conflict.reason}"
        if written is None:
            return "the patch has no file of that name"
        entries = [
            self._git.objects.find(tree, path)
            for tree, path in (
                (self._before, written),
                (self._onto, conflict.path),
                (self._after, written),
                (self._merged.marked, conflict.path),
            )
        ]
        texts: list[str | None] = []
        for entry in entries:
            text = self._text(entry)
            if isinstance(text, bytes):
                return "not a text that can be joined (binary, too large, or a link)"
            texts.append(text)
        base, ours, theirs, marked = texts
        if theirs is None:
            return "the patch removes the file, and upstream changed it"
        return Versions(
            path=conflict.path, base=base or "", ours=ours, theirs=theirs, marked=marked or ""
        )

    def _written(self, path: str) -> str | None:
        """Return the path that the patch was written for, before upstream's rename."""
        own = [change.path for change in self._change]
        if path in own:
            return path
        name = PurePosixPath(path).name
        gone = [p for p in own if self._git.objects.find(self._onto, p) is None]
        same = [p for p in gone if PurePosixPath(p).name == name]
        return same[0] if len(same) == 1 else gone[0] if len(gone) == 1 else None

    def _text(self, entry: Entry | None) -> str | bytes | None:
        """Return a file's text, None when there is none, bytes when it is not one."""
        if entry is None:
            return None
        if entry.mode in {TREE, SYMLINK}:
            return b""
        body = self._git.objects.blob(entry.oid)
        if len(body) > LARGEST or b"\0" in body or b"\r" in body:
            return body
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError:
            return body

    def _read_upstream(self) -> Upstream:
        """Return the Python files that upstream changed since the patch was written."""
        new: dict[str, str] = {}
        for change in self._git.objects.changes(self._before, self._onto):
            if change.new is not None and change.path.endswith(".py"):
                text = self._text(change.new)
                if isinstance(text, str):
                    new[change.path] = text

        def old(path: str) -> str | None:
            text = self._text(self._git.objects.find(self._before, path))
            return text if isinstance(text, str) else None

        return Upstream(new=new, old=old)

    def mode(self, path: str) -> str:
        """Return the mode that a file has where the patch is put, or as the patch has it."""
        for tree in (self._onto, self._after):
            entry = self._git.objects.find(tree, path)
            if entry is not None:
                return entry.mode
        return FILE

    def files(self, touched: tuple[Change, ...]) -> Iterator[FileChange]:
        """Yield what the guards look at: each changed file in its four versions.

        A file that the patch was not written for is the new home of something, and counts as
        patched by hand.
        """
        blob = self._git.objects.blob
        own = {change.path: change for change in self._change}
        for change in touched:
            written = self._written(change.path)
            mine = own.get(written or "") or change
            yield FileChange(
                path=change.path,
                written=blob(mine.old.oid) if mine.old else None,
                patched=blob(mine.new.oid) if mine.new else None,
                onto=blob(change.old.oid) if change.old else None,
                merged=blob(change.new.oid) if change.new else None,
            )


_OF_PLACE = frozenset({"file location", "directory rename suggested"})
_OF_TEXT = frozenset({"contents", "content", "add/add", "modify/delete"})


# --- memory -------------------------------------------------------------------------------------


def _remembered(versions: Versions, memory: Memory) -> FileAttempt | None:
    """Return what stored resolutions give for a file, None when there is none for it."""
    if not memory.resolutions:
        return None
    marked = Marked(versions.marked)
    hunks: list[HunkAttempt] = []
    for number in range(len(marked.hunks)):
        found, expired = memory.recall(versions.path, marked, number)
        if found is not None:
            said = f"{found.author} resolved this on {found.date}: {found.reason}"
            hunks.append(HunkAttempt(number=number, lines=found.lines, how=(said,)))
        else:
            why = (
                "a stored resolution no longer counts: the lines around changed" if expired else ""
            )
            hunks.append(HunkAttempt(number=number, why=why))
    if not any(hunk.lines is not None or hunk.why for hunk in hunks):
        return None
    whole = None
    if hunks and all(hunk.lines is not None for hunk in hunks):
        settled = {hunk.number: hunk.lines or () for hunk in hunks}
        whole = marked.view("ours", settled)
    how = tuple(dict.fromkeys(said for hunk in hunks for said in hunk.how))
    return FileAttempt(path=versions.path, text=whole, how=how, hunks=tuple(hunks))


def _with_memory(found: FileAttempt, known: FileAttempt | None) -> FileAttempt:
    """Return an attempt with the hunks that only the memory could settle."""
    if known is None or found.settled:
        return found
    hunks = tuple(
        old if old.lines is not None or (new.lines is None and old.why) else new
        for new, old in zip(found.hunks, known.hunks, strict=True)
    )
    return replace(found, hunks=hunks)


def _untouched(conflict: Conflict) -> tuple[HunkAttempt, ...]:
    return tuple(HunkAttempt(number=number) for number in range(len(conflict.regions)))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8")
