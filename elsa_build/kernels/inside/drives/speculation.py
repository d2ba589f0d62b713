"""Requests from prompt to accepted tokens: prefills, drafts, verification, and their CUDA graphs.

Draft and verification are one step of upstream's worker; a batch that a graph was captured for
takes the graph, as in the server, so the graphs come first here as they do at a boot.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from elsa_build.kernels.inside.drives.engine import Engine, engine
from elsa_build.kernels.inside.drives.gdn import prompts
from elsa_build.kernels.inside.drives.served import Drive, Served
from elsa_build.kernels.inside.nvcc_capture import asking

_GRAPHS = "srt/model_executor/runner/decode_cuda_graph_runner.py, srt/speculative/*_graph_runner.py"
_REQUESTS = "srt/speculative/eagle_worker_v2.py, srt/managers/scheduler.py: run_batch"
_SPARSE = "SGLANG_SPEC_SPARSE_TOPK_VERIFY"
_SHORT, _LONG = 100, 20_000
"""Tokens of a running request: upstream splits the copying of indices from 8,192 on."""

_SAMPLED: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 20}


def _with_engine(
    run: Callable[[Engine, Served], Iterator[str]],
) -> Callable[[Served], Iterator[str]]:
    """Return a drive's generator from one over an engine, with no module built that it asks for."""

    def driven(model: Served) -> Iterator[str]:
        import torch

        with torch.no_grad(), asking():
            yield "memory"
            at = engine(model)
            yield "verify"
            _capture(at.scheduler.tp_worker)
            if at.scheduler.draft_worker is not None:
                yield "draft"
                _capture(at.scheduler.draft_worker)
            yield from run(at, model)

    return driven


@functools.cache
def _capture(worker: Any) -> None:
    """Capture a worker's graphs, warm-ups included, as a boot does before the first request."""
    worker.init_cuda_graphs()


def _graphs(_: Engine, __: Served) -> Iterator[str]:
    """Drive nothing more than the boot."""
    yield "verify"


def _prefills(at: Engine, model: Served) -> Iterator[str]:
    """Drive the prefill of prompts of every size class, and the draft's prefill after it."""
    from sglang.srt.runtime_context import get_schedule

    yield "prefill"
    # Two and more requests beside these: numbers of tokens that 16 divides, and others.
    several = ([32] * requests for requests in (2, model.requests) if requests <= model.requests)
    for lengths in (*prompts(model, get_schedule().chunked_prefill_size), *several):
        at.end(at.begin(lengths, **_SAMPLED))


def _rounds(at: Engine, model: Served) -> Iterator[str]:
    """Drive rounds of drafts and verification, short and long, of all numbers of requests."""
    for requests in model.batches():
        yield "prefill"
        batch = at.begin([_SHORT] * requests, **_SAMPLED)
        yield "verify"
        for length in (_SHORT, _LONG):
            at.grow(batch, length)
            at.step(batch)
        at.end(batch)


def _choices(at: Engine, model: Served) -> Iterator[str]:
    """Drive what a request may say of sampling: greedy, without top-k, with min-p."""
    yield from _verified(at, model, {"temperature": 0.0})
    yield from _verified(at, model, {"temperature": 0.7})
    yield from _verified(at, model, {"temperature": 0.7, "min_p": 0.1})


def _sparse(at: Engine, model: Served) -> Iterator[str]:
    """Drive the verification from what top-k leaves, of each size that its second kernel has.

    It is our patch's (sparse-verify) and off by default, so it is driven whether or not the
    variable is set here: a variant compiled in mid-serving would cost seconds.
    """
    from sglang.srt.environ import envs

    if not hasattr(envs, _SPARSE):
        return
    from sglang.srt.speculative import sparse_topk_verify

    with getattr(envs, _SPARSE).override(True):
        for size in sparse_topk_verify._SIZES:  # noqa: SLF001 - the variants are nowhere else
            yield from _verified(at, model, {"temperature": 0.7, "top_k": size.max_top_k})


def _verified(at: Engine, model: Served, sampling: dict[str, Any]) -> Iterator[str]:
    """Drive one round of one request, of two (rows of scratch are then aligned), of all."""
    for requests in sorted({1, min(2, model.requests), model.requests}):
        yield "prefill"
        batch = at.begin([_SHORT] * requests, **sampling)
        yield "verify"
        at.step(batch)
        at.end(batch)


DRIVES = (
    Drive(name="graphs", source=_GRAPHS, run=_with_engine(_graphs)),
    Drive(name="prefills", source=_REQUESTS, run=_with_engine(_prefills)),
    Drive(name="rounds", source=_REQUESTS, run=_with_engine(_rounds)),
    Drive(name="sampling-choices", source=_REQUESTS, run=_with_engine(_choices)),
    Drive(name="sparse-verify", source="srt/speculative/eagle_utils.py", run=_with_engine(_sparse)),
)
