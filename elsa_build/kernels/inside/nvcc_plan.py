"""Lists the modules of SGLang's JIT and of FlashInfer that a model's server asks for.

Which module it is follows from shapes, dtypes and the backends that upstream picks, so upstream's
own wrappers are called as its server calls them, on tensors that are nowhere; what they ask for is
noted and not built. FlashInfer's names in particular cannot be guessed: the prefill module that
its wrapper loads is not the one that its public generator of that name makes.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from elsa_build.kernels.inside import gpu
from elsa_build.kernels.inside.capture import capturing
from elsa_build.kernels.inside.drives.served import Drive, Served
from elsa_build.kernels.inside.drives.server import BOOT, server
from elsa_build.kernels.inside.nvcc_capture import Asked, asking
from elsa_build.kernels.inside.whereabouts import tensors_anywhere

CUDA_NORM = ("FLASHINFER_USE_CUDA_NORM", "1")
"""Without it FlashInfer 0.7.2 makes its norms with CuTe DSL, in memory, at every start; no cache
holds them and FLASHINFER_DISABLE_JIT does not see them. Must be set in the image too.
Source: flashinfer 0.7.2 flashinfer/norm/__init__.py, norm/kernels/rmsnorm.py."""


def prepare(target: Mapping[str, Any]) -> None:
    """Show upstream the card and the variables of the image; before it is imported."""
    os.environ.setdefault(*CUDA_NORM)
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = target["flashinfer"]
    gpu.install(target)


def survey(model: Served, flags: Mapping[str, str]) -> dict[str, str]:
    """Drive what asks for modules, inside `asking`, and return what went wrong, by drive."""
    failures = {}
    with capturing(), tensors_anywhere(), asking() as found:
        for one in (BOOT, *_drives(flags)):
            found.why = f"{one.name}: {one.source}"
            try:
                _drive(one, model, found)
            except Exception as e:  # noqa: BLE001 - any failure of upstream's is this drive's result
                failures[one.name] = f"{type(e).__name__}: {e}"
    return failures


def _drive(one: Drive, model: Served, found: Asked) -> None:
    for phase in one.run(model):
        found.phase = phase


def _drives(flags: Mapping[str, str]) -> Iterator[Drive]:
    """Yield the drives that a command line calls for."""
    yield from _ALWAYS
    if flags.get("enable-hierarchical-cache", "false") == "true":
        yield from _HOST_CACHE


# --- layers -----------------------------------------------------------------------------------


def _norms(model: Served) -> Iterator[str]:
    import torch
    from sglang.srt.layers.layernorm import GemmaRMSNorm

    yield "prefill"
    hidden = torch.zeros(2, model.hidden, dtype=model.torch_dtype(model.dtype))
    norm = GemmaRMSNorm(model.hidden)
    norm.forward_cuda(hidden)
    norm.forward_cuda(hidden, hidden.clone())


def _dense_mlp(model: Served) -> Iterator[str]:
    """Drive the shared expert: its activation, plain and fused with the quantizer."""
    import torch
    from flashinfer import silu_and_mul_scaled_nvfp4_experts_quantize
    from sglang.srt.layers.activation import SiluAndMul

    yield "prefill"
    both = torch.zeros(2, 2 * model.moe_intermediate, dtype=model.torch_dtype(model.dtype))
    SiluAndMul().forward_cuda(both)
    silu_and_mul_scaled_nvfp4_experts_quantize(
        both.unsqueeze(0), torch.tensor([2], dtype=torch.int32), torch.ones(1)
    )


def _fp4_linear(model: Served) -> Iterator[str]:
    """Drive the linear layers in NVFP4: quantize the input, multiply."""
    import torch
    from sglang.srt.layers.quantization import fp4_utils, modelopt_quant

    server(model)
    fp4_utils.initialize_fp4_gemm_config()
    yield "prefill"
    dtype = model.torch_dtype(model.dtype)
    hidden = torch.zeros(2, model.hidden, dtype=dtype)
    one = torch.ones(1, dtype=torch.float32)
    # The registered operator is for tensors on the card; this is what it calls.
    fp4_utils._flashinfer_fp4_quantize_impl(hidden, one)  # noqa: SLF001 - same
    width, depth = 4 * model.hidden, model.hidden
    packed = torch.zeros(2, depth // 2, dtype=torch.uint8)
    scales = torch.zeros(128, depth // 16, dtype=torch.float8_e4m3fn)
    weight = torch.zeros(width, depth // 2, dtype=torch.uint8).T
    weight_scales = torch.zeros(width, depth // 16, dtype=torch.float8_e4m3fn).T
    modelopt_quant.fp4_gemm(packed, weight, scales, weight_scales, one, dtype, width)


def _experts(model: Served) -> Iterator[str]:
    """Drive the routed experts through the runner that upstream picks for NVFP4 on this card."""
    import torch
    from flashinfer.fused_moe import cutlass_fused_moe
    from sglang.srt.runtime_context import get_exec

    server(model)
    runner = get_exec().moe.moe_runner_backend
    if runner != "flashinfer_cutlass":
        raise RuntimeError(f"this card's MoE runner is {runner}; its modules are not planned")
    yield "prefill"
    experts, hidden, inner = model.experts, model.hidden, model.moe_intermediate
    tokens = torch.zeros(2, hidden, dtype=model.torch_dtype(model.dtype))
    chosen = torch.zeros(2, model.experts_per_token, dtype=torch.int32)
    per_expert = torch.ones(experts)
    one = torch.ones(())
    cutlass_fused_moe(
        tokens,
        chosen,
        torch.ones(2, model.experts_per_token),
        torch.empty(experts, 2 * inner, hidden // 16, dtype=torch.long),
        torch.empty(experts, hidden, inner // 16, dtype=torch.long),
        tokens.dtype,
        quant_scales=[
            one,
            torch.empty(experts, 2 * inner, hidden // 64, dtype=torch.int32),
            per_expert,
            one,
            torch.empty(experts, hidden, inner // 64, dtype=torch.int32),
            per_expert,
        ],
    )


# --- attention --------------------------------------------------------------------------------


def _attention(model: Served) -> Iterator[str]:
    """Drive the full-attention layers: prefill, verification with a tree's mask, decode, draft."""
    import torch
    from flashinfer import (
        BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
    )
    from sglang.srt.layers.attention.flashinfer_backend import (
        should_use_tensor_core,
    )

    runner = server(model).runner
    chosen = {runner.prefill_attention_backend_str, runner.decode_attention_backend_str}
    if "flashinfer" not in chosen:
        return
    query, kept = model.torch_dtype(model.dtype), model.torch_dtype(model.kv_dtype)
    space = torch.zeros(1 << 20, dtype=torch.uint8)
    starts = torch.tensor([0, model.draft_tokens], dtype=torch.int32)
    slots = torch.zeros(model.draft_tokens, dtype=torch.int32)
    last = torch.ones(1, dtype=torch.int32)
    heads = (model.heads, model.kv_heads, model.head_dim, 1)
    mask = torch.ones(model.draft_tokens**2, dtype=torch.bool)
    for phase, more in (("prefill", {"causal": True}), ("verify", {"custom_mask": mask})):
        yield phase
        prefill = BatchPrefillWithPagedKVCacheWrapper(space, "NHD", backend="fa2")
        prefill.plan(
            starts, starts, slots, last, *heads, q_data_type=query, kv_data_type=kept, **more
        )
    yield "draft"
    tensor_cores = should_use_tensor_core(kept, model.heads, model.kv_heads)
    decode = BatchDecodeWithPagedKVCacheWrapper(
        space, "NHD", backend="fa2", use_tensor_cores=tensor_cores
    )
    decode.plan(starts, slots, last, *heads, data_type=kept, q_data_type=query)


