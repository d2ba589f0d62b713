"""`elsa-build range-diff`: two states of our stack side by side."""

from collections import Counter
from typing import Annotated, Any

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.stacks.compare import NOW, Comparison, Fate, Side, compare

_SIGNS = {Fate.SAME: "=", Fate.CHANGED: "!", Fate.REMOVED: "<", Fate.ADDED: ">"}


@command(
    app, "range-diff", example="elsa-build range-diff HEAD~1\nelsa-build range-diff elsa-v1.6 HEAD"
)
def range_diff(
    session: Session,
    *,
    old: Annotated[str, typer.Argument(metavar="A", help="A revision of this project, or .")],
    new: Annotated[
        str, typer.Argument(metavar="[B]", help="Another (default: the files as they are)")
    ] = NOW,
) -> Result:
    """Compare two states of the stack, each replayed on its own pin.

    A revision is one of the project's own git history. What only shifted is the same.
    """
    found = compare(session.root, old, new, progress=session.progress)
    counts = Counter(pair.fate for pair in found.pairs)
    return Result(
        data={
            "old": _side(found.old),
            "new": _side(found.new),
            "patches": [
                {"old": one.old, "new": one.new, "fate": str(one.fate), "diff": one.diff}
                for one in found.pairs
            ],
        },
        view=_view(found),
        closing=", ".join(f"{counts[fate]} {fate}" for fate in Fate if counts[fate])
        or "no patches on either side",
        status="same" if set(counts) <= {Fate.SAME} else "different",
    )


def _side(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "onto": side.onto,
        "head": side.head,
        "left_out": list(side.left_out),
    }


def _view(found: Comparison) -> str:
    lines = [
        f"{side.name}: not in the stack, since it does not apply: {', '.join(side.left_out)}"
        for side in (found.old, found.new)
        if side.left_out
    ]
    for one in found.pairs:
        lines.append(f"{_SIGNS[one.fate]} {one.fate:<8} {one.new or one.old}")
        if one.diff:
            lines += [f"    {line}".rstrip() for line in one.diff.split("\n")]
    return "\n".join(lines)
