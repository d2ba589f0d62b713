"""Writes down what Triton would compile when a wrapper is called, and compiles nothing.

Triton asks a hook before it compiles a specialisation; ours notes it and says no, so the wrapper's
launches become a list. An autotuned function asks for each of its configurations.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

Specialisation = dict[str, Any]
"""What `JITFunction.preload` reads: name, signature, constants, attributes, options, target."""

_ELSEWHERE = ("key", "target")
"""Left out of what is kept: they follow from the rest, on the machine where it is compiled."""
_OF_THE_TARGET = (
    "arch",
    "extern_libs",
    "backend_name",
    "supported_fp8_dtypes",
    "deprecated_fp8_dot_operand_dtypes",
    "allowed_dot_input_precisions",
    "max_num_imprecise_acc_default",
)
"""Options that Triton fills in from the target (and, for libdevice, its own folder)."""


class Captured:
    """What was asked for, in the order of first asking, each once."""

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}
        self.tunings: dict[str, dict[str, Any]] = {}
        self.phase = ""
        self.why = ""

    def kernel(self, function: str, specialisation: Specialisation) -> None:
        """Note a specialisation of `module:qualname`; a further phase is added to the first."""
        spec = portable(specialisation)
        entry = {"name": function, "spec": spec, "phases": [], "why": self.why}
        self._add(self.kernels, entry)

    def tuning(self, function: str, key: list[Any], configs: list[str]) -> None:
        """Note that a tuner would choose among these configurations for this key."""
        entry = {
            "name": function,
            "spec": {"tuning_key": key, "configs": configs},
            "phases": [],
            "why": self.why,
        }
        self._add(self.tunings, entry)

    def _add(self, place: dict[str, dict[str, Any]], entry: dict[str, Any]) -> None:
        text = json.dumps([entry["name"], entry["spec"]], sort_keys=True)
        kept = place.setdefault(text, entry)
        if self.phase not in kept["phases"]:
            kept["phases"].append(self.phase)


def portable(specialisation: Specialisation) -> Specialisation:
    """Return a specialisation without what belongs to one machine, target or Triton."""
    kept = {key: value for key, value in specialisation.items() if key not in _ELSEWHERE}
    kept["options"] = {
        key: value for key, value in kept["options"].items() if key not in _OF_THE_TARGET
    }
    return kept


@contextlib.contextmanager
def capturing() -> Iterator[Captured]:
    """Collect specialisations while the block runs; nothing is compiled, launched or timed."""
    from triton import knobs
    from triton.runtime.autotuner import Autotuner

    found = Captured()

    def before_compile(**event: Any) -> bool:
        function = event["fn"]
        written = event["compile"]["specialization_data"]
        found.kernel(f"{function.module}:{function.name}", json.loads(written))
        return True  # "handled": Triton then neither compiles nor launches

    def chosen(tuner: Any, key: tuple[Any, ...], configs: Any, bench: Any) -> bool:
        function = tuner.fn
        while hasattr(function, "fn") and not hasattr(function, "device_caches"):
            function = function.fn
        name = f"{function.module}:{function.fn.__qualname__}"
        found.tuning(name, list(key), [str(config) for config in configs])
        bench()
        return False

    def timed(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        tuner.fn.run(*args, **meta, **config.all_kwargs())
        return [1.0 + tuner.configs.index(config)] * 3

    kept = Autotuner._bench, Autotuner.check_disk_cache, knobs.runtime.jit_cache_hook  # noqa: SLF001 - no public door
    Autotuner._bench, Autotuner.check_disk_cache = timed, chosen  # noqa: SLF001 - same
    knobs.runtime.jit_cache_hook = before_compile
    try:
        yield found
    finally:
        Autotuner._bench, Autotuner.check_disk_cache = kept[:2]  # noqa: SLF001 - same
        knobs.runtime.jit_cache_hook = kept[2]
