"""What the tests of this patchset copy, and how they measure it.

Every pool is the patched tree's own class, built on the CPU. Upstream's result is
computed in place on the same storage by the statement that the patches replace,
so the two can't differ by layout or dtype.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.layout.fused_draft import (
    DraftStateGeometry,
    DraftStateRegion,
    FusedDraftPlacement,
)
from sglang.srt.mem_cache.memory_pool import MambaPool
from sglang.srt.mem_cache.unified_draft_pool import UnifiedDraftMambaPool
from sglang.srt.mem_cache.unified_memory_pool import (
    MambaSubPoolSpec,
    MHASubPoolSpec,
    UnifiedKVPool,
    UnifiedMambaPool,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SWITCH = "SGLANG_MAMBA_SLOT_COPY_SCRATCH_MB"
MIB = 1 << 20

Geometry = dict[str, int]
"""heads, head_dim and state_size make the temporal state; groups widen the conv."""

# Six slots need more than 1 MiB in every copied tensor.
SMALL: Geometry = {"layers": 10, "heads": 4, "head_dim": 64, "state_size": 128, "groups": 16}
SLOTS = 15  # usable slots of a pool; slot 0 comes on top
DRAFT_LANES = 4

# name -> (sources, destinations); slot ids of a small pool.
COPIES: dict[str, tuple[list[int], list[int]]] = {
    "disjoint": ([5, 2, 6, 1, 4, 3], [8, 13, 7, 11, 15, 10]),
    "shared source": ([3, 3, 3, 5, 5, 1], [7, 8, 9, 10, 11, 12]),
    "chain": ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]),
    "reverse chain": ([6, 5, 4, 3, 2, 1], [7, 6, 5, 4, 3, 2]),
    "swap": ([1, 2, 3, 4, 5, 6], [2, 1, 4, 3, 6, 5]),
    "rotation": ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 1]),
    "self": ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]),
    "one": ([4], [9]),
    "one onto itself": ([4], [4]),
    "empty": ([], []),
}


def slots(ids: list[int] | range, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(list(ids), dtype=dtype)


# --- what is copied ---------------------------------------------------------


def copy_layered(state: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Upstream's statement for [layers, slots, ...] (v0.5.23 MambaPool.copy_from)."""
    state[:, dst] = state[:, src]


