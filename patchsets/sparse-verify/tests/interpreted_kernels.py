"""Run the patch's kernels in Triton's interpreter, in processes of their own.

Whether triton interprets is settled when it is first imported, and the tests of
other patchsets import it plainly in pytest's process. So these functions are
called in worker processes, which import nothing of sglang: the module under
test loads by path.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

MODULE = "python/sglang/srt/speculative/sparse_topk_verify.py"
SM120_SHARED_BYTES = 99 * 1024  # most that one block may have there (CUDA programming guide)


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start workers for the functions below."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield pool
        pool.shutdown(cancel_futures=True)


@functools.cache
def _module(interpret: bool) -> ModuleType:
    assert "triton" not in sys.modules
    os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
    torch.set_num_threads(1)
    path = Path(os.environ["ELSA_PATCHED_TREE"]).resolve() / MODULE
    spec = importlib.util.spec_from_file_location("sparse_topk_verify", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    assert not any(name == "sglang" or name.startswith("sglang.") for name in sys.modules)
    return module


def verify(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Call ``verify_chain`` and return its outputs and the list that it selected.

    Args:
        arguments: all of it, outputs included.
    """
    scratch = _module(interpret=True).verify_chain(**arguments)
    names = ("predict", "accept_index", "num_correct_drafts")
    return {name: arguments[name] for name in names} | {
        "values": scratch.values,
        "ids": scratch.ids,
        "counts": scratch.counts,
    }


def shared_bytes_on_sm120(vocab: int, nodes: int) -> dict[int, int]:
    """Compile every variant for sm_120, without a GPU.

    Returns:
        Shared memory of one block, bytes, by the largest top_k of the variant.
    """
    module = _module(interpret=False)
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    kernel = module._verify_rows_kernel
    blocks = -(-vocab // module._TILE.value) * module._LANES.value
    found = {}
    for size in module._SIZES:
        constants = {
            "VOCAB": vocab,
            "NODES": nodes,
            "BLOCKS": blocks,
            "BINS": size.bins,
            "SLOTS": size.slots,
            "KEPT": size.kept,
        }
        signature = {name: _type_of(name) for name in kernel.arg_names}
        source = ASTSource(kernel, signature, constants)
        target = GPUTarget("cuda", 120, 32)
        compiled = compile(source, target=target, options={"num_warps": 8})
        found[size.max_top_k] = compiled.metadata.shared
    return found


def _type_of(argument: str) -> str:
    if argument.isupper():
        return "constexpr"
    if argument == "row_stride":
        return "i32"
    if not argument.endswith("_ptr"):
        return "fp32"
    floats = ("logits", "maxima", "values", "coins", "final_coins", "temperatures", "top_ps")
    longs = ("candidates", "retrieve_index", "retrieve_next_token")
    name = argument.removesuffix("_ptr")
    return "*fp32" if name in floats else "*i64" if name in longs else "*i32"
