"""A memory ledger for people and for scripts: terms with their arithmetic, bounds, a table of N.

Sizes are shown in MiB with the bytes beside them in JSON; what is not known is a question mark, and
is never left out of a list.
"""

from collections.abc import Iterator
from typing import Any

from elsa_build.images.bounds import Bound
from elsa_build.images.explain import Explanation
from elsa_build.images.ledger import Ledger
from elsa_build.images.sizing import MIB
from elsa_build.images.terms import Basis, Part, Term
from elsa_build.model import Point

TITLES = {
    Part.BUDGET: "in SGLang's budget",
    Part.BESIDE: "beside the budget",
    Part.MOMENT: "for a moment, at worst",
    Part.UNPRICED: "not priced by anything",
}


def document(found: Explanation) -> dict[str, Any]:
    """Return an explanation as JSON values; sizes in bytes and in MiB."""
    budget, loaded = found.budget, found.loaded
    return {
        "recipe": found.recipe.name,
        "model": found.model.name,
        "card": {"name": found.card.name, "memory_mib": found.card.memory_mib}
        if found.card
        else None,
        "budget": {**_size(budget.size), "basis": str(budget.basis), "how": budget.how}
        if budget
        else None,
        "weights": {**_size(loaded.weights), "basis": str(loaded.basis), "how": loaded.how}
        if loaded
        else None,
        "mem_fraction_static": found.fraction,
        "ledgers": [_ledger(found, one) for one in found.ledgers],
        "strategies": [
            {
                "strategy": name,
                "slots_per_request": one.serving.slots_per_request,
                "state_slots": one.slots,
                "kv_tokens": one.tokens,
                "admitted": one.admitted,
            }
            for name, one in found.strategies
        ],
    }


def _ledger(found: Explanation, one: Ledger) -> dict[str, Any]:
    seen = _point(found, one)
    return {
        "requests": one.serving.requests,
        "admitted": one.admitted,
        "tightest": one.tightest.name,
        "slots_per_request": one.serving.slots_per_request,
        "state_slots": one.slots,
        "kv_tokens": one.tokens,
        "seen": {"kv_tokens": seen.kv_tokens, "free_at_worst_mib": seen.free_at_worst_mib}
        if seen
        else None,
        "terms": [
            {
                "name": term.name,
                "part": str(term.part),
                **_size(term.size),
                "how": term.how,
                "basis": str(term.basis),
            }
            for term in one.terms
        ],
        "bounds": [
            {
                "name": bound.name,
                "requests": bound.requests,
                "how": bound.how,
                "upstream": bound.upstream,
            }
            for bound in one.bounds
        ],
    }


def _size(size: int | None) -> dict[str, Any]:
    return {"bytes": size, "mib": None if size is None else round(size / MIB, 3)}


def page(found: Explanation) -> str:
    """Return an explanation as text: the first ledger in full, then a line a number of requests."""
    first = found.ledgers[0]
    lines = [*_head(found), "", *_terms(first), "", *_bounds(first), ""]
    if len(found.ledgers) > 1:
        lines += [*_sweep(found), ""]
    return "\n".join([*lines, *_strategies(found)])


def _head(found: Explanation) -> Iterator[str]:
    card = found.card
    one = found.ledgers[0]
    size = f"{card.name} ({card.memory_mib:,} MiB)" if card else "a card that nothing names"
    slots = "K" if one.slots is None else one.slots
    tokens = "KV tokens unknown" if one.tokens is None else f"{one.tokens:,} tokens of KV"
    yield f"{found.recipe.name}: {found.model.name} on {size}"
    yield f"{one.serving.requests} requests, {slots} state slots, {tokens}"
    if found.budget:
        budget = found.budget
        yield f"budget: {_mib(budget.size)} MiB, {budget.basis}: {budget.how}"
    else:
        yield "budget: unknown; give --load BEGIN:END (GB, from the server's log), or --weights MIB"
        yield "        with mem-fraction-static in the recipe, or memory.budget_mib there"
    seen = _point(found, one)
    if seen:
        free = seen.free_at_worst_mib
        rest = "" if free is None else f", {free:,} MiB free at worst"
        yield f"seen: {seen.kv_tokens:,} tokens at {seen.requests} requests{rest}"
    if found.fraction is not None:
        yield f"mem-fraction-static that gives this budget: {found.fraction:.3f}"


def _terms(one: Ledger) -> Iterator[str]:
    width = max(len(term.name) for term in one.terms)
    for part in Part:
        if one.of(part):
            yield f"{TITLES[part]:{width + 2}} {_total(one, part):>10} MiB"
            for term in one.of(part):
                yield f"  {term.name:{width}} {_mib(term.size):>10}  {_how(term)}"


def _total(one: Ledger, part: Part) -> str:
    sizes = [term.size for term in one.of(part)]
    return "?" if None in sizes else _mib(one.total(part))


def _how(term: Term) -> str:
    return term.how if term.basis is Basis.COMPUTED else f"{term.basis}: {term.how}"


def _bounds(one: Ledger) -> Iterator[str]:
    yield f"requests that run at once: {one.admitted}, by '{one.tightest.name}'"
    width = max(len(bound.name) for bound in one.bounds)
    for bound in one.bounds:
        yield f"  {bound.name:{width}} {bound.requests:>7,}  {bound.how}{_whose(bound)}"


def _whose(bound: Bound) -> str:
    return "" if bound.upstream else " (ours; SGLang does not look)"


def _sweep(found: Explanation) -> Iterator[str]:
    yield (
        f"{'requests':>8} {'slots':>6} {'state MiB':>10} {'KV tokens':>10} {'seen':>9} "
        f"{'beside MiB':>11} {'moment MiB':>11} {'free at worst':>14}  runs"
    )
    for one in found.ledgers:
        seen = _point(found, one)
        state = sum(t.size or 0 for t in one.of(Part.BUDGET) if t.name != "KV cache")
        free = seen.free_at_worst_mib if seen else None
        tokens = "?" if one.tokens is None else f"{one.tokens:,}"
        yield (
            f"{one.serving.requests:>8} {one.slots or '?':>6} {_mib(state):>10} {tokens:>10} "
            f"{f'{seen.kv_tokens:,}' if seen else '-':>9} {_mib(one.total(Part.BESIDE)):>11} "
            f"{_mib(one.total(Part.MOMENT)):>11} {f'{free:,} MiB' if free else 'not seen':>14}  "
            f"{one.admitted}"
        )
    yield "free at worst does not follow from the settings: it is what a soak saw, or not known"


def _strategies(found: Explanation) -> Iterator[str]:
    requests = found.ledgers[0].serving.requests
    width = max(len(name) for name, _ in found.strategies)
    yield f"state slots by strategy, for {requests} requests"
    for name, one in found.strategies:
        tokens = "? tokens" if one.tokens is None else f"{one.tokens:>9,} tokens"
        yield (
            f"  {name:{width}}  {one.serving.slots_per_request} a request, "
            f"{one.slots if one.slots is not None else '?':>4} slots, {tokens}, runs {one.admitted}"
        )


def _point(found: Explanation, one: Ledger) -> Point | None:
    return next((p for p in found.points if p.requests == one.serving.requests), None)


def _mib(size: int | None) -> str:
    return "?" if size is None else f"{size / MIB:,.1f}"
