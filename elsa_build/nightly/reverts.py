"""Which of our patches upstream no longer stands behind: it took their original back.

A patch that was absorbed is the worse case: what upstream took over and then reverted is missing
from the next pin, and nothing of ours conflicts there to tell.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elsa_build.model import Absorption, Oid, Patch, Status, Verdict
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.replay import REPLAYED
from elsa_build.patches.reverts import Turn, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What happened to one patch's original; `again` when the last turn landed it once more."""

    patch: Patch
    original: UpstreamCommit
    turns: tuple[Turn, ...]

    @property
    def again(self) -> bool:
        """Say whether upstream has it now, in a later form than ours."""
        return self.turns[-1].again

    @property
    def absorption(self) -> Absorption:
        """Return the verdict with its evidence."""
        told = [
            f"{'landed again' if turn.again else 'taken back'} by {_name(turn.commit)}"
            for turn in self.turns
        ]
        carried = "absorbed by upstream" if self.patch.status is Status.ABSORBED else "carried"
        return Absorption(
            verdict=Verdict.CARRIED if self.again else Verdict.REVERTED,
            evidence=(f"{carried} from {_name(self.original)}", *told),
            commits=(self.original.oid, *(turn.commit.oid for turn in self.turns)),
        )


def findings(
    patches: Iterable[Patch], history: Sequence[UpstreamCommit]
) -> tuple[tuple[Patch, ...], tuple[Patch, ...], tuple[Finding, ...]]:
    """Return the patches that were followed, those that could not be, and what happened to any.

    Active and absorbed patches count. One whose origin is not in the history, and an absorbed one
    without an origin, cannot be followed. What is only ours has no origin to lose.

    Args:
        patches: Ours.
        history: All of upstream's first-parent commits, oldest first.
    """
    happened = turns(history)
    commits = {one.oid: one for one in history}
    numbers = {one.pr: one for one in history if one.pr}
    followed, lost, found = [], [], []
    for patch in patches:
        if patch.status not in (*REPLAYED, Status.ABSORBED):
            continue
        origin = patch.origin
        original = commits.get(origin.commit or Oid("")) or numbers.get(origin.pr or 0)
        if original is None:
            if origin.commit or origin.pr or patch.status is Status.ABSORBED:
                lost.append(patch)
            continue
        followed.append(patch)
        if one := happened.get(original.oid):
            found.append(Finding(patch=patch, original=original, turns=one))
    return tuple(followed), tuple(lost), tuple(found)


def _name(commit: UpstreamCommit) -> str:
    return f"{commit.oid} ({commit.subject})"
