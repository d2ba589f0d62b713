"""A kernel plan for people and for scripts: what asks for which kernels, and how many of each."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elsa_build.kernels.plan import Plan, PlanChange, Planned

if TYPE_CHECKING:
    from rich.console import RenderableType


def table(plan: Plan) -> "RenderableType":
    """Return the kernels below what calls them: how many specialisations each, and when."""
    from rich.text import Text  # noqa: PLC0415 - only when something is shown

    found = Text()
    for (drive, source), kernels in grouped(plan).items():
        phases = ", ".join(dict.fromkeys(phase for one in kernels for phase in one.phases))
        found.append(f"{drive}", style="bold")
        found.append(f"  {phases}\n", style="dim")
        found.append(f"  {source}\n" if source else "", style="dim")
        for (family, name), count in Counter((one.family, one.name) for one in kernels).items():
            found.append(f"{count:5}  {family.value:10}  {name.removeprefix('sglang.')}\n")
    counts = ", ".join(f"{count} {family}" for family, count in plan.counts().items())
    found.append(f"{plan.recipe} for {plan.target}: {counts}", style="bold")
    return found


def grouped(plan: Plan) -> Mapping[tuple[str, str], list[Planned]]:
    """Return the kernels by what asks for them: a drive and its file of upstream, or a boot."""
    found: dict[tuple[str, str], list[Planned]] = {}
    for one in plan.kernels:
        drive, _, source = one.why.partition(": ")
        found.setdefault((drive, source), []).append(one)
    return dict(sorted(found.items()))


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
