"""Which upstream commit breaks which patch first, before anyone touches a tree.

A replay at each of some 600 commits would take ten minutes; the walk merges only what changed, and
each core takes a stretch of the history.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elsa_build.git.door import Git
from elsa_build.model import Oid, Outcome, Series
from elsa_build.patches.breakage import Breakage, classify
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.replay import REPLAYED
from elsa_build.patches.walk import Met, Walk, Written, as_written
from elsa_build.progress import SILENT, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """The first commit after which a patch no longer applies, or has nothing left to do."""

    patch: str
    commit: UpstreamCommit
    outcome: Outcome
    breakage: Breakage
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What becomes of a series over a range of upstream; `breaks` in the order of the series."""

    base: Oid
    commits: int
    patches: tuple[str, ...]
    breaks: tuple[Break, ...]


def forecast(
    repositories: tuple[Path, ...],
    series: Series,
    base: Oid,
    commits: Sequence[UpstreamCommit],
    *,
    known: Mapping[str, Break] | None = None,
    workers: int | None = None,
    progress: Progress = SILENT,
) -> Forecast:
    """Return the first breaking commit of every active patch along a stretch of upstream.

    Args:
        repositories: Together they hold the commits and the blobs that the patches were written on.
        series: The patches, in order.
        base: Where the walk starts; what does not apply there counts as broken before.
        commits: What came after `base`, oldest first (see `history.between`).
        known: Breaks of an earlier forecast that ended at `base`; they stay.
        workers: Processes (default: one a core); each takes a stretch of the history.
        progress: Told of finished commits.
    """
    count = max(1, min(workers or os.cpu_count() or 1, len(commits) // 20))
    size = -(-len(commits) // count) or 1
    parts = [commits[i : i + size] for i in range(0, len(commits), size)]
    starts = [base, *(part[-1].oid for part in parts[:-1])]
    firsts: dict[str, Break] = dict(known or {})
    with progress.task(f"forecast over {len(commits)} commits", total=len(commits)) as advance:
        for part, found in zip(
            parts, _walk_all(repositories, series, starts, parts, count), strict=True
        ):
            for one in found:
                firsts.setdefault(one.patch, one)
            advance(len(part))
    active = tuple(
        patch.id for patch in series.patches if patch.status in REPLAYED and not patch.unresolved
    )
    return Forecast(
        base=base,
        commits=len(commits),
        patches=active,
        breaks=tuple(firsts[patch] for patch in active if patch in firsts),
    )


def _walk_all(
    repositories: tuple[Path, ...],
    series: Series,
    starts: Sequence[Oid],
    parts: Sequence[Sequence[UpstreamCommit]],
    count: int,
) -> Iterable[tuple[Break, ...]]:
    if count == 1:
        return [_walk(repositories, series, s, p) for s, p in zip(starts, parts, strict=True)]
    with ProcessPoolExecutor(count) as pool:
        jobs = [
            pool.submit(_walk, repositories, series, s, p)
            for s, p in zip(starts, parts, strict=True)
        ]
        return [job.result() for job in jobs]


def _walk(
    repositories: tuple[Path, ...],
    series: Series,
    start: Oid,
    commits: Sequence[UpstreamCommit],
) -> tuple[Break, ...]:
    """Return the first break of each patch along one stretch that begins at `start`.

    A patch that is broken at the start has its first break earlier, so not here.
    """
    firsts: dict[str, Break] = {}
    with ExitStack() as opened:
        git, *others = [opened.enter_context(Git(path)) for path in repositories]
        inner = opened.enter_context(git.quarantine(*others))
        walk = Walk(git=inner, patches=as_written(inner, series), tree=inner.commit(start).tree)
        broken = {patch.id for patch, met in walk.step(None) if met.outcome is not Outcome.CLEAN}
        for commit in commits:
            walk.tree = inner.commit(commit.oid).tree
            for patch, met in walk.step(commit):
                if met.outcome is not Outcome.CLEAN and patch.id not in broken:
                    broken.add(patch.id)
                    firsts[patch.id] = _break(inner, patch, commit, met)
    return tuple(firsts.values())


def _break(git: Git, patch: Written, commit: UpstreamCommit, met: Met) -> Break:
    absorbed = met.outcome is Outcome.ABSORBED
    return Break(
        patch=patch.id,
        commit=commit,
        outcome=met.outcome,
        breakage=Breakage.ABSORBED if absorbed else classify(git, commit, patch.change),
        paths=met.paths,
    )
