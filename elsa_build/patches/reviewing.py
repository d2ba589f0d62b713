"""Ask git once for everything that a report of a rebase shows.

Reads the quarantine that the replay wrote to, so it must run before that is closed.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from elsa_build import __version__
from elsa_build.diagnostics import errors
from elsa_build.git.door import Git
from elsa_build.model import Pin, Replay, Step
from elsa_build.patches.causes import Tracer
from elsa_build.patches.drift import Drift, Pair, compare, diffs, mini, pairs
from elsa_build.patches.history import UpstreamCommit, between
from elsa_build.patches.review import Case, Command, Review, Revision, Site
from elsa_build.patches.sites import Ground, sites
from elsa_build.progress import SILENT, Progress

TOOLS = ("vimdiff", "meld", "kdiff3")
_GITHUB = re.compile(r"(?:https://|git@|ssh://git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?")


def review(
    git: Git,
    done: Replay,
    *,
    series: str,
    base: Revision,
    onto: str,
    now: str,
    pin: Pin | None = None,
    history: Sequence[UpstreamCommit] | None = None,
    digests: Sequence[tuple[str, str]] = (),
    progress: Progress = SILENT,
) -> Review:
    """Return a replay with the reasons, surroundings and commands that a reviewer needs.

    Args:
        git: The repository, or quarantine, that `done` was made in.
        done: The replay, guarded and with its proposals.
        series: The name of what was replayed.
        base: What the series was written on.
        onto: The name that a person gave to `done.onto`.
        now: When the report was made, ISO 8601 with an offset.
        pin: The upstream that the lock names; its address links pull requests.
        history: Upstream's steps from base to onto, oldest first (default: asked of git, which
            needs both commits to have a history in common).
        digests: (name, digest) of the inputs, for the last lines of a report.
        progress: Told of finished steps.
    """
    steps = between(git, base.commit, done.onto) if history is None else history
    tracer = Tracer(git, steps)
    start = git.commit(done.onto).tree
    grounds = [Ground(onto=start, earlier=done.steps[:at]) for at in range(len(done.steps))]
    drifts, proposals = _diffs(git, done.steps, grounds)
    cases = []
    with progress.task("review", total=len(done.steps)) as advance:
        for step, ground in zip(done.steps, grounds, strict=True):
            found = sites(git, step, ground, tracer)
            cases.append(
                Case(
                    sites=found,
                    drift=drifts.get(step.patch.id, Drift()),
                    proposal=proposals.get(step.patch.id, ""),
                    commands=tuple(_commands(step, found, onto)),
                )
            )
            advance(1)
    return Review(
        series=series,
        base=base,
        onto=Revision(name=onto, commit=done.onto),
        done=replace(done, steps=tuple(_portable(step) for step in done.steps)),
        cases=tuple(cases),
        tool=__version__,
        git=git.text("version").removeprefix("git version "),
        made=now,
        pin=pin,
        project=_project(pin),
        digests=tuple(digests),
        commands=_reproduce(onto),
    )


def _portable(step: Step) -> Step:
    """Return a step whose patch file is named from the project's folder, not this machine's."""
    file = step.patch.file
    if file is None:
        return step
    place = Path("patchsets", step.patch.patchset, file.name)
    return replace(step, patch=replace(step.patch, file=place))


def _diffs(
    git: Git, steps: Sequence[Step], grounds: Sequence[Ground]
) -> tuple[dict[str, Drift], dict[str, str]]:
    """Return by patch id how it drifted, and the diff of its proposal; one git process for all."""
    written: dict[str, tuple[Pair, Pair]] = {}
    proposed: dict[str, Pair] = {}
    for step, ground in zip(steps, grounds, strict=True):
        if step.proposal:
            sides = (ground.tree, step.proposal.tree)
            old, new = (mini(git, tree, step.proposal.paths) for tree in sides)
            proposed[step.patch.id] = (old, new)
        elif step.commit and (found := pairs(git, ground.tree, step)):
            written[step.patch.id] = found
    wanted = [pair for both in written.values() for pair in both] + list(proposed.values())
    texts = dict(zip(wanted, diffs(git, wanted), strict=True))
    return (
        {patch: compare(texts[old], texts[new]) for patch, (old, new) in written.items()},
        {patch: texts[pair] for patch, pair in proposed.items()},
    )


def _commands(step: Step, found: Sequence[Site], onto: str) -> Iterator[Command]:
    """Yield what to type for one step, the likeliest first."""
    name, where = shlex.quote(step.patch.id), f"--onto {shlex.quote(onto)}"
    if step.blocked_by:
        first = f"elsa-build resolve {shlex.quote(step.blocked_by)} {where}"
        yield Command(does=f"settle {step.blocked_by} first", line=first)
    if step.proposal and not step.commit and not errors(step.proposal.findings):
        line = f"elsa-build resolve {name} {where} --accept"
        yield Command(does="take the proposal, if it is right", line=line)
    if found:
        yield Command(
            does="open the conflict in a work tree", line=f"elsa-build resolve {name} {where}"
        )
        paths = list(dict.fromkeys(site.path for site in found if site.region))
        if paths:
            for tool in TOOLS:
                files = " ".join(shlex.quote(path) for path in paths)
                line = f"git mergetool --tool={tool} -- {files}"
                yield Command(does=f"there, merge with {tool}", line=line)
        yield Command(
            does="when it is right, test and store it",
            line=f"elsa-build resolve {name} --continue",
        )
        yield Command(
            does="or give the patch up",
            line=f"elsa-build patch drop {name} --why 'why it is no longer needed'",
        )
    elif step.failed:
        yield Command(does="see the patch", line=f"elsa-build patch show {name} --context 10")
    for path in step.patch.tests:
        place = shlex.quote(f"patchsets/{step.patch.patchset}/{path}")
        yield Command(
            does="test the patched tree",
            line=f"ELSA_PATCHED_TREE=../patched python -m pytest {place}",
        )


def _reproduce(onto: str) -> tuple[Command, ...]:
    where = shlex.quote(onto)
    return (
        Command(
            does="make this report again", line=f"elsa-build rebase --onto {where} --report DIR"
        ),
        Command(
            does="when all is clean, move there", line=f"elsa-build rebase --onto {where} --write"
        ),
    )


def _project(pin: Pin | None) -> str | None:
    """Return the web address of upstream's project, if the pin says where that is."""
    found = _GITHUB.fullmatch(pin.url) if pin else None
    return f"https://github.com/{found[1]}" if found else None