def copy_entries(entries: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> None:
    """Upstream's statement for [slots, bytes] (v0.5.23 UnifiedMambaPool.copy_from)."""
    entries[dst] = entries[src]


@dataclass
class Subject:
    """A pool with the tensors its ``copy_from`` changes.

    Attributes:
        storage: Every byte of the pool that a copy could touch, also those
            that it must leave alone.
        views: The tensors that upstream copies, each with one ``statement``.
        unit_bytes: Scratch of the least part of one slot, bytes.
    """

    pool: Any
    storage: list[torch.Tensor]
    views: list[torch.Tensor]
    statement: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    unit_bytes: int
    filling: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(23)
        for tensor in self.storage:
            if tensor.is_floating_point():
                tensor.normal_(generator=generator)
            else:
                tensor.random_(generator=generator)
        self.filling = [tensor.clone() for tensor in self.storage]

    def refill(self) -> None:
        for tensor, filling in zip(self.storage, self.filling, strict=True):
            tensor.copy_(filling)

    def after_upstream(self, src: torch.Tensor, dst: torch.Tensor) -> list[torch.Tensor]:
        self.refill()
        for view in self.views:
            self.statement(view, src, dst)
        return [tensor.clone() for tensor in self.storage]

    def after_copy_from(
        self, src: torch.Tensor, dst: torch.Tensor, **promise: bool
    ) -> list[torch.Tensor]:
        self.refill()
        self.pool.copy_from(src, dst, **promise)
        return self.storage

    def all_at_once_bytes(self, n: int) -> int:
        """Return upstream's peak: its largest statement's share of n slots."""
        slot_axis = 1 if self.statement is copy_layered else 0
        return max(n * view.nbytes // view.shape[slot_axis] for view in self.views)


def mamba_pool(geometry: Geometry, *, slots: int, **options: Any) -> MambaPool:
    return MambaPool(
        size=slots,
        spec_state_size=0,
        cache_params=Mamba2CacheParams(
            shape=state_shape(geometry),
            dtype=Mamba2StateDType(conv=torch.bfloat16, temporal=torch.bfloat16),
            layers=list(range(geometry["layers"])),
        ),
        mamba_layer_ids=list(range(geometry["layers"])),
        device="cpu",
        **options,
    )


def state_shape(geometry: Geometry) -> Mamba2StateShape:
    return Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=geometry["heads"] * geometry["head_dim"],
        n_groups=geometry["groups"],
        num_heads=geometry["heads"],
        head_dim=geometry["head_dim"],
        state_size=geometry["state_size"],
        conv_kernel=4,
    )


def unified_buffer(geometry: Geometry) -> UnifiedKVPool:
    """Build a unified buffer whose state entries carry a fused draft block as well."""
    shape = state_shape(geometry)
    state_geometry: dict[str, Any] = {
        "conv_state_shapes": tuple(shape.conv),
        "conv_dtype": torch.bfloat16,
        "temporal_state_shape": shape.temporal,
        "temporal_dtype": torch.bfloat16,
    }
    region = DraftStateRegion(lane_num=DRAFT_LANES, state=DraftStateGeometry(**state_geometry))
    state = MambaSubPoolSpec(
        name="mamba",
        layer_num=geometry["layers"],
        grow_direction="up",
        draft_region=region,
        **state_geometry,
    )
    attention = MHASubPoolSpec(
        name="full",
        layer_num=1,
        grow_direction="down",
        head_num=2,
        head_dim=64,
        store_dtype=torch.bfloat16,
    )
    return UnifiedKVPool(
        total_bytes=(SLOTS + 1) * state.entry_bytes(),
        sub_pool_specs=[attention, state],
        device="cpu",
        enable_memory_saver=False,
        fused_draft=FusedDraftPlacement.from_counts(
            counts={"mamba": [DRAFT_LANES]}, regions={"mamba": region}
        ),
    )


def contiguous_subject(geometry: Geometry = SMALL) -> Subject:
    pool = mamba_pool(geometry, slots=SLOTS)
    tensors = [*pool.mamba_cache.conv, pool.mamba_cache.temporal]
    return Subject(pool, tensors, tensors, copy_layered, layer_bytes(tensors))


def envelope_subject(geometry: Geometry = SMALL) -> Subject:
    pool = mamba_pool(geometry, slots=SLOTS, envelope_layout=True)
    views = [*pool.mamba_cache.conv, pool.mamba_cache.temporal]
    assert not pool.mamba_cache.temporal.is_contiguous()
    return Subject(pool, [pool._raw], views, copy_layered, layer_bytes(views))


def unified_subject(geometry: Geometry = SMALL) -> Subject:
    buffer = unified_buffer(geometry)
    pool = UnifiedMambaPool(
        unified_buffer=buffer,
        sub_pool_name="mamba",
        spec_state_size=0,
        mamba_layer_ids=list(range(geometry["layers"])),
    )
    return Subject(pool, [buffer._raw], [pool._entry_view()], copy_entries, 4096)


def draft_subject(geometry: Geometry = SMALL) -> Subject:
    buffer = unified_buffer(geometry)
    pool = UnifiedDraftMambaPool(
        unified_buffer=buffer,
        sub_pool_name="mamba",
        layer_lanes={lane: lane for lane in range(DRAFT_LANES)},
    )
    views = [*pool.mamba_cache.conv, pool.mamba_cache.temporal]
    return Subject(pool, [buffer._raw], views, copy_layered, layer_bytes(views))


def layer_bytes(views: list[torch.Tensor]) -> int:
    return max(view.nbytes // (view.shape[0] * view.shape[1]) for view in views)


SUBJECTS: dict[str, Callable[..., Subject]] = {
    "contiguous": contiguous_subject,
    "envelope": envelope_subject,
    "unified": unified_subject,
    "draft": draft_subject,
}


# --- how memory is measured -------------------------------------------------


class Scratch(TorchDispatchMode):
    """Counts the bytes of storages that are born, and still alive, under it.

    Views and in-place results share a storage with an argument and cost nothing.
    A weak reference tells when a storage is gone, so what counts is when the
    caller lets go of it, not when this mode looks.

    Attributes:
        peak: Most bytes alive at once.
        ops: Calls by operator, such as ``aten.index.Tensor``; an index that is
            a mask counts as ``nonzero``, which runs out of this mode's sight, as
            does ``tolist``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.ops: Counter[str] = Counter()
        self._born: dict[int, tuple[StorageWeakRef, int]] = {}

    def __enter__(self) -> Scratch:
        self._tolist = tolist = torch.Tensor.tolist

        def counted(tensor: torch.Tensor) -> list[Any]:
            self.ops["tolist"] += 1
            return tolist(tensor)

        torch.Tensor.tolist = counted
        return super().__enter__()

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        torch.Tensor.tolist = self._tolist

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.ops[str(func)] += 1
        if func.overloadpacket in {torch.ops.aten.index, torch.ops.aten.index_put_}:
            masks = {torch.bool, torch.uint8}
            self.ops["nonzero"] += any(i is not None and i.dtype in masks for i in args[1])
        given = {s._cdata for s in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in given:
                self._born[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out

    @property
    def live(self) -> int:
        self._born = {k: v for k, v in self._born.items() if not v[0].expired()}
        return sum(size for _, size in self._born.values())

    @property
    def gathers(self) -> int:
        return self.ops["aten.index.Tensor"]


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [t.untyped_storage() for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def reads_of_values(scratch: Scratch) -> int:
    readers = ("_local_scalar_dense", "nonzero", "tolist")
    return sum(calls for op, calls in scratch.ops.items() if any(name in op for name in readers))


def scratch_of(copy: Callable[..., None], *args: torch.Tensor, **promise: bool) -> Scratch:
    with Scratch() as scratch:
        copy(*args, **promise)
    return scratch
