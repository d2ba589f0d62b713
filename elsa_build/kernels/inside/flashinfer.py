"""FlashInfer's modules as compile commands, and their libraries where its AOT lookup finds them.

FlashInfer builds with ninja into a workspace that no copy survives (times and full paths are in its
log), and it trusts that workspace only while it may compile. So its own generators write the ninja
file, the commands become jobs of ours, and the library goes into the AOT folder, which is loaded as
it is. Source: flashinfer 0.7.2 flashinfer/jit/core.py (JitSpecNvcc), flashinfer/jit/env.py.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elsa_build.kernels.inside import command, neutral
from elsa_build.kernels.inside.values import meant

AOT = "flashinfer_aot"
"""Folder of the build that holds NAME/NAME.so."""

_COSTS: tuple[tuple[str, int, float], ...] = (
    # Pattern of "module/source", peak of one compiler in MiB and a fifth more, CPU seconds.
    # Measured for 120f with nvcc 13.0, all units of the modules of elsa-1.7.
    (r"grouped_sm120_", 12800, 140.0),
    (r"grouped_sm80_", 8192, 140.0),
    (r"gemm_sm90_", 1400, 17.0),
    (r"cutlass_fused_moe_instantiation", 2300, 190.0),
    (r"moe_gemm_kernels_bf16_bf16", 1600, 136.0),
    (r"moe_gemm_kernels_fp4_fp4", 1500, 25.0),
    (r"moe_gemm_kernels_", 2700, 170.0),
    (r"fused_moe_binding", 1000, 100.0),
    (r"/fp4_gemm_cutlass_(half|__nv)", 8600, 72.0),
    (r"fp4_quantization_.*/quantization\.cu$", 1500, 87.0),
    (r"sampling/sampling\.cu$", 1500, 75.0),
    (r"batch_prefill", 900, 17.0),
    (r"\.cpp$|\.cc$", 900, 3.0),
)
_USUAL = (1500, 20.0)


def specs(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return each module's commands: `modules: [{name, library, link, units: [...]}]`.

    `arguments["modules"]` has `{"generator": "package.module:function", "args": [...]}` each.
    Nothing is compiled; the sources that are generated lie in the folder `generated`.

    Raises:
        RuntimeError: FlashInfer refuses the target, or `ninja` is missing.
    """
    work = str(prepare(setup))
    compiler = f"{versions()}\n{neutral.FORM}"
    found = [
        _module(spec, work, compiler) for one in arguments["modules"] for spec in _generated(one)
    ]
    from flashinfer.jit import env

    return {"fresh": False, "modules": found, "generated": str(env.FLASHINFER_GEN_SRC_DIR)}


