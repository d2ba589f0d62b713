"""The chunked copy gives upstream's result with a ceiling on its scratch memory.

``MODEL`` is Qwen3.6-35B-A3B (30 GDN layers, 1 MiB bf16 per layer and slot), built
once because it takes 800 MiB; everything else is small.
"""

from __future__ import annotations

import ast
import importlib
import math
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import sglang
import torch
from sglang.srt.mem_cache import mamba_slot_fused
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.mem_cache.ple_state_pool import NGramPool, ShortConvPool
from slot_subjects import (
    COPIES,
    MIB,
    SLOTS,
    SMALL,
    SUBJECTS,
    SWITCH,
    Subject,
    contiguous_subject,
    copy_entries,
    copy_layered,
    mamba_pool,
    reads_of_values,
    scratch_of,
    slots,
)

MEM_CACHE = Path(sglang.__file__).parent / "srt" / "mem_cache"
MODEL = {"layers": 30, "heads": 32, "head_dim": 128, "state_size": 128, "groups": 16}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]()


@pytest.fixture
def ceiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the switch, MiB.

    Through the environment, so that an unpatched tree runs too and shows by its
    results, not by a missing name, what it lacks.
    """
    return lambda mib: monkeypatch.setenv(SWITCH, str(mib))


@pytest.fixture(scope="module")
def bounded() -> ModuleType:
    """Import the patch's own module, which an unpatched tree lacks."""
    return importlib.import_module("sglang.srt.mem_cache.bounded_slot_copy")


# --- same result ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("mib", [0, 1, 3, 60])
@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_gives_what_upstreams_statement_gives(
    subject: Subject, copy: str, mib: int, dtype: torch.dtype, ceiling: Callable[[int], None]
) -> None:
    ceiling(mib)
    src, dst = (slots(ids, dtype) for ids in COPIES[copy])

    expected = subject.after_upstream(src, dst)
    actual = subject.after_copy_from(src, dst)

    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("copy", ["chain", "rotation", "shared source"])
def test_the_fused_branch_copies_the_temporal_state_once(
    copy: str, ceiling: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU one kernel copies conv; only the temporal state is the patch's."""
    ceiling(1)
    subject = contiguous_subject()
    src, dst = map(slots, COPIES[copy])
    fused: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(subject.pool, "_should_fuse_slot_ops", lambda: True)
    monkeypatch.setattr(
        mamba_slot_fused, "fused_copy_conv_slots", lambda _desc, s, d: fused.append((s, d))
    )

    *_, expected = subject.after_upstream(src, dst)
    subject.refill()
    scratch = scratch_of(subject.pool.copy_from, src, dst)

    *convs, temporal = subject.storage
    assert fused == [(src, dst)]
    assert torch.equal(temporal, expected)
    assert all(map(torch.equal, convs, subject.filling))
    assert scratch.peak <= MIB


def test_the_ring_cursor_and_the_side_states_still_follow_the_slot(
    ceiling: Callable[[int], None],
) -> None:
    ceiling(1)
    src, dst = map(slots, COPIES["chain"])
    pool = mamba_pool(SMALL, slots=SLOTS, enable_linear_replayssm=True)
    window = ShortConvPool(
        size=SLOTS, state_shape=(512, 64), layer_ids=[0, 1, 2], dtype=torch.float32, device="cpu"
    )
    context = NGramPool(size=SLOTS, context_len=4, eos_token_id=2, device="cpu")
    disabled = ShortConvPool(
        size=SLOTS, state_shape=None, layer_ids=[], dtype=torch.float32, device="cpu"
    )
    for state in (window, context, disabled):
        pool.register_slot_state(state)
    pool.replayssm_write_pos.fill_(3)
    window.conv_state.normal_()
    context.context.random_(1000)
    expected_window, expected_context = window.conv_state.clone(), context.context.clone()
    copy_layered(expected_window, src, dst)
    copy_entries(expected_context, src, dst)

    scratch = scratch_of(pool.copy_from, src, dst)

    assert pool.replayssm_write_pos[dst].tolist() == [0] * len(dst)
    assert pool.replayssm_write_pos[1].item() == 3
    assert torch.equal(window.conv_state, expected_window)
    assert torch.equal(context.context, expected_context)
    assert scratch.peak <= MIB  # the window's three layers alone would take 2.25 MiB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_any_dtype_and_any_strides_will_do(
    bounded: ModuleType, dtype: torch.dtype, ceiling: Callable[[int], None]
) -> None:
    ceiling(1)
    src, dst = map(slots, COPIES["rotation"])
    # As on AMX CPUs: the feature axes of a slot lie transposed in memory.
    state = torch.randint(-99, 99, (6, 8, 300, 512)).to(dtype).transpose(2, 3)
    expected = state.clone()
    copy_layered(expected, src, dst)

    bounded.copy_layered_slots(state, src, dst)

    assert torch.equal(state, expected)


