"""Launches kernels of a patched tree on a GPU and compares what they compute with torch; one run.

    PYTHONPATH=TREE/python python benchmarks/gpu/kernel_launches.py [--case NAME ...]
    PYTHONPATH=TREE/python:... python benchmarks/gpu/kernel_launches.py --asked TARGET.json

This is the program that `prebuilt_kernels.py` beside it boots through the gate; it needs no bundle.
Shapes are those of Qwen3.6-35B-A3B as the recipe elsa-1.7 serves it, and each launch goes through
the patched tree's own wrapper, so that what is looked up is what the server looks up.

All cases launch first, and only then is anything compared: `ready_s` is the time from the start of
the process to the end of the last launch. An `error` is the largest difference from the reference
over the largest value of the reference, or the number of wrong elements (requests, of a sparse
verification) where nothing but equality is right; the references are in float64.

With `--asked`, nothing runs: under the stub of the card that TARGET.json describes
(`Target.document()`), prints the specialisations that a run would ask for. That needs no GPU.

Prints one JSON document. Exit code 1 if a case fails or is wrong.
"""

import argparse
import importlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparse_verify

# torch has no types where mypy runs, and must come after the stub of a card.
Tensor = Any
Check = Callable[[], dict[str, float]]
torch: Any = None

OPS = "sglang.kernels.ops"
LAYERS, SLOTS = 30, 50
KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128
CONV_DIM, CONV_WIDTH = 8192, 4
PROJECTED = CONV_DIM + VALUE_HEADS * DIM  # one projection gives q, k, v and the gate z
REQUESTS, HIDDEN = 12, 2048
PROMPTS = ([33, 5], [64] + [1] * (REQUESTS - 1), [513])
TOP_KS = (20, 40, 100)  # one for each variant of the sparse verification's second kernel

CLOSE = 2e-2  # bfloat16 results after a few hundred steps, against float64
ROUNDED = 8e-3  # one rounding to bfloat16


def main() -> int:
    """Launch, compare, print; 1 if something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this; repeat for more")
    parser.add_argument("-o", "--output", type=Path, help="write here as well")
    parser.add_argument("--asked", type=Path, metavar="FILE", help="a target, as JSON")
    options = parser.parse_args()
    names = options.case or list(CASES)
    found = asked(options.asked, names) if options.asked else launched(names)
    text = json.dumps(found, indent=1) + "\n"
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    wrong = [one for one in found.get("cases", {}).values() if not one.get("right", True)]
    return 1 if wrong or found.get("failed") else 0


def asked(target: Path, names: list[str]) -> dict[str, Any]:
    """Return the specialisations that the cases ask for on a card that is not there."""
    from elsa_build.kernels.inside import gpu  # noqa: PLC0415 - only without a GPU
    from elsa_build.kernels.inside.capture import capturing  # noqa: PLC0415 - same
    from elsa_build.kernels.inside.whereabouts import tensors_anywhere  # noqa: PLC0415 - same

    card = json.loads(target.read_text(encoding="utf-8"))
    gpu.install(card)
    started()
    failed = {}
    with capturing() as found, tensors_anywhere():
        for name in (one for one in names if one not in MODULES):
            found.why = name
            try:
                CASES[name]()
            except Exception:  # noqa: BLE001 - one case must not hide the others
                failed[name] = traceback.format_exc()
    return {"kernels": list(found.kernels.values()), "failed": failed}


def launched(names: list[str]) -> dict[str, Any]:
    """Return when the launches were done, and how far each case is from its reference."""
    started()
    torch.manual_seed(17)
    imported = age_s()
    failed, checks, took = {}, {}, {}
    for name in names:
        before = time.perf_counter()
        try:
            checks[name] = CASES[name]()
            torch.cuda.synchronize()
        except Exception as e:  # noqa: BLE001 - one case must not hide the others
            failed[name] = f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')}"
            traceback.print_exc()
        took[name] = round(time.perf_counter() - before, 3)
    ready = age_s()
    cases = {}
    for name, check in checks.items():
        errors = check()
        cases[name] = {
            "errors": {key: float(f"{value:.3g}") for key, value in errors.items()},
            "allowed": ALLOWED.get(name, 0.0),
            "right": all(value <= ALLOWED.get(name, 0.0) for value in errors.values()),
        }
    return {
        "card": torch.cuda.get_device_name(),
        "imported_s": imported,
        "ready_s": ready,
        "took_s": took,
        "writable": [name for name in CACHES if writable(os.environ.get(name))],
        "cases": cases,
        "failed": failed,
    }


CACHES = ("TRITON_CACHE_DIR", "SGLANG_JIT_CACHE_DIR")


def writable(folder: str | None) -> bool:
    """Say whether a cache can be written, by writing."""
    if not folder:
        return False
    path = Path(folder, f".probe-{os.getpid()}")
    try:
        path.touch()
        path.unlink()
    except OSError:
        return False
    return True


def age_s() -> float:
    """Return how long this process has been running, seconds."""
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    uptime = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    return round(uptime - int(fields[19]) / os.sysconf("SC_CLK_TCK"), 2)


def started() -> None:
    """Import torch for this module and for the one whose batches we use."""
    global torch  # noqa: PLW0603 - the stub of a card comes before it, if there is one
    torch = importlib.import_module("torch")
    torch.set_grad_enabled(mode=False)


def op(module: str, name: str) -> Any:  # noqa: ANN401 - upstream's own
    """Return a function of one of upstream's modules of kernels."""
    return getattr(importlib.import_module(module), name)


