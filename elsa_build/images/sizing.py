"""Where a card's memory goes when a hybrid model is served: SGLang's own sizing arithmetic.

A request of a Mamba or Gated DeltaNet hybrid costs state as well as KV cache, and the two share one
budget; how many requests fit is decided before the first one arrives. All sizes are bytes unless a
name says MiB. A "slot" of the state pool is one recurrent state; a request holds several.

Source: sglang v0.5.23 srt/mem_cache/kv_cache_configurator.py (state, slots, requests),
srt/model_executor/pool_configurator.py (tokens), srt/configs/mamba_utils.py (slot, ring),
srt/mem_cache/memory_pool.py (what is allocated beside the budget).
"""

from dataclasses import dataclass, replace
from enum import StrEnum

MIB = 1 << 20
FLOAT = 4
INDEX = 4
"""Bytes of one entry of the table of token rows (int32)."""


class Strategy(StrEnum):
    """How the prefix cache takes checkpoints of a running request's state."""

    NO_BUFFER = "no_buffer"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"


class CopyPath(StrEnum):
    """How states are copied at a prefix hit: upstream's statement, or one of ours."""

    STOCK = "stock"
    CHUNKED = "chunked"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What of a model decides its memory.

    Heads and dimensions are those of one layer, `draft_layers` those of its own multi-token
    prediction; `state_dtype` is what the checkpoint asks for. From `hidden` on it is what kernels
    are compiled for and no memory depends on: 0 where a checkpoint's config was not asked for it.
    """

    name: str
    linear_layers: int
    value_heads: int
    key_heads: int
    value_dim: int
    key_dim: int
    conv_kernel: int
    attention_layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    draft_layers: int = 1
    state_dtype: str = "float32"
    multimodal: bool = False
    hidden: int = 0
    heads: int = 0
    rotary_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0

    @property
    def conv_dim(self) -> int:
        """Return the channels of a layer's convolution: query, key and value side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card, with the memory that nvidia-smi reports for it."""

    name: str
    memory_mib: int
    arch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What of a server's arguments decides its memory.

    `requests` is N, `slots` is K (None: SGLang sizes the pool by `mamba_ratio`), `ring` the records
    of ReplaySSM (None: plain verify), `draft_tokens` 0 without speculation. `kv_bytes`,
    `state_bytes` and `conv_bytes` are of one element; `copy_ceiling_mib` limits the chunked copy.
    """

    requests: int
    slots: int | None
    context: int
    strategy: Strategy = Strategy.EXTRA_BUFFER
    radix_cache: bool = True
    skip_decode_lock: bool = False
    overlap: bool = True
    state_bytes: int = FLOAT
    conv_bytes: int = 2
    kv_bytes: int = 2
    ring: int | None = None
    draft_tokens: int = 0
    draft_path: bool = False
    tree: bool = False
    page: int = 1
    mamba_ratio: float = 0.9
    max_total_tokens: int | None = None
    copy_path: CopyPath = CopyPath.STOCK
    copy_ceiling_mib: int = 60
    sparse_verify: bool = False
    int8_slots: int | None = None
    multimodal_mib: int = 0

    @property
    def slots_per_request(self) -> int:
        """Return S, the slots that one running request may hold."""
        if not self.radix_cache:
            return 1
        base = 3 - self.skip_decode_lock
        if self.strategy is Strategy.NO_BUFFER:
            # Its peak, between prefill and decode, is not in the lock's reach.
            return base + self.skip_decode_lock
        one = self.strategy is Strategy.EXTRA_BUFFER_LAZY or not self.overlap
        return base + (1 if one else 2)


# --- sizes of one thing -------------------------------------------------------------------------


def temporal_bytes(model: Geometry, serving: Serving) -> int:
    """Return the recurrent state of one slot, over all layers."""
    one = model.value_heads * model.value_dim * model.key_dim * serving.state_bytes
    return model.linear_layers * one


def conv_bytes(model: Geometry, serving: Serving) -> int:
    """Return the convolution's state of one slot, over all layers."""
    return model.linear_layers * model.conv_dim * (model.conv_kernel - 1) * serving.conv_bytes


def slot_bytes(model: Geometry, serving: Serving) -> int:
    """Return one slot of the state pool."""
    return temporal_bytes(model, serving) + conv_bytes(model, serving)


def ring_bytes(model: Geometry, serving: Serving) -> int:
    """Return the ReplaySSM ring of one request: values, keys and gates of `ring` records.

    Below float32 values and keys have a low part each, whatever the state's own type.
    """
    values, keys = model.value_heads * model.value_dim, model.key_heads * model.key_dim
    parts = 1 if serving.conv_bytes == FLOAT else 2
    record = parts * (values + keys) * serving.conv_bytes + model.value_heads * FLOAT
    return model.linear_layers * (serving.ring or 0) * record


