"""Which patch of ours breaks a command: binary search over the prefixes of the series.

Each prefix is a real tree in a folder. The command's exit codes mean what they mean to `git bisect
run`: 0 is good, 125 cannot be told, up to 127 is bad, and more ends the search.
"""

import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from elsa_build import project
from elsa_build.errors import ConflictError, FailedError, ToolError, UsageError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Recipe
from elsa_build.patches import checkout
from elsa_build.patches.replay import replay
from elsa_build.progress import SILENT, Advance, Progress

SKIP = 125
_ABORT = 128
_STDERR = 2


class Mark(StrEnum):
    """What the command said of one prefix."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


Judge = Callable[[int], Mark]
"""Says what the command makes of the first N patches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of the command, on the first `count` patches; `last` is the id of the last one."""

    count: int
    last: str | None
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """What was found: one suspect is the first bad patch; more, where only skips lay between."""

    trials: tuple[Trial, ...]
    suspects: tuple[str, ...]


def search(count: int, judge: Judge) -> tuple[int, int]:
    """Return `(low, high)`: the first `low` of `count` patches are good, the first `high` are bad.

    Any prefix between them could not be told. Both ends must be good and bad.

    Raises:
        FailedError: Nothing at all is bad already, or all of it is good (exit 7).
    """
    for size, wanted in ((0, Mark.GOOD), (count, Mark.BAD)):
        found = judge(size)
        if found is not wanted:
            what = "the pin without patches" if size == 0 else "the whole series"
            raise FailedError(f"{what} must be {wanted} to begin with; the command says {found}")
    low, high = 0, count
    untold: set[int] = set()
    while open_ := [size for size in range(low + 1, high) if size not in untold]:
        middle = (low + high) / 2
        size = min(open_, key=lambda one: (abs(one - middle), one))
        found = judge(size)
        if found is Mark.SKIP:
            untold.add(size)
        elif found is Mark.BAD:
            high = size
        else:
            low = size
    return low, high


def bisect(
    root: Path,
    command: str,
    *,
    recipe: Recipe | None = None,
    patchsets: tuple[str, ...] | None = None,
    progress: Progress = SILENT,
) -> Bisection:
    """Run a shell command on prefixes of the series, in their trees, and return what breaks it.

    The command runs in the folder of the tree, which is also in `ELSA_PATCHED_TREE`; what it prints
    goes to stderr.

    Raises:
        ConflictError: The series does not apply (exit 3).
        FailedError: See `search` (exit 7).
        ToolError: The command ended with 128 or more (exit 6).
        UsageError: There is no patch to find (exit 2).
    """
    lock = project.read_lock(root)
    series = project.read_series(root, recipe.patchsets if recipe else patchsets)
    pinned = project.pinned_repository(lock, progress, series)
    with tempfile.TemporaryDirectory(prefix="elsa-bisect-") as temporary:
        folder = Path(temporary)
        checkout.borrowing(folder, (pinned,), "bisect")
        with Git(folder) as git:
            done = replay(git, series, lock.pin.commit, progress=progress)
        failed = [step.patch.id for step in done.steps if step.failed]
        if failed:
            raise ConflictError(
                f"{', '.join(failed)}: does not apply", hint="elsa-build apply --dry-run"
            )
        made = [step for step in done.steps if step.commit]
        if not made:
            raise UsageError("no active patch changes anything here", hint="elsa-build patch list")
        heads = [done.onto, *(step.commit for step in made if step.commit)]
        names = [step.patch.id for step in made]
        trials: list[Trial] = []
        with progress.task("bisect", total=None) as advance:
            judge = _judge(folder, command, heads, names, trials, advance)
            low, high = search(len(made), judge)
    return Bisection(trials=tuple(trials), suspects=tuple(names[low:high]))


def _judge(
    folder: Path,
    command: str,
    heads: list[Oid],
    names: list[str],
    trials: list[Trial],
    advance: Advance,
) -> Judge:
    def judge(count: int) -> Mark:
        checkout.in_folder(folder, "clean", "-ffdxq")
        checkout.in_folder(folder, "reset", "--quiet", "--hard", heads[count])
        mark = _run(folder, command)
        trials.append(Trial(count=count, last=names[count - 1] if count else None, mark=mark))
        advance(1)
        return mark

    return judge


def _run(folder: Path, command: str) -> Mark:
    ran = subprocess.run(  # noqa: S602 - it is the person's own command line, as in `git bisect run`
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "ELSA_PATCHED_TREE": str(folder)},
        stdout=_STDERR,
        check=False,
    )
    if ran.returncode < 0 or ran.returncode >= _ABORT:
        raise ToolError(f"the command ended with {ran.returncode}, which ends the search")
    if ran.returncode == SKIP:
        return Mark.SKIP
    return Mark.BAD if ran.returncode else Mark.GOOD