# --- memory -----------------------------------------------------------------------------------


def _kv_store(model: Served) -> Iterator[str]:
    from sglang.kernels.ops.kvcache.kvcache import can_use_store_cache

    yield "prefill"
    can_use_store_cache(_row_bytes(model))


def _positions(model: Served) -> Iterator[str]:
    import torch
    from sglang.kernels.ops.attention.clamp_position import (
        clamp_position_cuda,
    )

    yield "decode"
    clamp_position_cuda(torch.ones(model.requests, dtype=torch.int64))


def _host_cache(model: Served) -> Iterator[str]:
    """Drive the copies of KV rows and of states to host memory and back."""
    from sglang.kernels.ops.kvcache import hicache
    from sglang.kernels.ops.mamba.transfer_mamba import (
        _jit_transfer_mamba_module,
    )

    yield "memory"
    size = _row_bytes(model)
    hicache.can_use_hicache_jit_kernel(element_size=size, page_size=model.page_size)
    hicache.can_use_write_back_jit_kernel(element_size=size)
    _jit_transfer_mamba_module()


def _row_bytes(model: Served) -> int:
    """Return what one token's keys (or values) take in one layer."""
    return model.kv_heads * model.head_dim * int(model.torch_dtype(model.kv_dtype).itemsize)


# --- sampling ---------------------------------------------------------------------------------


