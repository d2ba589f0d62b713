"""The interpreter that has torch, Triton and the patched tree: how programs of ours run in it.

The tool never imports them. Kernels must be compiled by the very Triton, nvcc and Python that will
look them up, so the work is done in another interpreter: a virtual environment on a builder, or the
image's own Python. It sees our package through a folder that holds nothing else.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError, ToolError

VARIABLE = "ELSA_KERNELS_PYTHON"
_LOCAL = ".venv-kernels/bin/python"
_FOREIGN = (
    *("TRITON_", "SGLANG_", "FLASHINFER_", "TVM_", "TORCH", "PYTHON", "CUDA_", "CUTE_", "NVCC_"),
    # In Triton's keys under other names. Source: triton 3.8.0 include/triton/Tools/Sys/GetEnv.hpp.
    *("PTXAS_", "NVPTX_", "LLVM_", "MLIR_", "DISABLE_", "USE_IR_LOC", "ALLOW_LHS_", "AMDGCN_"),
)
"""How variables begin that would change a key, what is compiled, or what is imported."""
_KINDS = ("purelib", "include", "scripts")
_SAID = 20
"""How many of a failed program's last lines are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """An interpreter with the packages of the image, and the tree that it compiles for.

    `source` is the folder that holds the patched `sglang/`; `scratch` a folder of ours for what a
    build needs and a bundle does not; `cuda_home` the CUDA toolkit for nvcc's families, `libraries`
    folders for the dynamic linker (a stub of libcuda.so.1 is in one of them). `variables` are the
    image's own, but for paths.
    """

    python: Path
    source: Path
    scratch: Path
    cuda_home: Path | None = None
    libraries: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self, program: str, *arguments: str) -> tuple[str, ...]:
        """Return the command line of one of our programs, `elsa_build.kernels.inside.PROGRAM`."""
        return (str(self.python), "-m", f"elsa_build.kernels.inside.{program}", *arguments)

    def environment(self, build: Path, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of our programs: the person's, without what reaches a key.

        `build` is the folder of all caches, as the bundle will have them.
        """
        kept = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
        path = [kept.get("PATH", os.defpath)]
        home = {}
        if self.cuda_home:
            path.insert(0, str(self.cuda_home / "bin"))
            home = {"CUDA_HOME": str(self.cuda_home), "CUDA_PATH": str(self.cuda_home)}
        libraries = [*map(str, self.libraries), *filter(None, [kept.get("LD_LIBRARY_PATH")])]
        return {
            **kept,
            **self.variables,
            **home,
            "PATH": os.pathsep.join((str(self.python.parent), *path)),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
            "PYTHONPATH": os.pathsep.join((str(self._lent()), str(self.source))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONNOUSERSITE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "SGLANG_CACHE_DIR": str(self.scratch / "cache"),
            "SGLANG_JIT_CACHE_DIR": str(build / "jit"),
            "TRITON_CACHE_DIR": str(build / "triton"),
            "TRITON_STORE_BINARY_ONLY": "1",
            "TRITON_CACHE_AUTOTUNING": "1",
            "FLASHINFER_WORKSPACE_BASE": str(self.scratch / "flashinfer"),
        }

    def _lent(self) -> Path:
        """Return a folder that holds our package and nothing else of our environment."""
        import elsa_build  # noqa: PLC0415 - where this package lies

        package = Path(elsa_build.__file__).resolve().parent
        folder = self.scratch / "lent"
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / "elsa_build"
        if not link.is_symlink() or link.resolve() != package:
            link.unlink(missing_ok=True)
            link.symlink_to(package)
        return folder


def interpreter(given: Path | None, root: Path, environ: Mapping[str, str]) -> Path:
    """Return the interpreter to use: the given one, `ELSA_KERNELS_PYTHON`, or the project's own.

    Raises:
        ConfigError: There is none, or it is no program (exit 5).
    """
    said = given or (Path(environ[VARIABLE]) if environ.get(VARIABLE) else None)
    python = Path(os.path.abspath(said or root / _LOCAL))  # noqa: PTH100 - a venv's own link must stay
    if not python.is_file() or not os.access(python, os.X_OK):
        raise ConfigError(
            f"{python}: no interpreter with torch, Triton and FlashInfer",
            hint="make .venv-kernels/.ready  (or --python PATH)",
        )
    return python


def installed(python: str | Path) -> dict[str, str]:
    """Return where an interpreter has its packages, headers and programs, by sysconfig's names.

    Raises:
        ToolError: It cannot be run (exit 6).
    """
    code = f"import json, sysconfig as s; print(json.dumps({{n: s.get_path(n) for n in {_KINDS}}}))"
    try:
        ran = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise ToolError(f"{python}: cannot be run: {e}", hint=f"{VARIABLE}=PATH") from e
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def ask(command: Sequence[str], request: Mapping[str, Any], env: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """Run one of our programs with a JSON document on stdin and return the one on its stdout.

    Raises:
        ToolError: It failed; its last lines are in the message (exit 6).
    """
    name = command[2].rpartition(".")[2] if len(command) > 2 else command[0]
    try:
        ran = subprocess.run(
            command, input=json.dumps(request).encode(), capture_output=True, env=env, check=False
        )
    except OSError as e:
        raise ToolError(f"{command[0]}: cannot be run: {e.strerror}") from e
    if ran.returncode:
        last = "\n".join(ran.stderr.decode("utf-8", "replace").splitlines()[-_SAID:])
        raise ToolError(f"kernels {name} ended with {ran.returncode}:\n{last}")
    try:
        return json.loads(ran.stdout)
    except ValueError as e:
        raise ToolError(f"kernels {name} answered with something else than JSON: {e}") from e
