"""Stored resolutions, put to use: the series as earlier decisions have left it.

A patch whose conflict was settled before stands settled for the patches after it.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from elsa_build import project
from elsa_build.git.door import Git
from elsa_build.git.objects import TREE
from elsa_build.model import Conflict, Oid, Patch, Replay, Series, Step
from elsa_build.patches import editing
from elsa_build.patches.mail import parse, write
from elsa_build.patches.proposals import memory as memories
from elsa_build.patches.proposals.memory import Memory
from elsa_build.patches.proposals.views import Marked
from elsa_build.patches.replay import change_of, replay, words_of
from elsa_build.patches.threeway import put, written


def recalled(
    git: Git, root: Path, series: Series, onto: Oid, *, until: str | None = None
) -> Series:
    """Return a series in which conflicts on a target are settled as their patchsets remember.

    A settled patch is written anew on the target, so that a replay there is clean. Patches from
    `until` on stay as they are.
    """
    known = {
        name: memories.load(root / project.PATCHSETS / name, root=root)
        for name in dict.fromkeys(patch.patchset for patch in series.patches)
    }
    if not any(memory.resolutions for memory in known.values()):
        return series
    tried: set[str] = set()
    while True:
        done = replay(git, series, onto)
        step = next(
            (s for s in _before(done, until) if s.conflicts and s.patch.id not in tried), None
        )
        if step is None:
            return series
        tried.add(step.patch.id)
        at = done.steps.index(step)
        head = next((s.commit for s in reversed(done.steps[:at]) if s.commit), onto)
        tree = _recall(git, step, known[step.patch.patchset].of(step.patch.id), head)
        if tree:
            series = with_resolution(git, series, step.patch, (head, tree), onto)


def _before(done: Replay, until: str | None) -> Iterator[Step]:
    for step in done.steps:
        if step.patch.id == until:
            return
        yield step


def _recall(git: Git, step: Step, memory: Memory, head: Oid) -> Oid | None:
    """Return the tree that stored resolutions make of a conflict, when they settle all of it."""
    if not memory.resolutions:
        return None
    change, parent = change_of(git, step.patch)
    context = parent or (git.find(step.patch.base, "tree") if step.patch.base else None)
    onto = git.commit(head).tree
    merged = put(git, *written(git, change, context or onto), onto)
    if merged.marked is None:
        return merged.tree
    edits = {}
    for conflict in merged.conflicts:
        text = _recalled(git, conflict, merged.marked, memory)
        here = git.objects.find(merged.marked, conflict.path)
        if text is None or here is None:
            return None
        blob = git.objects.write("blob", text.encode("utf-8", "surrogateescape"))
        edits[conflict.path] = here._replace(oid=blob)
    return git.objects.edit(merged.marked, edits)


def _recalled(git: Git, conflict: Conflict, marked: Oid, memory: Memory) -> str | None:
    text = text_of(git, marked, conflict.path)
    if text is None:
        return None
    whole = Marked(text)
    settled = {}
    for number in range(len(whole.hunks)):
        found, _ = memory.recall(conflict.path, whole, number)
        if found is None:
            return None
        settled[number] = found.lines
    return whole.view("ours", settled) if settled else None


def with_resolution(
    git: Git, series: Series, patch: Patch, sides: tuple[Oid, Oid], onto: Oid
) -> Series:
    """Return a series with one patch written anew: from a commit of the stack to a tree."""
    head, tree = sides
    message, author = words_of(git, patch)
    commit = git.commit_tree(tree, (head,), editing.rightly(patch, message), author)
    mail = parse(patch.id, write(git, commit))
    return replace(
        series,
        patches=tuple(
            replace(one, mail=mail, base=onto) if one.id == patch.id else one
            for one in series.patches
        ),
    )


def text_of(git: Git, tree: Oid | None, path: str) -> str | None:
    """Return a file of a tree as text; None when there is none, or it is binary."""
    entry = git.objects.find(tree, path) if tree else None
    if entry is None or entry.mode == TREE:
        return None
    body = git.objects.blob(entry.oid)
    return None if b"\0" in body else body.decode("utf-8", "surrogateescape")
