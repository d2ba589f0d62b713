"""What this interpreter would compile kernels with: decides whether a bundle fits it.

A cache of another Triton, nvcc or FlashInfer misses silently, or loads and crashes. Every part that
a family's key holds is named here, each by what the key looks at: the text that a compiler says of
itself, the digest of a library. Run as a program, it prints one JSON document; what is not there is
null, so that a run image and a builder are compared by the same words.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PACKAGES = {
    "torch": "torch",
    "triton": "triton",
    "flashinfer": "flashinfer-python",
    "tvm_ffi": "apache-tvm-ffi",
    "sglang_kernel": "sglang-kernel",
    "mathdx": "nvidia-mathdx",
    "deep_gemm": "deep_gemm",
    "cutlass_dsl": "nvidia-cutlass-dsl",
}
"""Distribution by field; the versions are read without importing the packages."""


def fingerprint() -> dict[str, str | None]:
    """Return every field; a missing package or program is None."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or _home_on_path()
    return {
        "python": platform.python_version(),
        "soabi": sysconfig.get_config_var("SOABI"),
        "glibc": " ".join(platform.libc_ver()),
        **{field: _version(name) for field, name in _PACKAGES.items()},
        "cuda": _cuda_of_torch(),
        "triton_key": _triton_key(),
        "libtriton": _libtriton(),
        "ptxas": _ptxas(),
        "cuda_home": in_key(Path(home)) if home else None,
        "nvcc": _says(f"{home}/bin/nvcc") if home else None,
        "cxx": _says(os.environ.get("CXX", "c++")),
    }


def in_key(home: Path) -> str:
    """Return a toolkit's home as SGLang's key has it: a real folder is a token, a link its text.

    So a module built with CUDA_HOME=/usr/local/cuda-13.0 is not found where CUDA_HOME is the link
    /usr/local/cuda to it. Source: sglang v0.5.23 kernels/jit/utils/compile/cache.py, run.
    """
    return "<toolkit>" if home.resolve() == home else str(home)


def told(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields that `arguments["fields"]` names: a worker's call, to compare machines."""
    del setup
    known = fingerprint()
    return {"fresh": False, **{name: known[name] for name in arguments["fields"]}}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda_of_torch() -> str | None:
    """Return the CUDA version that torch was built for, from its version file alone."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    names: dict[str, object] = {}
    exec((Path(spec.origin).parent / "version.py").read_text(), names)  # noqa: S102 - torch's own; importing torch takes seconds
    return str(names["cuda"]) if names.get("cuda") else None


def _triton_key() -> str | None:
    """Return the digest of what Triton puts into every key: its version and its own files."""
    try:
        from triton.runtime.cache import triton_key
    except ImportError:
        return None
    return hashlib.sha256(triton_key().encode()).hexdigest()


def _libtriton() -> str | None:
    """Return the digest of Triton's compiler library, which is one for each Python ABI."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    with (Path(spec.origin).parent / "_C/libtriton.so").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ptxas() -> str | None:
    """Return what each of Triton's assemblers says: which one compiles depends on the target."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return None
    programs = sorted((Path(spec.origin).parent / "backends/nvidia/bin").glob("ptxas*"))
    return "\n".join(f"{one.name}: {_says(str(one))}" for one in programs)


def _says(program: str) -> str | None:
    """Return the text that a program prints for `--version`."""
    try:
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ran.stdout.strip()


def _home_on_path() -> str | None:
    """Return the toolkit as SGLang and FlashInfer take it from PATH."""
    nvcc = shutil.which("nvcc")
    return str(Path(nvcc).parent.parent) if nvcc else None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(fingerprint(), indent=1, sort_keys=True) + "\n")
