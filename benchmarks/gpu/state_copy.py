"""Copying Mamba states between slots on a GPU: upstream's statement, in parts, directly; one run.

    python benchmarks/gpu/state_copy.py --tree .cache/patched -o state_copy.json

Needs torch and Triton with a GPU, and a tree with the patches chunked-state-copy and
direct-state-copy: their modules are loaded by path, sglang itself is not imported. The states are
those of Qwen3.6-35B-A3B: 30 layers of 1 MiB in bfloat16 a slot, 65 slots.

Times are medians. `us` is the time on the card: the copies wait in a queue behind a kernel that
only spins, so the host's time to launch them does not count. `idle_us` is one copy on an idle card,
launch included. Slots rotate, so that no copy finds its sources in the L2 cache. `peak_mib` is what
the caching allocator handed out during one copy. A rate counts bytes read and bytes written.

Prints one JSON document. Exit code 1 if a check fails or a figure misses what it must reach.
"""

import argparse
import datetime as dt
import hashlib
import importlib
import json
import statistics
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]
import triton  # type: ignore[import-not-found,unused-ignore]

# torch is not installed where mypy runs.
Tensor = Any
Dtype = Any
Event = Any
Copy = Callable[[Tensor, Tensor, Tensor], None]

LAYERS, SLOTS, SHAPE = 30, 65, (32, 128, 128)
ENTRY_BYTES = 32_931_840  # a slot of the unified pool: temporal and conv state of all layers
COUNTS = (1, 4, 8, 12, 16)
CEILING_MIB = 60
MIB = 1 << 20

MAX_CHUNKED_RATIO = 1.05
MIN_SPEEDUP_AT_8 = 5.0
MIN_SHARE_OF_COPY_RATE_AT_8 = 0.6

PATCHED = (
    "srt/mem_cache/bounded_slot_copy.py",
    "srt/mem_cache/direct_slot_copy.py",
    "kernels/ops/kvcache/copy_slots.py",
)


# --- the patched modules ------------------------------------------------------------------------


@dataclass
class Setting:
    """One environment switch of sglang, as its modules read it."""

    value: int | bool

    def get(self) -> int | bool:
        """Return the value now."""
        return self.value


class Patched:
    """The modules of a patched tree, with their switches."""

    def __init__(self, tree: Path) -> None:
        self.package = tree / "python" / "sglang"
        self.switch = Setting(CEILING_MIB)
        self.debug = Setting(value=False)
        self._stand_in()
        self.bounded = importlib.import_module("sglang.srt.mem_cache.bounded_slot_copy")
        self.direct = importlib.import_module("sglang.srt.mem_cache.direct_slot_copy")
        self.kernel = importlib.import_module("sglang.kernels.ops.kvcache.copy_slots")
        self.pages = importlib.import_module("sglang.kernels.ops.kvcache.copy_pages")

    def _stand_in(self) -> None:
        """Put packages in place that hold the tree's files but run no `__init__` of it."""
        for name in ("", "srt", "srt.mem_cache", "kernels", "kernels.ops", "kernels.ops.kvcache"):
            module = types.ModuleType(f"sglang.{name}".rstrip("."))
            module.__path__ = [str(self.package.joinpath(*name.split(".")))]
            sys.modules[module.__name__] = module
        environ = types.ModuleType("sglang.srt.environ")
        environ.envs = types.SimpleNamespace(  # type: ignore[attr-defined]
            SGLANG_MAMBA_SLOT_COPY_SCRATCH_MB=self.switch, SGLANG_DEBUG_MEMORY_POOL=self.debug
        )
        sys.modules[environ.__name__] = environ

    def layered(self, mib: int, *, disjoint: bool = True) -> Copy:
        """Return the copy of a per-layer state under one setting of the switch."""

        def copy(state: Tensor, src: Tensor, dst: Tensor) -> None:
            self.switch.value = mib
            self.bounded.copy_layered_slots(state, src, dst, disjoint=disjoint)

        return copy

    def entries(self, mib: int) -> Copy:
        """Return the copy of whole slot entries under one setting of the switch."""

        def copy(state: Tensor, src: Tensor, dst: Tensor) -> None:
            self.switch.value = mib
            self.bounded.copy_entry_slots(state, src, dst, disjoint=True)

        return copy

    def variants(self) -> int:
        """Return how many variants of the kernel have been compiled."""
        caches = self.kernel._copy_slots_kernel.device_caches.values()  # noqa: SLF001
        return sum(len(cache[0]) for cache in caches)


