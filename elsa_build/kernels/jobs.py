"""One piece of building, and what became of it: the words that pool, farm and builders share.

A job is plain data, so that a worker process, or one on another machine, can do it; its outputs
are files below the build folder, so that whoever did it, the result is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Family(StrEnum):
    """Who compiles a kernel, and so where it is looked up; the folder of a bundle has its name."""

    TRITON = "triton"
    SGLANG_JIT = "sglang-jit"
    FLASHINFER = "flashinfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of building.

    `id` names its content: the same work has the same id in every run, so a finished one is known
    again. `call` names what a worker does with `arguments` (`elsa_build.kernels.inside.worker`).
    `memory_mib` and `cpu_s` are estimates: the first is kept to, the second orders and foretells.
    `needs` are ids of jobs that must have succeeded.
    """

    id: str
    family: Family
    name: str
    call: str
    arguments: Mapping[str, Any]
    memory_mib: int
    cpu_s: float
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: `error` is None when it succeeded.

    `found` is what the worker said (plain data: files, key, shared memory); `fresh` is False when
    nothing had to be compiled. `cpu_s` counts the worker and its children; `peak_mib` is the
    largest resident set of one process.
    """

    job: str
    error: str | None = None
    found: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = True
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mib: int = 0
