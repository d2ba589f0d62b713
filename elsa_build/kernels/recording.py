"""Turns what real boots looked up into entries of a plan: the union, with phases and boots.

A drive calls what we thought of; a boot calls what the server does. One boot is a sample: a kernel
that only one of two boots asked for is kept, since missing it costs seconds, and marked. A kernel
that is specialised anew for every request is no plan's to keep, and is named.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elsa_build.kernels.events import LOOKUPS, Event
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.ledger import SERVING, Mark, phase_of
from elsa_build.kernels.misses import fields

AUTOTUNE = "autotune"
"""The family of tuners' choices; a plan keeps them in a file of their own."""
_GROWS = 3
"""So many values of one constant, all first seen while serving, follow the traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One boot: its events, oldest first, and the beginnings of its phases (`ledger.phases`)."""

    events: Sequence[Event]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One kernel or choice that boots asked for.

    `boots` counts those that did, `of` all; `grows` says which constant follows the traffic. `text`
    and `line` are of the function when it was recorded; `key` is what it was looked up by, which
    holds for that machine only. `timings` are of a choice: milliseconds by configuration.
    """

    family: str
    name: str
    spec: Mapping[str, Any]
    phases: tuple[str, ...]
    boots: int
    of: int
    key: str | None = None
    text: str | None = None
    line: int | None = None
    timings: Mapping[str, Sequence[float]] = field(default_factory=dict)
    grows: str | None = None

    def document(self) -> dict[str, Any]:
        """Return one line of `recorded.jsonl`, in the words of a plan."""
        seen = f"recorded in {self.boots} of {self.of} boots"
        optional = {
            "key": self.key,
            "text": self.text,
            "line": self.line,
            "timings": dict(self.timings) or None,
            "grows": self.grows,
        }
        return {
            "family": self.family,
            "name": self.name,
            "spec": dict(self.spec),
            "phases": list(self.phases),
            "why": seen if self.boots == self.of else f"{seen} only",
            "boots": self.boots,
            "of": self.of,
            "recorded": True,
            **{name: value for name, value in optional.items() if value is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What boots recorded: `entries` in a fixed order; `unrecorded` are names and why."""

    entries: tuple[Entry, ...]
    unrecorded: Mapping[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> tuple[Entry, ...]:
        """Return what is compiled."""
        return tuple(one for one in self.entries if one.family != AUTOTUNE)

    @property
    def choices(self) -> tuple[Entry, ...]:
        """Return what is chosen by timing."""
        return tuple(one for one in self.entries if one.family == AUTOTUNE)

    @property
    def once(self) -> tuple[Entry, ...]:
        """Return the entries that not every boot had."""
        return tuple(one for one in self.entries if one.boots < one.of)

    @property
    def growing(self) -> tuple[Entry, ...]:
        """Return the entries of kernels whose specialisations follow the traffic."""
        return tuple(one for one in self.entries if one.grows)


def merge(boots: Sequence[Recorded]) -> Recording:
    """Return the union of what boots asked for, the same whatever their order of events."""
    found: dict[str, Entry] = {}
    unrecorded: dict[str, str] = {}
    for boot in boots:
        for entry in _of_boot(boot, len(boots), unrecorded).values():
            ident = _ident(entry.family, entry.name, entry.spec)
            found[ident] = _both(found[ident], entry) if ident in found else entry
    growing = _growth(found.values())
    entries = [
        replace(one, grows=growing.get((one.family, one.name)))
        for one in sorted(found.values(), key=lambda e: (e.family, e.name, _text(e.spec)))
    ]
    return Recording(entries=tuple(entries), unrecorded=dict(sorted(unrecorded.items())))


def _of_boot(boot: Recorded, of: int, unrecorded: dict[str, str]) -> dict[str, Entry]:
    """Return one boot's entries; what has no specification goes to `unrecorded`."""
    found: dict[str, Entry] = {}
    for event in boot.events:
        entry = _entry(event, phase_of(event, boot.marks), of)
        if entry is None:
            if event.what in LOOKUPS and event.family in set(Family):
                why = event.said.get("unrecorded") or "the caller is not known"
                unrecorded[f"{event.family} {event.name}"] = str(why)
            continue
        ident = _ident(entry.family, entry.name, entry.spec)
        kept = found.get(ident)
        found[ident] = _again(kept, entry) if kept else entry
    return found


def _entry(event: Event, phase: str, of: int) -> Entry | None:
    said = event.said
    if event.what == "tuned":
        return Entry(
            family=AUTOTUNE,
            name=event.name,
            spec={"tuning_key": said["tuning_key"], "configs": said["configs"]},
            phases=(phase,),
            boots=1,
            of=of,
            timings={} if said["hit"] else dict(said["timings"]),
        )
    if event.what not in LOOKUPS or event.family not in set(Family) or not said.get("spec"):
        return None
    return Entry(
        family=event.family,
        name=event.name,
        spec=said["spec"],
        phases=(phase,),
        boots=1,
        of=of,
        key=said.get("key"),
        text=said.get("text"),
        line=said.get("line"),
    )


def _again(first: Entry, second: Entry) -> Entry:
    """Return an entry that one boot asked for twice."""
    return replace(
        first,
        phases=tuple(dict.fromkeys((*first.phases, *second.phases))),
        timings=first.timings or second.timings,
    )


def _both(first: Entry, second: Entry) -> Entry:
    """Return an entry that two boots asked for."""
    return replace(_again(first, second), boots=first.boots + second.boots)


def _growth(entries: Iterable[Entry]) -> dict[tuple[str, str], str]:
    """Return the kernels of which requests, not the boot, bring ever new specialisations.

    Source: FlashML-org/FreeToken 169: the length of the prompt as a constant, a module a length.
    """
    kernels: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.family == Family.TRITON:
            kernels.setdefault((entry.family, entry.name), []).append(entry)
    found = {}
    for name, specs in kernels.items():
        late = [one for one in specs if set(one.phases) <= SERVING]
        words = list(_follows([one for one in specs if one not in late], late))
        if words:
            found[name] = "; ".join(words)
    return found


def _follows(at_boot: Iterable[Entry], serving: Iterable[Entry]) -> Iterable[str]:
    """Yield the constants that take new values while serving."""
    values: dict[str, list[str]] = {}
    old: dict[str, set[str]] = {}
    for entries, late in ((at_boot, False), (serving, True)):
        for entry in entries:
            for name, value in fields(entry.spec).items():
                if not name.startswith("constant "):
                    continue
                if not late:
                    old.setdefault(name, set()).add(value)
                elif value not in old.get(name, ()):
                    values.setdefault(name, []).append(value)
    for name, seen in values.items():
        new = list(dict.fromkeys(seen))
        if len(new) >= _GROWS:
            yield f"{name} took {len(new)} values while serving: {', '.join(new)}"


def _ident(family: str, name: str, spec: Mapping[str, Any]) -> str:
    return _text([family, name, spec])


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def lines(entries: Iterable[Entry]) -> str:
    """Return a file of entries, one a line: the same text for the same entries."""
    return "".join(json.dumps(one.document(), sort_keys=True) + "\n" for one in entries)


def folders(events: Iterable[Event]) -> set[str]:
    """Return the folders of Triton's cache that were looked into."""
    return {str(event.said["folder"]) for event in events if event.said.get("folder")}


def unplanned(events: Iterable[Event]) -> set[str]:
    """Return the folders of Triton's cache whose kernels no plan can have.

    Inductor writes its kernels itself, and some specialisations cannot be written down; what a boot
    compiled of them is then all that there is.
    """
    return folders(
        event
        for event in events
        if event.what in LOOKUPS and (event.family == "inductor" or not event.said.get("spec"))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Aged:
    """Entries that the tree has outrun: their function is gone, or its text is another."""

    gone: tuple[str, ...]
    changed: tuple[str, ...]


def aged(entries: Iterable[Mapping[str, Any]], now: Mapping[str, str | None]) -> Aged:
    """Return which recorded Triton kernels are no longer what was recorded.

    Args:
        entries: Lines of `recorded.jsonl`.
        now: Digest of the text of each function, by `module:qualname`; None when it is gone.
    """
    gone: dict[str, None] = {}
    changed: dict[str, None] = {}
    for entry in entries:
        name = entry["name"]
        if entry["family"] != Family.TRITON or name not in now:
            continue
        if now[name] is None:
            gone[name] = None
        elif entry.get("text") not in (None, now[name]):
            changed[name] = None
    return Aged(gone=tuple(gone), changed=tuple(changed))
