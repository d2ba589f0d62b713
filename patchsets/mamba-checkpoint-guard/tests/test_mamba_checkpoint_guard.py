"""A checkpoint without a slot is left out; whatever a request needs for itself is not.

Everything here is the patched tree's own: UnifiedRadixCache, the hybrid request
pool and the allocators as the wheel's test kit builds them, on the CPU. ``Bench``
plays the scheduler: it admits, extends, checkpoints and finishes requests through
the functions that the scheduler calls. A state is one number that fills a slot, so
that a test can say *which* state the tree ended up with.

Token ids name a conversation: request ``a`` has 1000, 1001, ..., ``b`` 2000, ....
"""

from __future__ import annotations

import functools
import importlib
import logging
import random
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import (
    ComponentType,
    LinkerTransferPhase,
)
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.test.kits.unified_radix_cache import fixtures
from sglang.test.kits.unified_radix_cache.config import CacheConfig

SKIPS_MODULE = "sglang.srt.mem_cache.mamba_checkpoint_skips"
GRID = 4  # tokens between two states that can be tracked, and a page with extra buffer
KV_SIZE = 512


@dataclass(frozen=True)
class Mode:
    """How the server caches states."""

    extra_buffer: bool = False
    lazy: bool = False
    int8: bool = False
    overlap: bool = True


MODES = {
    "no_buffer": Mode(),
    "extra_buffer": Mode(extra_buffer=True),
    "extra_buffer_without_overlap": Mode(extra_buffer=True, overlap=False),
    "lazy": Mode(extra_buffer=True, lazy=True),
    "int8_no_buffer": Mode(int8=True),
    "int8_extra_buffer": Mode(extra_buffer=True, int8=True),
}
# Each place where a checkpoint asks for a slot: mode, pool that is short.
RUNNING_SITES = {
    "no_buffer": ("no_buffer", "active"),
    "extra_buffer": ("extra_buffer", "active"),
    "extra_buffer_without_overlap": ("extra_buffer_without_overlap", "active"),
    "lazy": ("lazy", "active"),
    "int8_no_buffer": ("int8_no_buffer", "int8"),
    "int8_extra_buffer, first slot": ("int8_extra_buffer", "int8"),
    "int8_extra_buffer, second slot": ("int8_extra_buffer", "active"),
}
FINISHED_SITES = {mode: (mode, "int8") for mode in ("int8_no_buffer", "int8_extra_buffer")}
TRACKING = [name for name, mode in MODES.items() if mode.extra_buffer]
SITE_IDS = {"argvalues": RUNNING_SITES.values(), "ids": RUNNING_SITES.keys()}


