"""Whether a bundle is for a place: per family, what in a toolchain its run time insists on.

What a family does not look at may differ, so that a newer driver or another Python does not cost a
build; what it does look at and finds different, it compiles again, or worse, loads.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elsa_build.errors import StaleError
from elsa_build.kernels.bundle import REBUILD, Manifest
from elsa_build.kernels.jobs import Family

FIELDS: Mapping[Family, tuple[str, ...]] = {
    # A key holds digests of libtriton.so (one a Python ABI), of Triton's own sources, and what its
    # ptxas says of itself. Not in it: torch, driver, nvcc, any path.
    Family.TRITON: ("python", "triton", "libtriton", "triton_key", "ptxas"),
    # Its key: both compilers' words, the versions of what it links or includes, all headers, and
    # the toolkit's home when that is a link. Not in it: Python, since modules speak tvm-ffi's C.
    Family.SGLANG_JIT: (
        *("nvcc", "cuda_home", "cxx", "torch", "tvm_ffi", "flashinfer", "mathdx", "deep_gemm"),
    ),
    # An AOT library has no key at all, so what would crash it must be held here: it includes the
    # headers of its FlashInfer, and calls tvm-ffi and torch's CUDA runtime by their C interfaces.
    Family.FLASHINFER: ("flashinfer", "tvm_ffi", "cuda"),
}
"""Sources: the keys of Triton 3.8.0 and sglang v0.5.23, probed; flashinfer 0.7.2 jit/env.py."""

_SHORT = {"python": 2, "cuda": 1}
"""Of these the first parts count: 3.12.3 and 3.12.9 are one ABI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Why one family's kernels are not for a place."""

    family: Family
    field: str
    sealed: str
    here: str

    def __str__(self) -> str:
        return f"{self.family}: {self.field} is {self.here} here, the kernels are for {self.sealed}"


def misfits(
    manifest: Manifest, *, target: str | None = None, toolchain: Mapping[str, Any] | None = None
) -> tuple[Misfit, ...]:
    """Return why kernels of a bundle are not for a place, family by family.

    Args:
        manifest: The bundle's.
        target: The name of the place's architecture; None: not known, so not compared.
        toolchain: What is known of the place, by the fingerprint's names; other fields are not
            compared.
    """
    families = [family for family in Family if manifest.of(family)]
    return tuple(
        misfit
        for family in families
        for misfit in _of_family(family, manifest, target, toolchain or {})
    )


def _of_family(
    family: Family, manifest: Manifest, target: str | None, toolchain: Mapping[str, Any]
) -> Iterator[Misfit]:
    if target not in (None, manifest.target):
        yield Misfit(family=family, field="arch", sealed=manifest.target, here=str(target))
    for name in FIELDS[family]:
        if name not in toolchain:
            continue
        sealed, here = (_shown(name, one.get(name)) for one in (manifest.toolchain, toolchain))
        if sealed != here and not _same_release(sealed, here):
            yield Misfit(family=family, field=name, sealed=sealed, here=here)


def _shown(name: str, value: object) -> str:
    """Return what counts of a field, on one line."""
    if value is None:
        return "absent"
    text, parts = " ".join(str(value).split()), _SHORT.get(name)
    return ".".join(text.split(".")[:parts]) if parts else text


def _same_release(one: str, other: str) -> bool:
    """Say whether two versions differ only in that one names its build: 2.14.1 and 2.14.1+cu130."""
    short, long = sorted((one, other), key=len)
    return re.fullmatch(rf"{re.escape(short)}\+[\w.]+", long) is not None


def require(found: Collection[Misfit], where: str, recipe: str) -> None:
    """Return when there is no misfit.

    Raises:
        StaleError: There is; every family and field is named (exit 4).
    """
    if not found:
        return
    affected = sorted({str(one.family) for one in found})
    raise StaleError(
        f"{where}: {', '.join(affected)} kernels are not for this place: "
        + "; ".join(map(str, found)),
        hint=f"{REBUILD} --recipe {recipe}",
    )
