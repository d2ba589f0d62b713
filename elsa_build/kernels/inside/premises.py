"""What this interpreter has, asked once before it plans or builds; and the stub of the driver.

Run as a program with the stub's folder as its argument; prints one JSON document.
"""

import importlib.metadata
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elsa_build.kernels.inside import fingerprint, stub_cuda


def premises(stub: Path) -> dict[str, Any]:
    """Return `fingerprint`, `site_packages`, `triton_files` and `stub`, which is made.

    `triton_files` are Triton's installed files and their sha256 as its list has them (`sha256=` and
    base64), to be compared with another Python's wheel.

    Raises:
        RuntimeError: There is no C compiler for the stub.
    """
    libraries, texts = list(_users()), list(_headers())
    stub_cuda.make(stub, stub_cuda.wanted(libraries, texts))
    return {
        "fingerprint": fingerprint.fingerprint(),
        "site_packages": sysconfig.get_path("purelib"),
        "triton_files": _installed("triton"),
        "stub": str(stub),
    }


def _users() -> Iterator[Path]:
    """Yield the libraries that are linked to the driver and loaded on the way to the kernels."""
    spec = importlib.util.find_spec("sgl_kernel")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(place).glob("**/common_ops*.so"))
        yield from sorted(Path(place).glob("spatial_ops*.so"))


def _headers() -> Iterator[Path]:
    """Yield the driver's own header, wherever a toolkit from wheels keeps it, and Triton's use."""
    yield from sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/include/cuda.h"))
    spec = importlib.util.find_spec("triton")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(place).glob("backends/nvidia/driver.c"))


def _installed(name: str) -> dict[str, str]:
    try:
        files = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {str(one): f"{one.hash.mode}={one.hash.value}" for one in files if one.hash}


if __name__ == "__main__":
    json.dump(premises(Path(sys.argv[1])), sys.stdout, sort_keys=True)
