"""A rebase as a reviewer needs it: the replay, and beside it all that git must be asked for.

A `Review` is complete: every report is made from it alone, on another machine and years later.
"""

from dataclasses import dataclass, field

from elsa_build.model import Oid, Pin, Region, Replay, Step
from elsa_build.patches.causes import Cause
from elsa_build.patches.drift import Drift


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A commit and the name that a person gave it."""

    name: str
    commit: Oid


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Where a region is in one file: its first line (1-based) and the lines next to it."""

    line: int
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One conflict to look at: a region of a file, or a whole file where there is no region.

    `number` is 1-based within the step; `number` and the patch's id are the anchor of every
    report. `scope` is the class and function there, `line` the line on onto. `patch` and
    `upstream` are the surroundings in the two files that are compared with the base. `causes` are
    upstream's commits; where `exact` is not set, none changed these very lines. `stacked` are
    earlier patches of ours that changed them on onto. `home` is where upstream moved the file,
    `patch_diff` what the patch does to it, for a conflict without regions.
    """

    number: int
    path: str
    reason: str
    region: Region | None = None
    scope: str = ""
    line: int | None = None
    patch: Around | None = None
    upstream: Around | None = None
    causes: tuple[Cause, ...] = ()
    exact: bool = False
    stacked: tuple[str, ...] = ()
    home: str | None = None
    gone: bool = False
    patch_deletes: bool = False
    patch_diff: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line to type, ready to paste, and what it does."""

    does: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a reviewer needs about one step; the cases are in the order of the steps.

    `proposal` is the diff of the step's proposal against the tree that the step met.
    """

    sites: tuple[Site, ...] = ()
    drift: Drift = field(default_factory=Drift)
    proposal: str = ""
    commands: tuple[Command, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """A replay with the names, reasons and texts of a report.

    `project` is an address of upstream's project, to link pull requests. `made` is ISO 8601 with
    an offset, `tool` and `git` are versions, `digests` are (name, digest) of the inputs.
    """

    series: str
    base: Revision
    onto: Revision
    done: Replay
    cases: tuple[Case, ...]
    tool: str
    git: str
    made: str
    pin: Pin | None = None
    project: str | None = None
    digests: tuple[tuple[str, str], ...] = ()
    commands: tuple[Command, ...] = ()

    @property
    def rows(self) -> tuple[tuple[Step, Case], ...]:
        """Return each step with its case."""
        return tuple(zip(self.done.steps, self.cases, strict=True))
