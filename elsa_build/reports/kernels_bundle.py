"""A bundle of kernels for people and for scripts: what it holds, for what, at which cost."""

from typing import TYPE_CHECKING, Any

from elsa_build.kernels.bundle import Bundle
from elsa_build.kernels.jobs import Family

if TYPE_CHECKING:
    from rich.console import RenderableType


def table(bundle: Bundle) -> "RenderableType":
    """Return one row a family: how many kernels, for what, how large, at which cost to build."""
    from rich.table import Table  # noqa: PLC0415 - only when something is shown

    manifest = bundle.manifest
    shown = Table(box=None, pad_edge=False, title_justify="left", caption_justify="left")
    shown.title = f"{manifest.recipe} for {manifest.target}, {bundle.digest}"
    for name in ("family", "kernels", "missing", "code", "MB", "CPU s"):
        right = name in ("kernels", "missing", "MB", "CPU s")
        shown.add_column(name, overflow="fold", justify="right" if right else "left")
    for family in Family:
        held = manifest.of(family)
        lost = sum(one.family is family for one in manifest.missing)
        if held or lost:
            shown.add_row(
                str(family),
                str(len(held)),
                str(lost),
                ", ".join(sorted({one.arch for one in held if one.arch})),
                f"{sum(one.size for one in held) / 1e6:.1f}",
                f"{sum(one.cpu_s for one in held):.0f}",
            )
    counts = manifest.harvests()
    if counts:
        told = ", ".join(f"{family} {count}" for family, count in counts.items())
        shown.caption = f"files harvested from a boot: {told}"
    return shown


def document(bundle: Bundle) -> dict[str, Any]:
    """Return a bundle as plain data; its kernels are in its own `bundle.json`."""
    manifest = bundle.manifest
    return {
        "recipe": manifest.recipe,
        "target": manifest.target,
        "tree": manifest.tree,
        "prefix": manifest.prefix,
        "digest": bundle.digest,
        "toolchain": dict(manifest.toolchain),
        "counts": manifest.counts(),
        "harvested": manifest.harvests(),
        "files": len(manifest.files),
        "bytes": bundle.size,
        "missing": [
            {"family": str(one.family), "name": one.name, "why": one.why}
            for one in manifest.missing
        ],
    }
