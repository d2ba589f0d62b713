"""The model and how it is served, as the drives see them: shapes, types and counts, all per card.

A drive calls one of the patched tree's own wrappers as the server would. What it needs of the model
and of the command line is here, once, so that no drive carries a number of its own.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Head counts are per card (after tensor parallelism); dtypes are names of torch's.

    `requests` is how many run at once, `draft_tokens` how many a request verifies in one step (1
    without speculation), `steps` how many the draft model takes, `slots` the state slots in the
    pool, `kv_tokens` the tokens of the KV cache, `replay` whether verifications run on
    ReplaySSM's window. `flags` are the server's own command line, by name; it then says the same.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    experts: int
    experts_per_token: int
    moe_intermediate: int
    vocabulary: int
    context: int
    linear_layers: int = 30
    attention_layers: int = 10
    dtype: str = "bfloat16"
    state_dtype: str = "bfloat16"
    kv_dtype: str = "float8_e4m3fn"
    requests: int = 12
    draft_tokens: int = 6
    steps: int = 5
    topk: int = 1
    slots: int = 49
    kv_tokens: int = 355_000
    page_size: int = 1
    replay: bool = True
    flags: tuple[tuple[str, str], ...] = ()

    @property
    def conv_dim(self) -> int:
        """Return the channels of the causal convolution: q, k and v side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def batches(self) -> range:
        """Return the numbers of requests that one decode step may have."""
        return range(1, self.requests + 1)

    def prompts(self) -> tuple[int, ...]:
        """Return token counts of one prefill, one of each kind that Triton tells apart.

        It specialises integers that are 1 and those that 16 divides.
        """
        return (1, 33, 64)

    def torch_dtype(self, name: str) -> Any:
        """Return torch's own value of one of our dtype names."""
        import torch

        return getattr(torch, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """One thing that the server does: calling `run` yields a phase, then launches its kernels.

    `run` is a generator: each `yield` names the phase (`prefill`, `decode`, `verify`, `draft`,
    `memory`, `sampling`) of the launches after it. `source` is the upstream file that calls the
    wrapper in this way, which is the reason why its kernels are in the plan.
    """

    name: str
    source: str
    run: Callable[[Served], Iterator[str]]


def served(geometry: Mapping[str, Any], serve: Mapping[str, Any]) -> Served:
    """Return what the drives need, from plain data that the tool sent."""
    flags = tuple((name, value) for name, value in serve.get("flags", ()))
    return Served(**geometry, **{**serve, "flags": flags})