@dataclass
class Bench:
    """One cache with its pools, and who holds which slot of them."""

    mode: Mode
    cache: Any
    kv: Any
    pool: Any
    running: list[Req] = field(default_factory=list)
    # Slots that no request or node of this bench holds, by pool.
    held: dict[str, list[int]] = field(default_factory=lambda: {"active": [], "int8": []})

    @property
    def component(self) -> Any:
        """The Mamba component of the tree."""
        return self.cache.components[ComponentType.MAMBA]

    def allocator(self, pool: str) -> Any:
        """The slot allocator of the "active" or the "int8" pool."""
        if pool == "int8":
            return self.pool.mamba_ckpt_pool.allocator
        return self.pool.mamba_allocator

    # ---- what the scheduler does ----

    def admit(self, name: str, length: int) -> Req:
        """Match a conversation of ``length`` tokens, lock its prefix, give it its slots."""
        tokens = array("q", conversation(name, length))
        sampling = SamplingParams(temperature=0, max_new_tokens=1)
        req = Req(name, "", tokens, sampling)
        req.init_next_round_input(self.cache)
        req.lock = self.cache.lock(req.last_node)
        self.pool.alloc([req])
        prefix = self.cache.path_device_indices(req.last_node)[: req.prefix_len]
        self.pool.write((req.kv.req_pool_idx, slice(0, req.prefix_len)), prefix)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = req.prefix_len
        req.extend_end = req.prefix_len
        self.running.append(req)
        return req

    def extend(self, req: Req, end: int) -> None:
        """Run a prefill chunk up to ``end``: new KV, a new live state, perhaps a tracked one.

        Only the last chunk of a prompt may end off the grid, as in the scheduler.
        """
        assert end % GRID == 0 or end == len(req.origin_input_ids) or not self.mode.extra_buffer
        req.refresh_fill_ids()
        req.prefix_len, req.extend_end = req.extend_end, end
        self._grow(req, end)
        if not self.mode.extra_buffer:
            return
        batch = SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(mamba_chunk_size=GRID)),
            tree_cache=self.cache,
            req_to_token_pool=self.pool,
        )
        tracked = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
        if tracked.track_mask:
            slot = req.kv.mamba_ping_pong_track_buffer[tracked.track_position]
            self.fill(slot, state_of(req.rid, req.kv.mamba_last_track_seqlen))

    def decode(self, req: Req, end: int) -> None:
        """Decode up to ``end``; at a multiple of the grid the state is tracked."""
        self._grow(req, end)
        req.output_ids.extend(conversation(req.rid, end)[len(req.origin_input_ids) :])
        if not self.mode.extra_buffer or end % GRID or self.mode.lazy:
            return
        kv = req.kv
        kv.mamba_last_track_idx = kv.mamba_next_track_idx
        kv.mamba_next_track_idx = self.pool.get_mamba_ping_pong_other_idx(kv.mamba_last_track_idx)
        kv.mamba_prev_track_seqlen, kv.mamba_last_track_seqlen = kv.mamba_last_track_seqlen, end
        slot = kv.mamba_ping_pong_track_buffer[kv.mamba_last_track_idx]
        self.fill(slot, state_of(req.rid, end))

    def _grow(self, req: Req, end: int) -> None:
        first = req.kv.kv_allocated_len
        indices = self.kv.alloc(end - first)
        self.pool.write((req.kv.req_pool_idx, slice(first, end)), indices)
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end
        self.fill(req.kv.mamba_pool_idx, state_of(req.rid, end))

    def checkpoint(self, req: Req) -> None:
        """Offer the tree what a running request has computed."""
        checkpoint_kv_cache(req, self.cache)

    def finish(self, req: Req) -> None:
        """End a request; the tree keeps what it can."""
        req.finished_reason = FINISH_LENGTH(length=0)
        release_kv_cache(req, self.cache, checkpoint=True)
        self.running.remove(req)

    # ---- what else holds slots ----

    def cache_one(self, name: str, length: int = GRID) -> int:
        """Run a conversation to its end; its node is the result."""
        req = self.admit(name, length)
        self.extend(req, length)
        self.finish(req)
        return self.match(name, length).last_device_node

    def take_all(self, pool: str) -> None:
        """Take every free slot of a pool, as other requests would."""
        free = self.allocator(pool).available_size()
        if free:
            self.held[pool] += self.allocator(pool).alloc(free).tolist()

    def give_back(self, pool: str, n: int) -> None:
        """Free ``n`` of the slots that ``take_all`` took."""
        slots, self.held[pool] = self.held[pool][:n], self.held[pool][n:]
        self.allocator(pool).free(torch.tensor(slots, dtype=torch.int64))

    # ---- what can be seen ----

    def fill(self, slot: torch.Tensor, state: float) -> None:
        """Write a state into an active slot."""
        states = self.pool.mamba_pool.mamba_cache
        for tensor in (states.temporal, *states.conv):
            tensor[:, slot.reshape(-1)] = state

    def match(self, name: str, length: int) -> Any:
        """What the tree has of a conversation; takes nothing."""
        key = RadixKey(array("q", conversation(name, length)))
        return self.cache.match_prefix(MatchPrefixParams(key=key))

    def cached(self, name: str, length: int) -> tuple[int, float] | None:
        """Length and state of the longest cached prefix of a conversation."""
        found = self.match(name, length)
        node = found.last_device_node
        slot = fixtures.node_device_value(self.cache, node, ComponentType.MAMBA)
        if slot is None:
            return None
        if self.mode.int8:
            # Read as a cache hit does, through an active slot; the dummy slot 0 serves.
            where = torch.tensor([0])
            self.pool.mamba_ckpt_pool.load_to_active(self.pool.mamba_pool, slot, where)
            slot = where
        states = self.pool.mamba_pool.mamba_cache
        seen = [tensor[:, slot].float() for tensor in (states.temporal, *states.conv)]
        assert all(bool((s == s.flatten()[0]).all()) for s in seen)
        return found.device_prefix_len, round(seen[0].flatten()[0].item())

    def skipped(self) -> dict[str, int]:
        """Checkpoints left out so far, by the pool that was short."""
        skips = getattr(self.component, "checkpoint_skips", None)  # unpatched: leaves out none
        return dict(skips.by_pool) if skips else {"active": 0, "int8": 0}

    def nodes(self) -> list[int]:
        """All nodes of the tree but the root."""
        root = self.cache.root_node_handle()
        return [n for n in self.cache.tree_core.get_all_node_ids() if n != root]

    def lock_refs(self) -> dict[int, int]:
        """Mamba locks of all nodes."""
        count = fixtures.node_device_lock_ref
        return {n: count(self.cache, n, ComponentType.MAMBA) for n in self.nodes()}

    def assert_conserved(self) -> None:
        """No slot and no KV index is lost or there twice."""
        in_tree = [
            slot
            for node in self.nodes()
            if (value := fixtures.node_device_value(self.cache, node, ComponentType.MAMBA))
            is not None
            for slot in value.tolist()
        ]
        active = [*self.allocator("active").free_slots.tolist(), *self.held["active"]]
        for req in self.running:
            active.append(int(req.kv.mamba_pool_idx))
            if self.mode.extra_buffer:
                buffer = req.kv.mamba_ping_pong_track_buffer.tolist()
                assert [slot == -1 for slot in buffer] == req.kv.mamba_ping_pong_empty
                active += [slot for slot in buffer if slot != -1]
        if self.mode.int8:
            int8 = [*self.allocator("int8").free_slots.tolist(), *self.held["int8"], *in_tree]
            assert sorted(int8) == list(range(1, self.allocator("int8").size + 1))
        else:
            active += in_tree
        assert sorted(active) == list(range(1, self.allocator("active").size + 1))

        full = ComponentType.FULL
        values = [fixtures.node_device_value(self.cache, node, full) for node in self.nodes()]
        kv = [index for value in values if value is not None for index in value.tolist()]
        for req in self.running:
            row = self.pool.req_to_token[req.kv.req_pool_idx]
            kv += row[req.kv.cache_protected_len : req.kv.kv_allocated_len].tolist()
        assert len(kv) == len(set(kv))
        assert len(kv) + self.kv.available_size() == KV_SIZE

    def image(self, req: Req) -> dict[str, Any]:
        """All of a request that a checkpoint may touch, and the tree around it."""
        kv = req.kv
        names = (
            "req_pool_idx",
            "cache_protected_len",
            "cache_inserted_len",
            "kv_committed_len",
            "kv_allocated_len",
            "mamba_next_track_idx",
            "mamba_last_track_idx",
            "mamba_last_track_seqlen",
            "mamba_prev_track_seqlen",
            "mamba_needs_clear",
        )
        seen = {name: getattr(kv, name) for name in names}
        seen["state slot"] = int(kv.mamba_pool_idx)
        seen["row"] = self.pool.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].tolist()
        if self.mode.extra_buffer:
            seen["ping-pong"] = kv.mamba_ping_pong_track_buffer.tolist()
            seen["ping-pong empty"] = list(kv.mamba_ping_pong_empty)
            mapping = self.pool.req_index_to_mamba_ping_pong_track_buffer_mapping
            seen["ping-pong on the device"] = mapping[kv.req_pool_idx].tolist()
        seen["lock"] = req.lock and (req.lock.node, req.lock.receipt)
        seen["last node"] = req.last_node
        seen["nodes"] = sorted(self.nodes())
        seen["locks"] = self.lock_refs()
        return seen