# --- how far from the reference -------------------------------------------------------------------


def distance(actual: Tensor, expected: Tensor) -> float:
    """Return the largest difference over the largest value that is expected."""
    expected = expected.double()
    return float((actual.double() - expected).abs().max() / expected.abs().max())


def unequal(actual: Tensor, expected: Tensor) -> float:
    """Return the number of elements that differ, bit by bit where they are bfloat16."""
    return float((actual != expected).sum())


# --- our kernels ------------------------------------------------------------------------------


def copy_slots() -> Check:
    """Copy states between slots, ids of both types, through the patch's own decision."""
    os.environ["SGLANG_MAMBA_SLOT_COPY_SCRATCH_MB"] = "-1"
    copied = op("sglang.srt.mem_cache.direct_slot_copy", "copied_directly")
    pool, expected = states(9), []
    for dtype, first in ((torch.int64, 1), (torch.int32, 5)):
        src = torch.arange(first, first + 4, device="cuda", dtype=dtype)
        dst = src + 20
        expected.append((pool[:, src.long()].clone(), dst.long()))
        if not copied(pool, src, dst, disjoint=True):
            raise RuntimeError("the copy was left to the other way")
    untouched = pool[:, [0, 10, 40]].clone()

    def check() -> dict[str, float]:
        wrong = sum(unequal(pool[:, dst], values) for values, dst in expected)
        return {"copied": wrong, "untouched": unequal(untouched, torch.zeros_like(untouched))}

    return check


def sparse_verification() -> Check:
    """Verify chains with each variant of the second kernel, alone and at all requests."""
    verify = op("sglang.srt.speculative.sparse_topk_verify", "verify_chain")
    asked_for = []
    for requests in (1, REQUESTS):
        logits = 3 * torch.randn(requests * sparse_verify.NODES, sparse_verify.VOCAB, device="cuda")
        for top_k in TOP_KS:
            batch = sparse_verify.batch_of(logits, max_top_k=top_k, generator=None, mixed=True)
            batch.verify(verify, logits)
            asked_for.append((f"top-k {top_k}, {requests} requests", batch, logits))

    def check() -> dict[str, float]:
        return {name: wrong_requests(batch, logits) for name, batch, logits in asked_for}

    return check


