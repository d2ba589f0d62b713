"""Patches the modules that compile kernels, so that each lookup becomes one event.

An event says what was looked up in the words in which it can be planned (specialisation, entry
point, generator), and what came of it: `hit`, `compiled`, `missed` (compiling was refused) or
`failed`. After a miss it also has the parts of the key. Choices by timing are `bench` and `tuned`.
Nothing here decides anything for the command: what it calls gets what it would have got.
"""

import contextlib
import errno
import functools
import hashlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

from elsa_build.kernels.inside import hook, nvcc_capture
from elsa_build.kernels.inside import triton as keys
from elsa_build.kernels.inside.capture import portable

tell = hook.tell

_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
"""What a cache that cannot be written answers to somebody who wants to compile into it."""


class RefusedError(RuntimeError):
    """A kernel is not in the cache, and the gate forbids to compile it."""


class _Lookup:
    """One lookup that is going on in this thread."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.key: str | None = None
        self.folder: str | None = None
        self.fresh = False
        self.inner_s = 0.0

    def seconds(self) -> float:
        """Return how long it has taken, without the lookups inside it."""
        return round(time.perf_counter() - self.began - self.inner_s, 6)


class _Stack(threading.local):
    """The lookups of a thread, outermost first, and FlashInfer's module that is being built."""

    def __init__(self) -> None:
        self.lookups: list[_Lookup] = []
        self.building: str | None = None


_stack = _Stack()


@contextlib.contextmanager
def _looking() -> Iterator[_Lookup]:
    lookup = _Lookup()
    _stack.lookups.append(lookup)
    try:
        yield lookup
    finally:
        _stack.lookups.pop()
        for outer in _stack.lookups[-1:]:
            outer.inner_s += time.perf_counter() - lookup.began


def _came_of(lookup: _Lookup, error: BaseException | None) -> str:
    if error is None:
        return "compiled" if lookup.fresh else "hit"
    denied = isinstance(error, OSError) and error.errno in _REFUSED and lookup.key is not None
    return "missed" if isinstance(error, RefusedError) or denied else "failed"


def _words(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"error": f"{type(error).__name__}: {error}"}


# --- Triton -----------------------------------------------------------------------------------


