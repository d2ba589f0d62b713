"""The patched tree's own scheduler and workers, serving a model of which only attention is real.

What a request does to the pools, to the drafts and to a CUDA graph's buffers is upstream's code,
from the request to the accepted tokens; only the weights, and the layers that use nothing but them,
are left out. So the kernels around the model are found where the server launches them.
"""

import array
import functools
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

from elsa_build.kernels.inside.drives.served import Served
from elsa_build.kernels.inside.drives.server import server


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A scheduler of upstream's with workers, pools and backends, and what is asked of it."""

    scheduler: Any
    vocabulary: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def target(self) -> Any:
        """Return the runner of the model."""
        return self.scheduler.tp_worker.model_runner

    def begin(self, lengths: list[int], **sampling: Any) -> Any:
        """Return a batch of new requests with prompts of these lengths, after its prefill."""
        from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
        from sglang.srt.sampling.sampling_params import SamplingParams

        at = self.scheduler
        requests = []
        for length in lengths:
            number = next(self.numbers)
            told = SamplingParams(max_new_tokens=100, **sampling)
            told.normalize(None)
            # Prompts differ from their second token on: a prefix of one token is found again.
            text = array.array("q", [1, *[number % 1000 + 2] * (length - 1)])
            request = Req(str(number), "", text, told, vocab_size=self.vocabulary)
            request.init_next_round_input(at.tree_cache)
            request.extend_end = length
            requests.append(request)
        pools = (at.req_to_token_pool, at.token_to_kv_pool_allocator, at.tree_cache)
        batch = ScheduleBatch.init_new(
            requests, *pools, at.model_config, at.enable_overlap, at.spec_algorithm
        )
        batch.prepare_for_extend()
        self._run(batch)
        return batch

    def step(self, batch: Any) -> None:
        """Run a batch for one round: drafts, their verification, and the next first draft."""
        batch.prepare_for_decode()
        self._run(batch)

    def _run(self, batch: Any) -> None:
        """Run a prepared batch as the scheduler does, and keep what the next round starts from."""
        from sglang.srt.managers.scheduler import resolve_forward_inputs

        at = self.scheduler
        at.future_map.resolve_seq_lens_cpu(batch)
        resolve_forward_inputs(batch, at.future_map)
        rows = batch.req_pool_indices
        publish = functools.partial(at.future_map.publish, rows)
        with at._forward_isolation(batch, overlap=False):  # noqa: SLF001 - its only door is the event loop
            if at.draft_worker is not None:
                found = at.draft_worker.forward_batch_generation(batch, on_publish=publish)
            else:
                found = at.tp_worker.forward_batch_generation(batch)
                publish(batch.seq_lens + 1)
            at._relay_forward_payload(batch, rows, found)  # noqa: SLF001 - same
        batch.input_ids = None
        batch.spec_info = found.next_draft_input
        if batch.spec_info is not None:
            batch.spec_info.future_dsa_topk_indices_available = False
            batch.spec_info.future_indices = rows

    def grow(self, batch: Any, length: int) -> None:
        """Let a batch's running requests have so many tokens: how many decides what plans them."""
        self.scheduler.future_map.new_seq_lens_buf[batch.req_pool_indices] = length

    def end(self, batch: Any) -> None:
        """Give a batch's rows, tokens and states back."""
        from sglang.srt.mem_cache.common import release_kv_cache

        for request in batch.reqs:
            release_kv_cache(request, self.scheduler.tree_cache, checkpoint=False)


@functools.cache
def engine(model: Served) -> Engine:
    """Return the engine of a model; the first call builds it, graphs not yet captured."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import get_schedule, get_serving, get_spec
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    arguments = server(model).arguments
    alone()
    at: Any = object.__new__(Scheduler)
    at.server_args, at.nccl_port, at.device = arguments, 0, "cuda"
    at.model_config = ModelConfig.from_server_args(arguments)
    at.spec_algorithm = SpeculativeAlgorithm.from_string(get_spec().speculative_algorithm)
    at.page_size = model.page_size
    at.enable_overlap, at.chunked_req = True, None
    at.beam_coordinator = SimpleNamespace(maybe_select_and_relay=lambda *_, **__: None)
    at.forward_stream = None
    at.init_moe_gemm_config()
    with _stand_in(), get_serving().override(skip_tokenizer_init=True):
        at.init_tp_model_worker()
        at.maybe_init_draft_worker()
    with get_schedule().override(max_total_tokens=model.kv_tokens):
        at.init_memory_pools()
    at.init_all_attention_backends()
    at.req_to_token_pool, at.token_to_kv_pool_allocator = at.tp_worker.get_memory_pool()
    at.tree_cache = _tree(at)
    at.init_overlap()
    return Engine(scheduler=at, vocabulary=model.vocabulary)


def _tree(at: Any) -> Any:
    """Return the cache of prefixes, on the card alone: copies to the host launch no Triton."""
    from sglang.srt.mem_cache.kv_cache_builder import build_kv_cache

    draft = at.draft_worker
    return build_kv_cache(
        server_args=at.server_args,
        model_config=at.model_config,
        tp_worker=at.tp_worker,
        page_size=at.page_size,
        spec_algorithm=at.spec_algorithm,
        enable_metrics=False,
        enable_kv_cache_events=False,
        enable_hierarchical_cache=False,
        hicache_draft_plan=draft and draft.hicache_draft_plan,
        draft_swa_window=draft.draft_swa_window if draft else 0,
    ).tree_cache


class _Group(SimpleNamespace):
    """A group of one process: nothing is sent, and no communicator exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    def all_reduce(self, tensor: Any) -> Any:
        return tensor

    def barrier(self) -> None:
        return None

    @contextmanager
    def graph_capture(self, stream: Any = None) -> Iterator[Any]:
        del stream
        import torch

        yield SimpleNamespace(stream=torch.cuda.Stream())


