"""Two states of our stack side by side, as `git range-diff` sees them: what a rebase did to each.

Line numbers do not count, so that what a new upstream only shifted is the same patch.
"""

import re
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from elsa_build import project
from elsa_build.git.door import Git
from elsa_build.model import Oid, Replay
from elsa_build.patches.replay import replay
from elsa_build.progress import SILENT, Progress
from elsa_build.stacks.revision import at

NOW = "."
"""What a person types for the files as they are."""

_PAIR = re.compile(r" *(\d+|-): +([0-9a-f]+|-+) ([=!<>]) +(\d+|-): +([0-9a-f]+|-+) .*")


class Fate(StrEnum):
    """What became of one patch from one stack to the other."""

    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"


_FATES = {"=": Fate.SAME, "!": Fate.CHANGED, "<": Fate.REMOVED, ">": Fate.ADDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One stack: what a person called it, what it stands on, and the patches that did not apply."""

    name: str
    onto: Oid
    head: Oid
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One patch in both stacks (ids; None where it is not) and git's diff of the two diffs."""

    old: str | None
    new: str | None
    fate: Fate
    diff: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two stacks; the pairs are in git's order."""

    old: Side
    new: Side
    pairs: tuple[Pair, ...]


def compare(root: Path, old: str, new: str = NOW, *, progress: Progress = SILENT) -> Comparison:
    """Return two states of the project's whole stack compared, each on its own pin.

    `old` and `new` are revisions of the project's own history, or `.` for the files as they are.

    Raises:
        ConfigError: There is no such revision, or what is there cannot be read (exit 5).
    """
    with ExitStack() as opened:
        folders = [
            root if name == NOW else opened.enter_context(at(root, name)) for name in (old, new)
        ]
        locks = [project.read_lock(folder) for folder in folders]
        series = [project.read_series(folder) for folder in folders]
        pinned = [
            opened.enter_context(Git(project.pinned_repository(lock, progress, one)))
            for lock, one in zip(locks, series, strict=True)
        ]
        git = opened.enter_context(pinned[1].quarantine(pinned[0]))
        done = [
            replay(git, one, lock.pin.commit, progress=progress)
            for one, lock in zip(series, locks, strict=True)
        ]
        spans = [f"{one.onto}..{one.head}" for one in done]
        text = git.text("range-diff", "--no-color", "--no-abbrev", *spans)
    before, after = (_side(name, one) for name, one in zip((old, new), done, strict=True))
    return Comparison(old=before, new=after, pairs=_pairs(text, *(_ids(one) for one in done)))


def _side(name: str, done: Replay) -> Side:
    return Side(
        name=name,
        onto=done.onto,
        head=done.head,
        left_out=tuple(step.patch.id for step in done.steps if step.failed),
    )


def _ids(done: Replay) -> list[str]:
    return [step.patch.id for step in done.steps if step.commit]


def _pairs(text: str, old: list[str], new: list[str]) -> tuple[Pair, ...]:
    found: list[Pair] = []
    body: list[str] = []
    for line in [*text.split("\n"), ""]:
        pair = _PAIR.fullmatch(line)
        if pair is None:
            body.append(line.removeprefix("    "))
            continue
        if found:
            found[-1] = _with(found[-1], body)
        body = []
        left, _, sign, right, _ = pair.groups()
        found.append(
            Pair(
                old=None if left == "-" else old[int(left) - 1],
                new=None if right == "-" else new[int(right) - 1],
                fate=_FATES[sign],
                diff="",
            )
        )
    if found:
        found[-1] = _with(found[-1], body)
    return tuple(found)


def _with(pair: Pair, body: list[str]) -> Pair:
    return Pair(old=pair.old, new=pair.new, fate=pair.fate, diff="\n".join(body).rstrip("\n"))
