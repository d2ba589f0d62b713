"""What the last forecast found, so that the next night looks only at what is new.

The first breaking commit of a patch never changes while series, base and history stay. So the
breaks are kept with the commit where the walk ended; a later walk begins there. Anything else (an
edited patch, another pin, an upstream that was forced back) begins anew.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from elsa_build.model import Oid, Outcome, Series
from elsa_build.patches.breakage import Breakage
from elsa_build.patches.forecast import Break, Forecast, forecast
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.replay import REPLAYED
from elsa_build.progress import SILENT, Progress

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Where an earlier walk ended, and the breaks that it found by then."""

    until: Oid
    breaks: Mapping[str, Break] = field(default_factory=dict)


def foresee(
    repositories: tuple[Path, ...],
    series: Series,
    base: Oid,
    commits: Sequence[UpstreamCommit],
    *,
    cache: Path,
    workers: int | None = None,
    progress: Progress = SILENT,
) -> Forecast:
    """Return the forecast over `commits`, walked only from where the last one ended.

    Args as `patches.forecast.forecast`; `cache` is the folder of caches.
    """
    place = path_of(cache, series, base)
    seen = load(place, commits)
    start, rest = base, commits
    if seen:
        ended = [commit.oid for commit in commits].index(seen.until)
        start, rest = seen.until, commits[ended + 1 :]
    found = forecast(
        repositories,
        series,
        start,
        rest,
        known=seen.breaks if seen else None,
        workers=workers,
        progress=progress,
    )
    if commits:
        breaks = {one.patch: one for one in found.breaks}
        store(place, Seen(until=commits[-1].oid, breaks=breaks))
    return replace(found, base=base, commits=len(commits))


def path_of(cache: Path, series: Series, base: Oid) -> Path:
    """Return where the forecast of this series from this base is kept."""
    digest = hashlib.sha256(f"{VERSION} {base}".encode())
    for patch in series.patches:
        if patch.status in REPLAYED:
            content = patch.mail.diff if patch.mail else str(patch.origin.commit).encode()
            digest.update(f"\0{patch.id} {patch.base}\0".encode() + content)
    return cache / "forecasts" / f"{digest.hexdigest()}.json"


def load(path: Path, commits: Sequence[UpstreamCommit]) -> Seen | None:
    """Return what is kept, if it ended at one of these commits; None otherwise.

    A damaged file counts as none: it is only a cache.
    """
    by_oid = {commit.oid: commit for commit in commits}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        until = Oid(document["until"])
        if until not in by_oid:
            return None
        breaks = {
            one["patch"]: Break(
                patch=one["patch"],
                commit=by_oid[Oid(one["commit"])],
                outcome=Outcome(one["outcome"]),
                breakage=Breakage(one["breakage"]),
                paths=tuple(one["paths"]),
            )
            for one in document["breaks"]
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Seen(until=until, breaks=breaks)


def store(path: Path, seen: Seen) -> None:
    """Keep what was found, beside its place and renamed; a full disk only costs the next night."""
    document = {
        "until": seen.until,
        "breaks": [
            {
                "patch": one.patch,
                "commit": one.commit.oid,
                "outcome": one.outcome,
                "breakage": one.breakage,
                "paths": one.paths,
            }
            for one in seen.breaks.values()
        ],
    }
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
