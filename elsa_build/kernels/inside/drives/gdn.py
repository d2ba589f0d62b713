"""The gated delta net layers: prefill in chunks, one-token decode, and verification of drafts.

A drive calls upstream's own layer with upstream's own backend: so its projections, its causal
convolution, the delta rule and the gated norm are found as the layer puts them together.
"""

import functools
from collections.abc import Iterator
from typing import Any

from elsa_build.kernels.inside.drives.served import Drive, Served
from elsa_build.kernels.inside.drives.server import Server, rows, server

_PREFILL = "srt/models/qwen3_5.py, srt/layers/attention/linear/gdn_backend.py: forward_extend"
_DECODE = "srt/models/qwen3_5.py, srt/layers/attention/linear/gdn_backend.py: forward_decode"
_VERIFY = f"{_PREFILL} of a target verify"


def _prefill(model: Served) -> Iterator[str]:
    """Drive prompts of every size class, alone and beside others, with a checkpoint and without."""
    yield "prefill"
    at = server(model)
    for lengths in prompts(model, int(at.arguments.resolved_dict()["chunked_prefill_size"])):
        for layer in _layers(model):
            for tracked in (False, True):
                batch = prefill_batch(lengths, tracked=tracked)
                at.linear.init_forward_metadata(batch)
                _forward(at, layer, batch)


def prompts(model: Served, most: int) -> Iterator[list[int]]:
    """Yield the token counts of the requests of one prefill, up to `most` tokens of one request.

    Wrappers choose tiles and row counts by powers of two, and Triton tells 1 and multiples of 16
    from the rest: so each power of two, and the number after it.
    """
    power = 1
    while power <= most:
        yield [power]
        if power > 1:
            yield [power + 1]
        power *= 2
    yield [33, 5]
    yield [64, *[1] * (model.requests - 1)]  # ragged: the convolution then takes a table of blocks


def _decode(model: Served) -> Iterator[str]:
    """Drive one token of each running request."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    yield "decode"
    for requests in model.batches():
        _drive_step(model, ForwardMode.DECODE, requests, tokens=1)


def _verify(model: Served) -> Iterator[str]:
    """Drive one verification of the drafts of all running requests, and its commit."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    if model.draft_tokens < 2:
        return
    yield "verify"
    for requests in model.batches():
        _drive_step(model, ForwardMode.TARGET_VERIFY, requests, tokens=model.draft_tokens)


def _drive_step(model: Served, mode: Any, requests: int, tokens: int) -> None:
    """Drive one step of so many requests: eagerly, then captured and replayed by a CUDA graph.

    A graph exists for some batch sizes only; a batch in between is padded up to the next.
    """
    at = server(model)
    graphs = at.arguments.resolved_dict()["cuda_graph_config"]["decode"]["bs"] or ()
    sizes = sorted(size for size in graphs if size >= requests)
    for layer in _layers(model):
        batch = _step(model, mode, requests, tokens)
        at.linear.init_forward_metadata(batch)
        _forward(at, layer, batch)
        for size in sizes[:1]:
            batch = _step(model, mode, size, tokens)
            batch.num_padding = size - requests
            at.linear.init_forward_metadata_out_graph(batch)
            at.linear.init_forward_metadata_out_graph(batch, in_capture=True)
            _forward(at, layer, batch)


# --- upstream's layer, called as a model calls it ----------------------------------------------


@functools.cache
def _layers(model: Served) -> tuple[Any, ...]:
    """Return the last linear layer twice: with its projections merged into one, and apart.

    Upstream merges them when the checkpoint leaves them in bfloat16, which is for the checkpoint to
    say; what follows gets other strides by it. The last layer copies all layers' tracked states.
    """
    import torch
    from sglang.srt.models.qwen3_5 import Qwen3_5GatedDeltaNet

    at = server(model)
    number = max(at.pool.mamba_map)
    default = torch.get_default_dtype()
    torch.set_default_dtype(model.torch_dtype(model.dtype))
    try:
        apart, merged = (
            Qwen3_5GatedDeltaNet(at.text_config, layer_id=number, prefix="linear_attn").eval()
            for _ in range(2)
        )
    finally:
        torch.set_default_dtype(default)
    merged.finalize_fused_in_proj()
    return apart, merged