@pytest.mark.parametrize("mib", [0, 60])
@pytest.mark.parametrize("shape", [(0, 8, 4), (3, 8, 0), (3, 8, 0, 0, 0)])
def test_a_state_without_elements_is_left_alone(
    bounded: ModuleType, shape: tuple[int, ...], mib: int, ceiling: Callable[[int], None]
) -> None:
    ceiling(mib)

    bounded.copy_layered_slots(torch.empty(shape), slots([1]), slots([2]))
    bounded.copy_entry_slots(torch.empty(8, 0, dtype=torch.uint8), slots([1]), slots([2]))


# --- bounded memory ---------------------------------------------------------


@pytest.mark.parametrize("mib", [1, 3])
def test_the_scratch_of_a_copy_stays_under_the_ceiling(
    subject: Subject, mib: int, ceiling: Callable[[int], None]
) -> None:
    ceiling(mib)
    src, dst = map(slots, COPIES["disjoint"])
    all_at_once = subject.all_at_once_bytes(len(src))
    subject.refill()

    scratch = scratch_of(subject.pool.copy_from, src, dst)

    # What fits is used: a part as large as the ceiling allows, but for one unit.
    most = min(mib * MIB, all_at_once)
    assert most - len(src) * subject.unit_bytes < scratch.peak <= most
    assert scratch.live == 0


def test_zero_is_upstreams_single_statement(
    subject: Subject, ceiling: Callable[[int], None]
) -> None:
    ceiling(0)
    src, dst = map(slots, COPIES["disjoint"])
    subject.refill()

    scratch = scratch_of(subject.pool.copy_from, src, dst)

    assert scratch.gathers == len(subject.views)
    assert scratch.peak == subject.all_at_once_bytes(len(src))


@pytest.fixture(scope="module")
def model_pool() -> MambaPool:
    pool = mamba_pool(MODEL, slots=24)
    for slot in range(1, 13):  # one value a slot: enough to tell them apart
        pool.mamba_cache.temporal[:, slot] = slot
        pool.mamba_cache.conv[0][:, slot] = -slot
    return pool


@pytest.mark.parametrize(
    ("n", "mib", "peak_mib"),
    [
        pytest.param(8, 60, 56, id="8 states, 60 MiB: 7 layers a part"),
        pytest.param(12, 60, 60, id="12 states, 60 MiB: 5 layers a part"),
        pytest.param(8, -60, 56, id="8 states, -60: as 60"),
        pytest.param(8, 0, 240, id="8 states, 0: upstream"),
        pytest.param(12, 0, 360, id="12 states, 0: upstream"),
    ],
)
def test_the_models_states_are_copied_within_60_mib(
    model_pool: MambaPool, n: int, mib: int, peak_mib: int, ceiling: Callable[[int], None]
) -> None:
    ceiling(mib)
    conv, temporal = model_pool.mamba_cache.conv[0], model_pool.mamba_cache.temporal
    assert temporal[:, 0].nbytes == 30 * MIB
    assert conv[:, 0].nbytes == 30 * 48 * 1024
    src, dst = slots(range(1, 1 + n)), slots(range(13, 13 + n))
    temporal[:, 13:].zero_()
    conv[:, 13:].zero_()

    scratch = scratch_of(model_pool.copy_from, src, dst)

    assert scratch.peak == peak_mib * MIB
    assert scratch.live == 0
    assert torch.equal(temporal[:, 13 : 13 + n], temporal[:, 1 : 1 + n])
    assert torch.equal(conv[:, 13 : 13 + n], conv[:, 1 : 1 + n])
    assert not temporal[:, 13 + n :].any()


