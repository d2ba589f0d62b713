"""Notes which modules SGLang's JIT and FlashInfer are asked for, and builds none of them.

Both build when a module is first asked for. Here the asking is answered with a module that does
nothing, and what was asked is written down as a call of upstream's own entry point or generator, so
that a job can ask again and mean it. The same works in a real server, where `answer` is left out.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from elsa_build.kernels.inside.values import plain


class Asked:
    """What was asked for, in the order of first asking, each module once."""

    def __init__(self) -> None:
        self.modules: dict[tuple[str, str], dict[str, Any]] = {}
        self.phase = ""
        self.why = ""

    def note(self, family: str, name: str, spec: dict[str, Any], sources: list[str]) -> None:
        """Note a module; a further phase is added to the first asking."""
        entry = {
            "family": family,
            "name": name,
            "spec": spec,
            "phases": [],
            "why": self.why,
            "sources": sources,
        }
        kept = self.modules.setdefault((family, name), entry)
        if self.phase not in kept["phases"]:
            kept["phases"].append(self.phase)


class Silent:
    """A module, and whatever a function of it returns: takes any call and does nothing."""

    def __call__(self, *_: object, **__: object) -> "Silent":
        """Do nothing."""
        return self

    def __getattr__(self, name: str) -> "Silent":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, _: object) -> "Silent":
        return self

    def __iter__(self) -> Iterator["Silent"]:
        return iter(())

    def __index__(self) -> int:
        return 0


_open: list[Asked] = []


@contextlib.contextmanager
def asking() -> Iterator[Asked]:
    """Collect what is asked for while the block runs; a block inside another adds to its list.

    Upstream remembers a module in the process, so one that an inner block is answered with is not
    asked for again: two lists would each lack what the other has.
    """
    if _open:
        yield _open[-1]
        return
    found = Asked()
    with _sglang(found), _flashinfer(found):
        _open.append(found)
        try:
            yield found
        finally:
            _open.pop()


@contextlib.contextmanager
def _sglang(found: Asked) -> Iterator[None]:
    """Answer `load_jit` after it has worked out its build, before it looks into its cache."""
    from sglang.kernels.jit.utils.compile import loader

    def noted(*, spec: Any, scope: Path) -> Path:
        del scope
        tree = Path(loader.__file__).parents[4]
        sources = [str(Path(path).relative_to(tree.parent)) for path in spec.sources]
        found.note("sglang-jit", spec.module_name, entry_of(sys._getframe(1)), sources)  # noqa: SLF001 - who asks is nowhere else
        return Path()

    kept = loader._find_prebuilt, loader._load  # noqa: SLF001 - no public door
    loader._find_prebuilt, loader._load = noted, lambda _: Silent()  # noqa: SLF001 - same
    try:
        yield
    finally:
        loader._find_prebuilt, loader._load = kept  # noqa: SLF001 - same


@contextlib.contextmanager
def _flashinfer(found: Asked) -> Iterator[None]:
    """Remember which generator made a spec, and note it when it is to be built and loaded."""
    from flashinfer.jit import core

    made: dict[str, dict[str, Any]] = {}
    registry, base = core.JitSpecRegistry, core.JitSpec
    kept = registry.register, base.build_and_load

    def registered(self: Any, spec: Any) -> None:
        made[spec.name] = generator_of(sys._getframe(1))  # noqa: SLF001 - who asks is nowhere else
        kept[0](self, spec)

    def asked(self: Any) -> Silent:
        sources = [_named(Path(path)) for path in getattr(self, "sources", ())]
        found.note("flashinfer", self.name, made.get(self.name, {}), sources)
        return Silent()

    registry.register, base.build_and_load = registered, asked
    try:
        yield
    finally:
        registry.register, base.build_and_load = kept


def _named(source: Path) -> str:
    """Return a source as people know it: below the package, or by its own name if generated."""
    parts = source.parts
    return "/".join(parts[parts.index("data") :]) if "data" in parts else source.name


def entry_of(frame: FrameType | None) -> dict[str, Any]:
    """Return the entry point of the patched tree that asked: the first function outside the JIT."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("sglang.") and not module.startswith("sglang.kernels.jit."):
            return {"entry": f"{module}:{frame.f_code.co_qualname}", **_arguments(frame)}
        frame = frame.f_back
    return {}


def generator_of(frame: FrameType | None) -> dict[str, Any]:
    """Return the outermost of FlashInfer's generators (`gen_...`) that is being called."""
    found: FrameType | None = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("flashinfer.") and "gen_" in frame.f_code.co_name[:5]:
            found = frame
        elif found is not None:
            break
        frame = frame.f_back
    if found is None:
        return {}
    name = f"{found.f_globals['__name__']}:{found.f_code.co_qualname}"
    return {"generator": name, **_arguments(found)}


def _arguments(frame: FrameType) -> dict[str, Any]:
    """Return the arguments that a function was called with, as plain data."""
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames
    positional = [plain(values[name]) for name in names[: code.co_argcount]]
    keyword = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return {"args": positional, "kwargs": {name: plain(values[name]) for name in keyword}}