def statement(state: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy as upstream does (sglang v0.5.23 srt/mem_cache/memory_pool.py MambaPool.copy_from)."""
    state[:, dst] = state[:, src]


def entry_statement(entries: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copy as upstream does (v0.5.23 srt/mem_cache/unified_memory_pool.py UnifiedMambaPool)."""
    entries[dst] = entries[src]


# --- time and memory ----------------------------------------------------------------------------


def event() -> Event:
    """Return a CUDA event that keeps time."""
    return torch.cuda.Event(enable_timing=True)


def queued_us(calls: Sequence[Callable[[], object]], *, times: int = 24) -> list[float]:
    """Return microseconds on the card of each call, with the queue never empty."""
    spin_cycles = 40_000_000
    while True:
        marks = [(event(), event()) for _ in range(times)]
        gate = event()
        torch.cuda.synchronize()
        torch.cuda._sleep(spin_cycles)  # noqa: SLF001
        gate.record()
        for i, (begin, end) in enumerate(marks):
            begin.record()
            calls[i % len(calls)]()
            end.record()
        filled = not gate.query()
        torch.cuda.synchronize()
        if filled:
            return [begin.elapsed_time(end) * 1e3 for begin, end in marks]
        spin_cycles *= 2


def idle_us(calls: Sequence[Callable[[], object]], *, times: int = 24) -> list[float]:
    """Return microseconds of each call on an idle card, the host's launch included."""
    taken = []
    for i in range(times):
        begin, end = event(), event()
        torch.cuda.synchronize()
        begin.record()
        calls[i % len(calls)]()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3)
    return taken


def peak_mib(call: Callable[[], object]) -> float:
    """Return the most memory that one call had from the caching allocator at once, MiB."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return round(int(torch.cuda.max_memory_allocated() - before) / MIB, 3)


def summary(samples: Iterable[float]) -> tuple[float, list[float]]:
    """Return the median and the quartiles, microseconds."""
    low, median, high = statistics.quantiles(samples, n=4)
    return round(median, 1), [round(low, 1), round(high, 1)]


def copy_rate() -> dict[str, float]:
    """Return the card's own rate of a large contiguous copy, TB/s, and that of 240 MiB."""
    rates = {}
    for mib in (240, 1024, 4096):
        sources = [torch.randn(mib << 18, device="cuda") for _ in range(2)]
        targets = [torch.empty_like(source) for source in sources]
        calls = [partial(t.copy_, s) for s, t in zip(sources, targets, strict=True)]
        queued_us(calls, times=4)
        median, _ = summary(queued_us(calls))
        rates[f"{mib}_mib"] = round(2 * mib * MIB / median / 1e6, 3)
    return rates | {"best": max(rates.values())}


def slot_sets(n: int, dtype: Dtype = None) -> list[tuple[Tensor, Tensor]]:
    """Return disjoint slot lists, as many as fit, none with a slot of another."""
    ids = torch.randperm(SLOTS - 1, generator=torch.Generator().manual_seed(n)) + 1
    ids = ids.to("cuda", dtype or torch.int64)
    starts = range(0, SLOTS - 2 * n, 2 * n)
    return [(ids[i : i + n], ids[i + n : i + 2 * n]) for i in starts]


def compare(state: Tensor, arms: dict[str, Copy], n: int) -> dict[str, dict[str, object]]:
    """Time all arms at n states, in turn, three rounds."""
    calls = {
        name: [partial(copy, state, src, dst) for src, dst in slot_sets(n)]
        for name, copy in arms.items()
    }
    peaks = {name: peak_mib(arm[0]) for name, arm in calls.items()}
    on_card: dict[str, list[float]] = {name: [] for name in arms}
    from_idle: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(3):
        for name, arm in calls.items():
            queued_us(arm, times=3)
            on_card[name] += queued_us(arm)
            from_idle[name] += idle_us(arm)
    moved = 2 * n * (state[:, 0].nbytes if state.dim() > 2 else state[0].nbytes)
    table = {}
    for name in arms:
        median, quartiles = summary(on_card[name])
        idle, _ = summary(from_idle[name])
        table[name] = {
            "us": median,
            "quartiles_us": quartiles,
            "idle_us": idle,
            "tb_s": round(moved / median / 1e6, 3),
            "peak_mib": peaks[name],
        }
    return table


# --- same result --------------------------------------------------------------------------------


def envelope(dtype: Dtype) -> tuple[Tensor, Tensor]:
    """Return a buffer and the strided state in it: slots first, a gap behind every slot."""
    words = SHAPE[0] * SHAPE[1] * SHAPE[2]
    row = LAYERS * words + 4096
    raw = torch.randn(SLOTS * row, device="cuda").to(dtype)
    inner = (SHAPE[1] * SHAPE[2], SHAPE[2], 1)
    return raw, raw.as_strided((LAYERS, SLOTS, *SHAPE), (words, row, *inner))


