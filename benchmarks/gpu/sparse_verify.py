"""Dense against sparse verification of a draft chain on one GPU: time, memory, equal tokens.

    ELSA_PATCHED_TREE=DIR [FLASHINFER_INCLUDE=DIR] python benchmarks/gpu/sparse_verify.py

DIR of the first is a tree with the sparse-verify patch: `sparse_topk_verify.py` and the header of
upstream's own verify kernel are read from it, nothing is imported. DIR of the second holds
`flashinfer/` with FlashInfer's headers: then the dense arm is upstream's sampling branch as it
stands, temperature division and softmax of torch, FlashInfer's two renormalisations and upstream's
verify kernel, built here with nvcc. Without it the dense arm is a proxy of torch calls and says so.

Both arms get the same fp32 logits, from several buffers in turn, so that none is left in the cache
of the card from the turn before. Coins are drawn beforehand for both. Prints one JSON document;
medians of `--runs`.
"""

import argparse
import ctypes
import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Not a dependency of the tool: present where this runs, and without types here.
torch: Any = importlib.import_module("torch")
Tensor = Any
Generator = Any
Module = Any
Arm = Any

MODULE = "python/sglang/srt/speculative/sparse_topk_verify.py"
HEADERS = "python/sglang/kernels/jit/include"
VOCAB = 248_320
NODES = 6
REQUESTS = (1, 4, 8, 12)
MIB = 1 << 20
COLD_BYTES = 256 * MIB  # several times the L2 of any card this runs on
BOUNDARY = 2e-6
DRAWS = 400_000

GLUE = r"""
#include <algorithm>
#include <cstdint>
#include <flashinfer/air_top_p.cuh>
#include <flashinfer/sampling.cuh>
#include <sgl_kernel/speculative/sampling.cuh>
namespace fi = flashinfer::sampling;

extern "C" int top_k_renorm(float* probs, float* out, int* top_k, int rows, int vocab, void* states,
                            cudaStream_t stream) {
  return fi::RadixTopKRenormProbMultiCTA<float, int>(
      probs, out, top_k, rows, 0, vocab, static_cast<fi::RadixRowState*>(states), false, stream);
}
extern "C" int top_p_renorm(float* probs, float* out, float* top_p, int rows, int vocab,
                            void* workspace, cudaStream_t stream) {
  return fi::air_top_p::AirTopPRenormProb<false, float>(probs, out, top_p, rows, 1.f, vocab,
                                                        workspace, stream);
}
extern "C" int verify(int* predict, int* accept_index, int* accepted, int64_t* candidates,
                      int64_t* index, int64_t* next, int64_t* sibling, float* coins,
                      float* final_coins, float* target, float* draft, int requests, int nodes,
                      int vocab, cudaStream_t stream) {
  constexpr uint32_t threads = 1024;
  constexpr size_t shared =
      sizeof(fi::SamplingTempStorage<threads, fi::SCAN_ALGO, fi::REDUCE_ALGO>);
  auto kernel = sglang::speculative_sampling::TreeSpeculativeSamplingTargetOnly<
      threads, fi::SCAN_ALGO, fi::REDUCE_ALGO, 4, true, float, int32_t, int64_t>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  kernel<<<requests, threads, shared, stream>>>(
      predict, accept_index, accepted, candidates, index, next, sibling, coins, final_coins, target,
      draft, requests, nodes, nodes, vocab, 1.f, 1.f);
  return cudaGetLastError();
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch of chains: everything that `verify_chain` takes but logits, and its outputs."""

    inputs: dict[str, Any]
    outputs: dict[str, Any]

    def verify(self, function: Callable[..., object], logits: object) -> None:
        """Call one of the patch's functions."""
        function(logits=logits, **self.inputs, **self.outputs)

    def answer(self, function: Callable[..., object], logits: object) -> tuple[Any, Any]:
        """Return the accepted places and the tokens at them, after a call."""
        self.outputs["predict"].zero_()
        self.outputs["accept_index"].fill_(-1)
        self.verify(function, logits)
        return self.outputs["accept_index"].clone(), self.outputs["predict"].clone()