def conversation(name: str, length: int) -> list[int]:
    """The first ``length`` tokens of a conversation."""
    first = 1000 * (ord(name[0]) - ord("a") + 1)
    return list(range(first, first + length))


def state_of(name: str, length: int) -> int:
    """The state after ``length`` tokens, small enough to be exact in bfloat16."""
    return (ord(name[0]) - ord("a")) * 32 % 128 + length


def make_bench(
    monkeypatch: pytest.MonkeyPatch, mode: str, *, slots: int = 12, int8_slots: int = 6
) -> Bench:
    """Build the cache of a mode with that many slots."""
    chosen = MODES[mode]
    strategy = "no_buffer"
    if chosen.extra_buffer:
        strategy = "extra_buffer_lazy" if chosen.lazy else "extra_buffer"
    monkeypatch.setattr(fixtures, "get_device", lambda: "cpu")
    monkeypatch.setattr(
        fixtures,
        "ServerArgs",
        functools.partial(
            fixtures.ServerArgs,
            device="cpu",
            int8_mamba_ckpt_size=int8_slots,
            mamba_radix_cache_strategy=strategy,
        ),
    )
    monkeypatch.setattr(
        fixtures,
        "HybridReqToTokenPool",
        functools.partial(
            fixtures.HybridReqToTokenPool,
            enable_mamba_extra_buffer_lazy=chosen.lazy,
            enable_overlap_schedule=chosen.overlap,
        ),
    )
    config = CacheConfig(
        page_size=GRID if chosen.extra_buffer else 1,
        components=(ComponentType.FULL, ComponentType.MAMBA),
        num_layers=3,
        full_attention_layer_ids=(2,),
        enable_mamba_extra_buffer=chosen.extra_buffer,
        enable_int8_mamba_checkpoint=chosen.int8,
        mamba_cache_size=slots,
        mamba_intermediate_size=32,
        kv_size=KV_SIZE,
        head_num=1,
        head_dim=8,
    )
    cache, kv, pool = fixtures.build_fixture(config, mamba_cache_chunk_size=GRID)
    bench = Bench(chosen, cache, kv, pool)
    monkeypatch.setattr(cache, "insert", functools.partial(_checked_insert, cache.insert))
    return bench