def equal_after(copy: Copy, raw: Tensor, state: Tensor, src: Tensor, dst: Tensor) -> bool:
    """Say whether a copy leaves every byte of the buffer as upstream's statement would."""
    before = raw.clone()
    statement(state, src, dst)
    expected = raw.clone()
    raw.copy_(before)
    copy(state, src, dst)
    # As bits: a state may hold NaN, which equals nothing.
    return bool(torch.equal(raw.view(torch.uint8), expected.view(torch.uint8)))


def check_equality(patched: Patched) -> dict[str, bool]:
    """Compare the ways of copying with upstream's statement on the card."""
    direct, chunked = patched.layered(-CEILING_MIB), patched.layered(CEILING_MIB)
    found: dict[str, bool] = {}
    for dtype in (torch.bfloat16, torch.float32):
        plain = torch.randn(LAYERS, SLOTS, *SHAPE, device="cuda").to(dtype)
        for layout, raw, state in (("contiguous", plain, plain), ("strided", *envelope(dtype))):
            for ids in (torch.int32, torch.int64):
                for n in (1, 12, 16):
                    src, dst = slot_sets(n, ids)[0]
                    key = f"{layout} {str(dtype)[6:]} {str(ids)[6:]} ids n={n}"
                    found[f"direct {key}"] = equal_after(direct, raw, state, src, dst)
                    found[f"chunked {key}"] = equal_after(chunked, raw, state, src, dst)
            shared = torch.tensor([3, 3, 3, 5], device="cuda")
            found[f"direct {layout} {str(dtype)[6:]} shared source"] = equal_after(
                direct, raw, state, shared, torch.tensor([7, 9, 64, 1], device="cuda")
            )
            one = torch.tensor([4], device="cuda")
            found[f"direct {layout} {str(dtype)[6:]} one onto itself"] = equal_after(
                direct, raw, state, one, one
            )
            del raw, state
        del plain
    return found


def check_large(patched: Patched) -> dict[str, bool]:
    """Copy in a state of more than 2^31 elements, to and from its last slots."""
    slots = 150
    state = torch.empty(LAYERS, slots, *SHAPE, device="cuda", dtype=torch.bfloat16)
    state.view(torch.int16).random_(-(1 << 14), 1 << 14)
    if state.numel() <= 1 << 31:
        raise AssertionError("the state is not large enough to show a 32-bit offset")
    src = torch.tensor([0, 149, 77, 3], device="cuda", dtype=torch.int32)
    dst = torch.tensor([148, 1, 147, 146], device="cuda", dtype=torch.int32)
    same = equal_after(patched.layered(-CEILING_MIB), state, state, src, dst)
    return {f"direct {state.numel():,} elements": same}


def check_rules(patched: Patched) -> dict[str, bool]:
    """See that overlap takes the other way, that promises are checked, and that none waits."""
    state = torch.randn(LAYERS, SLOTS, *SHAPE, device="cuda").bfloat16()
    patched.direct.warm_up(state)
    counts = patched.direct.counts
    unpromised = patched.layered(-CEILING_MIB, disjoint=False)
    promised = patched.layered(-CEILING_MIB)
    chain = torch.arange(1, 10, device="cuda")
    found = {}
    for name, src, dst in (
        ("chain", chain[:-1], chain[1:]),
        ("reverse chain", chain[1:], chain[:-1]),
        ("rotation", chain, chain.roll(1)),
    ):
        before = counts.direct
        same = equal_after(unpromised, state, state, src, dst)
        found[f"{name} without a promise: equal, not direct"] = same and counts.direct == before
    src, dst = slot_sets(8)[0]
    before = counts.direct
    torch.cuda.set_sync_debug_mode("error")
    try:
        promised(state, src, dst)
        unpromised(state, src, dst)
        unpromised(state, src[:1], dst[:1])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found["no copy waits for the card"] = counts.direct == before + 2
    patched.debug.value = True
    try:
        promised(state, chain[:-1], chain[1:])
        found["a wrong promise is an assertion under the debug flag"] = False
    except AssertionError:
        found["a wrong promise is an assertion under the debug flag"] = True
    patched.debug.value = False
    return found


