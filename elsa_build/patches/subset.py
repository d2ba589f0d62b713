"""A part of the series as a stack of its own, so that one patch can be measured without another.

What is left out is passed over and not removed: later patches were written on it, and git needs to
see that to merge them where it is missing.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from elsa_build.errors import ConfigError, UsageError
from elsa_build.model import Patch, Series, Status
from elsa_build.patches.seriesfile import active, patch_of


def subset(series: Series, *, only: Collection[str] = (), without: Collection[str] = ()) -> Series:
    """Return a series of which a replay takes some of the active patches.

    Args:
        series: All of it.
        only: These, if any are named; the rest is left out.
        without: These are left out.

    Raises:
        ConfigError: There is no such patch, or it is not active (exit 5).
        UsageError: A patch is named twice, or needs one that is left out (exit 2).
    """
    for name in (*only, *without):
        patch = patch_of(series, name)
        if not active(patch):
            raise ConfigError(f"{name} is {patch.status}: no replay takes it")
    both = sorted(set(only) & set(without))
    if both:
        raise UsageError(f"{', '.join(both)}: in --only and in --without")
    chosen = {
        patch.id
        for patch in series.patches
        if active(patch) and patch.id not in without and (not only or patch.id in only)
    }
    _require(series.patches, chosen, only=bool(only))
    return replace(series, patches=tuple(_left(patch, chosen) for patch in series.patches))


def prefix(series: Series, count: int) -> Series:
    """Return a series of which a replay takes the first `count` active patches."""
    ids = [patch.id for patch in series.patches if active(patch)][:count]
    return replace(series, patches=tuple(_left(patch, set(ids)) for patch in series.patches))


def _left(patch: Patch, chosen: Collection[str]) -> Patch:
    if patch.id in chosen or not active(patch):
        return patch
    return replace(patch, status=Status.DROPPED)


def _require(patches: Iterable[Patch], chosen: Collection[str], *, only: bool) -> None:
    known = {patch.id: patch for patch in patches}
    for patch in known.values():
        if patch.id not in chosen:
            continue
        missing = [
            one
            for one in patch.requires
            if one not in chosen and one in known and active(known[one])
        ]
        if missing:
            names = ", ".join(missing)
            raise UsageError(
                f"{patch.id} requires {names}, which would be left out",
                hint=" ".join(f"--only {one}" for one in missing)
                if only
                else f"--without {patch.id} too",
            )