def _forward(at: Server, layer: Any, batch: Any) -> None:
    import torch

    weight = layer.norm.weight
    tokens = batch.input_ids.shape[0]
    hidden = torch.empty(tokens, layer.hidden_size, dtype=weight.dtype)
    with torch.no_grad(), at.forward(batch):
        layer(hidden, batch)


def prefill_batch(lengths: list[int], *, tracked: bool) -> Any:
    """Return a ForwardBatch of new prompts; `tracked` ones leave a checkpoint of their state."""
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    requests = len(lengths)
    sizes = torch.tensor(lengths, dtype=torch.int32)
    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        batch_size=requests,
        input_ids=torch.zeros(sum(lengths), dtype=torch.int64),
        req_pool_indices=rows(requests),
        seq_lens=sizes.to(torch.int64),
        seq_lens_cpu=sizes.to(torch.int64),
        out_cache_loc=torch.zeros(sum(lengths), dtype=torch.int64),
        seq_lens_sum=sum(lengths),
        extend_num_tokens=sum(lengths),
        extend_seq_lens=sizes,
        extend_seq_lens_cpu=lengths,
        extend_prefix_lens=torch.zeros_like(sizes),
        extend_prefix_lens_cpu=[0] * requests,
        extend_start_loc=(sizes.cumsum(0) - sizes).to(torch.int32),
        **(_tracking(requests, lengths) if tracked else {}),
    )


def _step(model: Served, mode: Any, requests: int, tokens: int) -> Any:
    """Return a ForwardBatch of running requests, each with so many tokens.

    A decode copies states to checkpoints as it goes, a verification leaves that to its commit.
    """
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    lengths = torch.full((requests,), 100, dtype=torch.int64)
    total = requests * tokens
    tracking = _tracking(requests) if tokens == 1 else {}
    return ForwardBatch(
        forward_mode=mode,
        batch_size=requests,
        input_ids=torch.zeros(total, dtype=torch.int64),
        req_pool_indices=rows(requests),
        seq_lens=lengths,
        seq_lens_cpu=lengths.clone(),
        out_cache_loc=torch.zeros(total, dtype=torch.int64),
        seq_lens_sum=100 * requests,
        spec_info=_drafts(model, requests) if tokens > 1 else None,
        **tracking,
    )


def _drafts(model: Served, requests: int) -> Any:
    """Return the drafts of one chain a request, as the verification takes them."""
    import torch
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    tree = torch.zeros(requests, model.draft_tokens, dtype=torch.int64)
    return EagleVerifyInput(
        draft_token=tree.flatten(),
        custom_mask=torch.ones(1, dtype=torch.bool),
        positions=tree.flatten(),
        retrieve_index=tree,
        retrieve_next_token=tree,
        retrieve_next_sibling=tree,
        retrieve_cum_len=torch.zeros(requests + 1, dtype=torch.int32),
        spec_steps=model.steps,
        topk=model.topk,
        draft_token_num=model.draft_tokens,
        capture_hidden_mode=CaptureHiddenMode.FULL,
        seq_lens_sum=100 * requests,
        seq_lens_cpu=torch.full((requests,), 100, dtype=torch.int64),
    )


def _tracking(requests: int, lengths: list[int] | None = None) -> dict[str, Any]:
    """Return the fields of a batch whose states are to be copied to checkpoints.

    Source: sglang v0.5.23 srt/managers/schedule_batch.py, prepare_for_extend, prepare_for_decode.
    """
    import torch

    fields: dict[str, Any] = {
        "mamba_track_indices": rows(requests),
        "mamba_track_mask": torch.ones(requests, dtype=torch.bool),
    }
    if lengths is not None:
        fields |= {
            "mamba_track_seqlens": torch.tensor(lengths, dtype=torch.int64),
            "mamba_track_seqlens_cpu": lengths,
            "mamba_prefill_track_mask_cpu": [True] * requests,
        }
    return fields


DRIVES = (
    Drive(name="gdn-prefill", source=_PREFILL, run=_prefill),
    Drive(name="gdn-decode", source=_DECODE, run=_decode),
    Drive(name="gdn-verify", source=_VERIFY, run=_verify),
)