def _checked_insert(insert: Any, params: InsertParams) -> Any:
    assert params.mamba_value is not None, "an insert without a state"
    return insert(params)


def starved(
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    pool: str,
    *,
    prompt: int = 2 * GRID + 1,
    chunk: int = 2 * GRID + 1,
) -> tuple[Bench, Req]:
    """A request after its first chunk, no slot of ``pool`` free, every cached state locked."""
    bench = make_bench(monkeypatch, mode)
    bench.cache.lock(bench.cache_one("b"))
    req = bench.admit("a", prompt)
    bench.extend(req, chunk)
    bench.take_all(pool)
    return bench, req


# ---- a running request ----


@pytest.mark.parametrize(("mode", "pool"), **SITE_IDS)
def test_a_running_request_goes_on_without_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, mode: str, pool: str
) -> None:
    bench, req = starved(monkeypatch, mode, pool)
    before = bench.image(req)
    free = {
        p: bench.allocator(p).available_size() for p in ("active", *(["int8"] * bench.mode.int8))
    }

    bench.checkpoint(req)

    assert bench.image(req) == before
    assert {p: bench.allocator(p).available_size() for p in free} == free
    assert bench.skipped() == {"active": 0, "int8": 0} | {pool: 1}
    bench.assert_conserved()


@pytest.mark.parametrize(("mode", "pool"), **SITE_IDS)
def test_a_request_that_was_left_out_finishes_and_gives_everything_back(
    monkeypatch: pytest.MonkeyPatch, mode: str, pool: str
) -> None:
    bench, req = starved(monkeypatch, mode, pool, prompt=4 * GRID + 3, chunk=2 * GRID)

    bench.checkpoint(req)
    for end in (3 * GRID, 4 * GRID + 3):
        bench.extend(req, end)
        bench.checkpoint(req)
    bench.decode(req, 4 * GRID + 5)
    bench.finish(req)

    bench.assert_conserved()
    assert bench.skipped()[pool] == 3 + (pool == "int8")
    assert sum(bench.lock_refs().values()) == 1  # the lock that `starved` took


@pytest.mark.parametrize(("mode", "pool"), **SITE_IDS)
def test_the_next_checkpoint_is_made_once_a_slot_is_free(
    monkeypatch: pytest.MonkeyPatch, mode: str, pool: str
) -> None:
    bench, req = starved(monkeypatch, mode, pool, prompt=4 * GRID, chunk=2 * GRID)
    bench.checkpoint(req)

    bench.give_back(pool, 1)
    bench.extend(req, 3 * GRID)
    bench.checkpoint(req)

    assert bench.cached("a", 4 * GRID) == (3 * GRID, state_of("a", 3 * GRID))
    assert req.kv.cache_protected_len == 3 * GRID
    assert bench.skipped() == {"active": 0, "int8": 0} | {pool: 1}
    bench.assert_conserved()


