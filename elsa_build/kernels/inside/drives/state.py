"""Slots of recurrent state: cleared, copied between requests, and committed after a verification.

The boot (`server.BOOT`) allocates the pool, which warms its own copy kernels; these drives do what
the server does with it afterwards, through upstream's pool, its runner and its speculation.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from elsa_build.kernels.inside.drives.served import Drive, Served
from elsa_build.kernels.inside.drives.server import request_pool, rows, server

_SCRATCH = "SGLANG_MAMBA_SLOT_COPY_SCRATCH_MB"


def _slots(model: Served) -> Iterator[str]:
    """Drive what runs before a prefill: new slots are cleared, cached ones copied on write."""
    yield "memory"
    at = server(model)
    for requests in (1, model.requests):
        _begin(at.runner, requests)


def _direct(model: Served) -> Iterator[str]:
    """Drive the copy without scratch memory, from the allocation of the pool on.

    It is our patch's (chunked-state-copy) and chosen by a variable of the environment, so it is
    driven whether or not the variable is set here; a tree without the patch has no such variable.
    """
    from sglang.srt.environ import envs
    from sglang.srt.model_executor.model_runner import ModelRunner

    if not hasattr(envs, _SCRATCH):
        return
    yield "memory"
    at = server(model)
    with getattr(envs, _SCRATCH).override(-1):
        runner: Any = object.__new__(ModelRunner)
        runner.is_draft_worker = False
        runner.req_to_token_pool = request_pool(at.runner.model_config)
        for requests in (1, model.requests):
            _begin(runner, requests)


def _begin(runner: Any, requests: int) -> None:
    """Let a runner clear and copy the slots of so many requests that begin."""
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    slots = rows(requests)
    begun = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        mamba_clear_indices=slots,
        mamba_cow_src_indices=slots,
        mamba_cow_dst_indices=slots + requests,
    )
    runner._maybe_execute_deferred_mamba_cow_and_clear(begun)  # noqa: SLF001 - its only door is a whole forward pass


def _commit(model: Served) -> Iterator[str]:
    """Drive the commit of accepted drafts into the states, and the checkpoints on the way.

    Source: sglang v0.5.23 srt/speculative/eagle_worker_common.py, eagle_utils.py (types).
    """
    import torch
    from sglang.kernels.ops.speculative.eagle import prepare_verify_commit_outputs
    from sglang.srt.model_executor.forward_batch_info import ForwardMode
    from sglang.srt.runtime_context import get_exec, mamba_track_grid
    from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

    if model.draft_tokens < 2:
        return
    yield "verify"
    at = server(model)
    tracked = get_exec().mamba.enable_mamba_extra_buffer
    for requests in model.batches():
        at.linear.forward_metadata = SimpleNamespace(
            mamba_cache_indices=at.pool.get_mamba_indices(rows(requests))
        )
        batch = SimpleNamespace(
            forward_mode=ForwardMode.TARGET_VERIFY,
            req_pool_indices=rows(requests),
            seq_lens=torch.full((requests,), 100, dtype=torch.int64),
            mamba_track_indices=rows(requests) if tracked else None,
            tree_cache=SimpleNamespace(page_size=model.page_size),
        )
        index = torch.zeros(requests, model.steps + 1, dtype=torch.int32)
        accepted = torch.ones(requests, dtype=torch.int32)
        prepared = prepare_verify_commit_outputs(
            torch.zeros(requests * model.draft_tokens, dtype=torch.int32),
            index,
            accepted,
            batch.seq_lens,
            num_draft_tokens=model.draft_tokens if model.topk == 1 else 0,
            mamba_track_interval=mamba_track_grid(model.page_size) if tracked else 0,
        )
        commit_mamba_states_after_verify(
            SimpleNamespace(model_runner=at.runner),
            batch,
            accepted,
            index,
            model.draft_tokens,
            prepared_step_indices=prepared[2] if model.topk == 1 else None,
        )


DRIVES = (
    Drive(
        name="state-slots",
        source="srt/model_executor/model_runner.py: deferred copy-on-write and clear",
        run=_slots,
    ),
    Drive(
        name="state-direct-copy",
        source="srt/mem_cache/direct_slot_copy.py (patchset chunked-state-copy)",
        run=_direct,
    ),
    Drive(
        name="state-commit",
        source="srt/speculative/spec_utils.py: commit_mamba_states_after_verify",
        run=_commit,
    ),
)
