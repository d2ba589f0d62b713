"""The mixture of experts as far as it is Triton's: what joins the shared expert to the routed ones.

The experts themselves, their router's softmax and their activations are modules of FlashInfer or of
SGLang's own JIT on this path.
"""

from collections.abc import Iterator
from typing import Any

from elsa_build.kernels.inside.drives.gdn import prompts
from elsa_build.kernels.inside.drives.served import Drive, Served
from elsa_build.kernels.inside.drives.server import server
from elsa_build.kernels.inside.nvcc_capture import asking


def _experts(model: Served) -> Iterator[str]:
    """Drive the block over prefills of every size class, and over steps of all running requests."""
    import torch
    from sglang.srt.runtime_context import get_schedule

    server(model)
    block = _block(model)
    most = get_schedule().chunked_prefill_size
    steps = [requests * model.draft_tokens for requests in model.batches()]
    yield "prefill"
    sizes = {sum(lengths) for lengths in prompts(model, most)}
    with torch.no_grad(), asking():
        for tokens in sorted(sizes):
            block(torch.zeros(tokens, model.hidden, dtype=model.torch_dtype(model.dtype)))
        yield "verify"
        for tokens in (*model.batches(), *steps):
            block(torch.zeros(tokens, model.hidden, dtype=model.torch_dtype(model.dtype)))


def _block(model: Served) -> Any:
    """Return upstream's block, with routed experts that give zeros in place of its runner's."""
    import torch
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.models.qwen2_moe import Qwen2MoeSparseMoeBlock

    initialize_moe_config()
    default = torch.get_default_dtype()
    torch.set_default_dtype(model.torch_dtype(model.dtype))
    try:
        block = Qwen2MoeSparseMoeBlock(
            layer_id=0, config=server(model).text_config, support_shared_expert_fusion=True
        ).eval()
    finally:
        torch.set_default_dtype(default)

    class Routed(torch.nn.Module):  # type: ignore[misc]  # no types here
        def forward(self, hidden: Any, *_: Any) -> Any:
            return torch.zeros_like(hidden)

    block.experts = Routed()
    return block


DRIVES = (Drive(name="experts", source="srt/models/qwen2_moe.py", run=_experts),)
