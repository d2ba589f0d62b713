"""Makes every Python process of a command tell which kernels it looks up; the others pay nothing.

A server is a tree of processes, and each looks kernels up by itself. Python runs a `sitecustomize`
of the search path in each of them; ours (`elsa_build.kernels.lending`) loads this file, which waits
for the modules that compile and has them patched right after their import. A process that never
imports one writes no file. Nothing is imported here that a bare interpreter has not.

The hooks that Triton offers are not used: its listener is one variable, which libraries set and
restore as they like, and in Triton 3.6 setting `jit_cache_hook` makes some launches raise.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as `typing` has it, which a bare interpreter has not loaded
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

FOLDER = "ELSA_KERNELS_EVENTS"
"""Environment variable: where the event files go, one a process."""
STRICT = "ELSA_KERNELS_STRICT"
"""Environment variable: when set, a kernel that is not in the cache is refused, not compiled."""

PATCHES = {
    "triton.compiler.compiler": "triton_compiler",
    "triton.runtime.autotuner": "triton_autotuner",
    "sglang.kernels.jit.utils.compile.loader": "sglang_loader",
    "flashinfer.jit.core": "flashinfer_core",
    "flashinfer.autotuner.autotuner": "flashinfer_tactics",
}
"""Modules that are patched once they are imported, and the function of `hooked` that does it."""
NOTED = frozenset({"triton", "sglang", "flashinfer"})
"""Packages whose first import is an event."""

_began = time.time()
_open: dict[int, int] = {}
"""Descriptor of the event file by process; a forked child gets its own."""


def install() -> None:
    """Wait for the modules in this process; a second call does nothing."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    for name in PATCHES:
        if name in sys.modules:  # imported by a .pth file, before us
            patch(sys.modules[name])


def tell(what: str, **fields: Any) -> None:
    """Append one event to this process's file, whole or not at all; never raise.

    `at` is in seconds since the epoch. A folder that cannot be written is told of once, on stderr.
    """
    import json

    line = json.dumps({"at": time.time(), "what": what, **fields}, default=str) + "\n"
    pid = os.getpid()
    try:
        if pid not in _open:
            _open[pid] = _opened(pid)
            tell("process", pid=pid, parent=os.getppid(), argv=sys.argv, began=_began)
        if _open[pid] >= 0:
            os.write(_open[pid], line.encode("utf-8", "backslashreplace"))
    except OSError as e:
        _open[pid] = -1
        sys.stderr.write(f"elsa-build: kernels are not recorded: {e}\n")


def _opened(pid: int) -> int:
    # Processes of two containers may have one number, so the number alone is no name.
    name = f"{pid}-{time.time_ns():x}-{os.urandom(3).hex()}.jsonl"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    return os.open(os.path.join(os.environ[FOLDER], name), flags, 0o644)  # noqa: PTH118 - pathlib is not loaded


def patch(module: ModuleType) -> None:
    """Patch a module that was just imported; what cannot be patched is an event, not a failure."""
    try:
        hooked = _hooked()
        getattr(hooked, PATCHES[module.__name__])(module)
    except Exception as e:  # noqa: BLE001 - the command must run as if we were not there
        tell("blind", module=module.__name__, error=f"{type(e).__name__}: {e}")


def _hooked() -> ModuleType:
    """Return the module of patches, from our own package, which comes last on the search path."""
    try:
        from elsa_build.kernels.inside import hooked
    except ImportError:
        package = __file__
        for _ in range(4):  # hook.py, inside, kernels, elsa_build
            package = os.path.dirname(package)  # noqa: PTH120 - pathlib is not loaded
        sys.path.append(package)
        from elsa_build.kernels.inside import hooked
    hooked.tell = tell  # this file is not loaded under the name by which `hooked` imports it
    return hooked


class _Finder:
    """Finds the modules that we wait for as the others would, and gets called after their code."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> Any:
        if name not in PATCHES and name not in NOTED:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                _follow(spec.loader, name)
                return spec
        return None


def _follow(loader: Any, name: str) -> None:
    """Have a loader tell, or patch, when it executes a module; it stays the module's loader."""
    execute = getattr(loader, "exec_module", None)
    if execute is None:  # a namespace package: no code of its own
        return

    def executed(module: ModuleType) -> None:
        del loader.exec_module
        if name in NOTED:
            tell("importing", module=name)
        execute(module)
        if name in PATCHES:
            patch(module)

    try:
        loader.exec_module = executed
    except AttributeError as e:
        tell("blind", module=name, error=f"its loader cannot be changed: {e}")
