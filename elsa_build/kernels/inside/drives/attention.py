"""Attention over the patches of an image; that over tokens is driven with the requests.

On this card upstream's default for the vision tower is Triton, for the model it is FlashInfer.
"""

import copy
from collections.abc import Iterator
from typing import Any

from elsa_build.kernels.inside.drives.engine import alone
from elsa_build.kernels.inside.drives.served import Drive, Served
from elsa_build.kernels.inside.drives.server import server
from elsa_build.kernels.inside.nvcc_capture import asking

_SOURCE = "srt/models/qwen3_vl.py, srt/layers/attention/vision.py"
_GRIDS: tuple[tuple[list[int], ...], ...] = (([1, 2, 2],), ([1, 16, 16],), ([1, 6, 10], [2, 4, 4]))
"""Images (frames, rows and columns of patches) of one call: small, large, several."""


def _vision(model: Served) -> Iterator[str]:
    """Drive the tower over images; its shapes are upstream's defaults for the architecture."""
    import torch

    vision = server(model).runner.model_config.hf_config.vision_config
    alone()
    tower = _tower(vision, model.torch_dtype(model.dtype))
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    yield "prefill"
    with torch.no_grad(), asking():
        for grids in _GRIDS:
            patches = sum(frames * rows * columns for frames, rows, columns in grids)
            tower(torch.zeros(patches, width, dtype=tower.dtype), torch.tensor(list(grids)))


def _tower(vision: Any, dtype: Any) -> Any:
    """Return upstream's vision tower, of one layer: the others launch nothing else."""
    import torch
    from sglang.srt.models.qwen3_vl import Qwen3VLMoeVisionModel

    config = copy.copy(vision)
    config.depth, config.deepstack_visual_indexes = 1, []
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return Qwen3VLMoeVisionModel(config).eval()
    finally:
        torch.set_default_dtype(default)


DRIVES = (Drive(name="vision", source=_SOURCE, run=_vision),)
