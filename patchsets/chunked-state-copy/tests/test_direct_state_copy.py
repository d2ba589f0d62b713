"""The direct copy gives upstream's result without scratch memory, or does not run.

The kernel runs in Triton's interpreter on the CPU, about 0.4 ms a program, so the
pools here are tiny. What a GPU would decide is set by hand: whether the state is
on one, and whether slot ids can be looked at without waiting for it.
"""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import sglang
import torch
from sglang.srt.mem_cache import mamba_slot_fused
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.ple_state_pool import ShortConvPool
from sglang.srt.mem_cache.unified_memory_pool import init_unified_mamba_pools
from sglang.srt.runtime_context import get_parallel
from slot_subjects import (
    COPIES,
    SLOTS,
    SMALL,
    SUBJECTS,
    SWITCH,
    Subject,
    contiguous_subject,
    copy_entries,
    copy_layered,
    reads_of_values,
    scratch_of,
    slots,
)

direct = pytest.importorskip(
    "sglang.srt.mem_cache.direct_slot_copy",
    reason="direct-state-copy is not on this tree",
)
SRT = Path(sglang.__file__).parent / "srt"
KERNEL = "sglang.kernels.ops.kvcache.copy_slots"
DEBUG = "SGLANG_DEBUG_MEMORY_POOL"

# A temporal slot of 5 KiB a layer: one block of the kernel and a part of one.
TINY = {"layers": 3, "heads": 1, "head_dim": 64, "state_size": 40, "groups": 1}

MANY_DISJOINT = ["disjoint", "shared source"]
ONE = ["one", "one onto itself"]
OVERLAPPING = ["chain", "reverse chain", "swap", "rotation", "self"]


@pytest.fixture(scope="module", autouse=True)
def kernel() -> Iterator[ModuleType]:
    """Import the kernel for Triton's interpreter, then forget it.

    Triton decides when the kernel is decorated. The kernel uses only what is
    built into Triton's language, so it does not matter that a neighbour may have
    imported Triton without the interpreter, and nothing of this one is left to it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.delitem(sys.modules, KERNEL, raising=False)
        yield importlib.import_module(KERNEL)
        sys.modules.pop(KERNEL, None)


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Say whether states count as being on a GPU; they do at first."""

    def state_is_on_gpu(answer: bool) -> None:
        monkeypatch.setattr(direct, "_on_gpu", lambda _state: answer)

    state_is_on_gpu(True)
    return state_is_on_gpu


@pytest.fixture(autouse=True)
def ids_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Say whether slot ids count as being on the GPU; they do at first."""

    def ids_are_on_gpu(answer: bool) -> None:
        monkeypatch.setattr(direct, "_in_host_memory", lambda *_ids: not answer)

    ids_are_on_gpu(True)
    return ids_are_on_gpu


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda mib: monkeypatch.setenv(SWITCH, str(mib))


@pytest.fixture(autouse=True)
def counts(monkeypatch: pytest.MonkeyPatch, switch: Callable[[int], None]) -> object:
    """Start each test with the direct way selected and nothing counted."""
    switch(-60)
    monkeypatch.setattr(direct, "counts", direct.Counts())
    return direct.counts


@pytest.fixture
def launches(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Record the state of each launch of the kernel, which still runs."""
    launched: list[torch.Tensor] = []
    copy_slots = kernel.copy_slots

    def recording(state: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
        launched.append(state)
        copy_slots(state, src, dst)

    monkeypatch.setattr(kernel, "copy_slots", recording)
    return launched


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param](TINY)


@pytest.fixture(scope="module")
def plain() -> Subject:
    return contiguous_subject(TINY)


@pytest.fixture(scope="module")
def larger() -> Subject:
    return contiguous_subject(SMALL)


# --- where it runs: upstream's result, no memory ----------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("copy", MANY_DISJOINT)
def test_a_promised_copy_gives_what_upstreams_statement_gives(
    subject: Subject, copy: str, dtype: torch.dtype, launches: list[torch.Tensor]
) -> None:
    src, dst = (slots(ids, dtype) for ids in COPIES[copy])

    expected = subject.after_upstream(src, dst)
    actual = subject.after_copy_from(src, dst, disjoint=True)

    assert all(map(torch.equal, actual, expected))
    assert len(launches) == len(subject.views)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("copy", ONE)
