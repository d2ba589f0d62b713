"""Commands that look kernels up: with a small package that caches as Triton does, or with Triton.

The stand-in has the functions that the hook patches, with Triton's own names and meaning, so that
the hook, the gate and the recorder are tried where there is no Triton; `@pytest.mark.kernels` runs
the same on the real one.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from elsa_build.kernels.target import target

STANDIN = {
    "triton/__init__.py": "",
    "triton/_C/__init__.py": "",
    "triton/_C/libtriton.py": """
import os
def get_cache_invalidating_env_vars():
    return {k: os.environ[k] for k in ("TRITON_DEBUG", "DISABLE_PTXAS_OPT") if k in os.environ}
""",
    "triton/runtime/__init__.py": "",
    "triton/runtime/cache.py": """
def triton_key():
    return "stand-in 1"
""",
    "triton/runtime/driver.py": """
class driver:
    class active:
        def get_current_target():
            return "stand-in 120"
""",
    "triton/runtime/jit.py": """
import inspect, json, textwrap
def serialize_specialization_data(name, signature, constants, attrs, options, key):
    return json.dumps({"name": name, "signature": signature,
        "constant_keys": [list(k) for k in constants], "constant_vals": list(constants.values()),
        "attrs_keys": [], "attrs_vals": [], "options": options.__dict__, "key": key})
class JITFunction:
    def __init__(self, fn):
        self.fn, self.__module__, self.__qualname__ = fn, fn.__module__, fn.__qualname__
        self.__globals__ = fn.__globals__
        lines, self.starting_line_number = inspect.getsourcelines(fn)
        text = textwrap.dedent("".join(lines))
        self.src = text[text.index("def "):]
        self._fn_name = f"{fn.__module__}.{fn.__qualname__}"
        self.used_global_vals = {}
    @property
    def cache_key(self):
        return f"{self.src}{self.starting_line_number}"
    def preload(self, text): pass
    def warmup(self, B, **more):
        from triton.compiler.compiler import ASTSource, compile
        return compile(ASTSource(self, {"x": "*fp32", "B": "constexpr"}, {(1,): B}),
            target="stand-in", options={"num_warps": 4})
""",
    "triton/runtime/autotuner.py": """
class Autotuner:
    def __init__(self, fn, configs):
        self.fn, self.base_fn, self.configs = fn, fn.fn, configs
    def _bench(self, *args, config, **meta):
        self.fn.warmup(config)
        return [float(config)] * 3
    def check_disk_cache(self, tuning_key, configs, bench_fn):
        bench_fn()
        return False
    def run(self, key, kept):
        def bench():
            self.configs_timings = {c: self._bench(config=c) for c in self.configs}
        return self.check_disk_cache((key,), self.configs, bench) if kept else bench()
""",
    "triton/compiler/__init__.py": "from .compiler import compile\n",
    "triton/compiler/compiler.py": """
import hashlib, json, os
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.runtime.cache import triton_key
class _Backend:
    def hash(self):
        return "ptxas 1-120"
def make_backend(target):
    return _Backend()
class _Manager:
    def __init__(self, key):
        self.cache_dir = os.path.join(os.environ["TRITON_CACHE_DIR"], key)
        os.makedirs(self.cache_dir, exist_ok=True)
def get_cache_manager(key):
    return _Manager(key)
class ASTSource:
    def __init__(self, fn, signature, constants):
        self.fn, self.signature, self.constants, self.attrs = fn, signature, constants, {}
    def make_ir(self):
        if os.environ.get("STANDIN_FAILS"):
            raise ValueError("no such instruction")
        return "ir"
class IRSource(ASTSource):
    def make_ir(self):
        return "ir"
def compile(src, target=None, options=None, _env_vars=None):
    parts = [triton_key(), src.fn.cache_key, src.signature, sorted(src.constants.items()), options,
        get_cache_invalidating_env_vars()]
    manager = get_cache_manager(hashlib.sha256(repr(parts).encode()).hexdigest())
    group = os.path.join(manager.cache_dir, "__grp__add.json")
    if os.path.exists(group):
        with open(group) as file:
            children = json.load(file)["child_paths"]
        if all(map(os.path.exists, children.values())):
            return "found"
    src.make_ir()
    cubin = os.path.join(manager.cache_dir, "add.cubin")
    with open(cubin, "w") as file:
        file.write("code")
    with open(group, "w") as file:
        json.dump({"child_paths": {"add.cubin": cubin}}, file)
    return "made"
""",
    "kern.py": """
from triton.runtime.jit import JITFunction

@JITFunction
def add(x, B):
    return x + B

def warm(B):
    return add.warmup(B)
""",
}

REAL = {
    "kern.py": """
import json, os
from elsa_build.kernels.inside import gpu
import triton, triton.language as tl
from triton.runtime.jit import MockTensor

gpu._triton(json.loads(os.environ["TEST_TARGET"]))

@triton.jit
def add(x, B: tl.constexpr):
    at = x + tl.arange(0, B)
    tl.store(at, tl.load(at) + 1)

def warm(B):
    return add.warmup(MockTensor("float32"), B, grid=(1,))
""",
}

PROGRAM = """
import os, sys, time
import kern
for word in sys.argv[1:]:
    if word.startswith("mark:"):
        with open(os.environ["ELSA_KERNELS_MARKS"], "a") as file:
            file.write(f"{word[5:]} {time.time()}\\n")
    elif word.startswith("exit:"):
        print("going down")
        sys.exit(int(word[5:]))
    elif word == "sleep":
        print("sleeping", flush=True)
        time.sleep(60)
    else:
        kern.warm(int(word))
"""


@dataclass(frozen=True)
class Stack:
    """A folder with `kern.py` and `program.py`, and how they are run."""

    folder: Path
    python: str
    real: bool

    def command(self, *words: object) -> list[str]:
        return [self.python, str(self.folder / "program.py"), *map(str, words)]

    def environ(self, **more: str) -> dict[str, str]:
        path = [str(self.folder), *([str(_lent(self.folder))] if self.real else [])]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TEST_TARGET": json.dumps(target("sm_120").document()),
            **more,
        }

    def edit(self, old: str, new: str) -> None:
        path = self.folder / "kern.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def _lent(folder: Path) -> Path:
    lent = folder / "lent"
    if not lent.exists():
        lent.mkdir()
        (lent / "elsa_build").symlink_to(Path(__file__).parent.parent / "elsa_build")
    return lent


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def standin(folder: Path) -> Stack:
    """Return a stack for an interpreter that has nothing of ours."""
    write(folder, {**STANDIN, "program.py": PROGRAM})
    return Stack(folder=folder, python=sys._base_executable, real=False)


def real(folder: Path) -> Stack:
    python = os.environ.get("ELSA_KERNELS_PYTHON")
    if not python:
        pytest.skip("ELSA_KERNELS_PYTHON names no interpreter with torch and triton")
    write(folder, {**REAL, "program.py": PROGRAM})
    return Stack(folder=folder, python=python, real=True)


BOTH = [
    pytest.param(standin, id="stand-in"),
    pytest.param(real, id="triton", marks=pytest.mark.kernels),
]
"""Stacks for `pytest.mark.parametrize("make", BOTH)`."""
