"""What upstream took back and what it landed again, read in one pass over its history.

A squash keeps the pull request's title and drops the body where git wrote "This reverts commit", so
a title must do: `Revert "TITLE (#1)" (#2)`, `Revert "Revert "TITLE"" (#3)`, `Reland TITLE (#4)`.
What only mentions a revert further inside its title is not one. Where the changes are at hand, a
commit that undoes an earlier one file by file is a revert whatever it is called.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elsa_build.git.door import Git
from elsa_build.git.objects import Change
from elsa_build.model import Oid
from elsa_build.patches.history import UpstreamCommit

_TAGS = r"(?:\[[^\]]*\]\s*)*"
_VERB = re.compile(
    rf"{_TAGS}(?:(?P<undo>revert)|(?P<redo>re-?land|re-?apply))(?:s|ed|ing)?\b[:\s]*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_TAGGED = re.compile(r"\[(?:(?P<undo>revert)|(?P<redo>re-?land|re-?apply))\]\s*", re.IGNORECASE)
_OWN_NUMBER = re.compile(r"\s*\(#\d+\)\s*$")
_QUOTED = re.compile(r'"(.*)"|"(.+?)(?:…|\.\.\.)$', re.DOTALL)
_LAST_NUMBER = re.compile(r"\s*#\d+\s*$")
_NUMBERS = re.compile(r"(?:#|\bPRs?\s+#?|/pull/)(\d+)", re.IGNORECASE)
_BARE = re.compile(r"\s*#?(\d{3,})\s*")
_COMMITS = re.compile(r"^This reverts commit ([0-9a-f]{7,40})", re.MULTILINE | re.IGNORECASE)
_PULLS = re.compile(r"^Reverts (?:\S+?)?#(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A later commit that took a commit back or, when `again`, landed it once more."""

    commit: UpstreamCommit
    again: bool


def told(git: Git, until: Oid, since: Oid | None = None) -> tuple[UpstreamCommit, ...]:
    """Return the first-parent commits up to `until` without their changes, oldest first.

    `since` leaves out what it reaches. The messages of 15,000 commits take 0.3 s.
    """
    form = "--format=%H%x00%an%x00%aI%x00%B%x00%x01"
    span = f"{since}..{until}" if since else until
    text = git.text("log", "--first-parent", "--reverse", form, span, "--")
    found = []
    for part in text.split("\0\1"):
        if part.strip("\n"):
            oid, author, date, message = part.lstrip("\n").split("\0")
            found.append(
                UpstreamCommit(
                    oid=Oid(oid),
                    author=author,
                    date=date,
                    message=message.strip("\n"),
                    changes=(),
                )
            )
    return tuple(found)


def turns(history: Sequence[UpstreamCommit]) -> Mapping[Oid, tuple[Turn, ...]]:
    """Return what later happened to commits of a history (oldest first), in order.

    A revert of a revert lands the first commit again. Commits that nothing happened to are absent.
    """
    index = _Index()
    found: dict[Oid, list[Turn]] = {}
    meant: dict[Oid, tuple[tuple[Oid, ...], bool]] = {}
    for commit in history:
        again, targets = _targets(commit, index)
        if targets:
            meant[commit.oid] = (targets, again)
        for target in targets:
            _note(found, meant, target, Turn(commit=commit, again=again))
        index.add(commit)
    return {oid: tuple(one) for oid, one in found.items()}


def standing(happened: Sequence[Turn]) -> UpstreamCommit | None:
    """Return the commit by which something is taken back now, if it is."""
    return happened[-1].commit if happened and not happened[-1].again else None


def title(subject: str) -> str:
    """Return a subject without tags, numbers and quotes, which every revert writes otherwise."""
    bare = re.sub(r"\s*\(#\d+\)", "", subject.strip()).replace('"', "")
    return " ".join(re.sub(rf"^{_TAGS}", "", bare).split()).casefold()


def _note(
    found: dict[Oid, list[Turn]],
    meant: Mapping[Oid, tuple[tuple[Oid, ...], bool]],
    target: Oid,
    turn: Turn,
) -> None:
    """Note a turn, and what it means for the commits that its target itself was about."""
    found.setdefault(target, []).append(turn)
    inner, again = meant.get(target, ((), False))
    for oid in inner:
        _note(found, meant, oid, Turn(commit=turn.commit, again=turn.again == again))


class _Index:
    """The commits so far, by what a later message may call them; the newest of a name wins."""

    def __init__(self) -> None:
        self.ids: list[Oid] = []
        self.titles: dict[str, Oid] = {}
        self.numbers: dict[int, Oid] = {}
        self.changes: dict[frozenset[Change], Oid] = {}

    def add(self, commit: UpstreamCommit) -> None:
        self.ids.append(commit.oid)
        name = title(commit.subject)
        self.titles.pop(name, None)
        self.titles[name] = commit.oid
        if commit.pr:
            self.numbers[commit.pr] = commit.oid
        if commit.changes:
            self.changes[frozenset(commit.changes)] = commit.oid

    def undone_by(self, commit: UpstreamCommit) -> Oid | None:
        """Return the commit that this one undoes file by file, if there is one."""
        back = frozenset(Change(path, new, old) for path, old, new in commit.changes)
        return self.changes.get(back) if back else None

    def by_title(self, words: str) -> Oid | None:
        return self.titles.get(title(words)) or self.titles.get(title(_LAST_NUMBER.sub("", words)))

    def by_start(self, start: str) -> Oid | None:
        """Return the newest commit whose title begins so: a long title is cut when quoted."""
        return next(
            (self.titles[one] for one in reversed(self.titles) if one.startswith(start)), None
        )

    def by_id(self, start: str) -> Oid | None:
        return next((oid for oid in reversed(self.ids) if oid.startswith(start.lower())), None)


def _targets(commit: UpstreamCommit, index: _Index) -> tuple[bool, tuple[Oid, ...]]:
    """Return whether a commit lands something again, and what it takes back or lands again."""
    named = [index.by_id(start) for start in _COMMITS.findall(commit.message)]
    named += [index.numbers.get(int(number)) for number in _PULLS.findall(commit.message)]
    again, more = _by_subject(commit.subject, index)
    if any(named):
        again = False
    known = [oid for oid in (*named, *([] if any(named) else more)) if oid]
    if not known and (undone := index.undone_by(commit)):
        return False, (undone,)
    return again, tuple(dict.fromkeys(known))


def _by_subject(subject: str, index: _Index) -> tuple[bool, list[Oid | None]]:
    bare = _OWN_NUMBER.sub("", subject.strip())
    found = _VERB.fullmatch(bare)
    if found:
        rest = found["rest"]
    elif tag := _TAGGED.search(bare):
        found, rest = tag, bare[: tag.start()] + bare[tag.end() :]
    else:
        return False, []
    again = found["redo"] is not None
    quoted = _QUOTED.search(rest)
    words = (quoted[1] or quoted[2] or "") if quoted else rest
    exact = index.by_start(title(words)) if quoted and quoted[2] else index.by_title(words)
    # A quoted title names one commit; the number inside it is that commit's own.
    inside = re.search(r"\(#(\d+)\)\s*$", words) if quoted else None
    if exact is None and inside:
        exact = index.numbers.get(int(inside[1]))
    if exact or quoted:
        return again, [exact]
    numbers = [*_NUMBERS.findall(rest), *(m[1] for m in [_BARE.fullmatch(rest)] if m)]
    return again, [index.numbers.get(int(number)) for number in numbers]