def test_one_pair_needs_no_promise(
    subject: Subject, copy: str, dtype: torch.dtype, launches: list[torch.Tensor]
) -> None:
    src, dst = (slots(ids, dtype) for ids in COPIES[copy])

    expected = subject.after_upstream(src, dst)
    actual = subject.after_copy_from(src, dst)

    assert all(map(torch.equal, actual, expected))
    assert len(launches) == len(subject.views)


@pytest.mark.parametrize("copy", MANY_DISJOINT)
def test_ids_in_host_memory_are_compared(
    subject: Subject,
    copy: str,
    launches: list[torch.Tensor],
    ids_on_gpu: Callable[[bool], None],
) -> None:
    ids_on_gpu(False)
    src, dst = map(slots, COPIES[copy])

    expected = subject.after_upstream(src, dst)
    actual = subject.after_copy_from(src, dst)

    assert all(map(torch.equal, actual, expected))
    assert len(launches) == len(subject.views)


@pytest.mark.parametrize("copy", [*MANY_DISJOINT, *ONE])
def test_a_direct_copy_takes_no_memory_and_looks_at_no_id(subject: Subject, copy: str) -> None:
    subject.refill()

    scratch = scratch_of(subject.pool.copy_from, *map(slots, COPIES[copy]), disjoint=True)

    assert scratch.peak == 0
    assert reads_of_values(scratch) == 0


