"""Put the patched tree on the path and make sglang importable without a GPU.

The tests import the pools of the tree they are told to test, never an installed
sglang: ELSA_PATCHED_TREE names a folder that holds ``python/sglang``.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
import warnings
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Refuse to run without a tree, then import sglang from it.

    Raises:
        pytest.UsageError: ELSA_PATCHED_TREE is unset, holds no sglang, or
            another sglang came first (pytest ends with exit code 4).
    """
    tree = os.environ.get("ELSA_PATCHED_TREE")
    if not tree:
        msg = "ELSA_PATCHED_TREE is unset: no patched tree to test. Run `make test-patches`."
        raise pytest.UsageError(msg)
    package = Path(tree).resolve() / "python" / "sglang"
    if not (package / "__init__.py").is_file():
        msg = f"ELSA_PATCHED_TREE={tree} holds no python/sglang. Run `make test-patches`."
        raise pytest.UsageError(msg)
    sys.path.insert(0, str(package.parent))
    stand_in_for_torchvision()
    # On a CPU sglang warns about the quantisations it can't offer here; under
    # filterwarnings=error that would end the import.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sglang.srt.mem_cache.unified_draft_pool  # noqa: F401
    found = Path(sys.modules["sglang"].__file__).parent
    if found != package:
        msg = f"sglang came from {found}, not from ELSA_PATCHED_TREE={tree}"
        raise pytest.UsageError(msg)


class _AnyName(types.ModuleType):
    """A module in which every public name is an empty class."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in_for_torchvision() -> None:
    """Serve an empty torchvision where none is installed.

    sglang's model configs import it at module level (v0.5.23
    srt/multimodal/internvl_utils.py, srt/configs/deepseek_ocr.py) for image
    transforms that no pool needs. Its published wheels load only beside a CUDA
    torch, and installing them swaps the CPU torch for that one.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    # transformers would take the stand-in for the real thing. Its answer is
    # cached, so it is asked while there is still nothing to find.
    from transformers.utils import is_torchvision_available

    is_torchvision_available()
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
        module = _AnyName(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
