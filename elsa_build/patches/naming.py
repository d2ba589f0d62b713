"""From what a person types to an upstream commit: an id, a short id, a pull request, a URL.

Upstream squashes a pull request into one commit whose subject ends in `(#N)`; a later commit that
takes it back says so in its subject or text. Both are read from the history, never from a server.
"""

import re
from dataclasses import dataclass

from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.model import Oid
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.reverts import standing, told, turns

_PULL = re.compile(r"(?:#|(?:https?://\S+?)/(?:pull|pulls)/)(\d+)(?:[/?#]\S*)?", re.IGNORECASE)
_COMMIT = re.compile(r"(?:https?://\S+?/commit/)?([0-9a-f]{7,40})(?:[?#]\S*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A commit that was asked for; `reverted_by` is the later commit that took it back."""

    asked: str
    commit: Oid
    subject: str
    pr: int | None = None
    reverted_by: Oid | None = None


def find(git: Git, asked: str, tip: Oid) -> Named:
    """Return the commit that a person means, looked for in the history of `tip`.

    Raises:
        ConfigError: There is no such commit, or the pull request is not in this history.
    """
    pull = _PULL.fullmatch(asked.strip())
    commit = _pull_request(git, int(pull[1]), tip) if pull else _revision(git, asked.strip())
    subject = git.commit(commit).message.partition("\n")[0]
    number = re.search(r"\(#(\d+)\)\s*$", subject)
    return Named(
        asked=asked,
        commit=commit,
        subject=subject,
        pr=int(number[1]) if number else None,
        reverted_by=_revert(git, commit, tip),
    )


def _revision(git: Git, asked: str) -> Oid:
    found = _COMMIT.fullmatch(asked)
    return git.resolve(found[1].lower() if found else asked)


def _pull_request(git: Git, number: int, tip: Oid) -> Oid:
    """Return the newest commit whose subject ends in the number, reverts and ports passed over."""
    pattern = rf"\(#{number}\)\s*$"
    lines = git.text(
        "log", "--first-parent", "-E", f"--grep={pattern}", "--format=%H %s", tip
    ).splitlines()
    for line in lines:
        oid, _, subject = line.partition(" ")
        if re.search(pattern, subject):
            return Oid(oid)
    raise ConfigError(
        f"pull request #{number} is not in the history of {tip}: never merged there, or later",
        hint="elsa-build pin update, or give the commit",
    )


def _revert(git: Git, commit: Oid, tip: Oid) -> Oid | None:
    """Return the later commit by which this one is taken back now, if it is."""
    if git.run("merge-base", "--is-ancestor", commit, tip, ok=(0, 1))[0]:
        return None
    made = git.commit(commit)
    itself = UpstreamCommit(
        oid=commit, author=made.author.name, date="", message=made.message, changes=()
    )
    found = standing(turns((itself, *told(git, tip, commit))).get(commit, ()))
    return found.oid if found else None
