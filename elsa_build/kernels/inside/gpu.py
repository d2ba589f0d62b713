"""A card that is not there: what torch and Triton ask of one, answered from a description.

Kernels are compiled for what the driver says of the card, and some wrappers choose their tiles by
it. So on a builder without a GPU the answers come from the target; whatever would need a real card
(a launch, a stream, memory) does nothing or raises. Must be installed before the patched tree is
imported: its modules read the card at import, and what they read is part of a kernel's key.
"""

import contextlib
import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self


def install(target: Mapping[str, Any]) -> None:
    """Make torch and Triton see the card of a target (`Target.document()`) in this process."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what torch would compile is not planned for here
    _torch(target)
    _triton(target)


def capability(target: Mapping[str, Any]) -> tuple[int, int]:
    """Return major and minor of the compute capability."""
    return divmod(int(target["number"]), 10)


def _torch(target: Mapping[str, Any]) -> None:
    import torch

    major, minor = capability(target)
    properties = SimpleNamespace(
        name=target["card"],
        major=major,
        minor=minor,
        total_memory=target["memory_bytes"],
        multi_processor_count=target["multiprocessors"],
        max_threads_per_multi_processor=target["threads"],
        shared_memory_per_block_optin=target["shared_bytes"],
        warp_size=32,
        is_integrated=False,
        regs_per_multiprocessor=65536,
        L2_cache_size=0,
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": target["card"],
        "get_device_capability": (major, minor),
        "get_device_properties": properties,
        "init": None,
        "_lazy_init": None,
        "is_initialized": True,
        "set_device": None,
        "synchronize": None,
        "mem_get_info": (target["memory_bytes"], target["memory_bytes"]),
        "is_current_stream_capturing": False,
        "get_arch_list": [f"sm_{target['number']}"],
        "graph_pool_handle": (0, 0),
        "empty_cache": None,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _saying(answer))
    torch.cuda.current_stream = _saying(_Idle())
    torch.Tensor.record_stream = _saying(None)
    torch.cuda.default_generators = (_Generator(),)
    for name in ("Stream", "Event", "CUDAGraph", "graph"):
        setattr(torch.cuda, name, _Idle)
    for name in ("device", "stream", "device_of"):
        setattr(torch.cuda, name, _Nothing)


def _saying(answer: Any) -> Any:
    return lambda *_, **__: answer


class _Nothing(contextlib.nullcontext[None]):
    """Stands for a context that would make a device or a stream the current one."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


class _Idle:
    """Stands for a stream, an event or a CUDA graph: nothing waits, nothing is captured."""

    cuda_stream = 0
    device = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Take whatever the real one takes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _saying(None)


class _Generator:
    """Stands for the card's random numbers: a seed and an offset, both zero."""

    def get_state(self) -> Any:
        import torch

        return torch.zeros(16, dtype=torch.uint8)

    def set_state(self, _: object) -> None:
        return None


class _NoLaunchError(RuntimeError):
    """Something tried to load or to launch a kernel on the card that is not there."""


class _Loader:
    """What Triton's driver asks the CUDA driver for."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        self._properties = {
            "max_shared_mem": target["shared_bytes"],
            "max_num_regs": 65536,
            "multiprocessor_count": target["multiprocessors"],
            "warpSize": 32,
            "sm_clock_rate": target["sm_clock_khz"],
            "mem_clock_rate": target["memory_clock_khz"],
            "mem_bus_width": target["bus_bits"],
        }

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return dict(self._properties)

    def __getattr__(self, name: str) -> Any:
        raise _NoLaunchError(f"no GPU here: {name} was asked of the driver")


class _Driver:
    """Triton's active driver. Source: triton 3.8.0 backends/nvidia/driver.py, CudaDriver."""

    def __init__(self, target: Mapping[str, Any]) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", int(target["number"]), 32)
        self._capability = capability(target)
        self.utils = _Loader(target)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _device: int) -> None:
        return None

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_device_capability(self, _device: int = 0) -> tuple[int, int]:
        return self._capability

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> Any:
        raise _NoLaunchError("no GPU here: nothing can be timed")

    def __getattr__(self, name: str) -> Any:
        raise _NoLaunchError(f"no GPU here: {name} was asked of Triton's driver")


def _triton(target: Mapping[str, Any]) -> None:
    from triton.runtime.driver import driver

    driver.set_active(_Driver(target))
