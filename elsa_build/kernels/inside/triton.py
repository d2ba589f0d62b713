"""Compiles planned Triton kernels into the cache as the server's own process will look them up.

The hash that Triton looks up is made by Triton itself, from a specialisation that it wrote down:
nothing here computes a key by hand, so nothing here can be right about the cubin and wrong about
its place. What goes into the key is kept beside it, so that a miss can be explained later.
"""

import ast
import functools
import hashlib
import importlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elsa_build.kernels.inside import gpu


def compile(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:  # noqa: A001 - the call's public name
    """Compile one specialisation, or find it compiled.

    Args:
        setup: `target`; and, where they are given, `package_dir` (the folder that will hold
            `sglang/` in the image, written into the line tables) and `libtriton` (see `keyed_for`).
        arguments: `name`, `module:qualname` of a JIT function; `spec`, as `capture` wrote it.

    Returns:
        `key`, `files` (below the build folder), `shared` bytes, `parts` of the key, `sources` (the
        modules whose text is in the key) and `fresh`.

    Raises:
        LookupError: There is no such function any more.
        ValueError: The kernel needs more shared memory than a block may have on the card.
    """
    _prepare(json.dumps(setup))
    function = find(arguments["name"])
    _place(function, setup.get("package_dir"))
    spec = dict(arguments["spec"])
    # Anything hashable does as the key in memory; libdevice and the like follow from the target.
    target = {"backend": "cuda", "arch": setup["target"]["number"], "warp_size": 32}
    spec |= {"key": arguments["name"], "target": target}
    _unkey(function)
    with _listening() as heard:
        kernel = function.preload(json.dumps(spec))
    shared = int(kernel.metadata.shared)
    most = int(setup["target"]["shared_bytes"])
    if shared > most:
        raise ValueError(
            f"needs {shared:,} bytes of shared memory, a block may have {most:,} on"
            f" {setup['target']['name']}"
        )
    folder = Path(os.environ["TRITON_CACHE_DIR"])
    paths = sorted(Path(path) for path in kernel.metadata_group.values())
    group = sorted(paths[0].parent.glob("__grp__*"))
    return {
        "key": kernel.hash,
        "files": [str(path.relative_to(folder.parent)) for path in (*paths, *group)],
        "shared": shared,
        "parts": parts(function, arguments["spec"]),
        "sources": sources(function),
        "fresh": not heard.pop(),
    }


def tune(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Write a tuner's choice where Triton reads it, so that the first start times nothing.

    Args:
        setup: As for `compile`.
        arguments: `name` and `spec` of a tuning, as `capture` wrote it; `timings`, milliseconds by
            configuration as three quantiles, from a real card. Without them the first one wins.

    Returns:
        `key`, `files`, and `timed`: whether a card decided.

    Raises:
        LookupError: The function is gone, is no tuner, or has other configurations now.
    """
    from triton.runtime import autotuner

    _prepare(json.dumps(setup))
    tuner = _tuner(arguments["name"])
    wanted = arguments["spec"]["configs"]
    configs = [config for config in tuner.configs if str(config) in wanted]
    if sorted(map(str, configs)) != sorted(wanted):
        raise LookupError(f"{arguments['name']} has other configurations now")
    timings = arguments.get("timings") or {
        name: [1.0 + place] * 3 for place, name in enumerate(wanted)
    }
    written: list[Any] = []
    manager = autotuner.get_cache_manager

    def noted(key: str) -> Any:
        written.append((key, manager(key)))
        return written[-1][1]

    def chosen() -> None:
        tuner.configs_timings = {config: timings[str(config)] for config in configs}

    _unkey(_inner(tuner))
    autotuner.get_cache_manager = noted
    try:
        found = tuner.check_disk_cache(tuple(arguments["spec"]["tuning_key"]), configs, chosen)
    finally:
        autotuner.get_cache_manager = manager
    if not written:
        raise LookupError(f"{arguments['name']}: Triton keeps no choice whose configurations hook")
    (key, kept), build = written[0], Path(os.environ["TRITON_CACHE_DIR"]).parent
    path = Path(kept.cache_dir) / f"{_inner(tuner).__name__[:150]}.autotune.json"
    return {
        "key": key,
        "files": [str(path.relative_to(build))],
        "timed": bool(arguments.get("timings")),
        "fresh": not found,
    }


def _tuner(name: str) -> Any:
    """Return the tuner around the JIT function of `module:qualname`."""
    inner = find(name)
    module_name, _, qualname = name.partition(":")
    outer: Any = importlib.import_module(module_name)
    for part in qualname.split("."):
        outer = getattr(outer, part)
    while outer is not inner:
        if hasattr(outer, "check_disk_cache"):
            return outer
        outer = outer.fn
    raise LookupError(f"{name} is not tuned any more")


def _inner(tuner: Any) -> Any:
    found = tuner.fn
    while not hasattr(found, "preload"):
        found = found.fn
    return found


def find(name: str) -> Any:
    """Return the JIT function of `module:qualname`, below whatever decorators it has.

    Raises:
        LookupError: The module or the function is gone.
    """
    module_name, _, qualname = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as e:
        raise LookupError(f"module {module_name} cannot be imported: {e}") from e
    for part in qualname.split("."):
        found = getattr(found, part, None)
    while found is not None and not hasattr(found, "preload"):
        found = getattr(found, "fn", None)
    if found is None:
        raise LookupError(f"module {module_name} has no JIT function {qualname}")
    return found


def _unkey(function: Any) -> None:
    """Have a function's key made anew, as in a process that looks it up before any other.

    A compile that failed leaves a placeholder for the key. And Triton 3.6 counts the globals of a
    called function only if that one's own key was made earlier, so a worker that has done other
    jobs, or has looked at the called functions, would compile where no server looks.
    Source: triton 3.6.0 and 3.8.0 runtime/jit.py, JITCallable.cache_key, _update_hash.
    """
    for one in (function, *_callees(function, tritons=True)):
        one.hash = None
        one.used_global_vals = {}


@functools.cache
def _prepare(setup: str) -> None:
    """Install the card once a process; the patched tree is imported after it."""
    given = json.loads(setup)
    gpu.install(given["target"])
    if given.get("libtriton"):
        keyed_for(given["libtriton"])


def keyed_for(libtriton: str) -> None:
    """Make keys those of another Python's wheel of the same Triton.

    A key holds a digest of `libtriton.so`, which differs between the wheels of one release for two
    Pythons though the compiler in it is the same. A builder without the image's Python compiles
    with its own and looks up with the other's.

    Args:
        libtriton: sha256 of the other wheel's `libtriton.so`, hex.

    Raises:
        LookupError: This Triton makes its key in another way.
    """
    home: Any = importlib.import_module("triton.runtime.cache")

    path = Path(importlib.import_module("triton._C.libtriton").__file__ or "")
    with path.open("rb") as file:
        own = hashlib.file_digest(file, "sha256").hexdigest()
    ours = home.triton_key()
    if own not in ours:
        raise LookupError("triton_key() of this Triton does not hold the digest of libtriton.so")
    theirs = ours.replace(own, libtriton)
    home.triton_key = lambda: theirs
    for module in ("triton.compiler.compiler", "triton.runtime.autotuner"):
        loaded: Any = importlib.import_module(module)
        if hasattr(loaded, "triton_key"):
            loaded.triton_key = home.triton_key


def _place(function: Any, package_dir: str | None) -> None:
    """Let line tables name the image's files: so cubins do not tell where they were built."""
    if not package_dir:
        return
    for one in (function, *_callees(function, tritons=True)):
        parts = one.__module__.split(".")
        name = Path(one.fn.__code__.co_filename).name
        folder = parts if name == "__init__.py" else parts[:-1]
        above = [package_dir.rstrip("/")] if parts[0] != "triton" else []
        one.file_name = "/".join([*above, *folder, name])


class _listening:  # noqa: N801 - reads as a verb where it is used
    """Hear of each compile whether it was a cache hit."""

    def __enter__(self) -> list[bool]:
        from triton import knobs

        heard: list[bool] = []
        self._kept = knobs.compilation.listener
        knobs.compilation.listener = lambda **event: heard.append(event["cache_hit"])
        return heard

    def __exit__(self, *_: object) -> None:
        from triton import knobs

        knobs.compilation.listener = self._kept


# --- what is in a key -------------------------------------------------------------------------


def parts(function: Any, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides the key, field by field, short enough to be stored with each kernel."""
    from triton.compiler.compiler import make_backend
    from triton.runtime.cache import triton_key
    from triton.runtime.driver import driver

    own = function.cache_key  # also fills in the globals that were read
    return {
        "triton": _digest(triton_key()),
        "backend": str(make_backend(driver.active.get_current_target()).hash()),
        "environment": dict(sorted(_environment().items())),
        "function": own,
        "text": _digest(function.src),
        "line": function.starting_line_number,
        "calls": {
            f"{one.__module__}:{one.__qualname__}": [_digest(one.src), one.starting_line_number]
            for one in _callees(function)
        },
        "globals": {
            name: repr(value) for (name, _), (value, _) in function.used_global_vals.items()
        },
        "specialisation": _digest(json.dumps(spec, sort_keys=True)),
    }


def sources(function: Any) -> list[str]:
    """Return the modules whose text is in the key, the function's own first."""
    modules = (function.__module__, *(one.__module__ for one in _callees(function)))
    return list(dict.fromkeys(modules))


def _environment() -> dict[str, str]:
    try:
        from triton._C.libtriton import get_cache_invalidating_env_vars as found
    except ImportError:  # its home differs between releases
        from triton.runtime.cache import get_cache_invalidating_env_vars as found
    return dict(found())


def _callees(function: Any, *, tritons: bool = False) -> tuple[Any, ...]:
    """Return the JIT functions that a function calls, directly or not, Triton's own if asked."""
    seen: dict[int, Any] = {}
    waiting = [function]
    while waiting:
        for called in _named(waiting.pop()):
            own = called.__module__.partition(".")[0] == "triton"
            if id(called) not in seen and called is not function and (tritons or not own):
                seen[id(called)] = called
                waiting.append(called)
    return tuple(sorted(seen.values(), key=lambda one: (one.__module__, one.__qualname__)))


def _named(function: Any) -> Iterator[Any]:
    """Yield the JIT functions whose names a function's text holds."""
    for node in ast.walk(ast.parse(function.src)):
        found: Any = None
        if isinstance(node, ast.Name):
            found = function.__globals__.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = getattr(function.__globals__.get(node.value.id), node.attr, None)
        if hasattr(found, "src") and hasattr(type(found), "cache_key"):  # not asked: see _unkey
            yield found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
