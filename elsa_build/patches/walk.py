"""A stack of patches walked along upstream's history, merging again only what met something new.

What a patch meets at a commit is the text of its own files after the patches before it. Where that
is as it was at the commit before, so is the outcome. Nothing is assumed to be monotonic, as a
bisection would.
"""

from dataclasses import dataclass, field, replace

from elsa_build.git.door import Git
from elsa_build.git.objects import Change, Entry
from elsa_build.model import Oid, Outcome, Series
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.replay import REPLAYED, change_of
from elsa_build.patches.threeway import merge_files, put, stands, written

State = dict[str, Entry | None]
"""Paths that differ from upstream's tree at the commit in hand, and what they hold instead."""


@dataclass(frozen=True, slots=True)
class Written:
    """A patch as the walk needs it: its change, and the whole trees before and after it."""

    id: str
    change: tuple[Change, ...]
    before: Oid
    after: Oid


@dataclass(frozen=True, slots=True)
class Met:
    """What a patch met at its last merge, and what came of it.

    `inputs` are its files as it met them, `stacked` those that an earlier patch had changed;
    `outputs` are the files that it left, which a rename may have moved.
    """

    inputs: State
    stacked: frozenset[str]
    outcome: Outcome
    outputs: State
    paths: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Walk:
    """Where a walk is: the stack on the commit whose tree is `tree`, and what each patch met."""

    git: Git
    patches: tuple[Written, ...]
    tree: Oid
    met: dict[str, Met] = field(default_factory=dict)

    def step(self, commit: UpstreamCommit | None) -> tuple[tuple[Written, Met], ...]:
        """Bring the stack to the commit whose tree is `tree` and return what each patch met.

        None is the start of a walk, where every patch is merged.
        """
        changed = {change.path for change in commit.changes} if commit else None
        state: State = {}
        results = []
        for patch in self.patches:
            met = self.met.get(patch.id)
            if met is None or _touched(met, changed, state):
                watched = (*(c.path for c in patch.change), *(met.outputs if met else ()))
                inputs = {path: self._here(state, path) for path in watched}
                if met is None or inputs != met.inputs:
                    met = self._merge(patch, state)
                met = replace(met, stacked=frozenset(met.inputs.keys() & state.keys()))
                self.met[patch.id] = met
            state |= met.outputs
            results.append((patch, met))
        return tuple(results)

    def _here(self, state: State, path: str) -> Entry | None:
        return state[path] if path in state else self.git.objects.find(self.tree, path)

    def _merge(self, patch: Written, state: State) -> Met:
        here = {change.path: self._here(state, change.path) for change in patch.change}
        if stands(self.git, patch.change, here, patch.before, self.tree):
            files = merge_files(self.git, patch.change, here)
            outputs = None if files.reasons else dict(files.entries)
            paths = tuple(here)
        else:
            outputs, paths = self._merge_whole(patch, state)
        inputs = here | {path: self._here(state, path) for path in outputs or ()}
        if outputs is None:
            outcome, outputs = Outcome.CONFLICT, {}
        else:
            same = all(inputs[path] == entry for path, entry in outputs.items())
            outcome = Outcome.ABSORBED if same else Outcome.CLEAN
        return Met(
            inputs=inputs, stacked=frozenset(), outcome=outcome, outputs=outputs, paths=paths
        )

    def _merge_whole(self, patch: Written, state: State) -> tuple[State | None, tuple[str, ...]]:
        """Let git look for renames in the whole trees."""
        onto = self.git.objects.edit(self.tree, state) if state else self.tree
        merged = put(self.git, patch.before, patch.after, onto)
        if merged.conflicts:
            return None, merged.paths
        outputs = {path: self.git.objects.find(merged.tree, path) for path in merged.paths}
        return outputs, merged.paths


def _touched(met: Met, changed: set[str] | None, state: State) -> bool:
    """Say whether a patch may meet something else than it met last time."""
    watched = {*met.inputs, *met.outputs}
    if changed is None or not watched.isdisjoint(changed):
        return True
    return not (watched.isdisjoint(state) and met.stacked <= state.keys())


def as_written(git: Git, series: Series) -> tuple[Written, ...]:
    """Return the active patches of a series with the trees that they were written on."""
    contexts: dict[Oid | None, Oid] = {}
    found = []
    for patch in series.patches:
        change, parent = change_of(git, patch)
        known = contexts.get(patch.base) or (git.find(patch.base, "tree") if patch.base else None)
        before, after = written(git, change, parent or known or git.objects.edit(None, {}))
        if parent is None:
            contexts[patch.base] = after
        if patch.status in REPLAYED and change:
            found.append(Written(patch.id, change, before, after))
    return tuple(found)