# ---- the tracked state ----


def tracking_sites() -> list[tuple[str, str]]:
    return [(mode, pool) for mode, pool in RUNNING_SITES.values() if MODES[mode].extra_buffer]


@pytest.mark.parametrize(("mode", "pool"), tracking_sites())
def test_the_tracked_state_is_donated_at_the_next_chunk_that_tracks_none(
    monkeypatch: pytest.MonkeyPatch, mode: str, pool: str
) -> None:
    bench, req = starved(monkeypatch, mode, pool, prompt=2 * GRID + 3, chunk=2 * GRID)
    bench.checkpoint(req)
    assert req.kv.mamba_last_track_seqlen == 2 * GRID

    bench.give_back(pool, 1)
    bench.extend(req, 2 * GRID + 3)  # shorter than the grid: nothing new is tracked
    bench.checkpoint(req)

    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    assert req.kv.mamba_last_track_seqlen is None
    bench.assert_conserved()


@pytest.mark.parametrize("mode", ["extra_buffer", "extra_buffer_without_overlap", "lazy"])
def test_the_kept_state_needs_no_slot_at_the_finish(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench, req = starved(monkeypatch, mode, "active")
    bench.checkpoint(req)
    bench.decode(req, 2 * GRID + 2)
    assert bench.allocator("active").available_size() == 0

    bench.finish(req)

    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    assert bench.skipped() == {"active": 1, "int8": 0}
    bench.assert_conserved()


def test_the_kept_state_of_int8_needs_an_int8_slot_only_at_the_finish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, req = starved(monkeypatch, "int8_extra_buffer", "active")
    bench.checkpoint(req)

    bench.finish(req)

    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    bench.assert_conserved()


@pytest.mark.parametrize("mode", ["extra_buffer", "int8_extra_buffer"])
def test_a_key_that_falls_short_is_served_by_the_state_that_was_kept(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The first decode boundary names the kept state as the previous one."""
    bench, req = starved(monkeypatch, mode, "active")
    bench.checkpoint(req)
    bench.decode(req, 3 * GRID)
    req.finished_len = 0  # a stop that the verify step ran past

    bench.finish(req)

    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    bench.assert_conserved()


@pytest.mark.parametrize("mode", ["extra_buffer", "int8_extra_buffer"])
def test_a_length_that_the_next_extend_would_make_wrong_is_dropped(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The other slot's length does not outlive a checkpoint, as it never did upstream."""
    bench, req = starved(monkeypatch, mode, "active")
    req.kv.mamba_prev_track_seqlen = GRID

    bench.checkpoint(req)

    assert req.kv.mamba_last_track_seqlen == 2 * GRID
    assert req.kv.mamba_prev_track_seqlen is None


def test_lazy_gives_up_its_own_lock_before_it_leaves_out_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Upstream's remedy comes first: the matched state is evicted for the new one."""
    bench = make_bench(monkeypatch, "lazy")
    bench.cache_one("a", 2 * GRID)
    req = bench.admit("a", 3 * GRID + 1)
    assert req.prefix_len == 2 * GRID
    bench.extend(req, 3 * GRID + 1)
    bench.take_all("active")

    bench.checkpoint(req)

    assert bench.skipped() == {"active": 0, "int8": 0}
    assert bench.cached("a", 4 * GRID) == (3 * GRID, state_of("a", 3 * GRID))
    bench.assert_conserved()
    bench.finish(req)
    assert set(bench.lock_refs().values()) == {0}
    bench.assert_conserved()


def test_a_lazy_lock_that_was_given_up_in_vain_is_not_given_back_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = make_bench(monkeypatch, "lazy")
    node = bench.cache_one("a", 2 * GRID)
    backup = bench.cache.lock(node)  # as an unacknowledged host backup does
    req = bench.admit("a", 3 * GRID + 1)
    bench.extend(req, 3 * GRID + 1)
    bench.take_all("active")

    for _ in range(3):
        bench.checkpoint(req)
        assert bench.lock_refs()[node] == 1
    bench.finish(req)
    bench.cache.unlock(backup)

    assert bench.skipped() == {"active": 3, "int8": 0}
    assert set(bench.lock_refs().values()) == {0}
    bench.assert_conserved()


# ---- a finished request ----


@pytest.mark.parametrize(("mode", "pool"), FINISHED_SITES.values(), ids=FINISHED_SITES.keys())
def test_a_finished_request_without_an_int8_slot_is_freed_and_not_cached(
    monkeypatch: pytest.MonkeyPatch, mode: str, pool: str
) -> None:
    bench, req = starved(monkeypatch, mode, pool)
    nodes = bench.nodes()
    own = 3 if bench.mode.extra_buffer else 1
    free = bench.allocator("active").available_size()

    bench.finish(req)

    assert bench.nodes() == nodes
    assert bench.allocator("active").available_size() == free + own
    assert bench.skipped() == {"active": 0, "int8": 1}
    assert not req.kv.holds_mamba
    assert not req.kv.holds_kv
    bench.assert_conserved()


@pytest.mark.parametrize("mode", ["no_buffer", "extra_buffer", "lazy"])
def test_a_finished_request_donates_what_it_has_without_a_free_slot(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench, req = starved(monkeypatch, mode, "active")

    bench.finish(req)

    end = 2 * GRID + (not bench.mode.extra_buffer)
    assert bench.cached("a", 4 * GRID) == (end, state_of("a", end))
    assert bench.skipped() == {"active": 0, "int8": 0}
    bench.assert_conserved()


# ---- eviction comes first ----


@pytest.mark.parametrize(
    ("mode", "pool"),
    [site for site in RUNNING_SITES.values() if site != ("int8_extra_buffer", "active")],
)
def test_a_state_that_can_be_evicted_makes_room_for_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch, mode: str, pool: str
) -> None:
    bench = make_bench(monkeypatch, mode)
    lock = bench.cache.lock(bench.cache_one("b"))
    req = bench.admit("a", 4 * GRID)
    bench.extend(req, 2 * GRID)
    bench.take_all(pool)
    bench.checkpoint(req)
    assert bench.skipped()[pool] == 1

    bench.cache.unlock(lock)
    bench.checkpoint(req)

    assert bench.skipped()[pool] == 1
    assert bench.cached("b", GRID) is None
    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    bench.assert_conserved()


@pytest.mark.parametrize("mode", FINISHED_SITES)
def test_a_finish_evicts_before_it_leaves_out_an_int8_checkpoint(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench = make_bench(monkeypatch, mode)
    bench.cache_one("b")
    req = bench.admit("a", 4 * GRID)
    bench.extend(req, 2 * GRID)
    bench.take_all("int8")

    bench.finish(req)

    assert bench.skipped() == {"active": 0, "int8": 0}
    assert bench.cached("b", GRID) is None
    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    bench.assert_conserved()


# ---- two slots or none ----


def test_a_second_slot_that_fails_gives_back_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, req = starved(monkeypatch, "int8_extra_buffer", "active")
    free = sorted(bench.allocator("int8").free_slots.tolist())
    stored = []
    monkeypatch.setattr(
        bench.pool.mamba_ckpt_pool, "store_from_active", lambda *args: stored.append(args)
    )

    for _ in range(20):  # more often than there are int8 slots
        bench.checkpoint(req)

    assert sorted(bench.allocator("int8").free_slots.tolist()) == free
    assert not stored
    assert bench.skipped() == {"active": 20, "int8": 0}
    bench.assert_conserved()


def test_a_first_slot_that_fails_leaves_the_second_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, req = starved(monkeypatch, "int8_extra_buffer", "int8")
    free = bench.allocator("active").free_slots.tolist()

    bench.checkpoint(req)

    assert bench.allocator("active").free_slots.tolist() == free


# ---- what a request needs for itself ----


def test_a_load_of_the_external_linker_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = starved(monkeypatch, "extra_buffer", "active")
    load = functools.partial(
        bench.component.build_external_linker_transfer, LinkerTransferPhase.LOAD, None, ["hash"]
    )

    with pytest.raises(AssertionError, match="Can not alloc mamba cache"):
        load()
    bench.give_back("active", 1)
    transfer = load()

    assert transfer.device_indices.numel() == 1
    bench.held["active"] += transfer.device_indices.tolist()
    assert bench.skipped() == {"active": 0, "int8": 0}
    bench.assert_conserved()


@pytest.mark.parametrize("mode", MODES)
def test_a_new_request_without_a_slot_is_never_left_out(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench, _ = starved(monkeypatch, mode, "active")

    with pytest.raises(AssertionError, match="Not enough space for mamba cache"):
        bench.admit("c", GRID)


@pytest.mark.parametrize("mode", MODES)
def test_a_match_without_a_slot_is_never_left_out(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench, _ = starved(monkeypatch, mode, "active")

    with pytest.raises(AssertionError, match="Can not alloc mamba cache"):
        bench.admit("b", 2 * GRID)


def test_a_load_back_without_a_slot_is_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, _ = starved(monkeypatch, "extra_buffer", "active")
    node = bench.match("b", GRID).last_device_node
    monkeypatch.setattr(bench.cache.tree_core, "component_has_host_value_only", lambda *_: True)
    newcomer = Req("b", "", array("q", conversation("b", 2 * GRID)), SamplingParams())

    with pytest.raises(AssertionError, match="Cannot alloc mamba for load_back"):
        bench.component.prepare_load_back(node, req=newcomer)


# ---- enough slots: as upstream (these pass on the unpatched tree, too) ----


@pytest.mark.parametrize("mode", TRACKING)
def test_with_a_slot_the_tracked_one_goes_to_the_tree_and_the_free_one_to_the_request(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench = make_bench(monkeypatch, mode)
    req = bench.admit("a", 2 * GRID + 1)
    bench.extend(req, 2 * GRID + 1)
    keep = req.kv.mamba_last_track_idx
    tracked = int(req.kv.mamba_ping_pong_track_buffer[keep])
    next_free = int(bench.allocator("active").free_slots[0])

    bench.checkpoint(req)

    node = bench.match("a", 4 * GRID).last_device_node
    value = fixtures.node_device_value(bench.cache, node, ComponentType.MAMBA).tolist()
    assert value == ([1] if bench.mode.int8 else [tracked])
    if bench.mode.int8:
        assert int(bench.allocator("active").free_slots[-1]) == tracked
    assert int(req.kv.mamba_ping_pong_track_buffer[keep]) == next_free
    assert req.lock.node == node
    assert req.kv.cache_protected_len == 2 * GRID
    assert req.kv.mamba_last_track_seqlen is None
    assert req.kv.mamba_prev_track_seqlen is None
    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    bench.assert_conserved()


@pytest.mark.parametrize("mode", ["no_buffer", "int8_no_buffer"])
def test_with_a_slot_the_live_state_is_copied_and_stays_with_the_request(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench = make_bench(monkeypatch, mode)
    req = bench.admit("a", 4 * GRID)
    bench.extend(req, 2 * GRID)
    own = int(req.kv.mamba_pool_idx)
    pool = "int8" if bench.mode.int8 else "active"
    next_free = int(bench.allocator(pool).free_slots[0])

    bench.checkpoint(req)

    node = bench.match("a", 4 * GRID).last_device_node
    value = fixtures.node_device_value(bench.cache, node, ComponentType.MAMBA).tolist()
    assert value == [next_free]
    assert int(req.kv.mamba_pool_idx) == own
    assert req.lock.node == node
    assert bench.cached("a", 4 * GRID) == (2 * GRID, state_of("a", 2 * GRID))
    bench.assert_conserved()


@pytest.mark.parametrize("mode", MODES)
def test_a_state_that_the_tree_has_already_is_freed_again(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench = make_bench(monkeypatch, mode)
    first, second = bench.admit("a", 4 * GRID), bench.admit("a", 4 * GRID)
    for req in (first, second):
        bench.extend(req, 2 * GRID)

    bench.checkpoint(first)
    bench.checkpoint(second)

    assert len(bench.nodes()) == 1
    assert second.kv.mamba_last_track_seqlen is None
    bench.assert_conserved()


@pytest.mark.parametrize("mode", MODES)
def test_a_chunk_too_short_to_track_counts_as_no_skip(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    bench = make_bench(monkeypatch, mode)
    req = bench.admit("a", GRID - 1)
    bench.extend(req, GRID - 1)

    bench.checkpoint(req)

    assert (bench.cached("a", 4 * GRID) is None) == bench.mode.extra_buffer
    assert bench.skipped() == {"active": 0, "int8": 0}
    bench.assert_conserved()


# ---- under load ----


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_lost_while_many_requests_share_few_slots(
    monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    """Requests come, go on and end at random, others take slots, host backups lock nodes."""
    need = {"no_buffer": 1, "int8_no_buffer": 1, "lazy": 2, "extra_buffer_without_overlap": 2}
    own = need.get(mode, 3)
    bench = make_bench(monkeypatch, mode, slots=4 * own + 1, int8_slots=3)
    pools = ["active", "int8"] if bench.mode.int8 else ["active"]
    rng = random.Random(seed)
    backups: list[Any] = []
    known = [chr(ord("a") + i) for i in range(20)]
    prompt, longest = 6 * GRID + 2, 10 * GRID
    for _ in range(300):
        what = rng.choice(["admit", "go on", "go on", "finish", "acknowledge", "give back"])
        free = bench.allocator("active").available_size()
        req = rng.choice(bench.running) if bench.running else None
        if what == "admit" and len(bench.running) < 4 and free >= own:
            req = bench.admit(rng.choice(known[: rng.choice([4, 20])]), prompt)
            bench.extend(req, min(prompt, req.extend_end + GRID * rng.randint(1, 3)))
        elif what == "go on" and req and req.extend_end < prompt:
            bench.extend(req, min(prompt, req.extend_end + GRID * rng.randint(1, 3)))
            if rng.random() < 0.4:
                bench.take_all(rng.choice(pools))
                backups += [bench.cache.lock(node) for node in bench.nodes()]
            bench.checkpoint(req)
        elif what == "go on" and req and req.kv.kv_committed_len < longest:
            bench.decode(req, req.kv.kv_committed_len + 1)
        elif what == "finish" and req:
            bench.finish(req)
        elif what == "acknowledge":
            rng.shuffle(backups)
            for _ in range(len(backups) // 2):
                bench.cache.unlock(backups.pop())
        elif what == "give back":
            for pool in pools:
                bench.give_back(pool, len(bench.held[pool]))
        bench.assert_conserved()
    for req in list(bench.running):
        bench.finish(req)
    for lock in backups:
        bench.cache.unlock(lock)

    bench.assert_conserved()
    assert set(bench.lock_refs().values()) <= {0}
    for name in known:
        found = bench.cached(name, longest)
        assert found is None or found[1] == state_of(name, found[0])
    assert sum(bench.skipped().values()) > 1


# ---- counting and warning ----


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(importlib.import_module(SKIPS_MODULE), "time", clock)
    return clock


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == SKIPS_MODULE]


def test_every_skip_is_counted_and_at_most_one_a_second_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    bench, req = starved(monkeypatch, "extra_buffer", "active")

    with caplog.at_level(logging.WARNING):
        for now in (0.0, 0.1, 0.999, 1.0, 1.5, 1.999, 7.0):
            clock.now = now
            bench.checkpoint(req)

    shown = warnings_of(caplog)
    assert [text.split("; ")[-1] for text in shown] == [f"{n} left out so far" for n in (1, 4, 7)]
    assert bench.component.checkpoint_skips.total == 7


def test_a_warning_names_the_request_and_the_state_of_the_pool(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    bench, req = starved(monkeypatch, "int8_extra_buffer", "int8")

    with caplog.at_level(logging.WARNING):
        bench.checkpoint(req)
        clock.now = 2.0
        bench.give_back("int8", 1)
        bench.take_all("active")
        bench.checkpoint(req)

    first, second = warnings_of(caplog)
    assert "request a " in first
    assert "int8 pool" in first
    assert "0 of 6 free" in first
    assert "active pool" in second
    assert "0 of 12 free" in second
    assert bench.skipped() == {"active": 1, "int8": 1}


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_said_while_there_are_slots(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    bench = make_bench(monkeypatch, mode)

    with caplog.at_level(logging.WARNING):
        req = bench.admit("a", 4 * GRID)
        bench.extend(req, 2 * GRID)
        bench.checkpoint(req)
        bench.finish(req)

    assert not warnings_of(caplog)
    assert bench.component.checkpoint_skips.total == 0
