"""Upstream's first-parent history as values: what each commit changed, who made it and why."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from elsa_build.git.door import Git
from elsa_build.git.objects import Change, Entry
from elsa_build.model import Oid

_ABSENT = "0" * 40
_PR = re.compile(r"\(#(\d+)\)\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamCommit:
    """One commit against its first parent; `pr` is the number that ends its subject.

    `date` is ISO 8601 with an offset. `message` is the whole text, subject first.
    """

    oid: Oid
    author: str
    date: str
    message: str
    changes: tuple[Change, ...]

    @property
    def subject(self) -> str:
        """Return the first line of the message."""
        return self.message.partition("\n")[0]

    @property
    def pr(self) -> int | None:
        """Return the pull request that upstream squashed into this commit."""
        found = _PR.search(self.subject)
        return int(found[1]) if found else None


def between(git: Git, base: Oid, until: Oid) -> tuple[UpstreamCommit, ...]:
    """Return the first-parent commits after `base` up to `until`, oldest first.

    Renames are a deletion and an addition here: whoever follows them asks git for the two trees.
    """
    form = "--format=%x01%H%x00%an%x00%aI%x00%B%x00"
    _, out = git.run(
        "log",
        "--first-parent",
        "--diff-merges=first-parent",
        "--reverse",
        "--raw",
        "--no-renames",
        "--no-abbrev",
        "-z",
        form,
        f"{base}..{until}",
    )
    text = out.decode("utf-8", "surrogateescape")
    return tuple(_commit(part) for part in text.split("\x01")[1:])


def _commit(part: str) -> UpstreamCommit:
    oid, author, date, message, rest = part.split("\0", 4)
    return UpstreamCommit(
        oid=Oid(oid),
        author=author,
        date=date,
        message=message.strip("\n"),
        changes=tuple(_changes(rest.lstrip("\0\n").split("\0"))),
    )


def _changes(fields: list[str]) -> Iterator[Change]:
    """Read `:old_mode new_mode old_oid new_oid status` and a path, in turns."""
    for head, path in zip(fields[::2], fields[1::2], strict=False):
        if head.startswith(":"):
            old_mode, new_mode, old, new, _ = head[1:].split(" ")
            yield Change(path, _entry(old_mode, old), _entry(new_mode, new))


def _entry(mode: str, oid: str) -> Entry | None:
    return None if oid == _ABSENT else Entry(mode, Oid(oid))