def place(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a linked `library` to where FlashInfer looks for the module `name`."""
    name, library = arguments["name"], Path(arguments["library"])
    target = Path(setup["build"]) / AOT / name / f"{name}.so"
    contents = command.digest(library)
    fresh = not target.exists() or command.digest(target) != contents
    if fresh:
        target.parent.mkdir(parents=True, exist_ok=True)
        making = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copyfile(library, making)
        making.chmod(0o644)
        making.rename(target)
    files = [str(target.relative_to(setup["build"]))]
    key = json.loads(library.with_name(f"{library.name}.done").read_text())["key"]
    return {"fresh": fresh, "module": name, "files": files, "key": key, "sha256": contents}


def prepare(setup: Mapping[str, Any]) -> Path:
    """Return FlashInfer's workspace, and point it at the target; must come before its import.

    Without FLASHINFER_WORKSPACE_BASE it lies beside the build folder.

    Raises:
        RuntimeError: It was imported before, for another workspace.
    """
    base = Path(setup["build"]).parent / "work" / "flashinfer"
    workspace = Path(os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(base)))
    workspace.mkdir(parents=True, exist_ok=True)
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = setup["target"]["flashinfer"]
    os.environ.pop("FLASHINFER_DISABLE_JIT", None)
    from flashinfer.jit import env

    if workspace not in env.FLASHINFER_JIT_DIR.parents:
        raise RuntimeError(f"flashinfer was imported before, for {env.FLASHINFER_JIT_DIR}")
    return workspace


def versions() -> str:
    """Return what the two compilers say of themselves: part of every command's key."""
    from flashinfer.jit.cpp_ext import get_cuda_path

    said = []
    for compiler in (f"{get_cuda_path()}/bin/nvcc", os.environ.get("CXX", "c++")):
        ran = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
        said.append(ran.stdout.strip())
    return "\n".join(said)


def cost(source: str) -> tuple[int, float]:
    """Return the memory (MiB) and the CPU seconds that compiling a source is expected to take."""
    for pattern, mib, seconds in _COSTS:
        if re.search(pattern, source):
            return mib, seconds
    return _USUAL


def _generated(one: Mapping[str, Any]) -> list[Any]:
    """Return the specs that a generator of FlashInfer's makes; some make several."""
    module, _, function = one["generator"].partition(":")
    made = getattr(importlib.import_module(module), function)(
        *meant(one.get("args", [])),
        **{key: meant(value) for key, value in one.get("kwargs", {}).items()},
    )
    return list(made) if isinstance(made, list | tuple) else [made]


def _module(spec: Any, work: str, compiler: str) -> dict[str, Any]:
    """Return one module's commands, as its own ninja file has them."""
    # Generated sources come in the file system's order; sorted, the library is always the same.
    spec.sources = sorted(spec.sources)
    spec.write_ninja()
    ran = subprocess.run(
        ["ninja", "-C", spec.build_dir, "-f", spec.ninja_path, "-t", "compdb"],
        capture_output=True,
        text=True,
        check=True,
    )
    shared = {"compiler": compiler, "work": work}
    steps = json.loads(ran.stdout[ran.stdout.index("[") :])
    library = str(Path(spec.jit_library_path).resolve())
    units, link = [], None
    for step in steps:
        said = {
            "command": step["command"],
            "cwd": step["directory"],
            "output": step["output"],
            **shared,
        }
        if step["output"] == library:
            link = {**said, "depfile": None}
            continue
        mib, seconds = cost(f"{spec.name}/{Path(step['file']).name}")
        reports = f"{step['output']}.d" in step["command"]
        inputs = {} if reports else {"inputs": [step["file"]]}
        depfile = f"{step['output']}.d" if reports else None
        known = {"source": step["file"], "depfile": depfile, **inputs}
        units.append({**said, **known, "memory_mib": mib, "cpu_s": seconds})
    if link is None:
        raise RuntimeError(f"{spec.name}: its ninja file makes no {library}")
    link["inputs"] = [unit["output"] for unit in units]
    return {"name": spec.name, "library": library, "work": work, "units": units, "link": link}


def aot_provider(version: str, folder: str, gencode: str) -> dict[str, str]:
    """Return a package that tells FlashInfer of an AOT folder outside of site-packages.

    Args:
        version: FlashInfer's own, to which it holds a provider.
        folder: Absolute, as it lies in the image; its sub-folders are the modules.
        gencode: What the libraries are compiled for, such as `120f`; FlashInfer compares it with
            the card, which its own `data/aot` folder does not.

    Returns:
        Text by file name. Put on PYTHONPATH, it comes before a package of that name that the image
        may have, and hands on what that one provides.

    Source: flashinfer 0.7.2 flashinfer/jit/env.py, _get_aot_providers.
    """
    text = _PROVIDER.format(version=version, folder=folder, architecture=f"sm{gencode}")
    return {"flashinfer_jit_cache/__init__.py": text}


_PROVIDER = '''\
"""Where FlashInfer finds the modules that elsa-build compiled. Made by elsa-build; do not edit."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

_HERE = Path(__file__).resolve().parent
_FOLDER = Path("{folder}")


def _other():
    """Return the package of this name that comes later on sys.path, if there is one."""
    later = [path for path in sys.path if Path(path or ".").resolve() != _HERE.parent]
    spec = importlib.machinery.PathFinder.find_spec(__name__, later)
    if spec is None or spec.loader is None or Path(spec.origin).resolve().parent == _HERE:
        return None
    folders = spec.submodule_search_locations
    spec = importlib.util.spec_from_file_location(
        "_elsa_other_jit_cache", spec.origin, submodule_search_locations=folders
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_OTHER = _other()
__version__ = getattr(_OTHER, "__version__", "{version}")


def get_jit_cache_dir():
    return str(_FOLDER)


def get_jit_cache_providers():
    ours = SimpleNamespace(
        provider_id="elsa-build",
        distribution="elsa-build kernels",
        version=__version__,
        jit_cache_dir=_FOLDER,
        cuda_architectures=frozenset({{"{architecture}"}}),
        modules=frozenset(entry.name for entry in _FOLDER.iterdir()) if _FOLDER.is_dir() else (),
    )
    theirs = getattr(_OTHER, "get_jit_cache_providers", tuple)()
    return (ours, *theirs)
'''
