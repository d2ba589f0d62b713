"""A boot ledger for people and for scripts: a line a phase and family, totals last."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from elsa_build.kernels import ledger as ledgers
from elsa_build.kernels.boots import Booted
from elsa_build.kernels.gate import Gated
from elsa_build.kernels.ledger import Count, Ledger
from elsa_build.kernels.recording import Recording

if TYPE_CHECKING:
    from rich.console import RenderableType


def boot(booted: Booted) -> dict[str, Any]:
    """Return one boot as JSON values; times in seconds."""
    done = booted.boot
    return {
        "exit": done.exit,
        "problem": done.problem,
        "log": str(done.log),
        "processes": booted.heard.processes,
        "ledger": ledgers.document(booted.ledger),
    }


def gated(found: Gated) -> dict[str, Any]:
    """Return one boot through the gate as JSON values; sizes in bytes, times in seconds."""
    return {
        **boot(found.booted),
        "misses": [
            {
                "family": miss.family,
                "name": miss.name,
                "key": miss.key,
                "what": miss.what,
                "phase": miss.phase,
                "causes": list(miss.causes),
                "times": miss.times,
                "seconds": miss.seconds,
                "error": miss.error,
            }
            for miss in found.misses
        ],
        "written": [
            {"family": one.family, "path": str(one.path), "bytes": one.size}
            for one in found.written
        ],
    }


def table(found: Sequence[Booted]) -> "RenderableType":
    """Return the ledgers of some boots, one under the other."""
    from rich.console import Group  # noqa: PLC0415 - only when something is shown

    several = len(found) > 1
    return Group(
        *(
            _table(one.ledger, f"boot {number}" if several else None)
            for number, one in enumerate(found, start=1)
        )
    )


_COLUMNS = ("hits", "compiled", "refused", "failed", "benches")
_ALWAYS = ("hits", "compiled")


def _table(found: Ledger, title: str | None) -> "RenderableType":
    """Return one ledger; a column of what never happened is left out."""
    from rich import box  # noqa: PLC0415 - only when something is shown
    from rich.table import Table  # noqa: PLC0415 - same

    total = found.total
    columns = [name for name in _COLUMNS if name in _ALWAYS or getattr(total, name)]
    shown = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name in ("phase", "family"):
        shown.add_column(name, no_wrap=True)
    for name in ("at s", "takes s", *columns, "busy s"):
        shown.add_column(name, justify="right", no_wrap=True)
    for phase in found.phases:
        times = (f"{phase.began_s:.1f}", f"{phase.seconds:.1f}")
        families = list(phase.counts.items()) or [("", Count())]
        for number, (family, count) in enumerate(families):
            place = (phase.name, family, *times) if number == 0 else ("", family, "", "")
            shown.add_row(*place, *_numbers(count, columns))
    shown.add_section()
    shown.add_row("total", "", "", f"{found.seconds:.1f}", *_numbers(total, columns))
    return shown


def _numbers(count: Count, columns: Sequence[str]) -> list[str]:
    """Return a count as cells; nothing is a point, so that something stands out."""
    busy = count.compile_s + count.bench_s
    cells = [str(getattr(count, name) or ".") for name in columns]
    return [*cells, f"{busy:.1f}" if busy else "."]


def recorded(found: Recording) -> dict[str, Any]:
    """Return what was recorded as JSON values: counts, and what is marked."""
    counts: dict[str, int] = {}
    for entry in found.entries:
        counts[entry.family] = counts.get(entry.family, 0) + 1
    return {
        "counts": counts,
        "once": [{"family": one.family, "name": one.name} for one in found.once],
        "growing": sorted({f"{one.name}: {one.grows}" for one in found.growing}),
        "unrecorded": dict(found.unrecorded),
    }


def recorded_words(found: Recording) -> str:
    """Return how many kernels were recorded, by family."""
    counts = recorded(found)["counts"]
    return ", ".join(f"{count} {family}" for family, count in counts.items()) or "no kernels"


def verdict(found: Sequence[Gated], wrong: int) -> str:
    """Return the outcome of a gate in a line, and where to look when it said no."""
    total = found[-1].booted.ledger.total
    ready = found[-1].booted.ledger.ready_s
    if not wrong:
        when = f", ready after {ready:.1f} s" if ready is not None else ""
        return f"nothing was compiled: {total.hits} kernels were found{when}"
    boot_ = found[-1].booted.boot
    ended = "" if boot_.exit is None else f"; the command ended with exit {boot_.exit}"
    return f"{wrong} findings{ended}\nnext: less {boot_.log}"
