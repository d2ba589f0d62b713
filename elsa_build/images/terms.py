"""The lines of a memory ledger: what takes memory, how much, and how that is known.

What SGLang's budget pays for, what it allocates beside that, what a busy moment needs for an
instant, and what nobody can compute are kept apart: the last is why a margin is measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from elsa_build.images import sizing
from elsa_build.images.sizing import MIB, Card, CopyPath, Geometry, Serving

SPARSE_VERIFY = int(0.7 * MIB)
"""At most, at 1 to 12 requests; measured on an H200, not computed."""
EXTRA_TOKENS = 4
"""Entries that a token row has beyond the context and the draft tokens."""


class Basis(StrEnum):
    """Where a number comes from."""

    COMPUTED = "computed"
    GIVEN = "given"
    MEASURED = "measured"
    UNKNOWN = "unknown"


class Part(StrEnum):
    """Who reckons with a term."""

    BUDGET = "budget"
    BESIDE = "beside"
    MOMENT = "moment"
    UNPRICED = "unpriced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of a ledger; `size` is in bytes, None where it is not known."""

    name: str
    part: Part
    size: int | None
    how: str
    basis: Basis = Basis.COMPUTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What is known of loading the weights, bytes."""

    weights: int
    basis: Basis
    how: str


# --- lines --------------------------------------------------------------------------------------


def paid(
    model: Geometry, serving: Serving, slots: int | None, tokens: int | None
) -> Iterator[Term]:
    """Yield what the budget pays for."""
    layers, entries = model.linear_layers, None if slots is None else slots + 1
    temporal, conv = sizing.temporal_bytes(model, serving), sizing.conv_bytes(model, serving)
    heads = f"{model.value_heads} heads x {model.value_dim} x {model.key_dim}"
    many = "K" if slots is None else f"{slots}"
    yield Term(
        name="recurrent state",
        part=Part.BUDGET,
        size=None if entries is None else entries * temporal,
        how=f"({many} + 1) x {layers} layers x {heads} x {serving.state_bytes} B",
    )
    yield Term(
        name="convolution state",
        part=Part.BUDGET,
        size=None if entries is None else entries * conv,
        how=f"({many} + 1) x {layers} layers x {model.conv_dim} channels x "
        f"{model.conv_kernel - 1} x {serving.conv_bytes} B",
    )
    if serving.ring is not None:
        yield Term(
            name="ReplaySSM ring",
            part=Part.BUDGET,
            size=(serving.requests + 1) * sizing.ring_bytes(model, serving),
            how=f"({serving.requests} + 1) x {layers} layers x {serving.ring} records",
        )
    elif serving.draft_tokens:
        size = None if slots is None else sizing.state_parts(model, serving, slots)[1]
        yield Term(
            name="verify states",
            part=Part.BUDGET,
            size=size,
            how=f"(running + 1) x {serving.draft_tokens} draft tokens x a whole slot",
        )
    cell = sizing.cell_bytes(model, serving)
    count = "tokens" if tokens is None else f"{tokens:,} tokens"
    draft = " and the draft's" if serving.draft_tokens and serving.draft_path else ""
    yield Term(
        name="KV cache",
        part=Part.BUDGET,
        size=None if tokens is None else max(0, tokens) * cell,
        how=f"{count} x {cell:,} B ({model.attention_layers} layers{draft}, "
        f"{model.kv_heads} x {model.head_dim}, {serving.kv_bytes} B)",
    )


def beside(
    model: Geometry, serving: Serving, slots: int | None, tokens: int | None, running: int
) -> Iterator[Term]:
    """Yield what is allocated although the budget does not reckon with it."""
    if serving.draft_tokens and not serving.draft_path and model.draft_layers:
        own = sizing.token_bytes(model, serving, model.draft_layers)
        yield Term(
            name="draft KV",
            part=Part.BESIDE,
            size=None if tokens is None else max(0, tokens) * own,
            how=f"{own:,} B a token: without --speculative-draft-model-path the draft's layer is "
            "not in the budget",
        )
    if serving.ring is not None and serving.draft_tokens:
        yield Term(
            name="convolution windows",
            part=Part.BESIDE,
            size=(running + 1) * sizing.window_bytes(model, serving),
            how=f"({running} + 1) x {model.linear_layers} layers x {model.conv_dim} channels x "
            f"{'tree' if serving.tree else 'chain'} of {serving.draft_tokens}",
        )
    row = serving.context + EXTRA_TOKENS + serving.draft_tokens
    yield Term(
        name="token rows",
        part=Part.BESIDE,
        size=(running + 1) * row * sizing.INDEX,
        how=f"({running} + 1) x {row:,} positions x {sizing.INDEX} B",
    )
    if serving.int8_slots is not None:
        count = serving.int8_slots or 2 * (slots or 0)
        yield Term(
            name="int8 checkpoints",
            part=Part.BESIDE,
            size=(count + 1) * sizing.int8_bytes(model, serving) if count else None,
            how=f"({count or '2K'} + 1) slots of the int8 pool",
        )
    if serving.multimodal_mib:
        yield Term(
            name="image features",
            part=Part.BESIDE,
            size=serving.multimodal_mib * MIB,
            how="held back for embeddings and their transport (SGLANG_VLM_CACHE_SIZE_MB)",
        )


def moment(model: Geometry, serving: Serving, running: int) -> Iterator[Term]:
    """Yield the temporaries of a busy moment: a burst of prefix hits, a verify of all requests."""
    state = sizing.temporal_bytes(model, serving) / MIB
    ways = {
        CopyPath.STOCK: "all at once, upstream's statement",
        CopyPath.CHUNKED: f"in parts of at most {serving.copy_ceiling_mib} MiB",
        CopyPath.DIRECT: "none on the direct path; planned for a copy that falls back to parts of "
        f"at most {serving.copy_ceiling_mib} MiB",
    }
    yield Term(
        name="copy of states",
        part=Part.MOMENT,
        size=sizing.copy_bytes(model, serving, running),
        how=f"{running} prefix hits at once x {state:.1f} MiB, {ways[serving.copy_path]}",
    )
    if not serving.draft_tokens:
        return
    rows = f"{running} x {serving.draft_tokens} rows"
    if serving.sparse_verify:
        yield Term(
            name="verify, sparse",
            part=Part.MOMENT,
            size=SPARSE_VERIFY,
            how=f"{rows}; at most, measured at 1 to 12 requests; one request that samples the "
            f"whole vocabulary takes the dense path: "
            f"{sizing.verify_bytes(model, serving, running) / MIB:,.1f} MiB",
            basis=Basis.MEASURED,
        )
    else:
        yield Term(
            name="verify, dense",
            part=Part.MOMENT,
            size=sizing.verify_bytes(model, serving, running),
            how=f"{rows} x {model.vocabulary:,} ids x {sizing.FLOAT} B x 2 tensors",
        )


def unpriced(card: Card | None, loaded: Loaded | None, known: int | None) -> Iterator[Term]:
    """Yield what no budget has: the weights, and what is left of the card for the rest."""
    yield Term(
        name="weights",
        part=Part.UNPRICED,
        size=loaded.weights if loaded else None,
        how=loaded.how if loaded else "the server's log has it: --load",
        basis=loaded.basis if loaded else Basis.UNKNOWN,
    )
    rest, what = None, "CUDA context, graphs, activations, workspaces, and what stays free"
    if card is not None and known is not None:
        rest = card.memory_mib * MIB - known - (loaded.weights if loaded else 0)
        what = f"left of the card for {'' if loaded else 'the weights, '}{what}"
    yield Term(
        name="everything else",
        part=Part.UNPRICED,
        size=rest,
        how=f"{what}: no formula has it, a soak measures it",
        basis=Basis.UNKNOWN if rest is None else Basis.COMPUTED,
    )
