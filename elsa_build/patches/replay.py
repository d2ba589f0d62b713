"""Put a whole series on a base inside the object store, and say what became of each patch.

No work tree, no index, no refs. A patch that conflicts is left out and the next one tried, so that
one run shows every conflict; a patch that conflicts where an earlier one already did is `blocked`,
since its conflict may only be the other's shadow. Whether a clean merge is also right is asked
afterwards, by `guarding`.
"""

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from elsa_build.diagnostics import Diagnostic, Severity, errors
from elsa_build.git.door import Git
from elsa_build.git.objects import Change
from elsa_build.model import (
    Oid,
    Outcome,
    Patch,
    Proposal,
    Replay,
    Series,
    Signature,
    Status,
    Step,
)
from elsa_build.patches.diff import DiffError
from elsa_build.patches.diff import changes as changes_in
from elsa_build.patches.threeway import Merged, put, written
from elsa_build.progress import SILENT, Progress

REPLAYED = (Status.CANDIDATE, Status.KEPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A patch that does not merge: its trees as written, the tree it meets, git's own attempt."""

    patch: Patch
    before: Oid
    after: Oid
    onto: Oid
    merged: Merged


Proposer = Callable[[Git, Clash], Proposal | None]
"""What may suggest how a conflict could be settled (see `proposals`)."""


def replay(
    git: Git,
    series: Series,
    onto: Oid,
    *,
    propose: Proposer | None = None,
    accept: Collection[str] = (),
    progress: Progress = SILENT,
) -> Replay:
    """Return what the series does to the commit `onto`.

    New objects are written to `git`: open a quarantine to try without a trace. The same inputs
    give the same commit ids on every machine.

    Args:
        git: Where all objects are.
        series: The patches, in order.
        onto: The commit to put them on.
        propose: Asked about each conflict that does not lie in another one's shadow.
        accept: Ids of patches whose proposal is taken; a proposal that a guard objects to is not.
        progress: Told of finished patches.
    """
    start = git.commit(onto).tree
    state = _State(
        git=git, start=start, head=onto, tree=start, propose=propose, accept=frozenset(accept)
    )
    steps = []
    with progress.task(f"replay {series.name}", total=len(series.patches)) as advance:
        for patch in series.patches:
            steps.append(state.take(patch))
            advance(1)
    return Replay(onto=onto, steps=tuple(steps), head=state.head, tree=state.tree)


@dataclass(slots=True, kw_only=True)
class _State:
    """How far a replay is: the new stack, and beside it the stack as it was written.

    `contexts` has, per base, the tree that its next patch was written on, so that git sees each
    patch's own parent as the merge base; dropped patches advance it too, since later ones were
    written on them. A patch of unknown base is taken as written on the start, which loses renames.
    """

    git: Git
    start: Oid
    head: Oid
    tree: Oid
    propose: Proposer | None = None
    accept: frozenset[str] = frozenset()
    contexts: dict[Oid | None, Oid] = field(default_factory=dict)
    unresolved: dict[str, str] = field(default_factory=dict)

    def take(self, patch: Patch) -> Step:
        """Put one patch on the stack, or say why not."""
        if patch.status not in REPLAYED or patch.unresolved:
            self._pass_over(patch)
            found = (_waits(patch),) if patch.unresolved else ()
            return Step(patch=patch, outcome=Outcome.SKIPPED, tree=self.tree, findings=found)
        change, before, after = self._written(patch)
        if before == after:
            return Step(patch=patch, outcome=Outcome.EMPTY, tree=self.tree)
        merged = put(self.git, before, after, self.tree)
        own = tuple(path for path, _, _ in change)
        if merged.conflicts:
            clash = Clash(patch=patch, before=before, after=after, onto=self.tree, merged=merged)
            return self._conflict(clash, own)
        if merged.tree == self.tree:
            return Step(patch=patch, outcome=Outcome.ABSORBED, tree=self.tree, paths=own)
        self._take(patch, merged.tree)
        return Step(
            patch=patch,
            outcome=Outcome.CLEAN,
            tree=self.tree,
            commit=self.head,
            paths=merged.paths,
        )

    def _take(self, patch: Patch, tree: Oid) -> None:
        self.tree = tree
        message, author = words_of(self.git, patch)
        self.head = self.git.commit_tree(tree, (self.head,), message, author)

    def _pass_over(self, patch: Patch) -> None:
        """Advance the stack as it was written past a patch that is not replayed.

        It may stand on what an earlier patch no longer is; then nobody stands on it.
        """
        if patch.mail is not None:
            with contextlib.suppress(DiffError):
                self._written(patch)

    def _written(self, patch: Patch) -> tuple[tuple[Change, ...], Oid, Oid]:
        change, parent = change_of(self.git, patch)
        before, after = written(self.git, change, parent or self._context(patch))
        if parent is None:
            self.contexts[patch.base] = after
        return change, before, after

    def _context(self, patch: Patch) -> Oid:
        known = self.contexts.get(patch.base)
        found = self.git.find(patch.base, "tree") if patch.base and not known else None
        return known or found or self.start

    def _conflict(self, clash: Clash, own: tuple[str, ...]) -> Step:
        patch, merged = clash.patch, clash.merged
        touched = tuple(sorted({*own, *merged.paths}))
        blocker = next((self.unresolved[p] for p in touched if p in self.unresolved), None)
        proposal = None
        if self.propose and not blocker:
            proposal = self.propose(self.git, clash)
        usable = proposal is not None and not errors(proposal.findings)
        taken = usable and patch.id in self.accept
        if proposal and taken:
            self._take(patch, proposal.tree)
        else:
            self.unresolved.update(dict.fromkeys(touched, patch.id))
        outcome = Outcome.BLOCKED if blocker else Outcome.CONFLICT
        return Step(
            patch=patch,
            outcome=Outcome.PROPOSED if usable else outcome,
            tree=self.tree,
            commit=self.head if taken else None,
            paths=touched,
            conflicts=merged.conflicts,
            blocked_by=blocker,
            proposal=proposal,
        )


def _waits(patch: Patch) -> Diagnostic:
    """Return the note that a reference has no commit yet."""
    return Diagnostic(
        code="E114",
        severity=Severity.NOTE,
        message=f"unresolved: no commit is known for #{patch.origin.pr}",
        path=f"patchsets/{patch.patchset}/series.yaml",
        line=patch.line,
        hint=f"elsa-build cherry-pick --from nightly '#{patch.origin.pr}' --dry-run",
    )


def change_of(git: Git, patch: Patch) -> tuple[tuple[Change, ...], Oid | None]:
    """Return what a patch changes; for a reference also the tree of the commit's parent.

    A reference without a commit changes nothing that we know of.
    """
    if patch.mail is not None:
        return changes_in(git, patch.mail.diff), None
    return of_commit(git, patch.origin.commit) if patch.origin.commit else ((), None)


def of_commit(git: Git, commit: Oid) -> tuple[tuple[Change, ...], Oid | None]:
    """Return what a commit changes against its first parent, and the parent's tree."""
    picked = git.commit(commit)
    parent = git.commit(picked.parents[0]).tree if picked.parents else None
    return tuple(git.objects.changes(parent, picked.tree)), parent


def words_of(git: Git, patch: Patch) -> tuple[str, Signature]:
    """Return the message and the author of the commit that a patch becomes."""
    if patch.mail is not None:
        return patch.mail.message, patch.mail.author
    assert patch.origin.commit is not None
    picked = git.commit(patch.origin.commit)
    note = f"(cherry picked from commit {patch.origin.commit})"
    return f"{picked.message.rstrip()}\n\n{note}\n", picked.author
