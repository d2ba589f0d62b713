"""A memory ledger: a server's terms and bounds together, for one number of requests.

It is made with or without a budget; without one it says everything but the KV cache.
"""

from dataclasses import dataclass, replace
from itertools import product

from elsa_build.images import sizing, terms
from elsa_build.images.bounds import Bound, Budget, bounds
from elsa_build.images.sizing import Card, Geometry, Serving, Strategy
from elsa_build.images.terms import Loaded, Part, Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A model served on a card by so many requests.

    `tokens` is None without a budget. `slots` is K, None when SGLang sizes it and no budget is
    known; `admitted` is the smallest of upstream's bounds.
    """

    serving: Serving
    slots: int | None
    tokens: int | None
    terms: tuple[Term, ...]
    bounds: tuple[Bound, ...]

    @property
    def tightest(self) -> Bound:
        """Return the bound that decides; the number asked for only when no other is below it."""
        return min((bound for bound in self.bounds if bound.upstream), key=lambda b: b.requests)

    @property
    def admitted(self) -> int:
        """Return N_max."""
        return self.tightest.requests

    def of(self, part: Part) -> tuple[Term, ...]:
        """Return the terms of one part, in order."""
        return tuple(term for term in self.terms if term.part is part)

    def total(self, *parts: Part) -> int:
        """Return the bytes of some parts, without what is not known."""
        return sum(term.size or 0 for term in self.terms if term.part in parts)


def ledger(
    model: Geometry,
    card: Card | None,
    serving: Serving,
    budget: Budget | None,
    loaded: Loaded | None = None,
) -> Ledger:
    """Return the ledger of a server; without a budget, of everything but the KV cache."""
    slots = serving.slots
    if slots is None and budget is not None:
        # Below 0 SGLang does not start at all.
        slots = max(0, sizing.sized_slots(model, serving, budget.size))
    tokens = None
    if slots is not None and budget is not None:
        tokens = sizing.tokens_in(model, serving, budget.size, slots)
    limits = tuple(bounds(model, serving, budget, slots, tokens))
    running = min(bound.requests for bound in limits if bound.upstream)
    lines = [
        *terms.paid(model, serving, slots, tokens),
        *terms.beside(model, serving, slots, tokens, running),
    ]
    known = None if tokens is None else sum(term.size or 0 for term in lines)
    lines += [
        *terms.moment(model, serving, running),
        *terms.unpriced(card, loaded, known),
    ]
    return Ledger(serving=serving, slots=slots, tokens=tokens, terms=tuple(lines), bounds=limits)


def strategies(serving: Serving) -> tuple[tuple[str, Serving], ...]:
    """Return the same server under each slot strategy, named, with as many spare slots."""
    spare = 0
    if serving.slots is not None:
        spare = max(0, serving.slots - serving.requests * serving.slots_per_request)
    found = []
    for strategy, skip in product(Strategy, (False, True)):
        if skip and strategy is Strategy.NO_BUFFER:
            continue
        one = replace(
            serving,
            strategy=strategy,
            skip_decode_lock=skip,
            radix_cache=True,
            overlap=_overlap(serving, strategy),
        )
        if serving.slots is not None:
            one = replace(one, slots=one.requests * one.slots_per_request + spare)
        name = f"{strategy} + SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK" if skip else str(strategy)
        found.append((name, one))
    return tuple(found)


def _overlap(serving: Serving, strategy: Strategy) -> bool:
    """Say whether the overlap schedule runs: one strategy forbids it, one needs it."""
    if strategy is Strategy.EXTRA_BUFFER:
        return serving.overlap or serving.strategy is Strategy.NO_BUFFER
    return strategy is Strategy.EXTRA_BUFFER_LAZY
