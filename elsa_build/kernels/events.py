"""Reads what the processes of a command told of their kernels: a file a process, an event a line.

A process may be killed while it writes, and may run for hours after us; so what is there is read,
and a line that is not whole is counted and passed over.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elsa_build.errors import ToolError

LOOKUPS = frozenset({"hit", "compiled", "missed", "failed"})
"""What may come of looking a kernel up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that one process told. `at` is in seconds since the epoch; `process` a file's name.

    `what` is one of `LOOKUPS`, `bench`, `tuned`, `importing`, `process` or `blind`; `said` has the
    rest, as `elsa_build.kernels.inside.hooked` wrote it.
    """

    at: float
    what: str
    process: str
    said: Mapping[str, Any] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """Return whose kernel it is; empty for an event that is about no kernel."""
        return str(self.said.get("family", ""))

    @property
    def name(self) -> str:
        """Return the kernel's or the module's name; empty for an event that is about none."""
        return str(self.said.get("name", ""))

    @property
    def seconds(self) -> float:
        """Return how long it took, 0 where that was not measured."""
        return float(self.said.get("seconds", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """All events of one boot, oldest first; `damaged` counts unreadable lines by file."""

    events: tuple[Event, ...] = ()
    damaged: Mapping[str, int] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Return how many processes told anything."""
        return len({event.process for event in self.events})

    def lookups(self) -> tuple[Event, ...]:
        """Return the events of kernels that were looked up."""
        return tuple(event for event in self.events if event.what in LOOKUPS)

    def of(self, *kinds: str) -> tuple[Event, ...]:
        """Return the events of these kinds."""
        return tuple(event for event in self.events if event.what in kinds)


def read(folder: Path) -> Heard:
    """Return the events of a folder; one that is not there has none.

    Raises:
        ToolError: The folder or a file cannot be read (exit 6).
    """
    texts = {}
    try:
        for path in sorted(folder.glob("*.jsonl")):
            texts[path.name] = path.read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise ToolError(f"{e.filename}: cannot be read: {e.strerror}") from e
    return parse(texts)


def parse(texts: Mapping[str, str]) -> Heard:
    """Return the events of files' texts, by file name; here the last line is only half there.

    >>> lines = ['{"at": 1, "what": "hit", "family": "triton"}', '{"at": 2, "wh']
    >>> heard = parse({"7.jsonl": chr(10).join(lines)})
    >>> [event.what for event in heard.events], dict(heard.damaged)
    (['hit'], {'7.jsonl': 1})
    """
    found: list[Event] = []
    damaged: Counter[str] = Counter()
    for process, text in texts.items():
        for line in text.split("\n"):
            if not line:
                continue
            event = _event(process, line)
            if event is None:
                damaged[process] += 1
            else:
                found.append(event)
    return Heard(events=_ordered(found), damaged=dict(damaged))


def _event(process: str, line: str) -> Event | None:
    try:
        said = json.loads(line)
        return Event(
            at=float(said.pop("at")), what=str(said.pop("what")), process=process, said=said
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    return tuple(sorted(events, key=lambda event: (event.at, event.process)))