def check_variants(patched: Patched) -> dict[str, object]:
    """See that nothing compiles after a pool's warm-up, whatever the number of slots."""
    state = torch.randn(LAYERS, SLOTS, *SHAPE, device="cuda").bfloat16()
    patched.switch.value = -CEILING_MIB
    patched.direct.warm_up(state)
    warmed = patched.variants()
    copy = patched.layered(-CEILING_MIB)
    for dtype in (torch.int32, torch.int64):
        ids = torch.arange(SLOTS, device="cuda", dtype=dtype)
        for n in range(1, 32):
            for start in (0, 1):  # ids at another alignment
                copy(state, ids[start : start + n], ids[start + n : start + 2 * n])
        copy(state, ids[0:16:2], ids[1:17:2])
    return {"after_warm_up": warmed, "after_all_n": patched.variants()}


# --- the run ------------------------------------------------------------------------------------


def reached(
    states: dict[str, dict[str, Any]], rate: dict[str, float], variants: dict[str, object]
) -> dict[str, bool]:
    """Hold the figures against what they must reach."""
    at_8 = states["8"]
    return {
        f"chunked: at most {CEILING_MIB} MiB": all(
            row["chunked"]["peak_mib"] <= CEILING_MIB for row in states.values()
        ),
        f"chunked: at most {MAX_CHUNKED_RATIO} of stock's time": all(
            row["chunked"]["us"] <= MAX_CHUNKED_RATIO * row["stock"]["us"]
            for row in states.values()
        ),
        "direct: 0 MiB": all(row["direct"]["peak_mib"] == 0 for row in states.values()),
        f"direct: {MIN_SPEEDUP_AT_8:g} times as fast as stock at 8": (
            at_8["stock"]["us"] >= MIN_SPEEDUP_AT_8 * at_8["direct"]["us"]
        ),
        f"direct: {MIN_SHARE_OF_COPY_RATE_AT_8:.0%} of the card's copy rate at 8": (
            at_8["direct"]["tb_s"] >= MIN_SHARE_OF_COPY_RATE_AT_8 * rate["best"]
        ),
        "direct: nothing compiles after the warm-up": (
            variants["after_warm_up"] == variants["after_all_n"]
        ),
    }


def measure(patched: Patched) -> dict[str, Any]:
    """Run everything and return the document."""
    state = torch.randn(LAYERS, SLOTS, *SHAPE, device="cuda").bfloat16()
    arms: dict[str, Copy] = {
        "stock": statement,
        "chunked": patched.layered(CEILING_MIB),
        "direct": patched.layered(-CEILING_MIB),
    }
    variants = check_variants(patched)  # first, while nothing else has been compiled
    rate = copy_rate()
    states = {str(n): compare(state, arms, n) for n in COUNTS}
    for row in states.values():
        stock = row["stock"]["us"]
        for arm in row.values():
            arm["of_stock_time"] = round(arm["us"] / stock, 3)  # type: ignore[operator]
        row["direct"]["of_copy_rate"] = round(row["direct"]["tb_s"] / rate["best"], 3)  # type: ignore[operator]
    del state
    entries = torch.empty(SLOTS, ENTRY_BYTES, device="cuda", dtype=torch.uint8).random_()

    def by_pages(entries: Tensor, src: Tensor, dst: Tensor) -> None:
        patched.pages.copy_pages(entries.view(-1), dst, src, SLOTS, ENTRY_BYTES)

    entry_arms: dict[str, Copy] = {
        "stock": entry_statement,
        "chunked": patched.entries(CEILING_MIB),
        "direct": patched.entries(-CEILING_MIB),
        "upstream's copy_pages": by_pages,
    }
    unified = {str(n): compare(entries, entry_arms, n) for n in (1, 8, 12)}
    del entries
    checks = check_equality(patched) | check_large(patched) | check_rules(patched)
    return {
        "what": "copy of n Mamba states of 30 MiB (30 layers x 1 MiB, bf16), 65 slots",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "card": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "patched_files_sha256": {
            name: hashlib.sha256((patched.package / name).read_bytes()).hexdigest()
            for name in PATCHED
        },
        "copy_rate_tb_s": rate,
        "states": states,
        "entries_of_the_unified_pool": unified,
        "kernel_variants": variants,
        "checks": {
            "passed": sum(checks.values()),
            "failed": [k for k, v in checks.items() if not v],
        },
        "reached": reached(states, rate, variants),
    }


def main() -> int:
    """Print the document; 1 when a check failed or a figure missed what it must reach."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, required=True, help="folder that holds python/sglang")
    parser.add_argument("-o", "--output", type=Path, help="write here as well")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no GPU here")
    document = measure(Patched(options.tree))
    text = json.dumps(document, indent=2) + "\n"
    if options.output:
        temporary = options.output.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(options.output)
    sys.stdout.write(text)
    return 0 if all(document["reached"].values()) and not document["checks"]["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
