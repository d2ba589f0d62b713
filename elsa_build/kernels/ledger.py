"""Where the time of a boot went: phase by phase, what was compiled, found and timed, per family.

A phase begins with its mark and ends with the next. A kernel that is compiled after the first
request was served is another fault than one at start-up, so counts without phases say too little.
Source: vllm-project/vllm 44881 (277 s of a cold boot), syv-ai/qwen38-27b-rtx3090 155.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from elsa_build.kernels.events import Event

START, IMPORTS, WEIGHTS, CAPTURE = "start", "imports", "weights", "capture"
READY, FIRST, LATER = "ready", "first-request", "later"
SERVING = frozenset({READY, FIRST, LATER})
"""Phases in which a request may wait for a compiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The beginning of a phase; `at` in seconds since the epoch."""

    name: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Lookups of one family in one phase.

    `refused` are kernels that would have been compiled, `failed` those whose compile ended with an
    error. `compile_s` and `bench_s` are seconds summed over processes, which may run side by side.
    """

    hits: int = 0
    compiled: int = 0
    refused: int = 0
    failed: int = 0
    benches: int = 0
    compile_s: float = 0.0
    bench_s: float = 0.0

    def plus(self, other: "Count") -> "Count":
        """Return the sum of two counts."""
        mine, theirs = asdict(self), asdict(other)
        return Count(**{name: mine[name] + theirs[name] for name in mine})

    @property
    def missed(self) -> int:
        """Return how many kernels were not in the cache."""
        return self.compiled + self.refused + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase: when it began, seconds after the start of the command, and how long it took."""

    name: str
    began_s: float
    seconds: float
    counts: Mapping[str, Count] = field(default_factory=dict)

    @property
    def total(self) -> Count:
        """Return the counts of all families together."""
        return _sum(self.counts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A boot, phase by phase, in the order in which they came; `ready_s` is None if never."""

    phases: tuple[Phase, ...]
    seconds: float
    ready_s: float | None = None

    @property
    def total(self) -> Count:
        """Return the counts of all phases and families together."""
        return _sum(phase.total for phase in self.phases)

    def families(self) -> tuple[str, ...]:
        """Return the families that any phase has, in alphabetical order."""
        return tuple(sorted({family for phase in self.phases for family in phase.counts}))


def ledger(events: Sequence[Event], marks: Iterable[Mark], *, began: float, ended: float) -> Ledger:
    """Return the ledger of one boot; times are in seconds since the epoch.

    A name that is marked twice begins its phase once. The first import of a package that compiles
    begins `imports`, unless another phase has begun before.
    """
    placed = phases(events, marks, began=began)
    ends = [mark.at for mark in placed[1:]] + [max(ended, placed[-1].at)]
    found = []
    for number, (mark, end) in enumerate(zip(placed, ends, strict=True)):
        last = number == len(placed) - 1
        inside = [e for e in events if mark.at <= e.at and (last or e.at < end)]
        if number == 0:  # a clock of another machine may lag behind
            inside = [e for e in events if last or e.at < end]
        found.append(
            Phase(
                name=mark.name,
                began_s=round(mark.at - began, 3),
                seconds=round(end - mark.at, 3),
                counts=_counts(inside),
            )
        )
    ready = next((mark.at for mark in placed if mark.name == READY), None)
    return Ledger(
        phases=tuple(found),
        seconds=round(ended - began, 3),
        ready_s=None if ready is None else round(ready - began, 3),
    )


def phases(events: Iterable[Event], marks: Iterable[Mark], *, began: float) -> tuple[Mark, ...]:
    """Return the beginnings of all phases, oldest first; `start` is always there."""
    first: dict[str, float] = {}
    for mark in sorted(marks, key=lambda one: one.at):
        first.setdefault(mark.name, max(mark.at, began))
    imports = min((event.at for event in events if event.what == "importing"), default=None)
    if imports is not None and all(imports < at for at in first.values()):
        first.setdefault(IMPORTS, max(imports, began))
    first[START] = began
    # Of two at one time, the start comes first.
    order = sorted(first.items(), key=lambda one: (one[1], one[0] != START))
    return tuple(Mark(name=name, at=at) for name, at in order)


def phase_of(event: Event, placed: Sequence[Mark]) -> str:
    """Return the phase in which an event happened."""
    return next((mark.name for mark in reversed(placed) if mark.at <= event.at), START)


def _counts(events: Iterable[Event]) -> dict[str, Count]:
    found: dict[str, Count] = {}
    for event in events:
        one = _count(event)
        if one is not None:
            found[event.family] = found.get(event.family, Count()).plus(one)
    return dict(sorted(found.items()))


def _count(event: Event) -> Count | None:
    match event.what:
        case "hit":
            return Count(hits=1)
        case "compiled":
            return Count(compiled=1, compile_s=event.seconds)
        case "missed":
            return Count(refused=1)
        case "failed":
            return Count(failed=1, compile_s=event.seconds)
        case "bench":
            return Count(benches=1, bench_s=event.seconds)
        case _:
            return None


def _sum(counts: Iterable[Count]) -> Count:
    total = Count()
    for one in counts:
        total = total.plus(one)
    return total


def document(found: Ledger) -> dict[str, Any]:
    """Return a ledger as JSON values; times in seconds."""
    return {
        "seconds": found.seconds,
        "ready_s": found.ready_s,
        "total": asdict(found.total),
        "phases": [
            {
                "name": phase.name,
                "began_s": phase.began_s,
                "seconds": phase.seconds,
                "families": {family: asdict(count) for family, count in phase.counts.items()},
            }
            for phase in found.phases
        ],
    }
