"""A libcuda.so.1 that answers "no device", so that GPU libraries load where there is no driver.

A builder without a GPU has no libcuda.so.1, yet sgl_kernel is linked to it, SGLang loads each
module that it has just built, and Triton links its own. The stub exports every name that they use:
one that it lacks makes the linker drop the library (`--as-needed`), and the module then does not
load on the real card.
"""

import ctypes
import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

SONAME = "libcuda.so.1"
NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE: what every function of the stub returns."""

_NAME = re.compile(r"\bcu[A-Z]\w*\b")
"""A function of the driver; `cudaMalloc` and `cublasCreate` belong to other libraries."""


def wanted(libraries: Iterable[Path], texts: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return the driver's functions that these libraries and C files name, sorted.

    `texts` are C sources or headers (`cuda.h` for all of them, Triton's `driver.c`).

    Raises:
        RuntimeError: A library cannot be read by `nm`.
    """
    found: set[str] = set()
    for library in libraries:
        ran = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"nm cannot read {library}: {ran.stderr.strip()}")
        found |= set(_NAME.findall(ran.stdout))
    for text in texts:
        found |= set(_NAME.findall(text.read_text(encoding="utf-8", errors="replace")))
    return tuple(sorted(found))


def source(names: Iterable[str]) -> str:
    """Return the C text of the stub."""
    return "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names)


def make(folder: Path, names: Iterable[str]) -> Path:
    """Return the stub library in a folder, made again only when it lacks one of the names.

    Names that it had are kept, so that one folder serves every caller. `libcuda.so` beside it is
    what a linker finds for `-lcuda`.

    Raises:
        RuntimeError: There is no C compiler, or it refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "libcuda.c"
    library = folder / SONAME
    known = set(_NAME.findall(written.read_text())) if written.exists() else set()
    everything = known | set(names)
    if everything == known and library.exists():
        return library
    new_source, new_library = (folder / f".{os.getpid()}{suffix}" for suffix in (".c", ".so"))
    new_source.write_text(source(sorted(everything)))
    command = ["cc", "-shared", "-fPIC", "-O1", f"-Wl,-soname,{SONAME}", str(new_source)]
    command += ["-o", str(new_library)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        new_source.unlink()
        raise RuntimeError(f"cc cannot build the stub {library}: {ran.stderr.strip()}")
    new_library.rename(library)
    new_source.rename(written)
    link = folder / "libcuda.so"
    if not link.is_symlink():
        link.symlink_to(SONAME)
    return library


def load(library: Path) -> None:
    """Load the stub into this process; whatever asks for libcuda.so.1 later gets it.

    The dynamic loader knows a loaded library by its soname, so no LD_LIBRARY_PATH is needed.
    """
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