def _sampling(model: Served) -> Iterator[str]:
    """Drive what picks a token, greedily or not, without and with min-p."""
    import torch
    from flashinfer import sampling

    yield "sampling"
    shares = torch.zeros(model.requests, model.vocabulary)
    top_k = torch.ones(model.requests, dtype=torch.int32)
    top_p = torch.ones(model.requests)
    sampling.top_k_renorm_probs(shares, top_k)
    sampling.top_p_renorm_probs(shares, top_p)
    dice = {"seed": 0, "offset": 0}
    sampling.min_p_sampling_from_probs(shares, top_p, **dice)
    sampling.top_k_top_p_sampling_from_probs(
        shares, top_k, top_p, filter_apply_order="joint", **dice
    )


def _speculation(model: Served) -> Iterator[str]:
    """Drive the tree of drafts: built, verified greedily, verified by sampling."""
    import torch
    from sglang.kernels.ops.speculative import sampling, tree

    if model.draft_tokens == 1:
        return
    yield "verify"
    some = torch.zeros(1, model.draft_tokens, dtype=torch.int64)
    tree.build_tree_kernel_efficient(*[some] * 8, model.topk, model.steps, model.draft_tokens, 0)
    tree.verify_tree_greedy(*[some] * 8)
    shares = torch.zeros(1, model.draft_tokens, model.vocabulary)
    sampling.tree_speculative_sampling_target_only(*[some] * 9, shares, shares)


_ALWAYS = (
    Drive(name="norm", source="srt/layers/layernorm.py", run=_norms),
    Drive(name="shared-expert", source="srt/models/qwen2_moe.py", run=_dense_mlp),
    Drive(name="nvfp4", source="srt/layers/quantization/modelopt_quant.py", run=_fp4_linear),
    Drive(name="experts", source="srt/layers/moe/moe_runner/flashinfer_cutlass.py", run=_experts),
    Drive(name="attention", source="srt/layers/attention/flashinfer_backend.py", run=_attention),
    Drive(name="kv-store", source="srt/mem_cache/memory_pool.py", run=_kv_store),
    Drive(name="positions", source="srt/model_executor/forward_batch_info.py", run=_positions),
    Drive(name="sampling", source="srt/layers/sampler.py", run=_sampling),
    Drive(name="speculation", source="srt/speculative/eagle_utils.py", run=_speculation),
)
_HOST_CACHE = (
    Drive(name="host-cache", source="srt/mem_cache/pool_host/mha.py, mamba.py", run=_host_cache),
)