def window_bytes(model: Geometry, serving: Serving) -> int:
    """Return the convolution windows that a verify of one request writes.

    A chain shares its windows, a tree has one a draft token.
    """
    width = model.conv_kernel - 1
    tokens = serving.draft_tokens
    columns = tokens * width if serving.tree else tokens + width - 1
    return model.linear_layers * model.conv_dim * columns * serving.conv_bytes


def token_bytes(model: Geometry, serving: Serving, layers: int) -> int:
    """Return keys and values of one token in so many layers."""
    return 2 * model.kv_heads * model.head_dim * layers * serving.kv_bytes


def cell_bytes(model: Geometry, serving: Serving) -> int:
    """Return what one token costs of the budget; a named draft model is in it."""
    own = token_bytes(model, serving, model.attention_layers)
    if not (serving.draft_tokens and serving.draft_path):
        return own
    return own + own * model.draft_layers // model.attention_layers


def copy_bytes(model: Geometry, serving: Serving, states: int) -> int:
    """Return the temporary memory of copying so many states at once.

    In parts it is whole layers of all the states; one layer is the least part. The direct path has
    none, but a copy that it refuses goes in parts, so that is what must be planned for.
    """
    whole = states * temporal_bytes(model, serving)
    ceiling = serving.copy_ceiling_mib * MIB
    if serving.copy_path is CopyPath.STOCK or whole <= ceiling:
        return whole
    layer = whole // model.linear_layers
    return max(1, ceiling // layer) * layer


def verify_bytes(model: Geometry, serving: Serving, requests: int) -> int:
    """Return the temporaries of a dense verify beyond the logits: two full tensors."""
    return 2 * requests * serving.draft_tokens * model.vocabulary * FLOAT


def int8_bytes(model: Geometry, serving: Serving) -> int:
    """Return one slot of the int8 checkpoint pool: values, a scale a key channel, convolution."""
    heads = model.value_heads * model.key_dim
    temporal = model.linear_layers * heads * (model.value_dim + serving.state_bytes)
    return temporal + conv_bytes(model, serving)


# --- the budget ---------------------------------------------------------------------------------


def admitted_by_slots(serving: Serving, slots: int) -> int:
    """Return how many requests the state pool admits: K // S."""
    return slots // serving.slots_per_request


def state_parts(model: Geometry, serving: Serving, slots: int) -> tuple[int, int]:
    """Return what the budget pays for slots (one more is padding), and for verifying drafts.

    ReplaySSM's ring is reserved for the requests asked for, plain verify states for those that the
    pool admits; each has one padding entry as well.
    """
    own = (slots + 1) * slot_bytes(model, serving)
    if serving.ring is not None:
        return own, (serving.requests + 1) * ring_bytes(model, serving)
    running = min(serving.requests, admitted_by_slots(serving, slots))
    return own, (running + 1) * serving.draft_tokens * slot_bytes(model, serving)


def sized_slots(model: Geometry, serving: Serving, budget: int) -> int:
    """Return K as SGLang sizes it when `--max-mamba-cache-size` is not given."""
    if not serving.radix_cache:
        return serving.requests
    share = budget * serving.mamba_ratio / (1 + serving.mamba_ratio)
    slot = slot_bytes(model, serving)
    if serving.ring is not None:
        fixed = (serving.requests + 1) * ring_bytes(model, serving)
        return int((share - fixed - slot) // slot)
    per_slot = serving.draft_tokens / serving.slots_per_request
    return int((share - slot * (1 + serving.draft_tokens)) // (slot * (1 + per_slot)))


def tokens_in(model: Geometry, serving: Serving, budget: int, slots: int) -> int:
    """Return the tokens that the KV cache gets of a budget; below 0 when states overdraw it."""
    left = budget - sum(state_parts(model, serving, slots))
    found = left // cell_bytes(model, serving) // serving.page * serving.page
    return found if serving.max_total_tokens is None else min(found, serving.max_total_tokens)


def budget_of_point(model: Geometry, serving: Serving, slots: int, tokens: int) -> int:
    """Return the budget that gave a server its tokens: the inverse of `tokens_in`."""
    return tokens * cell_bytes(model, serving) + sum(state_parts(model, serving, slots))


def budget_of_load(serving: Serving, *, before: int, after: int, fraction: float) -> int:
    """Return the budget from the free memory before and after loading the weights."""
    return int(after - before * (1 - fraction)) - serving.multimodal_mib * MIB


def fraction_for(serving: Serving, *, before: int, after: int, budget: int) -> float:
    """Return the `--mem-fraction-static` that gives a budget: the inverse of `budget_of_load`."""
    return 1 - (after - budget - serving.multimodal_mib * MIB) / before


def resized(serving: Serving, requests: int) -> Serving:
    """Return the same server for another number of requests, with as many spare slots as before."""
    if serving.slots is None:
        return replace(serving, requests=requests)
    spare = max(0, serving.slots - serving.requests * serving.slots_per_request)
    return replace(serving, requests=requests, slots=requests * serving.slots_per_request + spare)