def batch_of(logits: Tensor, *, max_top_k: int, generator: Generator, mixed: bool) -> Batch:
    """Build chains whose drafts are likely tokens: top_k, top_p, temperature alike or mixed."""
    requests = logits.shape[0] // NODES
    device = logits.device

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device, generator=generator)

    best = logits.topk(4).indices.view(requests, NODES, 4)
    rank = (rand(requests, NODES, 1) * 4).long()
    candidates = best.gather(2, rank).squeeze(-1).roll(1, dims=1).contiguous()
    top_ks = torch.full((requests,), max_top_k, dtype=torch.int32, device=device)
    top_ps = torch.full((requests,), 0.95, device=device)
    temperatures = torch.full((requests, 1), 0.7, device=device)
    if mixed:
        top_ks = (rand(requests) * max_top_k).int() + 1
        top_ps = torch.where(rand(requests) < 0.3, 1.0, 0.1 + 0.9 * rand(requests))
        temperatures = 0.3 + 1.4 * rand(requests, 1)
    places = torch.arange(requests * NODES, device=device).view(requests, NODES)
    following = torch.arange(1, NODES + 1, device=device).repeat(requests, 1)
    following[:, -1] = -1
    return Batch(
        inputs={
            "candidates": candidates,
            "retrieve_index": places,
            "retrieve_next_token": following,
            "coins": rand(requests, NODES),
            "final_coins": rand(requests),
            "temperatures": temperatures,
            "top_ks": top_ks,
            "top_ps": top_ps,
            "max_top_k": max_top_k,
            "threshold_single": 1.0,
            "threshold_acc": 1.0,
        },
        outputs={
            "predict": torch.zeros(requests * NODES, dtype=torch.int32, device=device),
            "accept_index": torch.full((requests, NODES), -1, dtype=torch.int32, device=device),
            "num_correct_drafts": torch.zeros(requests, dtype=torch.int32, device=device),
        },
    )


# --- the dense arm ------------------------------------------------------------------------------


def build(tree: Path, include: Path) -> ctypes.CDLL:
    """Compile FlashInfer's renormalisations and upstream's verify kernel for this card."""
    major, minor = torch.cuda.get_device_capability()
    arch = f"{major}{minor}a"
    folder = Path(tempfile.mkdtemp())
    (folder / "dense.cu").write_text(GLUE)
    command = ["nvcc", "-O3", "-std=c++17", "-use_fast_math", "-shared", "-Xcompiler", "-fPIC"]
    command += [f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    command += ["-DFLASHINFER_ENABLE_F16", "-DFLASHINFER_ENABLE_BF16"]
    command += [f"-I{include}", f"-I{tree / HEADERS}", "-o", "dense.so", "dense.cu"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "dense.so"))


