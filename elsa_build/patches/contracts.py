"""New callers: upstream began to call a function whose behaviour a patch changes.

The patch was written knowing every caller there was. One that upstream added since may break under
it, and no merge tool sees that: nothing conflicts. Source of the case: a patch made the Mamba slot
allocator return nothing instead of asserting, and the next release called it from one more place.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.git.door import Git
from elsa_build.git.objects import Change, Entry
from elsa_build.model import Oid, Outcome, Replay
from elsa_build.patches.guards.linediff import hunks
from elsa_build.patches.guards.scopes import BlockKind
from elsa_build.patches.guards.source import ModuleIndex, Source
from elsa_build.patches.replay import change_of

COMMON = 40
"""A name that is called more often than this says too little: `forward`, `run`, `get`."""
DEFINED = 2
"""Nor does one that more classes than this define: a caller may well mean another one's."""


@dataclass(frozen=True, slots=True)
class _Call:
    path: str
    line: int
    text: str


@dataclass(slots=True)
class _Uses:
    calls: list[_Call] = field(default_factory=list)
    definitions: int = 0


_TEST = re.compile(r"(^|/)(tests?|benchmarks?)/|(^|/)test_[^/]*$")


def new_callers(
    git: Git, done: Replay, base: Oid, index: ModuleIndex
) -> dict[str, tuple[Diagnostic, ...]]:
    """Return, by patch id, a warning for each call that upstream added since a commit.

    Code E318. Only patches that applied and were written on `base` are looked at, and only calls
    outside of tests. Two `git grep` serve them all.
    """
    onto, written_on = git.commit(done.onto).tree, git.find(base, "tree")
    if written_on in (None, onto):
        return {}
    assert written_on is not None
    changed: dict[str, set[str]] = defaultdict(set)
    for step in done.steps:
        if step.outcome in (Outcome.CLEAN, Outcome.PROPOSED) and step.patch.base == base:
            for name in _changed_functions(git, change_of(git, step.patch)[0], index):
                changed[name].add(step.patch.id)
    if not changed:
        return {}
    with ThreadPoolExecutor(2) as pool:
        before, after = pool.map(lambda tree: _uses(git, tree, changed), (written_on, onto))
    found: dict[str, list[Diagnostic]] = defaultdict(list)
    for name, patches in sorted(changed.items()):
        known, now = before[name], after[name]
        if len(known.calls) <= COMMON and max(known.definitions, now.definitions) <= DEFINED:
            for call in _added(known.calls, now.calls):
                for patch in sorted(patches):
                    found[patch].append(_finding(git, onto, patch, name, call, index))
    return {patch: tuple(findings) for patch, findings in found.items()}


def _changed_functions(git: Git, change: Iterable[Change], index: ModuleIndex) -> set[str]:
    """Return the names of existing functions that a patch has a hunk in."""
    names: set[str] = set()
    for path, old, new in change:
        if path.endswith(".py") and old and new:
            written, patched = (_source(git, entry, index) for entry in (old, new))
            for hunk in hunks(written.lines, patched.lines):
                for line in range(hunk.old_start + 1, max(hunk.old_stop, hunk.old_start + 1) + 1):
                    names |= set(_function_at(written, line))
    return {name for name in names if not name.startswith("__")}


def _function_at(source: Source, line: int) -> Iterator[str]:
    frames = [f for f in source.path(line) or () if f.kind is BlockKind.FUNCTION]
    if frames:
        yield frames[0].key


def _source(git: Git, entry: Entry, index: ModuleIndex) -> Source:
    return index.source(git.objects.blob(entry.oid))


def _uses(git: Git, tree: Oid, names: Iterable[str]) -> dict[str, _Uses]:
    """Return for each name the lines of a tree that call it, and how often it is defined."""
    found = {name: _Uses() for name in names}
    either = "|".join(map(re.escape, found))
    _, out = git.run(
        "grep", "-n", "-z", "-E", rf"({either})[[:space:]]*\(", tree, "--", "*.py", ok=(0, 1)
    )
    use = re.compile(rf"(def\s+)?\b({either})\s*\(")
    for row in out.decode("utf-8", "surrogateescape").split("\n"):
        if row.count("\0") < 2:
            continue
        place, number, text = row.split("\0", 2)
        path = place.partition(":")[2]
        for hit in use.finditer(text.partition("#")[0]):
            if hit[1]:
                found[hit[2]].definitions += 1
            elif not _TEST.search(path):
                found[hit[2]].calls.append(_Call(path, int(number), text.strip()))
    return found


def _added(before: list[_Call], after: list[_Call]) -> Iterator[_Call]:
    """Yield calls that are new; a line that only moved, even to another file, is not."""
    known = Counter((call.path, call.text) for call in before)
    fresh = []
    for call in after:
        if known[call.path, call.text]:
            known[call.path, call.text] -= 1
        else:
            fresh.append(call)
    gone = Counter(text for (_, text), count in known.items() for _ in range(count))
    for call in fresh:
        if gone[call.text]:
            gone[call.text] -= 1
        else:
            yield call


def _finding(
    git: Git, onto: Oid, patch: str, name: str, call: _Call, index: ModuleIndex
) -> Diagnostic:
    entry = git.objects.find(onto, call.path)
    around = _source(git, entry, index).path(call.line) if entry else None
    scope = ".".join(f.key for f in around or () if f.kind in (BlockKind.CLASS, BlockKind.FUNCTION))
    where = f"in `{scope}`" if scope else "at module level"
    return Diagnostic(
        code="E318",
        severity=Severity.WARNING,
        message=f"upstream now also calls `{name}` {where}, and {patch} changes what it does",
        path=call.path,
        line=call.line,
        hint=f"elsa-build patch show {patch} --context 10",
    )
