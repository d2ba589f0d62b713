"""The patched tree's own server of a model, started as far as it goes without a card or weights.

Which backend a layer takes, how large a pool is and how its tensors are laid out decides kernels.
So upstream decides it here as it does at a boot: its argument parser resolves the command line for
the card, its configurator builds the pool of states, its registry picks the attention backend.
"""

import contextlib
import functools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from elsa_build.kernels.inside.drives.served import Drive, Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Upstream's own values: resolved arguments, the model's config, a runner and its parts.

    `runner` is a ModelRunner that has neither weights nor a KV cache; `backend` the attention
    backend of the model; `pool` the requests' pool with the states; `folder` holds config.json
    for as long as this lives, since upstream may read it again.
    """

    arguments: Any
    runner: Any
    backend: Any
    pool: Any
    folder: Any

    @property
    def linear(self) -> Any:
        """Return the backend of the linear layers alone."""
        return self.backend.linear_attn_backend

    @property
    def text_config(self) -> Any:
        """Return the config of the language model."""
        return self.runner.model_config.hf_text_config

    @contextlib.contextmanager
    def forward(self, batch: Any) -> Iterator[None]:
        """Make the backend and a batch current, as ModelRunner does around a forward pass."""
        from sglang.srt.model_executor.forward_context import (
            ForwardContext,
            forward_context,
        )

        with forward_context(ForwardContext(attn_backend=self.backend), forward_batch=batch):
            yield


@functools.cache
def server(model: Served) -> Server:
    """Return the server of a model; the first call resolves and allocates, in host memory."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.attention.attention_registry import (
        attn_backend_wrapper,
    )
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.runtime_context import SpawnRanks, attention_backends, get_parallel, publish
    from sglang.srt.server_args import prepare_server_args

    folder = tempfile.TemporaryDirectory()
    Path(folder.name, "config.json").write_text(json.dumps(config(model)), encoding="utf-8")
    arguments = prepare_server_args(["--model-path", folder.name, *command_line(model)])
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    alone = SimpleNamespace(world_size=1, rank_in_group=0)
    get_parallel().override_permanently(tp_group=alone, attn_tp_group=alone)
    runner: Any = object.__new__(ModelRunner)
    runner.model_config = ModelConfig.from_server_args(arguments)
    runner.server_args = arguments
    runner.device = "cuda"
    runner.is_draft_worker = False
    runner.use_mla_backend = False
    runner.token_to_kv_pool = None
    runner.prefill_attention_backend_str, runner.decode_attention_backend_str = attention_backends()
    runner.model = None
    runner.req_to_token_pool = pool = request_pool(runner.model_config)
    full = SimpleNamespace(
        token_to_kv_pool=None,
        req_to_token_pool=pool,
        kv_index_translator=None,
        needs_cpu_seq_lens=False,
        use_captured_forward_metadata_for_breakable_cuda_graph=False,
    )
    runner.attn_backend = backend = attn_backend_wrapper(runner, full)
    backend.linear_attn_backend.init_cuda_graph_state(
        model.requests, model.requests * model.draft_tokens
    )
    return Server(arguments=arguments, runner=runner, backend=backend, pool=pool, folder=folder)


def rows(requests: int) -> Any:
    """Return rows of the requests' pool, or slots of states; row 0 is padding."""
    import torch

    return torch.arange(1, requests + 1, dtype=torch.int64)


def request_pool(config: Any) -> Any:
    """Return the requests' pool that upstream's configurator builds for a model."""
    from sglang.srt.configs.hybrid_arch import (
        hybrid_gdn_config,
        hybrid_kda_config,
        mambaish_config,
    )
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
    from sglang.srt.runtime_context import get_schedule

    configurator: Any = object.__new__(KVCacheConfigurator)
    configurator.model_config = config
    configurator.device = "cuda"
    configurator.mambaish_config = mambaish_config(config)
    configurator.hybrid_gdn_config = hybrid_gdn_config(config)
    configurator.hybrid_kda_config = hybrid_kda_config(config)
    configurator.layer_info = SimpleNamespace(start_layer=0, end_layer=config.num_hidden_layers)
    return configurator._build_req_to_token_pool(  # noqa: SLF001 - builds nothing but this pool
        max_num_reqs=get_schedule().max_running_requests
    )


def command_line(model: Served) -> list[str]:
    """Return the flags that the model is served with; without its path, which is no key's part."""
    if model.flags:
        given = {f"--{name}": value for name, value in model.flags if name not in _FOR_PEOPLE}
    else:
        given = _told(model)
    return [
        text
        for name, value in given.items()
        if value != "false"
        for text in ((name,) if value == "true" else (name, value))
    ]


_FOR_PEOPLE = {"model-path", "tool-call-parser", "reasoning-parser", "chat-template"}
"""What needs the checkpoint's own files (a tokenizer, a template) and decides no kernel."""


def _told(model: Served) -> dict[str, str]:
    """Return the flags that say what a Served says, for who knows no command line."""
    found = {
        "--context-length": model.context,
        "--max-running-requests": model.requests,
        "--mamba-ssm-dtype": model.state_dtype,
        "--mamba-radix-cache-strategy": "extra_buffer_lazy",
        "--max-mamba-cache-size": model.slots,
        "--page-size": model.page_size,
        "--quantization": "modelopt_fp4",
        "--kv-cache-dtype": {"float8_e4m3fn": "fp8_e4m3"}.get(model.kv_dtype, model.kv_dtype),
        "--enable-linear-replayssm-spec": str(model.replay).lower(),
    }
    if model.draft_tokens > 1:
        found |= {
            "--speculative-algorithm": "NEXTN",
            "--speculative-num-steps": model.steps,
            "--speculative-eagle-topk": model.topk,
            "--speculative-num-draft-tokens": model.draft_tokens,
        }
    return {name: str(value) for name, value in found.items()}


def config(model: Served) -> dict[str, Any]:
    """Return what the checkpoint's config.json says, as far as kernels and arguments depend on it.

    Source: sglang v0.5.23 srt/configs/qwen3_5.py, qwen3_next.py.
    """
    layers = model.linear_layers + model.attention_layers
    text = {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": model.hidden,
        "num_hidden_layers": layers,
        "full_attention_interval": layers // model.attention_layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "linear_num_key_heads": model.key_heads,
        "linear_num_value_heads": model.value_heads,
        "linear_key_head_dim": model.key_dim,
        "linear_value_head_dim": model.value_dim,
        "linear_conv_kernel_dim": model.conv_kernel,
        "num_experts": model.experts,
        "num_experts_per_tok": model.experts_per_token,
        "moe_intermediate_size": model.moe_intermediate,
        "shared_expert_intermediate_size": model.moe_intermediate,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.context,
        "mtp_num_hidden_layers": 1,
        "dtype": model.dtype,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000,
            "partial_rotary_factor": model.rotary_dim / model.head_dim,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
    }
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "dtype": model.dtype,
        "text_config": text,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []},
    }


def _boot(model: Served) -> Iterator[str]:
    """Allocate the server, which warms up some kernels, with custom operators called directly.

    Upstream registers its operators for CUDA, and one would refuse tensors in host memory. Eagerly,
    upstream skips the registration too. Source: sglang v0.5.23 srt/utils/custom_op.py.
    """
    from sglang.srt.utils.custom_op import CustomOpWrapper

    CustomOpWrapper.real_impl = property(lambda self: self.op_func)
    yield "memory"
    server(model)


BOOT = Drive(name="boot", source="srt/mem_cache/memory_pool.py: MambaPool", run=_boot)
"""Comes before all other drives, so that no module is imported with its operators registered."""
