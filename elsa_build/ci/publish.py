"""One work item for one state: opened once, edited while it lasts, closed when it is over.

A bot that opens an issue every day is switched off. So the item is found again by a hidden marker,
its body is replaced quietly, and a comment, which sends mail, is written only when another patch
breaks or one recovers. A stack that does not apply whole is never pushed anywhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from elsa_build.ci.standing import CiCode, Standing

MARKER = "<!-- elsa-build:rebase -->"
LABEL = "elsa-build"
LIMIT = 65_536
"""Characters that a forge takes in one body."""

_STATE = re.compile(r"<!-- elsa-build:state fingerprint=(\S+) broken=(\S*) -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An open issue on the forge."""

    number: int
    title: str
    body: str


class Forge(Protocol):
    """The few things that are asked of GitHub; `github.Gh` does them with `gh`."""

    def open_items(self, label: str) -> Sequence[Item]:
        """Return the open issues with a label."""

    def create(self, title: str, body: str, label: str) -> int:
        """Open an issue and return its number."""

    def edit(self, number: int, title: str, body: str) -> None:
        """Replace an issue's title and body; nobody is told."""

    def comment(self, number: int, body: str) -> None:
        """Write a comment; watchers get mail."""

    def close(self, number: int, comment: str) -> None:
        """Close an issue with a last word."""


class Verb(StrEnum):
    """What can be done to the one item."""

    CREATE = "create"
    EDIT = "edit"
    COMMENT = "comment"
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step; `number` is None for the item that `create` opens."""

    verb: Verb
    number: int | None = None
    title: str = ""
    body: str = ""


def plan(standing: Standing, items: Sequence[Item]) -> tuple[Action, ...]:
    """Return what has to be done, given the open issues with our label; often nothing."""
    ours = sorted((item for item in items if MARKER in item.body), key=lambda item: item.number)
    surplus = tuple(
        Action(verb=Verb.CLOSE, number=item.number, body=f"Continued in #{ours[0].number}.")
        for item in ours[1:]
    )
    if standing.code is CiCode.NOTHING_NEW:
        return surplus
    if standing.code is CiCode.CLEAN:
        word = f"All patches apply to `{standing.onto}`."
        return tuple(Action(verb=Verb.CLOSE, number=item.number, body=word) for item in ours)
    title, body = title_of(standing), body_of(standing)
    if not ours:
        return (Action(verb=Verb.CREATE, title=title, body=body),)
    return (*_update(standing, ours[0], title, body), *surplus)


def _update(standing: Standing, item: Item, title: str, body: str) -> tuple[Action, ...]:
    known = _STATE.search(item.body)
    before = set(filter(None, known[2].split(","))) if known else set()
    if known and known[1] == standing.fingerprint and item.title == title and item.body == body:
        return ()
    edit = Action(verb=Verb.EDIT, number=item.number, title=title, body=body)
    now = set(standing.broken)
    words = []
    if now - before:
        words.append("Now also broken: " + ", ".join(f"`{name}`" for name in sorted(now - before)))
    if before - now:
        words.append("Recovered: " + ", ".join(f"`{name}`" for name in sorted(before - now)))
    if not words:
        return (edit,)
    return (edit, Action(verb=Verb.COMMENT, number=item.number, body=". ".join(words) + "."))


def title_of(standing: Standing) -> str:
    """Return the title of the item: stable words first, so that a list of issues can be read."""
    return f"Rebase onto {standing.ref}: {standing.headline}"


def body_of(standing: Standing) -> str:
    """Return the body of the item: marker and state first, then the report, within the limit."""
    state = (
        f"<!-- elsa-build:state fingerprint={standing.fingerprint} "
        f"broken={','.join(sorted(standing.broken))} -->"
    )
    failed = "".join(f"- {line}\n" for line in standing.failed)
    body = standing.body.replace(MARKER, "").lstrip("\n")
    head = f"{MARKER}\n{state}\n\n" + (f"{failed}\n" if failed else "")
    room = LIMIT - len(head)
    if len(body) > room:
        note = "\n\nThe rest is in the job's artifacts.\n"
        body = body[: room - len(note)].rpartition("\n")[0] + note
    return head + body


def carry_out(forge: Forge, actions: Sequence[Action]) -> tuple[int, ...]:
    """Do what was planned and return the numbers of the items that were touched."""
    touched = []
    for action in actions:
        number = action.number
        if action.verb is Verb.CREATE:
            number = forge.create(action.title, action.body, LABEL)
        assert number is not None
        if action.verb is Verb.EDIT:
            forge.edit(number, action.title, action.body)
        elif action.verb is Verb.COMMENT:
            forge.comment(number, action.body)
        elif action.verb is Verb.CLOSE:
            forge.close(number, action.body)
        touched.append(number)
    return tuple(dict.fromkeys(touched))
