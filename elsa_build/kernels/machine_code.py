"""What the machine code of a kernel is for, from its own bytes: no manifest's word is taken."""

from collections.abc import Iterable
from dataclasses import dataclass

from elsa_build.kernels.fatbin import GpuCode, Kind, read


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A body in memory, to be read by place."""

    body: bytes

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.body)

    def at(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`."""
        return self.body[offset : offset + count]


def code_of(body: bytes) -> GpuCode | None:
    """Return the GPU code in the bytes of a file, or None when it holds none."""
    return read(_Bytes(body))


def arch_of(codes: Iterable[GpuCode]) -> str:
    """Return what some code is for, as `sm_120a` or `sm_120a sm_120f`; empty for none."""
    forms = {
        code.form
        for gpu in codes
        for container in gpu.containers
        for code in container
        if code.kind is Kind.SASS
    }
    return " ".join(f"sm_{form}" for form in sorted(forms))