@pytest.mark.parametrize(
    ("n", "mib", "parts"),
    [
        (6, 0, 1),
        (6, 60, 1),
        (6, 3, 2),  # 384 KiB a layer: 8 layers, then 2
        (6, 1, 5),  # 2 layers a part
        (6, -1, 5),
        (6, -3, 2),
        (1, 1, 1),  # 640 KiB in all
        (0, 1, 0),
        (32, 1, 10),  # one layer is 2 MiB: over the ceiling, and the least there is
    ],
)
def test_the_number_of_parts_follows_from_shapes(
    bounded: ModuleType, n: int, mib: int, parts: int, ceiling: Callable[[int], None]
) -> None:
    ceiling(mib)
    state = torch.zeros(10, 64, 4, 64, 128, dtype=torch.bfloat16)

    scratch = scratch_of(
        bounded.copy_layered_slots, state, slots(range(n)), slots(range(32, 32 + n))
    )

    assert scratch.gathers == parts


@pytest.mark.parametrize(
    ("n", "mib", "parts"),
    [
        (4, 0, 1),
        (4, 60, 1),
        (4, 1, 4),  # 64 pages of 4 KiB a part, 200.5 pages an entry
        (3, 1, 3),  # 85.3 pages would fit: 85, and the last part is short
        (300, 1, 201),  # one page of each is over the ceiling, and the least there is
    ],
)
def test_an_entry_is_split_at_whole_pages(
    bounded: ModuleType, n: int, mib: int, parts: int, ceiling: Callable[[int], None]
) -> None:
    ceiling(mib)
    entries = torch.zeros(8, 200 * 4096 + 2048, dtype=torch.uint8)
    src, dst = slots([i % 4 for i in range(n)]), slots([4 + i % 4 for i in range(n)])

    scratch = scratch_of(bounded.copy_entry_slots, entries, src, dst)

    assert scratch.gathers == parts
    assert scratch.peak <= max(n * 4096, mib * MIB or math.inf)


def test_no_copy_looks_at_slot_ids(subject: Subject, ceiling: Callable[[int], None]) -> None:
    """Reading a value on a GPU waits for the device; a mask does so to size its result."""
    ceiling(1)

    scratch = scratch_of(subject.pool.copy_from, *map(slots, COPIES["chain"]))

    assert reads_of_values(scratch) == 0