def triton_compiler(module: Any) -> None:
    """Patch `triton.compiler.compiler`. Source: triton 3.6.0 and 3.8.0, compile()."""
    compile_, manager = module.compile, module.get_cache_manager

    def get_cache_manager(key: str) -> Any:
        lookup = _stack.lookups[-1] if _stack.lookups else _Lookup()
        lookup.key = key  # known even when the folder cannot be made
        found = manager(key)
        lookup.folder = getattr(found, "cache_dir", None)
        return found

    @functools.wraps(compile_)
    def compile(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:  # noqa: A001 - Triton's own
        error: BaseException | None = None
        _watch(type(src))
        with _looking() as lookup:
            try:
                return compile_(src, target, options, **more)
            except BaseException as e:
                error = e
                raise
            finally:
                _compiled(src, target, options or {}, lookup, error)

    module.get_cache_manager, module.compile = get_cache_manager, compile


def _watch(kind: Any) -> None:
    """Patch a class of sources (plain, IR, Gluon's) when one is first looked up."""
    if not hasattr(kind.make_ir, "watched"):
        kind.make_ir = _making(kind.make_ir)
        kind.make_ir.watched = True


def _making(make_ir: Callable[..., Any]) -> Callable[..., Any]:
    """Note that a lookup became a compile, or refuse it. Triton makes IR only after a miss."""

    @functools.wraps(make_ir)
    def noted(self: Any, *rest: Any, **more: Any) -> Any:
        lookup = _stack.lookups[-1] if _stack.lookups else _Lookup()
        if os.environ.get(hook.STRICT):
            with contextlib.suppress(OSError):  # the folder that looking up has made
                os.rmdir(lookup.folder or "")  # noqa: PTH106 - may be None
            raise RefusedError(
                f"Triton kernel {_name(self)[1]} is not in the cache (key {lookup.key}),"
                f" and {hook.STRICT} forbids to compile it"
            )
        lookup.fresh = True
        return make_ir(self, *rest, **more)

    return noted


def _compiled(
    src: Any,
    target: Any,
    options: Any,
    lookup: _Lookup,
    error: BaseException | None,
) -> None:
    seconds = lookup.seconds()
    family, name = _name(src)
    what = _came_of(lookup, error)
    said: dict[str, Any] = {"family": family, "name": name, "key": lookup.key, "seconds": seconds}
    if lookup.folder:
        said["folder"] = os.path.basename(lookup.folder)  # noqa: PTH119 - pathlib is not loaded
    function: Any = getattr(src, "fn", None)
    try:
        spec = _specialisation(src, target, options)
        said["spec"] = spec
        said["text"] = hashlib.sha256(function.src.encode("utf-8", "surrogateescape")).hexdigest()
        said["line"] = function.starting_line_number
        if what != "hit" and family == "triton":
            said["parts"] = keys.parts(function, spec)
    except Exception as e:  # noqa: BLE001 - the launch must go on
        said["unrecorded"] = f"{type(e).__name__}: {e}"
    tell(what, **said, **_words(error))


def _name(src: Any) -> tuple[str, str]:
    """Return the family and the name of what is looked up."""
    function = getattr(getattr(src, "fn", None), "fn", None)
    if function is None:
        return "triton", str(getattr(src, "name", src))
    name = f"{function.__module__}:{function.__qualname__}"
    return "inductor" if name.startswith("torch._inductor.") else "triton", name


def _specialisation(src: Any, target: Any, options: Any) -> dict[str, Any]:
    """Return what `preload` would read, as Triton itself writes it down.

    Raises:
        TypeError: It has a constant that JSON has not (Triton 3.6: a function as an argument).
    """
    write = sys.modules["triton.runtime.jit"].serialize_specialization_data
    name = src.fn._fn_name  # noqa: SLF001 - no public door
    given = [name, src.signature, src.constants, src.attrs, SimpleNamespace(**options), None]
    if len(inspect.signature(write).parameters) > len(given):  # since 3.7
        given.append(target)
    return portable(json.loads(write(*given)))


def triton_autotuner(module: Any) -> None:
    """Patch `triton.runtime.autotuner`; a choice is told when it is kept or found on disk."""
    tuner = module.Autotuner
    bench, check = tuner._bench, tuner.check_disk_cache  # noqa: SLF001 - no public door

    @functools.wraps(bench)
    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        with _looking() as lookup:
            timings = bench(self, *args, config=config, **meta)
            tell(
                "bench",
                family="triton",
                name=_tuned(self),
                config=str(config),
                timings=timings,
                seconds=lookup.seconds(),
            )
        return timings

    @functools.wraps(check)
    def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> Any:
        hit = check(self, tuning_key, configs, bench_fn)
        timings = getattr(self, "configs_timings", {})
        tell(
            "tuned",
            family="triton",
            name=_tuned(self),
            tuning_key=list(tuning_key),
            configs=[str(config) for config in configs],
            timings=[[str(config), measured] for config, measured in timings.items()],
            hit=bool(hit),
        )
        return hit

    tuner._bench, tuner.check_disk_cache = _bench, check_disk_cache  # noqa: SLF001 - same


def _tuned(tuner: Any) -> str:
    return f"{tuner.base_fn.__module__}:{tuner.base_fn.__qualname__}"


# --- SGLang's JIT and FlashInfer --------------------------------------------------------------


def sglang_loader(module: Any) -> None:
    """Patch SGLang's loader. Source: sglang v0.5.23 kernels/jit/utils/compile/loader.py."""
    load, find, build = module.load_jit, module._find_prebuilt, module.ninja.build  # noqa: SLF001 - no public door
    asked = threading.local()

    def _find_prebuilt(*, spec: Any, scope: Any) -> Any:
        asked.name, asked.key = spec.module_name, scope.name
        return find(spec=spec, scope=scope)

    def built(*args: Any, **more: Any) -> Any:
        for lookup in _stack.lookups[-1:]:
            lookup.fresh = True
        return build(*args, **more)

    @functools.wraps(load)
    def load_jit(*args: Any, **more: Any) -> Any:
        asked.name, asked.key = "_".join(map(str, args)), None
        error: BaseException | None = None
        with _looking() as lookup:
            try:
                return load(*args, **more)
            except BaseException as e:
                error = e
                raise
            finally:
                what = _came_of(lookup, error)
                if what == "failed" and not lookup.fresh and "SGLANG_CRASH" in str(error):
                    what = "missed"
                tell(
                    what,
                    family="sglang-jit",
                    name=asked.name,
                    key=asked.key,
                    seconds=lookup.seconds(),
                    **_asker(nvcc_capture.entry_of, sys._getframe(1)),  # noqa: SLF001 - who asks is nowhere else
                    **_words(error),
                )

    module._find_prebuilt, module.ninja.build = _find_prebuilt, built  # noqa: SLF001 - same
    # Upstream keeps Dynamo out of its loader; so it must stay out of what stands before it.
    module.load_jit = sys.modules["torch"].compiler.disable(load_jit)


def _asker(who: Callable[[Any], dict[str, Any]], frame: FrameType) -> dict[str, Any]:
    """Return the call that can ask again, as `spec`, or why there is none."""
    try:
        return {"spec": who(frame)}
    except TypeError as e:
        return {"unrecorded": str(e)}


def flashinfer_core(module: Any) -> None:
    """Patch FlashInfer's specs. Source: flashinfer 0.7.2 flashinfer/jit/core.py, JitSpec."""
    register = module.JitSpecRegistry.register
    made: dict[str, dict[str, Any]] = {}

    @functools.wraps(register)
    def registered(self: Any, spec: Any) -> None:
        made.setdefault(spec.name, _asker(nvcc_capture.generator_of, sys._getframe(1)))  # noqa: SLF001 - same
        register(self, spec)

    module.JitSpecRegistry.register = registered
    module.JitSpec.build_and_load = _building(module.JitSpec.build_and_load, made)
    for kind in module.JitSpec.__subclasses__():
        if "build" in vars(kind):
            kind.build = _building(kind.build, made)


def _building(build: Callable[..., Any], made: dict[str, dict[str, Any]]) -> Callable[..., Any]:
    """Tell of a module that is built or loaded; it was compiled when its library changed."""

    @functools.wraps(build)
    def noted(self: Any, *args: Any, **more: Any) -> Any:
        if _stack.building == self.name:
            return build(self, *args, **more)  # within build_and_load
        _stack.building = self.name
        error: BaseException | None = None
        before = _library(self)
        with _looking() as lookup:
            try:
                return build(self, *args, **more)
            except BaseException as e:
                error = e
                raise
            finally:
                _stack.building = None
                lookup.fresh = _library(self) != before
                missing = type(error).__name__ == "MissingJITCacheError"
                tell(
                    "missed" if missing else _came_of(lookup, error),
                    family="flashinfer",
                    name=self.name,
                    aot=bool(getattr(self, "is_aot", False)),
                    seconds=lookup.seconds(),
                    **made.get(self.name, {}),
                    **_words(error),
                )

    return noted


def _library(spec: Any) -> tuple[int, int] | None:
    """Return what changes when a module's library is made again; None when there is none."""
    try:
        found = spec.get_library_path().stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def flashinfer_tactics(module: Any) -> None:
    """Patch FlashInfer's tuner, which times tactics that its file does not have."""
    tuner = module.AutoTuner
    profile = tuner._profile_single_kernel  # noqa: SLF001 - no public door

    @functools.wraps(profile)
    def profiled(self: Any, runner: Any, *args: Any, **more: Any) -> Any:
        with _looking() as lookup:
            measured = profile(self, runner, *args, **more)
            tell(
                "bench",
                family="flashinfer-tactics",
                name=type(runner).__name__,
                timings=measured,
                seconds=lookup.seconds(),
            )
        return measured

    tuner._profile_single_kernel = profiled  # noqa: SLF001 - same
