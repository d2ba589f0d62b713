"""Arguments of upstream's own functions as plain data, so that a job can be sent and kept."""

from collections.abc import Sequence
from typing import Any


def plain(value: object) -> Any:
    """Return a value as JSON has it: a dtype is `{"dtype": "bfloat16"}`, a tuple `{"tuple": []}`.

    Raises:
        TypeError: The value has no such form (a tensor, a module).
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return {"tuple": [plain(one) for one in value]}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    raise TypeError(f"cannot be sent in a job: {value!r}")


def meant(value: Any) -> Any:
    """Return what `plain` wrote down.

    Raises:
        TypeError: It is not of that form.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [meant(one) for one in value]
    if not isinstance(value, dict):
        return value
    match list(value.items()):
        case [("tuple", list(items))]:
            return tuple(meant(one) for one in items)
        case [("dtype", str(name))]:
            import torch

            return getattr(torch, name)
        case [("device", str(name))]:
            import torch

            return torch.device(name)
        case _:
            raise TypeError(f"no argument has this form: {value!r}")
