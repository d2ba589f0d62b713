"""A recipe's memory on a card, explained: one ledger a number of requests, and what to look at.

What the arithmetic needs and cannot compute is one number, the budget that SGLang divides. It comes
from the server's own log (free memory before and after loading), from a recipe that was seen to
run, or it is missing and the ledger says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, UsageError
from elsa_build.images import geometry, served, sizing
from elsa_build.images.bounds import Budget
from elsa_build.images.ledger import Ledger, ledger, strategies
from elsa_build.images.sizing import MIB, Card, CopyPath, Geometry, Serving
from elsa_build.images.terms import Basis, Loaded
from elsa_build.model import Point, Recipe

GIB = 1 << 30
OFF = 0.002
"""How far a point that was seen may lie from what is computed before somebody should look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a person wants explained; None is the recipe's own.

    `load_gb` is the free memory before and after loading, `weights_mib` replaces it by a guess.
    """

    requests: tuple[int, ...] = ()
    card: str | None = None
    model: str | None = None
    load_gb: tuple[float, float] | None = None
    weights_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A recipe's memory. `strategies` are ledgers of the first number of requests, by name.

    `points` were seen with this recipe on this card; `fraction` is the `--mem-fraction-static` that
    gives the budget, where loading was measured and the recipe names none.
    """

    recipe: Recipe
    model: Geometry
    card: Card | None
    budget: Budget | None
    loaded: Loaded | None
    ledgers: tuple[Ledger, ...]
    strategies: tuple[tuple[str, Ledger], ...]
    points: tuple[Point, ...]
    fraction: float | None
    findings: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Free memory before and after loading, bytes; `loaded` is what lies between."""

    before: int
    after: int
    loaded: Loaded = field(repr=False)


def explain(recipe: Recipe, root: Path, ask: Ask) -> Explanation:
    """Return the ledgers of a recipe.

    Raises:
        UsageError: Nothing names a model, or how many requests run (exit 2).
        ConfigError: A name or a value is wrong (exit 5).
    """
    name = ask.model or recipe.memory.model
    if name is None:
        raise UsageError(
            f"recipes/{recipe.path.name}: memory.model: which model is it?",
            hint=f"--model {' | '.join(geometry.models())} | path/to/config.json",
        )
    model = geometry.model(name, root)
    chosen = ask.card or recipe.memory.card
    card = geometry.card(chosen) if chosen else None
    # What was seen was seen with the recipe's own model on its own card.
    own = chosen == recipe.memory.card and name == recipe.memory.model
    points = recipe.memory.points if own else ()
    serving = served.serving(recipe, model, ask.requests[0] if ask.requests else None)
    load = _load(recipe, card, ask, own=own)
    budget = _budget(recipe, model, serving, load, points, own=own)
    loaded = load.loaded if load else None
    asked = tuple(sizing.resized(serving, n) for n in ask.requests) or (serving,)
    ledgers = tuple(ledger(model, card, one, budget, loaded) for one in asked)
    known = served.mem_fraction(recipe)
    fraction = None
    if load and budget and known is None:
        sizes = {"before": load.before, "after": load.after, "budget": budget.size}
        fraction = sizing.fraction_for(serving, **sizes)
    return Explanation(
        recipe=recipe,
        model=model,
        card=card,
        budget=budget,
        loaded=loaded,
        ledgers=ledgers,
        strategies=tuple(
            (title, ledger(model, card, one, budget, loaded)) for title, one in strategies(asked[0])
        ),
        points=points,
        fraction=fraction,
        findings=(
            *served.findings(recipe, model, serving),
            *(found for one in ledgers for found in _findings(recipe, model, one)),
            *_seen(recipe, model, card, serving, budget, points),
        ),
    )


def _load(recipe: Recipe, card: Card | None, ask: Ask, *, own: bool) -> _Load | None:
    gb = ask.load_gb or (recipe.memory.load_gb if own else None)
    if gb is not None:
        before, after = (int(one * GIB) for one in gb)
        if after >= before:
            raise ConfigError(f"--load {gb[0]:g}:{gb[1]:g}: nothing was loaded in between")
        how = f"{gb[0]:g} GB free before loading, {gb[1]:g} GB after, by the server's log"
        basis, size = Basis.MEASURED, before - after
    elif ask.weights_mib is not None:
        if card is None:
            raise UsageError("--weights needs a card", hint="--card rtx-5090")
        before, size = card.memory_mib * MIB, ask.weights_mib * MIB
        after, basis = before - size, Basis.GIVEN
        how = "as given; the CUDA context is not in it"
    else:
        return None
    return _Load(before=before, after=after, loaded=Loaded(weights=size, basis=basis, how=how))


def _budget(
    recipe: Recipe,
    model: Geometry,
    serving: Serving,
    load: _Load | None,
    points: tuple[Point, ...],
    *,
    own: bool,
) -> Budget | None:
    """Return the budget: from loading and the fraction, as the recipe says, or from a point."""
    fraction = served.mem_fraction(recipe)
    if load is not None and fraction is not None:
        sizes = {"before": load.before, "after": load.after}
        size = sizing.budget_of_load(serving, **sizes, fraction=fraction)
        how = f"free after loading less {1 - fraction:.3f} of what was free before it"
        return Budget(size=size, basis=load.loaded.basis, how=how)
    if own and recipe.memory.budget_mib is not None:
        how = "memory.budget_mib of the recipe"
        return Budget(size=recipe.memory.budget_mib * MIB, basis=Basis.GIVEN, how=how)
    if not points:
        return None
    point = points[0]
    at = sizing.resized(serving, point.requests)
    slots = at.slots or point.requests * at.slots_per_request
    size = sizing.budget_of_point(model, at, slots, point.kv_tokens)
    how = (
        f"{point.kv_tokens:,} tokens were seen at {point.requests} requests; {slots} state slots "
        "and the settings of today are assumed for that server"
    )
    return Budget(size=size, basis=Basis.MEASURED, how=how)


# --- what to look at ----------------------------------------------------------------------------


def _findings(recipe: Recipe, model: Geometry, one: Ledger) -> Iterator[Diagnostic]:
    serving = one.serving
    yield from _slots(recipe, one)
    if one.tokens is not None and one.tokens < 0:
        yield _warning(
            recipe, "E546", f"{serving.requests} requests: the states alone overdraw the budget"
        )
    elif one.tokens is not None and one.tokens < serving.context:
        yield _warning(
            recipe,
            "E544",
            f"{serving.requests} requests leave {one.tokens:,} tokens, less than one conversation "
            f"of {serving.context:,}",
        )
    ceiling = serving.copy_ceiling_mib * MIB
    size = sizing.copy_bytes(model, serving, one.admitted)
    if serving.copy_path is not CopyPath.STOCK and size > ceiling:
        yield _warning(
            recipe,
            "E542",
            f"{one.admitted} prefix hits at once pass the copy's ceiling: one layer of all states "
            f"is {size / MIB:,.0f} MiB",
        )


def _slots(recipe: Recipe, one: Ledger) -> Iterator[Diagnostic]:
    serving, slots = one.serving, one.slots
    if slots is None or not serving.radix_cache:
        return
    need = serving.requests * serving.slots_per_request
    if slots < need:
        yield _warning(
            recipe,
            "E546",
            f"{serving.requests} requests need {need} state slots, {slots} admit {one.admitted}",
            f"max-mamba-cache-size: {need + 1}",
        )
    elif slots == need:
        yield _warning(
            recipe,
            "E540",
            f"{slots} state slots are exactly {serving.requests} x {serving.slots_per_request}: no "
            "spare is left to evict (sgl-project/sglang 37066, 37943)",
            f"max-mamba-cache-size: {need + 1}",
        )


def _seen(
    recipe: Recipe,
    model: Geometry,
    card: Card | None,
    serving: Serving,
    budget: Budget | None,
    points: tuple[Point, ...],
) -> Iterator[Diagnostic]:
    """Yield a warning for each point that the arithmetic misses."""
    for point in points:
        at = sizing.resized(serving, point.requests)
        tokens = ledger(model, card, at, budget).tokens
        if tokens is not None and abs(tokens / point.kv_tokens - 1) > OFF:
            yield _warning(
                recipe,
                "E548",
                f"{point.requests} requests: {point.kv_tokens:,} tokens were seen, {tokens:,} are "
                f"computed ({tokens / point.kv_tokens - 1:+.1%}); the settings or the budget are "
                "not those of then",
            )


def _warning(recipe: Recipe, code: str, message: str, hint: str | None = None) -> Diagnostic:
    return Diagnostic(
        code=code,
        severity=Severity.WARNING,
        message=message,
        path=f"recipes/{recipe.path.name}",
        hint=hint,
    )
