"""How many requests a server admits, by each limit, and which of the limits SGLang itself enforces.

SGLang takes the smallest of three. The others are a planner's: it would admit requests beside which
no long conversation fits any more.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elsa_build.images import sizing
from elsa_build.images.sizing import MIB, CopyPath, Geometry, Serving
from elsa_build.images.terms import Basis

MOST = 4096
"""Requests; SGLang's own limit where none is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How many requests one limit lets run. `upstream` says whether SGLang enforces it."""

    name: str
    requests: int
    how: str
    upstream: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What SGLang divides between states and KV cache, bytes, and how that is known."""

    size: int
    basis: Basis
    how: str


def bounds(
    model: Geometry,
    serving: Serving,
    budget: Budget | None,
    slots: int | None,
    tokens: int | None,
) -> Iterator[Bound]:
    """Yield every limit on the requests that run at once; without a budget, those it needs not."""
    yield Bound(name="asked", requests=serving.requests, how="--max-running-requests")
    if slots is not None:
        each = serving.slots_per_request
        yield Bound(
            name="slots",
            requests=max(0, sizing.admitted_by_slots(serving, slots)),
            how=f"{slots} state slots // {each} a request ({_strategy(serving)})",
        )
    if tokens is not None:
        yield Bound(name="tokens", requests=max(0, tokens // 2), how=f"{tokens:,} tokens // 2")
    if budget is not None:
        yield Bound(
            name="one full conversation",
            requests=_most(lambda n: _tokens(model, serving, budget, n) >= serving.context),
            how=f"the most requests beside which {serving.context:,} tokens still fit",
            upstream=False,
        )
        yield Bound(
            name="budget",
            requests=_most(lambda n: _tokens(model, serving, budget, n) >= 2 * n),
            how="the most requests whose states the budget can pay",
            upstream=False,
        )
    if serving.copy_path is not CopyPath.STOCK:
        layer = sizing.temporal_bytes(model, serving) // model.linear_layers
        yield Bound(
            name="copy ceiling",
            requests=serving.copy_ceiling_mib * MIB // layer,
            how=f"above it one layer of all states is more than {serving.copy_ceiling_mib} MiB",
            upstream=False,
        )


def _strategy(serving: Serving) -> str:
    if not serving.radix_cache:
        return "no prefix cache"
    return f"{serving.strategy}{', no decode lock' if serving.skip_decode_lock else ''}"


def _tokens(model: Geometry, serving: Serving, budget: Budget, requests: int) -> int:
    sized = sizing.resized(serving, requests)
    slots = sized.slots
    if slots is None:
        slots = sizing.sized_slots(model, sized, budget.size)
        if sizing.admitted_by_slots(sized, slots) < requests:
            return -1
    return sizing.tokens_in(model, sized, budget.size, slots)


def _most(holds: Callable[[int], bool]) -> int:
    """Return the most requests for which a claim holds that fails for good once it fails."""
    low, high = 0, MOST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
