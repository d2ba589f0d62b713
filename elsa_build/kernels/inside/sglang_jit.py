"""SGLang's own JIT modules, built and published by SGLang's own code where it will look for them.

Its cache key holds source digests, the text of its ninja file and the compilers' versions, and a
leaf is named after the contents of every header: only its own `load_jit` gets all of that right. So
a job names one of the patched tree's entry points and calls it, under the card that is not there.
Source: sglang v0.5.23 kernels/jit/utils/compile (loader.py, cache.py).
"""

import contextlib
import hashlib
import importlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elsa_build.kernels.inside import command, gpu, neutral
from elsa_build.kernels.inside.values import meant

CACHE = "jit"
"""Folder of the build that SGLANG_JIT_CACHE_DIR names."""
NEEDED = ("sgl_deps.json",)
"""What a lookup reads beside the library; objects and generated sources are not looked at."""


def build(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Call `entry` (`package.module:function`) with `args` and `kwargs`; return what it published.

    `found` has `modules`: each with its name, its files (relative to the build) and whether it was
    compiled; an entry that loads two modules has two.

    Raises:
        RuntimeError: The entry loads no module, the compiler failed, or nothing was published.
    """
    cache = Path(setup["build"]) / CACHE
    os.environ["SGLANG_JIT_CACHE_DIR"] = str(cache)
    os.environ.pop("SGLANG_CRASH_ON_JIT_COMPILE", None)
    command.show_libraries()
    what = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).hexdigest()
    os.environ.update(neutral.folders().for_nvcc(f"sglang-jit/{what[:16]}"))
    gpu.install(setup["target"])
    module, _, name = arguments["entry"].partition(":")
    entry: Any = importlib.import_module(module)
    for part in name.split("."):
        entry = getattr(entry, part)
    keywords = {key: meant(value) for key, value in arguments.get("kwargs", {}).items()}
    with _stripped(), _loads() as loaded:
        # The entry remembers its module in this process; what is under the memory asks the cache.
        inspect.unwrap(entry)(*meant(arguments.get("args", [])), **keywords)
    if not loaded:
        raise RuntimeError(f"{arguments['entry']} loaded no module")
    modules = [_published(path, Path(setup["build"])) for path in loaded]
    return {
        "fresh": any(one["fresh"] for one in modules),
        "modules": modules,
        "files": sorted(file for one in modules for file in one["files"]),
    }


@contextlib.contextmanager
def _stripped() -> Iterator[None]:
    """Strip what is compiled while the block runs, before it is published."""
    from sglang.kernels.jit.utils.compile import ninja

    build = ninja.build

    def stripped(**options: Any) -> Path:
        library: Path = build(**options)
        neutral.strip(library)
        return library

    ninja.build = stripped
    try:
        yield
    finally:
        ninja.build = build


@contextlib.contextmanager
def _loads() -> Iterator[list[Path]]:
    """Collect the libraries that are loaded while the block runs."""
    import tvm_ffi

    loaded: list[Path] = []
    load = tvm_ffi.load_module

    def noted(path: str, *rest: Any, **options: Any) -> Any:
        module = load(path, *rest, **options)
        loaded.append(Path(path))
        return module

    tvm_ffi.load_module = noted
    try:
        yield loaded
    finally:
        tvm_ffi.load_module = load


def _published(library: Path, build_folder: Path) -> dict[str, Any]:
    """Return where the module of a loaded library lies in the cache.

    What was just compiled is loaded from a staging folder, which is then renamed; what was there is
    loaded from where it is.
    """
    leaf, fresh = library.parent, not library.exists()
    if fresh:
        leaves = [one for one in leaf.parent.glob("deps-*") if (one / library.name).exists()]
        if not leaves:
            raise RuntimeError(
                f"{library.stem} was compiled, but not published below {leaf.parent}"
            )
        leaf = max(leaves, key=lambda one: one.stat().st_mtime)
    files = [str((leaf / name).relative_to(build_folder)) for name in (library.name, *NEEDED)]
    key = f"{leaf.parent.name}/{leaf.name}"
    return {"name": library.stem, "key": key, "files": files, "fresh": fresh}
