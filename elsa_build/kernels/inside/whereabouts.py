"""Tensors in host memory that pass for tensors on the card, as far as upstream's code can ask.

Which branch a wrapper takes follows from where its tensors are: some are to be on the card, others
(lengths that the host plans with) are to be on the host. So where a tensor *would be* is kept
beside it, by what it was asked for and what it was made of.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def tensors_anywhere() -> Iterator[None]:
    """Let tensors in host memory pass for tensors on the card while the block runs.

    Who asks for one on `cuda` gets one in host memory; who asks a tensor where it is hears `cuda`,
    unless it was put on the host by name or made only of such. Memory that no kernel has written,
    since none is launched, is zero: what is read from it may then be an index.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class _Host(TorchFunctionMode):  # type: ignore[misc]  # no types here
        def __torch_function__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: Any = None,
        ) -> Any:
            del types
            if func in where:
                return where[func][getattr(args[0], _HOST, False)]
            if func is torch.device:  # a name for where, not a thing there
                return func(*args, **(kwargs or {}))
            if func is torch.nn.functional.linear:  # only its shape matters, and it is slow here
                return args[0].new_zeros(*args[0].shape[:-1], args[1].shape[0])
            if func is torch.Tensor.pin_memory:
                setattr(args[0], _HOST, True)
                return args[0]
            return _placed(func, args, dict(kwargs or {}))

    host, card = torch.device("cpu"), torch.device("cuda", 0)
    where = {
        torch.Tensor.is_cuda.__get__: (True, False),
        torch.Tensor.is_cpu.__get__: (False, True),
        torch.Tensor.device.__get__: (card, host),
        torch.Tensor.get_device: (0, -1),
    }
    with _Host():
        yield


_HOST = "_elsa_on_host"
"""An attribute of a tensor that really is in host memory."""
_LARGE = 1 << 20
"""Bytes from which the C library takes zeroed memory from the kernel, page by page as written."""


def _placed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of torch in host memory, and note where its result would be."""
    import torch

    moves = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)
    places = {_place(one) for one in (*args, *kwargs.values())}
    if kwargs.pop("pin_memory", False) or func in (torch.Tensor.cpu, torch.from_numpy):
        places.add("cpu")
    if func is torch.Tensor.cuda:
        places.add("cuda")
    named = {key: _moved(value) for key, value in kwargs.items()}
    called = torch.Tensor.to if func is torch.Tensor.cuda else func
    given = (args[0], "cpu") if func is torch.Tensor.cuda else tuple(map(_moved, args))
    found: Any = _blank(called, given, named) if func in _blanks() else called(*given, **named)
    if not isinstance(found, torch.Tensor):
        return found
    if args and found is args[0]:
        if func not in moves or not places & {"cpu", "cuda"}:
            return found  # changed in place
        if ("cpu" in places) != getattr(found, _HOST, False):
            found = found.detach().clone()
    of = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    made_of_host = bool(of) and all(getattr(one, _HOST, False) for one in of)
    setattr(found, _HOST, "cpu" in places or ("cuda" not in places and made_of_host))
    return found


@functools.cache
def _blanks() -> dict[Any, Any]:
    """Return the functions that make memory, and those that make it zero."""
    import torch

    return {
        torch.empty: torch.zeros,
        torch.zeros: torch.zeros,
        torch.empty_like: torch.zeros_like,
        torch.zeros_like: torch.zeros_like,
        torch.Tensor.new_empty: torch.Tensor.new_zeros,
        torch.Tensor.new_zeros: torch.Tensor.new_zeros,
    }


def _blank(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return memory that is zero and, if it is large, takes none before it is written."""
    import numpy as np
    import torch

    layout = kwargs.pop("memory_format", None)
    filled = _blanks()[func]
    if layout is not None and filled is torch.zeros_like:
        kwargs["memory_format"] = layout
    if kwargs.get("out") is not None:
        return filled(*args, **kwargs)
    like = filled(*args, **{**kwargs, "device": "meta"})
    if like.nbytes < _LARGE:
        return filled(*args, **kwargs)
    room = torch.from_numpy(np.zeros(like.nbytes, dtype=np.uint8))
    # Like what it is made of, also where that is transposed: strides are part of kernels' keys.
    return room.view(like.dtype).as_strided(like.shape, like.stride())


def _place(argument: Any) -> str:
    """Return `cpu` or `cuda` if an argument names a device, else nothing."""
    import torch

    if isinstance(argument, torch.device):
        return str(argument.type)
    named = argument.partition(":")[0] if isinstance(argument, str) else ""
    return named if named in {"cpu", "cuda"} else ""


def _moved(argument: Any) -> Any:
    import torch

    return torch.device("cpu") if _place(argument) == "cuda" else argument
