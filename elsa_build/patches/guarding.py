"""Ask of every clean merge whether it is also right, and put the answers on the steps.

The replay says what git says; a finding here does not change an outcome, so that outcomes stay
comparable with `git rebase`. A step with an `error` finding has failed all the same (`Step.failed`)
and nothing is written or shipped from it.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from elsa_build.diagnostics import Diagnostic
from elsa_build.git.door import Git
from elsa_build.git.objects import SYMLINK
from elsa_build.model import Replay, Step
from elsa_build.patches.contracts import new_callers
from elsa_build.patches.gittree import GitTree
from elsa_build.patches.guards.run import FileChange, ModuleIndex, examine
from elsa_build.patches.replay import change_of
from elsa_build.progress import SILENT, Progress


def guarded(git: Git, done: Replay, *, progress: Progress = SILENT) -> Replay:
    """Return the replay with the guards' findings on every step that applied.

    A patch may give a finding another severity (`guards` in `series.yaml`), when a person has
    looked: the finding stays to be read.
    """
    before = git.commit(done.onto).tree
    bases = {step.patch.base for step in done.steps if step.patch.base}
    callers: dict[str, tuple[Diagnostic, ...]] = {}
    index = ModuleIndex()
    for base in bases:
        callers |= new_callers(git, done, base, index)
    steps: list[Step] = []
    with progress.task("guards", total=len(done.steps)) as advance:
        for step in done.steps:
            if step.commit:
                after = GitTree(git, step.tree)
                files = _files(git, step, GitTree(git, before), after)
                found = (_addressed(f, step) for f in examine(files, after, index=index))
                known = callers.get(step.patch.id, ())
                graded = (_graded(f, step) for f in (*found, *known))
                steps.append(replace(step, findings=(*step.findings, *graded)))
            else:
                steps.append(step)
            before = step.tree
            advance(1)
    return replace(done, steps=tuple(steps))


def _graded(found: Diagnostic, step: Step) -> Diagnostic:
    severity = dict(step.patch.guards).get(found.code, found.severity)
    return replace(found, severity=severity)


def _addressed(found: Diagnostic, step: Step) -> Diagnostic:
    """Put the patch's id into a hint: a guard sees files, not patches."""
    hint = found.hint and re.sub(r"\bID\b", step.patch.id, found.hint)
    return replace(found, hint=hint)


def _files(git: Git, step: Step, before: GitTree, after: GitTree) -> Iterable[FileChange]:
    change, _ = change_of(git, step.patch)
    blob = git.objects.blob
    own = {path for path, _, _ in change}
    strangers = [path for path in step.paths if path not in own]
    for old_path, old, new in change:
        if SYMLINK in {entry.mode for entry in (old, new) if entry}:
            continue  # its text is a path, whatever its name ends in
        patched = blob(new.oid) if new else None
        path = old_path
        if patched is not None and strangers and after.read(old_path) is None:
            path = max(strangers, key=lambda there: _alike(patched, after.read(there) or b""))
        yield FileChange(
            path=path,
            written=blob(old.oid) if old else None,
            patched=patched,
            onto=before.read(path),
            merged=after.read(path),
        )


def _alike(one: bytes, other: bytes) -> int:
    """Return how many different lines two texts share: where git moved a file to."""
    return len(set(one.split(b"\n")) & set(other.split(b"\n")))