def test_the_switch_is_an_integer_of_sixty(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.environ import EnvInt, envs

    monkeypatch.delenv(SWITCH, raising=False)

    assert isinstance(vars(type(envs))[SWITCH], EnvInt)
    assert getattr(envs, SWITCH).get() == 60


# --- coverage of the tree ---------------------------------------------------

# A slot gathered and scattered in one statement, over one or several lines.
# series.yaml carries the same pattern as a probe.
GATHER_THEN_SCATTER = re.compile(r"\bdst_ind\w*\s*\]\s*=(?!=)[^=]*?\bsrc_ind\w*\s*\]")


def test_no_gather_then_scatter_over_slot_ids_is_left() -> None:
    found = {
        f"{path.relative_to(MEM_CACHE)}:{text.count(chr(10), 0, match.start()) + 1}"
        for path in sorted(MEM_CACHE.rglob("*.py"))
        if path.name != "bounded_slot_copy.py"
        for text in [path.read_text(encoding="utf-8")]
        for match in GATHER_THEN_SCATTER.finditer(text)
    }

    assert found == set()


def test_every_hook_is_in_place() -> None:
    calls = Counter(
        f"{path.name} {node.func.id}"
        for path in MEM_CACHE.rglob("*.py")
        if path.name != "bounded_slot_copy.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"copy_layered_slots", "copy_entry_slots"}
    )

    assert calls == {
        "memory_pool.py copy_layered_slots": 2,
        "unified_memory_pool.py copy_entry_slots": 1,
        "unified_draft_pool.py copy_layered_slots": 1,
        "ple_state_pool.py copy_layered_slots": 1,
    }


def test_the_new_module_loads_without_sglang() -> None:
    path = MEM_CACHE / "bounded_slot_copy.py"
    top = ast.parse(path.read_text(encoding="utf-8")).body
    imported = {
        name
        for node in top
        for name in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }

    assert imported == {"__future__", "torch"}


# --- controls: these tests can fail -----------------------------------------


def by_named_layers(state: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Run the patch's loop with a name for the gathered part, two layers a part."""
    for first in range(0, state.shape[0], 2):
        part = state[first : first + 2]
        gathered = part[:, src]
        part[:, dst] = gathered


def by_slots(state: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Make the tempting split: two slots of the list a part."""
    for first in range(0, src.numel(), 2):
        pair = slice(first, first + 2)
        state[:, dst[pair]] = state[:, src[pair]]


def test_control_a_name_for_the_part_doubles_the_peak(
    bounded: ModuleType, ceiling: Callable[[int], None]
) -> None:
    ceiling(1)
    state = torch.zeros(10, 16, 4, 64, 128, dtype=torch.bfloat16)
    src, dst = map(slots, COPIES["disjoint"])
    two_layers = 2 * 6 * 64 * 1024

    assert scratch_of(bounded.copy_layered_slots, state, src, dst).peak == two_layers
    assert scratch_of(by_named_layers, state, src, dst).peak == 2 * two_layers


@pytest.mark.parametrize(("copy", "same"), [("disjoint", True), ("chain", False)])
def test_control_a_split_of_the_slot_list_differs_on_a_chain(copy: str, same: bool) -> None:
    subject = contiguous_subject()
    src, dst = map(slots, COPIES[copy])

    expected = subject.after_upstream(src, dst)
    subject.refill()
    for view in subject.views:
        by_slots(view, src, dst)

    assert all(map(torch.equal, subject.storage, expected)) is same


def test_control_the_meter_sees_a_read_of_slot_ids() -> None:
    state, ids = torch.zeros(4, 8), slots(range(8))

    assert reads_of_values(scratch_of(lambda: state[:, ids == 1])) == 1
    assert reads_of_values(scratch_of(lambda: (ids == 1).nonzero())) == 1
    assert reads_of_values(scratch_of(lambda: ids.max().item())) == 1
    assert reads_of_values(scratch_of(lambda: set(ids.tolist()))) == 1
    assert reads_of_values(scratch_of(lambda: state[:, ids])) == 0


@pytest.mark.parametrize(
    ("source", "hit"),
    [
        ("pool[:, dst_indices] = pool[:, src_indices]", True),
        ("pool[dst_index] = pool[src_index]", True),
        ("a.b[i][:, dst_indices] = a.b[i][\n    :, src_indices\n]", True),
        ("cursor[dst_indices] = 0\nf(src_indices, dst_indices)", False),
        ("copy(pool, src_indices, dst_indices)", False),
        ("if pool[dst_index] == pool[src_index]: pass", False),
    ],
)
def test_control_the_pattern_tells_a_copy_from_its_neighbours(source: str, hit: bool) -> None:
    assert bool(GATHER_THEN_SCATTER.search(source)) is hit
