"""What a build of kernels came to, for people and for scripts."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from elsa_build.kernels.building import Building, Choice, Work

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def table(done: Building) -> "RenderableType":
    """Return one row a family: built, compiled now, failed, left, cost, size."""
    found = _table("family", "kernels", "compiled", "failed", "left", "CPU s", "peak MiB", "MB")
    for row in rows(done):
        found.add_row(*(f"{cell:,.1f}" if isinstance(cell, float) else str(cell) for cell in row))
    return found


def rows(done: Building) -> Iterator[tuple[str, int, int, int, int, float, int, float]]:
    """Yield a family's figures in the order of `table`."""
    for family in sorted(
        {one.work.family for one in done.built} | {one.family for one in done.left}
    ):
        built = [one for one in done.built if one.work.family is family]
        held = done.bundle.manifest.of(family)
        yield (
            str(family),
            len(held),
            sum(one.fresh for one in built),
            sum(one.error is not None for one in built),
            sum(work.family is family for work in done.left),
            sum(one.cpu_s for one in built),
            max((one.peak_mib for one in built), default=0),
            sum(kernel.size for kernel in held) / 1e6,
        )


def document(done: Building) -> dict[str, Any]:
    """Return a build as plain data; `cpu_s` are of this run or of the one before."""
    return {
        "bundle": str(done.bundle.folder),
        "digest": done.bundle.digest,
        "bytes": done.bundle.size,
        "counts": done.bundle.manifest.counts(),
        "harvested": done.bundle.manifest.harvests(),
        "compiled": done.compiled,
        "works": [
            {
                "family": str(one.work.family),
                "name": one.work.name,
                "error": one.error,
                "fresh": one.fresh,
                "cpu_s": round(one.cpu_s, 2),
                "peak_mib": one.peak_mib,
            }
            for one in done.built
        ],
        "left": [_work(work) for work in done.left],
    }


def told(done: Building) -> str:
    """Return a sentence of how many kernels were compiled, were there, and came from a boot."""
    there = len(done.built) - done.compiled - len(done.failed)
    files = sum(done.bundle.manifest.harvests().values())
    more = f", {files} files harvested from a boot" if files else ""
    return f"{done.compiled} compiled, {there} were there{more}"


def chosen(choice: Choice) -> dict[str, Any]:
    """Return what would be built as plain data."""
    return {
        "taken": [_work(work) for work in choice.taken],
        "left": [_work(work) for work in choice.left],
        "cpu_s": sum(work.cpu_s for work in choice.taken),
    }


def choice_table(choice: Choice) -> "RenderableType":
    """Return one row a family of what would be built, and of what would be left."""
    found = _table("family", "works", "jobs", "CPU s", "largest MiB", "")
    for works, word in ((choice.taken, ""), (choice.left, "left")):
        for family, group in groupby(sorted(works, key=_family), key=_family):
            found.add_row(family, *_figures(list(group)), word)
    return found


def _family(work: Work) -> str:
    return str(work.family)


def _figures(works: Iterable[Work]) -> tuple[str, str, str, str]:
    works = list(works)
    jobs = [job for work in works for job in work.jobs]
    return (
        str(len(works)),
        str(len(jobs)),
        f"{sum(work.cpu_s for work in works):,.0f}",
        f"{max(job.memory_mib for job in jobs):,}",
    )


def _work(work: Work) -> dict[str, Any]:
    return {
        "family": str(work.family),
        "name": work.name,
        "jobs": len(work.jobs),
        "cpu_s": work.cpu_s,
        "memory_mib": max(job.memory_mib for job in work.jobs),
    }


def _table(*columns: str) -> "Table":
    from rich.table import Table  # noqa: PLC0415 - only when something is shown

    found = Table(box=None, pad_edge=False)
    for place, name in enumerate(columns):
        found.add_column(name, justify="right" if place else "left", overflow="fold")
    return found