def wrong_requests(batch: sparse_verify.Batch, logits: Tensor) -> float:
    """Return how many requests got tokens that the dense way gives for none of three coins.

    A kernel works in float32, so a coin that lies on a boundary may fall to its other side.
    """
    wrong = torch.ones(logits.shape[0] // sparse_verify.NODES, dtype=torch.bool, device="cuda")
    for shift in (0.0, -sparse_verify.BOUNDARY, sparse_verify.BOUNDARY):
        accepted, token = dense(batch.inputs, logits, shift)
        got = batch.outputs["num_correct_drafts"].long()
        places = batch.inputs["retrieve_index"].gather(1, got[:, None]).squeeze(1)
        drawn = batch.outputs["predict"].long()[places]
        wrong &= (got != accepted) | (drawn != token)
    return float(wrong.sum())


def dense(given: dict[str, Tensor], logits: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """Return drafts accepted and the token after them, over the whole vocabulary in float64.

    As upstream does: temperature, softmax, top-k, top-p, then the walk of a chain.
    """
    requests, nodes = given["candidates"].shape
    hot = given["temperatures"].double().view(requests, 1, 1)
    probs = torch.softmax(logits.double().view(requests, nodes, -1) / hot, dim=-1)
    order = probs.sort(dim=-1, descending=True)
    rank = torch.arange(probs.shape[-1], device="cuda")
    kept = torch.where(rank < given["top_ks"].view(-1, 1, 1), order.values, 0.0)
    kept /= kept.sum(-1, keepdim=True)
    above = kept.cumsum(-1) - kept
    kept = torch.where(above < given["top_ps"].double().view(-1, 1, 1), kept, 0.0)
    kept /= kept.sum(-1, keepdim=True)
    probs = torch.zeros_like(probs).scatter_(-1, order.indices, kept)
    drafts = given["candidates"].roll(-1, dims=1)
    p_draft = probs.gather(-1, drafts[..., None]).squeeze(-1)
    coins = (given["coins"].double() + shift).clamp(0, 1)
    passed = (coins < p_draft) & (p_draft > 0)
    passed[:, -1] = False
    accepted = passed.int().cumprod(dim=1).sum(dim=1)
    last = probs.gather(1, accepted.view(-1, 1, 1).expand(-1, 1, probs.shape[-1])).squeeze(1)
    refused = drafts.gather(1, accepted[:, None])
    bad = torch.where(accepted[:, None] < nodes - 1, 0.0, last.gather(1, refused))
    last = last.scatter(1, refused, bad)
    coin = (given["final_coins"].double() + shift).clamp(0, 1)[:, None] * last.sum(-1, keepdim=True)
    token = ((last.cumsum(-1) > coin) & (last > 0)).int().argmax(-1)
    return accepted, token


# --- upstream's: gated delta net ------------------------------------------------------------------


def states(filled: int) -> Tensor:
    """Return the pool of temporal states, the first slots but 0 filled."""
    pool = torch.zeros(LAYERS, SLOTS, VALUE_HEADS, DIM, DIM, device="cuda", dtype=torch.bfloat16)
    if filled:
        pool[:, 1:filled] = 0.1 * torch.randn(1, filled - 1, *pool.shape[2:], device="cuda")
    return pool


def conv_pool() -> Tensor:
    """Return the pool of convolution states, all filled."""
    shape = (LAYERS, SLOTS, CONV_DIM, CONV_WIDTH - 1)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def gates() -> tuple[Tensor, Tensor]:
    """Return a layer's A_log and dt_bias."""
    a_log = torch.rand(VALUE_HEADS, device="cuda")
    return a_log, torch.rand(VALUE_HEADS, device="cuda", dtype=torch.bfloat16)


def gdn_prefill() -> Check:
    """Prefill prompts: convolution, split, gates, and the delta rule in chunks.

    Source: sglang v0.5.23 srt/layers/attention/linear/gdn_backend.py, forward_extend.
    """
    runs = [prefill(lengths) for lengths in PROMPTS]

    def check() -> dict[str, float]:
        errors: dict[str, float] = {}
        for run in runs:
            for name, value in run().items():
                errors[name] = max(errors.get(name, 0.0), value)
        return errors

    return check


def prefill(lengths: list[int]) -> Check:
    """Prefill prompts of these lengths, every other one with a state that it goes on from."""
    tokens, bfloat16 = sum(lengths), torch.bfloat16
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).cuda()
    slots = torch.arange(1, len(lengths) + 1, dtype=torch.int32, device="cuda")
    going_on = slots % 2 == 0
    mixed = torch.randn(tokens, PROJECTED, device="cuda", dtype=bfloat16)[:, :CONV_DIM]
    weight = torch.randn(CONV_DIM, CONV_WIDTH, device="cuda", dtype=bfloat16)
    windows, pool = conv_pool()[0], states(len(lengths) + 1)[0]
    pool[slots[~going_on].long()] = 0
    before = windows.clone(), pool.clone()
    a, b = (torch.randn(tokens, VALUE_HEADS, device="cuda", dtype=bfloat16) for _ in range(2))
    a_log, bias = gates()

    table = block_table(lengths)
    convolved = op(f"{OPS}.mamba.causal_conv1d_triton", "causal_conv1d_fn")(
        mixed.transpose(0, 1),
        weight,
        None,
        activation="silu",
        conv_states=windows,
        has_initial_state=going_on,
        cache_indices=slots,
        query_start_loc=ends,
        seq_lens_cpu=lengths,
        **({} if table is None else {"block_table": table}),
    ).transpose(0, 1)
    q, k, v = op(f"{OPS}.attention.triton_gdn_fused_proj", "fused_qkv_split_gdn_prefill")(
        convolved, KEY_HEADS, KEY_HEADS, VALUE_HEADS, DIM, DIM, DIM
    )
    g, beta = op(f"{OPS}.attention.linear.fused_gdn_gating", "fused_gdn_gating")(a_log, a, b, bias)
    out, _, _ = op(f"{OPS}.attention.fla.chunk", "chunk_gated_delta_rule")(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        initial_state=pool,
        initial_state_indices=slots,
        cu_seqlens=ends,
        head_first=False,
        use_qk_l2norm_in_kernel=True,
    )

    def check() -> dict[str, float]:
        apart = convolved.split([KEY_HEADS * DIM, KEY_HEADS * DIM, VALUE_HEADS * DIM], dim=-1)
        split = sum(
            unequal(ours[0].flatten(1), theirs)
            for ours, theirs in zip((q, k, v), apart, strict=True)
        )
        log_decay, write = gates_of(a, b, a_log, bias)
        found = {
            **conv_errors(mixed, weight, before[0], windows, convolved, lengths, going_on),
            "split": split,
            "gate": distance(g[0], log_decay),
            "beta": distance(beta[0], write),
        }
        expected, ended = [], before[1].double()
        for number, (begin, length) in enumerate(zip(ends.tolist(), lengths, strict=False)):
            of = slice(begin, begin + length)
            said, ended[number + 1] = recurrence(
                q[0, of], k[0, of], v[0, of], log_decay[of], write[of], before[1][number + 1]
            )
            expected.append(said)
        found["output"] = distance(out[0], torch.cat(expected))
        found["final state"] = distance(pool, ended)
        return found

    return check


def block_table(lengths: list[int]) -> Tensor | None:
    """Return the convolution's table of blocks where upstream's backend makes one.

    Source: the same file, _init_prefill_conv_block_table.
    """
    rows = op(f"{OPS}.mamba.causal_conv1d_triton", "CAUSAL_CONV1D_FWD_BLOCK_M")
    counts = [-(-length // rows) for length in lengths]
    if len(counts) * max(counts) <= 4 * sum(counts):
        return None
    pairs = [(i, block) for i, count in enumerate(counts) for block in range(count)]
    return torch.tensor(pairs, dtype=torch.int32).cuda()


def conv_errors(
    mixed: Tensor,
    weight: Tensor,
    before: Tensor,
    after: Tensor,
    convolved: Tensor,
    lengths: list[int],
    going_on: Tensor,
) -> dict[str, float]:
    """Compare a convolution with torch's, and the windows that it leaves."""
    outputs, wrong = [], 0.0
    for number, rows in enumerate(mixed.split(lengths)):
        window = before[number + 1] if going_on[number] else torch.zeros_like(before[0])
        line = torch.cat([window, rows.transpose(0, 1)], dim=1)
        wide = torch.nn.functional.conv1d(
            line.double()[None], weight.double()[:, None], groups=CONV_DIM
        )
        outputs.append(torch.nn.functional.silu(wide[0]).transpose(0, 1))
        wrong += unequal(after[number + 1], line[:, -(CONV_WIDTH - 1) :])
    return {"convolution": distance(convolved, torch.cat(outputs)), "windows": wrong}


def gates_of(a: Tensor, b: Tensor, a_log: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the decay and the strength of the write, in float64."""
    rise = torch.nn.functional.softplus(a.double() + bias.double())
    return -a_log.double().exp() * rise, torch.sigmoid(b.double())


def recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, write: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gated delta rule's outputs and last state, token by token in float64.

    Args:
        q: [tokens, key heads, dim], not normalised.
        k: As q.
        v: [tokens, value heads, dim].
        log_decay: [tokens, value heads].
        write: As log_decay.
        state: [value heads, dim of v, dim of k].
    """
    group = VALUE_HEADS // KEY_HEADS
    q, k = (normalised(one).repeat_interleave(group, dim=1) for one in (q, k))
    state, outputs = state.double(), []
    for step in range(q.shape[0]):
        state = state * log_decay[step].exp()[:, None, None]
        seen = (state * k[step][:, None, :]).sum(-1)
        news = (v[step].double() - seen) * write[step][:, None]
        state = state + news[:, :, None] * k[step][:, None, :]
        outputs.append((state * q[step][:, None, :]).sum(-1) / math.sqrt(DIM))
    return torch.stack(outputs), state


def normalised(x: Tensor) -> Tensor:
    """Return vectors of length one, in float64."""
    x = x.double()
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def packed_decode() -> Check:
    """Decode one token of each request."""
    pool = states(REQUESTS + 1)[0]
    before = pool.clone()
    mixed = torch.randn(REQUESTS, CONV_DIM, device="cuda", dtype=torch.bfloat16)
    a, b = (torch.randn(REQUESTS, VALUE_HEADS, device="cuda").bfloat16() for _ in range(2))
    a_log, bias = gates()
    slots = torch.arange(1, REQUESTS + 1, dtype=torch.int32, device="cuda")
    out = mixed.new_empty(REQUESTS, 1, VALUE_HEADS, DIM)
    op(f"{OPS}.attention.fla.fused_recurrent", "fused_recurrent_gated_delta_rule_packed_decode")(
        mixed_qkv=mixed,
        a=a,
        b=b,
        A_log=a_log,
        dt_bias=bias,
        scale=DIM**-0.5,
        initial_state=pool,
        out=out,
        ssm_state_indices=slots,
        use_qk_l2norm_in_kernel=True,
    )

    def check() -> dict[str, float]:
        heads = mixed.view(REQUESTS, -1, DIM)
        q, k, v = heads.split([KEY_HEADS, KEY_HEADS, VALUE_HEADS], dim=1)
        log_decay, write = gates_of(a, b, a_log, bias)
        expected, ended = [], before.double()
        for i in range(REQUESTS):
            of = slice(i, i + 1)
            said, ended[i + 1] = recurrence(
                q[of], k[of], v[of], log_decay[of], write[of], before[i + 1]
            )
            expected.append(said)
        return {
            "output": distance(out[:, 0], torch.cat(expected)),
            "states": distance(pool, ended),
        }

    return check


def gated_norm() -> Check:
    """Normalise the heads of a layer's output and gate them."""
    norm = op(f"{OPS}.attention.fla.layernorm_gated", "RMSNorm")(
        DIM, eps=1e-6, norm_before_gate=True, device="cuda", dtype=torch.bfloat16
    )
    norm.weight.copy_(torch.randn(DIM, device="cuda"))
    sizes = (1, 12, 38)  # tokens: one, two and four rows a block
    x, z = (
        [torch.randn(n * VALUE_HEADS, DIM, device="cuda", dtype=torch.bfloat16) for n in sizes]
        for _ in range(2)
    )
    outputs = [norm(one, gate) for one, gate in zip(x, z, strict=True)]

    def check() -> dict[str, float]:
        worst = 0.0
        for one, gate, out in zip(x, z, outputs, strict=True):
            wide, opening = one.double(), gate.double()
            scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
            expected = wide * scale * norm.weight.double() * opening * torch.sigmoid(opening)
            worst = max(worst, distance(out, expected))
        return {"output": worst}

    return check


# --- upstream's: slots, and modules of nvcc's families ------------------------------------------


def fused_slots() -> Check:
    """Copy and clear slots of the convolution's states."""
    home = "sglang.srt.mem_cache.mamba_slot_fused"
    pool = conv_pool()
    before = pool.clone()
    described = op(home, "build_conv_slot_descriptor")([pool])
    src, dst, cleared = (
        torch.arange(at, at + 4, device="cuda", dtype=torch.int64) for at in (1, 11, 21)
    )
    op(home, "fused_copy_conv_slots")(described, src, dst)
    op(home, "fused_clear_conv_slots")(described, cleared)

    def check() -> dict[str, float]:
        before[:, dst] = before[:, src]
        before[:, cleared] = 0
        return {"pool": unequal(pool, before)}

    return check


def clamp_position() -> Check:
    """Compute positions with a module of SGLang's own JIT."""
    lengths = torch.tensor([0, 1, 2, 7, 262_144], device="cuda", dtype=torch.int64)
    found = op(f"{OPS}.attention.clamp_position", "clamp_position_cuda")(lengths)
    return lambda: {"positions": unequal(found, (lengths - 1).clamp(min=0))}


def flashinfer_norm() -> Check:
    """Normalise hidden states with a module of FlashInfer's."""
    x = torch.randn(38, HIDDEN, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(HIDDEN, device="cuda", dtype=torch.bfloat16)
    found = op("flashinfer.norm", "rmsnorm")(x, weight, eps=1e-6)

    def check() -> dict[str, float]:
        wide = x.double()
        scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return {"output": distance(found, wide * scale * weight.double())}

    return check


MODULES = ("clamp_position", "flashinfer_norm")
"""Of nvcc's families: nothing of them is specialised at a launch."""
CASES: dict[str, Callable[[], Check]] = {
    "copy_slots": copy_slots,
    "sparse_verification": sparse_verification,
    "gdn_prefill": gdn_prefill,
    "packed_decode": packed_decode,
    "gated_norm": gated_norm,
    "fused_slots": fused_slots,
    "clamp_position": clamp_position,
    "flashinfer_norm": flashinfer_norm,
}
ALLOWED = {
    "gdn_prefill": CLOSE,
    "packed_decode": ROUNDED,
    "gated_norm": ROUNDED,
    "flashinfer_norm": ROUNDED,
}
"""The largest error of a case that is not exact."""


if __name__ == "__main__":
    sys.exit(main())