@pytest.mark.parametrize("copy", MANY_DISJOINT)
def test_the_fused_branch_copies_the_temporal_state_directly(
    plain: Subject, copy: str, launches: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    src, dst = map(slots, COPIES[copy])
    monkeypatch.setattr(plain.pool, "_should_fuse_slot_ops", lambda: True)
    monkeypatch.setattr(mamba_slot_fused, "fused_copy_conv_slots", lambda *_: None)

    *_, expected = plain.after_upstream(src, dst)
    *convs, temporal = plain.after_copy_from(src, dst, disjoint=True)

    assert torch.equal(temporal, expected)
    assert all(map(torch.equal, convs, plain.filling))
    assert [state.shape for state in launches] == [temporal.shape]


# --- where it must not run --------------------------------------------------


@pytest.mark.parametrize("on_host", [False, True], ids=["ids on GPU", "ids on host"])
@pytest.mark.parametrize("copy", OVERLAPPING)
def test_overlap_without_a_promise_never_reaches_the_kernel(
    subject: Subject,
    copy: str,
    on_host: bool,
    launches: list[torch.Tensor],
    ids_on_gpu: Callable[[bool], None],
) -> None:
    ids_on_gpu(not on_host)
    src, dst = map(slots, COPIES[copy])

    expected = subject.after_upstream(src, dst)
    actual = subject.after_copy_from(src, dst)

    assert all(map(torch.equal, actual, expected))
    assert launches == []


@pytest.mark.parametrize("copy", MANY_DISJOINT)
def test_ids_on_the_gpu_without_a_promise_never_reach_the_kernel(
    subject: Subject, copy: str, launches: list[torch.Tensor]
) -> None:
    src, dst = map(slots, COPIES[copy])

    expected = subject.after_upstream(src, dst)
    subject.refill()
    scratch = scratch_of(subject.pool.copy_from, src, dst)

    assert all(map(torch.equal, subject.storage, expected))
    assert launches == []
    assert reads_of_values(scratch) == 0


@pytest.mark.parametrize("on_host", [False, True], ids=["ids on GPU", "ids on host"])
def test_a_slot_written_twice_never_reaches_the_kernel(
    plain: Subject,
    on_host: bool,
    launches: list[torch.Tensor],
    ids_on_gpu: Callable[[bool], None],
) -> None:
    """Which of the two sources wins is open upstream too, so only the way counts."""
    ids_on_gpu(not on_host)

    plain.after_copy_from(slots([1, 2, 3]), slots([7, 8, 7]))

    assert launches == []


def test_one_source_for_several_destinations_is_left_to_the_statement(
    launches: list[torch.Tensor],
) -> None:
    from sglang.srt.mem_cache.bounded_slot_copy import copy_layered_slots

    state = torch.randn(3, 9, 40)
    expected = state.clone()
    copy_layered(expected, slots([1]), slots([4, 6, 8]))

    copy_layered_slots(state, slots([1]), slots([4, 6, 8]), disjoint=True)

    assert torch.equal(state, expected)
    assert launches == []


def test_a_slot_in_pieces_is_left_to_the_statement(launches: list[torch.Tensor]) -> None:
    from sglang.srt.mem_cache.bounded_slot_copy import copy_layered_slots

    # As on AMX CPUs: the feature axes of a slot lie transposed in memory.
    state = torch.randn(3, 9, 5, 8).transpose(2, 3)
    expected = state.clone()
    copy_layered(expected, slots([1, 2]), slots([4, 6]))

    copy_layered_slots(state, slots([1, 2]), slots([4, 6]), disjoint=True)

    assert torch.equal(state, expected)
    assert launches == []


def test_without_a_gpu_the_kernel_is_not_even_imported(
    plain: Subject, on_gpu: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(False)
    monkeypatch.delitem(sys.modules, KERNEL)
    src, dst = map(slots, COPIES["disjoint"])

    expected = plain.after_upstream(src, dst)
    actual = plain.after_copy_from(src, dst, disjoint=True)

    assert all(map(torch.equal, actual, expected))
    assert KERNEL not in sys.modules


@pytest.mark.parametrize("shape", [(0, 8, 4), (3, 8, 0), (3, 8, 0, 0, 0)])
def test_a_state_without_elements_is_left_alone(
    shape: tuple[int, ...], launches: list[torch.Tensor]
) -> None:
    from sglang.srt.mem_cache.bounded_slot_copy import copy_entry_slots, copy_layered_slots

    copy_layered_slots(torch.empty(shape), slots([1]), slots([2]), disjoint=True)
    copy_entry_slots(torch.empty(8, 0, dtype=torch.uint8), slots([1]), slots([2]), disjoint=True)
    copy_layered_slots(torch.empty(3, 8, 4), slots([]), slots([]), disjoint=True)
    direct.warm_up(torch.empty(shape))

    assert launches == []


# --- the promise ------------------------------------------------------------


@pytest.mark.parametrize(
    ("src", "dst", "complaint"),
    [
        *[pytest.param(*COPIES[copy], r"overlap=\[.*\d", id=copy) for copy in OVERLAPPING],
        pytest.param([1, 2, 3], [7, 8, 7], r"written twice=\[7\]", id="written twice"),
        pytest.param([1, 2], [8, 16], r"outside of 16 slots: \[16\]", id="past the end"),
        pytest.param([-1], [8], r"outside of 16 slots: \[-1\]", id="a freed virtual id"),
    ],
)
def test_a_wrong_promise_is_an_assertion_under_the_debug_flag(
    plain: Subject,
    src: list[int],
    dst: list[int],
    complaint: str,
    launches: list[torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DEBUG, "1")
    plain.refill()

    with pytest.raises(AssertionError, match=complaint):
        plain.pool.copy_from(slots(src), slots(dst), disjoint=True)

    assert launches == []
    assert all(map(torch.equal, plain.storage, plain.filling))


@pytest.mark.parametrize("copy", [*MANY_DISJOINT, *ONE])
def test_a_right_promise_passes_under_the_debug_flag(
    plain: Subject, copy: str, launches: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEBUG, "1")
    src, dst = map(slots, COPIES[copy])

    expected = plain.after_upstream(src, dst)
    actual = plain.after_copy_from(src, dst, disjoint=True)

    assert all(map(torch.equal, actual, expected))
    assert launches


@pytest.mark.parametrize("disjoint", [False, True])
def test_copy_mamba_state_hands_the_promise_on_and_makes_none(
    plain: Subject, disjoint: bool, launches: list[torch.Tensor]
) -> None:
    pool = SimpleNamespace(layer_transfer_counter=None, mamba_pool=plain.pool)
    src, dst = map(slots, COPIES["disjoint"])
    expected = plain.after_upstream(src, dst)
    plain.refill()

    HybridReqToTokenPool.copy_mamba_state(
        pool, src, dst, **({"disjoint": True} if disjoint else {})
    )

    assert all(map(torch.equal, plain.storage, expected))
    assert bool(launches) is disjoint


def test_only_copy_on_write_promises_disjoint_slots() -> None:
    """A new caller of a state copy must not inherit the promise.

    series.yaml counts the same calls as probes.
    """
    names = {"copy_from", "copy_mamba_state", "copy_layered_slots", "copy_entry_slots"}
    calls = {}
    for path in SRT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "disjoint=" not in text and not any(name in text for name in names):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call):
                continue
            callee = ast.unparse(node.func)
            promises = [k.value for k in node.keywords if k.arg == "disjoint"]
            if promises or ("pool" in callee and callee.rpartition(".")[2] in names):
                what = ast.unparse(promises[0]) if promises else "no promise"
                calls.setdefault(f"{path.name} {callee}", []).append(what)

    assert calls == {
        "model_runner.py pool.copy_mamba_state": ["True"],
        "memory_pool.py self.mamba_pool.copy_from": ["disjoint"],
        "memory_pool.py copy_layered_slots": ["disjoint", "disjoint"],
        "unified_memory_pool.py copy_entry_slots": ["disjoint"],
        "unified_draft_pool.py copy_layered_slots": ["disjoint"],
        "bounded_slot_copy.py copied_directly": ["disjoint", "disjoint"],
        "mamba.py self.cache.req_to_token_pool.mamba_pool.copy_from": ["no promise"],
        "multi_layer_eagle_worker_v2.py pool.copy_from": ["no promise"],
    }


def test_distinct_virtual_slots_stay_distinct_when_translated(
    launches: list[torch.Tensor],
) -> None:
    """The unified pool promises for virtual ids; what is copied are physical ones."""
    with get_parallel().override(attn_dcp_size=1):
        pools = init_unified_mamba_pools(
            device="cpu",
            kv_cache_dtype=torch.float16,
            head_num=1,
            head_dim=8,
            page_size=1,
            start_layer=0,
            end_layer=2,
            is_draft_worker=False,
            use_mla_backend=False,
            mamba_layer_ids=[0],
            full_attention_layer_ids=[1],
            mamba2_cache_params=SimpleNamespace(
                shape=SimpleNamespace(conv=[(3, 8)], temporal=(1, 4, 8)),
                dtype=SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32),
                layers=[0],
            ),
            model_context_len=256,
            extra_max_context_len=1,
            max_total_num_tokens=100,
            max_mamba_cache_size=12,
            max_num_reqs=4,
            enable_memory_saver=False,
            enable_mamba_extra_buffer=False,
            enable_mamba_extra_buffer_lazy=False,
            speculative_num_draft_tokens=None,
            disable_overlap_schedule=True,
            need_sort=False,
            lazy_compaction=True,
        ).req_to_token_pool
    slot = pools.mamba_allocator
    tree = slot.alloc(8)
    slot.free(tree[2:5])
    sources = torch.cat([tree[:2], tree[5:]])  # virtual 1 2 6 7 8
    fresh = slot.alloc(5)  # virtual 9 .. 13, on physical slots that others had
    entries = pools.mamba_pool._entry_view()
    entries.random_()
    src, dst = map(pools.translate_mamba_indices, (sources, fresh))
    expected = entries.clone()
    copy_entries(expected, src, dst)
    launches.clear()  # the pool's warm-up

    pools.copy_mamba_state(src, dst, disjoint=True)

    assert min(fresh.tolist()) == 9
    assert {*dst.tolist()} & {3, 4, 5}, "no freed physical slot was used again"
    assert len({*src.tolist(), *dst.tolist()}) == 10
    assert torch.equal(entries, expected)
    assert len(launches) == 1


# --- the switch, the counter, the start -------------------------------------


@pytest.mark.parametrize(
    ("mib", "promise", "peak_kib", "kernel_runs"),
    [
        pytest.param(0, True, 3840, False, id="0: upstream's statement"),
        pytest.param(60, True, 3840, False, id="60: all of it fits"),
        pytest.param(1, True, 918, False, id="1: six layers of conv a part"),
        pytest.param(-60, True, 0, True, id="-60: direct"),
        pytest.param(-1, True, 0, True, id="-1: direct"),
        pytest.param(-60, False, 3840, False, id="-60, no promise: as 60"),
        pytest.param(-1, False, 918, False, id="-1, no promise: as 1"),
    ],
)
def test_the_switch_selects_one_of_three_ways(
    larger: Subject,
    mib: int,
    promise: bool,
    peak_kib: int,
    kernel_runs: bool,
    switch: Callable[[int], None],
    launches: list[torch.Tensor],
) -> None:
    switch(mib)
    src, dst = map(slots, COPIES["disjoint"])
    expected = larger.after_upstream(src, dst)
    larger.refill()

    scratch = scratch_of(larger.pool.copy_from, src, dst, disjoint=promise)

    assert all(map(torch.equal, larger.storage, expected))
    assert scratch.peak == peak_kib * 1024
    assert bool(launches) is kernel_runs
    assert bool(direct.counts.direct) is kernel_runs


def test_copies_are_counted_and_logged_ever_less_often(
    counts: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=direct.__name__)
    state = torch.randn(1, 4, 2)
    one, two = slots([1]), slots([1, 2])

    for _ in range(5):
        assert direct.copied_directly(state, one, slots([3]), disjoint=False)
    for _ in range(2):
        assert not direct.copied_directly(state, two, slots([2, 3]), disjoint=False)
    assert not direct.copied_directly(state.double().mT, one, two, disjoint=True)

    assert counts.direct == 5
    assert counts.in_parts == {"slots that may overlap": 2, "ids that do not pair": 1}
    assert [record.levelname for record in caplog.records] == ["INFO"] * 3 + ["WARNING"] * 2
    assert caplog.messages[2].endswith("4 direct, 0 in parts")
    assert caplog.messages[4].endswith("5 direct, 2 in parts (slots that may overlap: 2)")


@pytest.mark.parametrize("mib", [0, 60])
def test_nothing_is_counted_or_warmed_when_the_switch_selects_another_way(
    mib: int, switch: Callable[[int], None], counts: object, launches: list[torch.Tensor]
) -> None:
    switch(mib)

    for build in SUBJECTS.values():
        build(TINY).pool.copy_from(slots([1]), slots([2]), disjoint=True)

    assert launches == []
    assert counts == direct.Counts()


@pytest.mark.parametrize("build", SUBJECTS.values(), ids=SUBJECTS)
def test_a_pool_warms_the_kernel_for_what_it_will_copy(
    build: Callable[..., Subject], kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What decides on a compiled variant is the same at pool start and later."""
    seen: list[tuple[object, ...]] = []

    def variant(state: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
        layout = (state.dtype, state.data_ptr(), state.shape, state.stride())
        seen.append((*layout, src.dtype, dst.dtype))

    monkeypatch.setattr(kernel, "copy_slots", variant)

    pool = build(TINY).pool
    warmed = set(seen)
    seen.clear()
    for dtype in (torch.int32, torch.int64):
        src, dst = (slots(ids, dtype) for ids in COPIES["disjoint"])
        pool.copy_from(src, dst, disjoint=True)
        pool.copy_from(src, dst.long(), disjoint=True)

    assert seen
    assert set(seen) <= warmed


def test_a_side_state_warms_the_kernel_too(launches: list[torch.Tensor]) -> None:
    window = ShortConvPool(
        size=SLOTS, state_shape=(64, 4), layer_ids=[0, 1], dtype=torch.float32, device="cpu"
    )
    assert len(launches) == 2

    window.conv_state.normal_()
    expected = window.conv_state.clone()
    copy_layered(expected, slots([3]), slots([5]))
    window.copy_slots(slots([3]), slots([5]))

    assert torch.equal(window.conv_state, expected)
    assert len(launches) == 3


def test_warming_changes_no_state(plain: Subject, launches: list[torch.Tensor]) -> None:
    plain.refill()

    direct.warm_up(*plain.storage)

    assert launches
    assert all(map(torch.equal, plain.storage, plain.filling))


# --- the kernel -------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "size", "offset", "width"),
    [
        (torch.bfloat16, 64, 0, 8),
        (torch.float32, 7, 0, 4),
        (torch.bfloat16, 7, 0, 2),
        (torch.uint8, 13, 0, 1),
        (torch.uint8, 64, 4, 4),
        (torch.uint8, 64, 3, 1),
        (torch.float64, 5, 0, 8),
        (torch.float8_e4m3fn, 6, 0, 2),
    ],
)
@pytest.mark.parametrize("layout", ["layers first", "slots first", "padded"])
def test_words_are_as_wide_as_the_layout_allows(
    kernel: ModuleType,
    dtype: torch.dtype,
    size: int,
    offset: int,
    width: int,
    layout: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every byte of the buffer is compared, also those between the slots."""
    layers, count = 3, 9
    pad = {"padded": 16}.get(layout, 0)  # elements behind a slot; keeps 8-byte steps
    raw = torch.randint(0, 255, (8192,), dtype=torch.uint8)
    aligned = -raw.data_ptr() % 16 + offset
    row = size + pad
    strides = (row, layers * row, 1) if layout == "slots first" else (count * row, row, 1)
    flat = raw[aligned : aligned + layers * count * row * dtype.itemsize].view(dtype)
    state = flat.as_strided((layers, count, size), strides)
    src, dst = map(slots, ([1, 2, 2], [5, 8, 3]))
    before = raw.clone()
    state_bytes = state.view(torch.uint8) if dtype.itemsize == 1 else state
    copy_layered(state_bytes, src, dst)
    expected = raw.clone()
    raw.copy_(before)
    used = {}
    grid = kernel._copy_slots_kernel

    class Spy:
        def __getitem__(self, size: tuple[int, ...]) -> Callable[..., None]:
            return lambda *a, **k: (used.update(k), grid[size](*a, **k))[1]

    monkeypatch.setattr(kernel, "_copy_slots_kernel", Spy())

    kernel.copy_slots(state, src, dst)

    assert torch.equal(raw, expected)
    assert used["WORD"] == kernel._WORDS[width]


@pytest.mark.parametrize("far", ["slot", "layer"])
def test_offsets_past_2_to_the_31_are_right(kernel: ModuleType, far: str) -> None:
    """The buffer is never touched but for a few pages, so it costs no memory."""
    step = (1 << 30) + 1  # odd: words of one byte, so offsets count bytes
    raw = torch.empty(3 * step, dtype=torch.uint8)
    slot_step, layer_step = (step, 16) if far == "slot" else (16, step)
    state = raw.as_strided((3, 3, 8), (layer_step, slot_step, 1))
    state.random_(generator=torch.Generator().manual_seed(31))
    expected = state.clone()
    copy_layered(expected, slots([0]), slots([2]))

    kernel.copy_slots(state, slots([0], torch.int32), slots([2], torch.int32))

    assert torch.equal(state, expected)


def test_ids_may_lie_apart_in_memory(kernel: ModuleType) -> None:
    state = torch.randn(2, 9, 40)
    ids = slots([1, 5, 2, 6, 3, 7])
    expected = state.clone()
    copy_layered(expected, ids[::2], ids[1::2])

    kernel.copy_slots(state, ids[::2], ids[1::2])

    assert torch.equal(state, expected)


def test_the_module_loads_without_sglang_and_triton() -> None:
    tree = ast.parse((SRT / "mem_cache" / "direct_slot_copy.py").read_text(encoding="utf-8"))
    imported = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            imported.add(node.module)
        elif isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)

    assert imported <= {"torch", *sys.stdlib_module_names}


# --- controls: these tests can fail -----------------------------------------


def one_after_another(state: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Copy slot after slot without a temporary: what a racing kernel may do."""
    for source, target in zip(src.tolist(), dst.tolist(), strict=True):
        state[:, target] = state[:, source]


@pytest.mark.parametrize(("copy", "same"), [("disjoint", True), ("chain", False)])
def test_control_slot_after_slot_differs_on_a_chain(
    plain: Subject, kernel: ModuleType, copy: str, same: bool
) -> None:
    src, dst = map(slots, COPIES[copy])
    expected = plain.after_upstream(src, dst)
    for copied in (one_after_another, kernel.copy_slots):
        plain.refill()
        for view in plain.views:
            copied(view, src, dst)

        assert all(map(torch.equal, plain.storage, expected)) is same