class FlashInferDense:
    """Upstream's sampling branch (v0.5.23 eagle_sample), coins given."""

    name = "torch softmax, FlashInfer renorm kernels, upstream's verify kernel"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        # FlashInfer keeps this buffer for the life of the process, zeroed once.
        self._states = torch.zeros(MIB, dtype=torch.uint8, device="cuda")

    def _call(self, name: str, *arguments: object) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        plain = [a if isinstance(a, int) else ctypes.c_void_p(a.data_ptr()) for a in arguments]  # type: ignore[attr-defined]
        status = getattr(self._library, name)(*plain, stream)
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")

    def __call__(self, *, logits: Tensor, **batch: Tensor) -> None:
        """Verify as `verify_chain` does; `top_p` below 1 only where the batch says so."""
        rows, vocab = logits.shape
        requests, nodes = batch["retrieve_index"].shape
        probs = torch.softmax(
            logits / batch["temperatures"].repeat_interleave(nodes, dim=0), dim=-1
        )
        renormed = torch.empty_like(probs)
        top_ks = batch["top_ks"].repeat_interleave(nodes, dim=0)
        self._call("top_k_renorm", probs, renormed, top_ks, rows, vocab, self._states)
        probs = renormed
        if batch["max_top_p"] < 1:
            renormed = torch.empty_like(probs)
            top_ps = batch["top_ps"].repeat_interleave(nodes, dim=0)
            # flashinfer/sampling.py, top_p_renorm_probs: counters, histograms, two buffers.
            part = max(-(-(vocab // 32) // 256) * 256, 256)
            sizes = (384, 4 * 2048, 4 * 2048, 4 * part, 4 * part)
            workspace = torch.empty(
                sum(-(-size * rows // 256) * 256 for size in sizes),
                dtype=torch.uint8,
                device="cuda",
            )
            self._call("top_p_renorm", probs, renormed, top_ps, rows, vocab, workspace)
            probs = renormed
        self._call(
            "verify",
            batch["predict"],
            batch["accept_index"],
            batch["num_correct_drafts"],
            batch["candidates"],
            batch["retrieve_index"],
            batch["retrieve_next_token"],
            torch.full_like(batch["retrieve_index"], -1),
            batch["coins"],
            batch["final_coins"],
            probs,
            torch.zeros_like(probs),
            requests,
            nodes,
            vocab,
        )


class TorchProxy:
    """What torch alone can stand in for; what it leaves out is in its name."""

    name = "PROXY: torch softmax, top-k filter and zeros only; no top-p, no verify kernel"

    def __call__(self, *, logits: Tensor, **batch: Tensor) -> None:
        """Write what the dense branch writes before its verify kernel."""
        nodes = batch["retrieve_index"].shape[1]
        probs = torch.softmax(
            logits / batch["temperatures"].repeat_interleave(nodes, dim=0), dim=-1
        )
        kth = probs.topk(batch["max_top_k"]).values[:, -1:]
        probs = torch.where(probs >= kth, probs, 0.0)
        probs /= probs.sum(dim=-1, keepdim=True)
        torch.zeros_like(probs)


# --- time and memory ----------------------------------------------------------------------------


def elapsed_us(work: Callable[[], None], calls: int, runs: int) -> float:
    """Return the median time of one call, where `work` makes `calls` of them, in us."""
    times = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return float(statistics.median(times))


def timed(call: Callable[[object], None], buffers: Sequence[object], runs: int) -> dict[str, float]:
    """Time a call eagerly and in a CUDA graph, and take its peak memory."""

    def turn() -> None:
        for _ in range(2):
            for logits in buffers:
                call(logits)

    turn()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call(buffers[0])
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    calls = 2 * len(buffers)
    eager = elapsed_us(turn, calls, runs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turn()
    graph.replay()
    replayed = elapsed_us(graph.replay, calls, runs)
    return {
        "eager_us": round(eager, 1),
        "graph_us": round(replayed, 1),
        "peak_beyond_logits_mib": round(peak / MIB, 2),
    }


def measured(sparse: Module, dense: Arm, runs: int) -> list[dict[str, Any]]:
    """Time both arms at every batch size, with and without top-p."""
    generator = torch.Generator(device="cuda").manual_seed(23)
    lines = []
    for requests in REQUESTS:
        rows = requests * NODES
        count = max(2, math.ceil(COLD_BYTES / (rows * VOCAB * 4)))
        buffers = [
            3 * torch.randn(rows, VOCAB, device="cuda", generator=generator) for _ in range(count)
        ]
        for top_p in (0.95, 1.0):
            batch = batch_of(buffers[0], max_top_k=20, generator=generator, mixed=False)
            batch.inputs["top_ps"].fill_(top_p)
            line: dict[str, Any] = {"requests": requests, "rows": rows, "top_k": 20, "top_p": top_p}

            def dense_call(logits: object, batch: Batch = batch, top_p: float = top_p) -> None:
                dense(logits=logits, max_top_p=top_p, **batch.inputs, **batch.outputs)

            def sparse_call(logits: object, batch: Batch = batch) -> None:
                batch.verify(sparse.verify_chain, logits)

            line["dense"] = timed(dense_call, buffers, runs)
            line["sparse"] = timed(sparse_call, buffers, runs)
            line["dense_over_sparse_graph"] = round(
                line["dense"]["graph_us"] / line["sparse"]["graph_us"], 1
            )
            lines.append(line)
        del buffers
    return lines


def wider(sparse: Module, runs: int) -> list[dict[str, Any]]:
    """Time the sparse arm with other top_k, and on rows that take its slow path."""
    generator = torch.Generator(device="cuda").manual_seed(24)
    rows = REQUESTS[-1] * NODES
    normal = [3 * torch.randn(rows, VOCAB, device="cuda", generator=generator) for _ in range(4)]
    cases = {f"top_k {k}": (normal, k) for k in (1, 40, 64, 128)}
    cases["top_k 20, logits in steps of 1/8"] = ([(8 * x).round() / 8 for x in normal], 20)
    cases["top_k 20, all logits equal (slow path)"] = ([torch.zeros_like(x) for x in normal], 20)
    lines = []
    for name, (buffers, top_k) in cases.items():
        batch = batch_of(buffers[0], max_top_k=top_k, generator=generator, mixed=False)

        def call(logits: object, batch: Batch = batch) -> None:
            batch.verify(sparse.verify_chain, logits)

        lines.append({"case": name, "requests": REQUESTS[-1], **timed(call, buffers, runs)})
    return lines


# --- equality -----------------------------------------------------------------------------------


def logits_of(kind: str, requests: int, generator: Generator) -> Tensor:
    """Make logits of one kind: normal, tied by rounding, masked, or all equal."""
    x = 3 * torch.randn(requests * NODES, VOCAB, device="cuda", generator=generator)
    if kind == "steps of 1/8":
        return (8 * x).round() / 8
    if kind == "steps of 1":
        return x.round()
    if kind == "all but 0.01 % masked":
        return x.masked_fill_(
            torch.rand(VOCAB, device="cuda", generator=generator) > 1e-4, -math.inf
        )
    if kind == "all equal":
        return x.fill_(0.5)
    return x


def different(answers: tuple[Any, Any], others: tuple[Any, Any]) -> Tensor:
    """Return which requests got other tokens."""
    places, tokens = (
        (a != b).view(-1, NODES).any(dim=1) for a, b in zip(answers, others, strict=True)
    )
    return places | tokens


def equality(sparse: Module, dense: Arm) -> list[dict[str, Any]]:
    """Compare tokens for the same coins: sparse and dense against float64, per kind of logits.

    A difference is at a boundary if float64 itself answers so with every coin moved by +-2e-6.
    """
    generator = torch.Generator(device="cuda").manual_seed(25)
    lines = []
    kinds = ("normal", "steps of 1/8", "steps of 1", "all but 0.01 % masked", "all equal")
    for kind in kinds:
        for max_top_k in (20, 128):
            counts = {
                "requests": 0,
                "sparse_differs": 0,
                "sparse_differs_off_boundary": 0,
                "dense_differs": 0,
            }
            for _ in range(4):
                logits = logits_of(kind, 12, generator)
                batch = batch_of(logits, max_top_k=max_top_k, generator=generator, mixed=True)
                exact = batch.answer(sparse.verify_chain_torch, logits)
                wrong = different(batch.answer(sparse.verify_chain, logits), exact)
                counts["requests"] += 12
                counts["sparse_differs"] += int(wrong.sum())
                if wrong.any():
                    answer = batch.answer(sparse.verify_chain, logits)
                    coins = {key: batch.inputs[key].clone() for key in ("coins", "final_coins")}
                    for shift in (-BOUNDARY, BOUNDARY):
                        for key, value in coins.items():
                            batch.inputs[key].copy_((value + shift).clamp(0, 1 - 2**-24))
                        wrong &= different(batch.answer(sparse.verify_chain_torch, logits), answer)
                    for key, value in coins.items():
                        batch.inputs[key].copy_(value)
                counts["sparse_differs_off_boundary"] += int(wrong.sum())
                if isinstance(dense, FlashInferDense):

                    def with_top_p(dense: Arm = dense, **arguments: Tensor) -> None:
                        dense(max_top_p=0.0, **arguments)

                    counts["dense_differs"] += int(
                        different(batch.answer(with_top_p, logits), exact).sum()
                    )
            lines.append({"logits": kind, "max_top_k": max_top_k, **counts})
    return lines


def chi_square(sparse: Module) -> dict[str, Any]:
    """Draw from one chain many times; judge the (accepted, token) counts by chi-square."""
    generator = torch.Generator(device="cuda").manual_seed(26)
    vocab, part, nodes = 512, 40_000, 4
    logits = 2 * torch.randn(nodes, vocab, device="cuda", generator=generator)
    drafts = logits.topk(3).indices[:-1, 1]
    top_k, top_p, temperature = 20, 0.9, 0.8
    expected = torch.zeros(nodes, vocab, dtype=torch.float64)
    reach = 1.0
    for node in range(nodes):
        x = logits[node].double().cpu()
        weight = torch.where(
            x >= x.topk(top_k).values[-1], ((x - x.max()) / temperature).exp(), 0.0
        )
        weight /= weight.sum()
        above = torch.stack([weight[x > value].sum() for value in x])
        weight = torch.where(above < top_p, weight, 0.0)
        weight /= weight.sum()
        if node < nodes - 1:
            draft = int(drafts[node])
            passed = float(weight[draft])
            weight[draft] = 0.0
            expected[node] = reach * weight
            reach *= passed
        else:
            expected[node] = reach * weight
    counts = torch.zeros(nodes * vocab, dtype=torch.float64)
    candidates = torch.cat([drafts.new_zeros(1), drafts]).repeat(part, 1)
    places = torch.arange(part * nodes, device="cuda").view(part, nodes)
    following = torch.tensor([1, 2, 3, -1], device="cuda").repeat(part, 1)
    for _ in range(DRAWS // part):
        predict = torch.zeros(part * nodes, dtype=torch.int32, device="cuda")
        accepted = torch.zeros(part, dtype=torch.int32, device="cuda")
        sparse.verify_chain(
            logits=logits.repeat(part, 1),
            candidates=candidates,
            retrieve_index=places,
            retrieve_next_token=following,
            coins=torch.rand(part, nodes, device="cuda", generator=generator),
            final_coins=torch.rand(part, device="cuda", generator=generator),
            temperatures=torch.full((part, 1), temperature, device="cuda"),
            top_ks=torch.full((part,), top_k, dtype=torch.int32, device="cuda"),
            top_ps=torch.full((part,), top_p, device="cuda"),
            max_top_k=top_k,
            threshold_single=1.0,
            threshold_acc=1.0,
            predict=predict,
            accept_index=torch.full((part, nodes), -1, dtype=torch.int32, device="cuda"),
            num_correct_drafts=accepted,
        )
        token = predict.view(part, nodes).gather(1, accepted[:, None].long()).squeeze(1)
        cell = accepted.long() * vocab + token
        counts += torch.bincount(cell, minlength=nodes * vocab).double().cpu()
    expected = expected.flatten() * DRAWS
    impossible = int(counts[expected == 0].sum())
    rare = (expected > 0) & (expected < 10)
    cells = [
        (float(c), float(e))
        for c, e in zip(counts[expected >= 10], expected[expected >= 10], strict=True)
    ]
    if bool(rare.any()):
        cells.append((float(counts[rare].sum()), float(expected[rare].sum())))
    statistic = sum((c - e) ** 2 / e for c, e in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty: the cube root of chi-square over its freedom is close to normal.
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return {
        "draws": DRAWS,
        "cells": len(cells),
        "outside_the_support": impossible,
        "chi_square": round(statistic, 1),
        "p_value": round(math.erfc(z / math.sqrt(2)) / 2, 3),
    }


def main() -> int:
    """Measure, compare, print; 1 if the tokens are not the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=50, help="timed repetitions per figure")
    runs = parser.parse_args().runs
    tree = Path(os.environ["ELSA_PATCHED_TREE"]).resolve()
    spec = importlib.util.spec_from_file_location("sparse_topk_verify", tree / MODULE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(tree / MODULE)
    sparse = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = sparse
    spec.loader.exec_module(sparse)
    include = os.environ.get("FLASHINFER_INCLUDE")
    dense = FlashInferDense(build(tree, Path(include).resolve())) if include else TorchProxy()
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "card": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "triton": importlib.import_module("triton").__version__,
            "python": sys.version.split()[0],
        },
        "vocab": VOCAB,
        "nodes": NODES,
        "runs": runs,
        "dense_arm": dense.name,
        "times": measured(sparse, dense, runs),
        "sparse_elsewhere": wider(sparse, runs),
        "equality": equality(sparse, dense),
        "chi_square": chi_square(sparse),
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")
    off = sum(line["sparse_differs_off_boundary"] for line in result["equality"])
    return 1 if off or result["chi_square"]["p_value"] < 1e-4 else 0


if __name__ == "__main__":
    sys.exit(main())
