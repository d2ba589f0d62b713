"""Put the patched tree on the path and make sglang importable without a GPU.

Shared by the tests of all patchsets. They import the classes of the tree they
are told to test, never an installed sglang: ELSA_PATCHED_TREE names a folder
that holds ``python/sglang``. Nothing of sglang is imported here: the conftest
of each folder imports what its tests need, with the warnings off.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)  # else the conftest of a folder below may come first
def pytest_configure() -> None:
    """Refuse to run without a tree, then put it first on the path.

    Raises:
        pytest.UsageError: ELSA_PATCHED_TREE is unset or holds no sglang, or
            another sglang was imported before (pytest ends with exit code 4).
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
    stand_in_for_datasets()
    found = importlib.util.find_spec("sglang").origin
    if Path(found).parent != package:
        msg = f"sglang comes from {found}, not from ELSA_PATCHED_TREE={tree}"
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
    from transformers.utils import is_torchvision_available

    _stand_in(
        is_torchvision_available,
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.functional",
    )


def stand_in_for_datasets() -> None:
    """Serve an empty datasets where none is installed.

    sglang's own test kits import it on the way (v0.5.23 test/test_utils.py to
    benchmark/datasets/mmmu.py) for a benchmark that no test here runs.
    """
    from transformers.utils import is_datasets_available

    _stand_in(is_datasets_available, "datasets")


def _stand_in(ask_transformers: types.FunctionType, *names: str) -> None:
    if names[0] in sys.modules or importlib.util.find_spec(names[0]):
        return
    # transformers would take the stand-in for the real thing. Its answer is
    # cached, so it is asked while there is still nothing to find.
    ask_transformers()
    for name in names:
        module = _AnyName(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