@functools.cache
def alone() -> None:
    """Let upstream believe that its process groups, each of this process alone, were made."""
    from sglang.kernels.ops.memory import small_copy
    from sglang.srt.distributed import parallel_state
    from sglang.srt.managers import tp_worker
    from sglang.srt.runtime_context import get_parallel

    group = _Group(world_size=1, rank=0, rank_in_group=0, ranks=[0])
    group.is_first_rank = group.is_last_rank = True
    names = ("world", "tp", "pp", "attn_tp", "attn_cp", "moe_tp", "moe_ep")
    get_parallel().override_permanently(**{f"{name}_group": group for name in names})
    parallel_state._SELF_PP = group  # noqa: SLF001 - read by upstream's draft workers
    tp_worker.broadcast_pyobj = lambda values, *_, **__: values
    copying = small_copy.try_small_copy
    # Its kernel is noted; that it was not launched sends upstream to torch's copies, which the
    # host reads again.
    small_copy.try_small_copy = lambda *lists: copying(*lists) and False
    # A package that no wheel of ours has; imported where upstream looks a class up.
    for name in ("flash_mla", "flash_mla.flash_mla_interface"):
        sys.modules.setdefault(name, _Absent(name))


class _Absent(ModuleType):
    """A package of kernels for other cards: imported by name, never called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextmanager
def _stand_in() -> Iterator[None]:
    """Let upstream's runners load a stand-in for the checkpoint while the block runs."""
    from sglang.srt.model_executor import model_runner

    upstream = model_runner.ModelRunner

    class Runner(upstream):  # type: ignore[misc, valid-type]  # upstream's, which has no types here
        def load_model(self) -> None:
            self.model = _model(self)
            self.dtype = self.model_config.dtype
            self.sliding_window_size = None
            self.prefill_aware_swa = False
            self.load_config = None
            self.weight_load_mem_usage = 0
            self.loader = SimpleNamespace(preloaded_weights_bytes=0)

    model_runner.ModelRunner = Runner
    try:
        yield
    finally:
        model_runner.ModelRunner = upstream


def _model(runner: Any) -> Any:
    """Return what a runner takes for its model: one full-attention layer, and logits of zeros."""
    import torch
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.runtime_context import get_model

    config, draft = runner.model_config, runner.is_draft_worker
    layer = attention_layer(config.hf_text_config, draft=draft)

    class Model(torch.nn.Module):  # type: ignore[misc]  # no types here
        lm_head = None
        shared_experts_config = get_model().shared_experts

        def forward(
            self, input_ids: Any, positions: Any, forward_batch: Any, *_: Any, **__: Any
        ) -> Any:
            from sglang.srt.model_executor.forward_batch_info import ForwardMode

            batch, tokens = forward_batch, input_ids.shape[0]
            if not draft and batch.mrope_positions is not None:
                positions = batch.mrope_positions
            hidden = torch.zeros(tokens, config.hidden_size, dtype=config.dtype)
            layer.self_attention(positions, hidden, batch)
            last = batch.forward_mode in (ForwardMode.EXTEND, ForwardMode.DECODE)
            rows = batch.batch_size if last else tokens
            kept = batch.batch_size if batch.capture_hidden_mode.is_last() else tokens
            return LogitsProcessorOutput(
                next_token_logits=torch.zeros(rows, config.vocab_size, dtype=torch.float32),
                hidden_states=hidden.new_zeros(kept, config.hidden_size),
            )

        def get_embed_and_head(self) -> tuple[Any, Any]:
            return torch.zeros(1), torch.zeros(1)

        def set_embed_and_head(self, *_: Any) -> None:
            return None

    return Model()


def attention_layer(config: Any, *, draft: bool) -> Any:
    """Return upstream's full-attention layer, the first that the model or its draft has."""
    import torch
    from sglang.srt.models.qwen3_5 import Qwen3_5AttentionDecoderLayer

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return Qwen3_5AttentionDecoderLayer(
            config,
            layer_id=0 if draft else config.full_attention_interval - 1,
            prefix="layer",
            is_nextn=draft,
            build_stages=False,
        ).eval()
    finally:
        torch.set_default_dtype(default)
