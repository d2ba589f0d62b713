"""A kernel plan for people and for scripts: one row a function, its specialisations counted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elsa_build.kernels.plan import Plan, PlanChange, Planned

if TYPE_CHECKING:
    from rich.console import RenderableType


def table(plan: Plan) -> "RenderableType":
    """Return one row a function or module: how many specialisations, when, from where."""
    from rich.table import Table  # noqa: PLC0415 - only when something is shown

    found = Table(box=None, pad_edge=False, title_justify="left")
    for name in ("family", "kernel", "specialisations", "phases", "because"):
        found.add_column(name, overflow="fold", justify="right" if name.endswith("s") else "left")
    for (family, name), kernels in grouped(plan).items():
        phases = dict.fromkeys(phase for one in kernels for phase in one.phases)
        why = kernels[0].why.partition(": ")
        found.add_row(family, name, str(len(kernels)), ", ".join(phases), why[2] or why[0])
    for family, count in plan.counts().items():
        found.caption = f"{found.caption or ''}{family} {count}  "
    return found


def grouped(plan: Plan) -> Mapping[tuple[str, str], list[Planned]]:
    """Return the kernels by family and name, in the plan's order."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for one in plan.kernels:
        found.setdefault((one.family.value, one.name.removeprefix("sglang.")), []).append(one)
    return found


def document(plan: Plan, change: PlanChange) -> dict[str, Any]:
    """Return the plan as plain data; `new` and `gone` are ids."""
    return {
        "recipe": plan.recipe,
        "target": plan.target,
        "package": plan.package,
        "versions": dict(plan.versions),
        "counts": plan.counts(),
        "kernels": [{"family": one.family.value, **one.document()} for one in plan.kernels],
        "tunings": [one.document() for one in plan.tunings],
        "failures": dict(plan.failures),
        "new": [one.id for one in change.new],
        "gone": [one.id for one in change.gone],
    }
