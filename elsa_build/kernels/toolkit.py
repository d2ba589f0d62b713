"""Which nvcc builds the kernels: found, its version read, and its home made usable.

Both SGLang's JIT and FlashInfer look at CUDA_HOME first and believe it: a wrapper script on PATH
gives them a home without libraries, and a toolkit that is too old fails later with words about
another card ("needs sm75", flashinfer 3633). So the choice is made once, here, and told.
"""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ToolError
from elsa_build.kernels.target import Target

HEADERS = ("cuda_runtime.h", "curand.h", "cublasLt.h")
"""What the modules include beyond the compiler's own: a partial toolkit lacks the last two."""

TWO_COMPILERS = "E441"
PARTIAL_TOOLKIT = "E442"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """One CUDA toolkit: `home` is what CUDA_HOME is set to, `nvcc_version` as `13.0.88`.

    `where` says how it was found; `lacks` are the headers of `HEADERS` that it does not have.
    """

    home: Path
    nvcc_version: str
    where: str
    lacks: tuple[str, ...] = ()

    @property
    def nvcc(self) -> Path:
        """Return the compiler itself."""
        return self.home / "bin/nvcc"

    @property
    def release(self) -> tuple[int, int]:
        """Return major and minor of the compiler's version."""
        major, minor, *_ = self.nvcc_version.split(".")
        return int(major), int(minor)


def find(
    target: Target,
    *,
    cuda_home: Path | None,
    env: Mapping[str, str],
    site_packages: Path | None,
    scratch: Path,
) -> tuple[Toolkit, tuple[Diagnostic, ...]]:
    """Return the toolkit to build with, and what a person should know of the choice.

    In order: `cuda_home`, CUDA_HOME, the nvcc on PATH, the one that pip installed for the
    interpreter (`site_packages`). One that was named is taken as it is; of the last two, one that
    has every header comes first. `scratch` is a folder of ours, where pip's toolkit gets the links
    that it lacks.

    Raises:
        ToolError: No nvcc, the named place has none, or it is too old for the target (exit 6).
    """
    seen = _seen(cuda_home, env, site_packages)
    if not seen:
        raise ToolError(
            f"no nvcc: neither --cuda-home, CUDA_HOME nor PATH has one, and pip installed none;"
            f" {target.gencode} needs {_text(target.nvcc)} or later",
            hint="pip install nvidia-cuda-nvcc nvidia-cuda-cccl",
        )
    named = seen[0].where in ("--cuda-home", "CUDA_HOME")
    chosen = seen[0] if named else min(seen, key=lambda one: len(one.lacks))
    if chosen.release < target.nvcc:
        newer = next((one for one in seen if one.release >= target.nvcc), None)
        raise ToolError(
            f"nvcc {chosen.nvcc_version} ({chosen.where}: {chosen.home}) does not know"
            f" {target.gencode}: it takes {_text(target.nvcc)} or later",
            hint=f"--cuda-home {newer.home}" if newer else "pip install nvidia-cuda-nvcc",
        )
    found = tuple(_remarks(chosen, seen))
    return (usable(chosen, scratch) if chosen.where == _PIP else chosen), found


def banner(nvcc: Path) -> str:
    """Return all that a compiler says of its version: the text that keys hold."""
    return _run(nvcc, "--version").stdout.strip()


def compiler_version(nvcc: Path) -> str:
    """Return the version of a compiler as `13.0.88`.

    Raises:
        ToolError: It does not run, or does not say (exit 6).
    """
    ran = _run(nvcc, "--version")
    found = re.search(r"\bV(\d+\.\d+\.\d+)", ran.stdout)
    if ran.returncode or not found:
        raise ToolError(
            f"{nvcc} --version does not say its version: {(ran.stderr or ran.stdout).strip()}",
            hint="--cuda-home DIR",
        )
    return found[1]


def home_of(nvcc: Path) -> Path:
    """Return the toolkit that a compiler belongs to, also when it is a script that calls another.

    nvcc itself says it (`--dryrun` prints TOP), so `/usr/local/bin/nvcc` is not taken for a toolkit
    in `/usr/local`.
    """
    ran = _run(nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null")
    top = re.search(r"^#\$ TOP=(.+)$", ran.stderr, re.MULTILINE)
    home = Path(top[1].strip()) if top else nvcc.parent.parent
    return home.parent.parent if home.parts[-2:] == ("bin", "..") else home.resolve()


def usable(toolkit: Toolkit, scratch: Path) -> Toolkit:
    """Return pip's toolkit under a home in `scratch` that has what builders look for."""
    home = scratch / f"cuda-{toolkit.nvcc_version}"
    lay_out(home, toolkit.home)
    return replace(toolkit, home=home)


def lay_out(home: Path, installed: Path) -> None:
    """Make a home for what pip installed, with what it lacks (`lib64`, `libcudart.so`).

    It is a folder of links; nothing is written below site-packages.
    """
    libraries = home / "lib64"
    libraries.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "include", "nvvm"):
        _link(home / part, installed / part)
    _link(home / "lib", Path("lib64"))
    for file in sorted((installed / "lib").iterdir()):
        _link(libraries / file.name, file)
        stem, dot, _ = file.name.partition(".so.")
        if dot:
            _link(libraries / f"{stem}.so", Path(file.name))


def by_pip(site_packages: Path) -> list[Path]:
    """Return the toolkits that pip installed for an interpreter, the newest first."""
    found = sorted(site_packages.glob("nvidia/cu*"), reverse=True)
    return [home for home in found if (home / "bin/nvcc").is_file()]


_PIP = "pip"


def _seen(
    cuda_home: Path | None, env: Mapping[str, str], site_packages: Path | None
) -> list[Toolkit]:
    """Return each toolkit that is there, the one to prefer first; a folder appears once."""
    places: list[tuple[str, Path]] = []
    named = env.get("CUDA_HOME") or env.get("CUDA_PATH")
    for where, home in (("--cuda-home", cuda_home), ("CUDA_HOME", named)):
        if home is None:
            continue
        if not (Path(home) / "bin/nvcc").is_file():
            raise ToolError(
                f"{where} is {home}, which has no bin/nvcc",
                hint="unset CUDA_HOME" if where == "CUDA_HOME" else "--cuda-home DIR",
            )
        places.append((where, Path(home)))
    folders = (Path(folder) for folder in env.get("PATH", "").split(":") if folder)
    on_path = next((folder / "nvcc" for folder in folders if (folder / "nvcc").is_file()), None)
    if on_path:
        places.append(("PATH", home_of(on_path)))
    places += [(_PIP, home) for home in (by_pip(site_packages) if site_packages else ())]
    first = {home.resolve(): (where, home) for where, home in reversed(places)}
    return [_read(where, home) for where, home in places if first[home.resolve()] == (where, home)]


def _read(where: str, home: Path) -> Toolkit:
    lacks = tuple(name for name in HEADERS if not (home / "include" / name).is_file())
    version = compiler_version(home / "bin/nvcc")
    return Toolkit(home=home, nvcc_version=version, where=where, lacks=lacks)


def _remarks(chosen: Toolkit, seen: list[Toolkit]) -> list[Diagnostic]:
    others = [one for one in seen if one.nvcc_version != chosen.nvcc_version]
    found = [
        Diagnostic(
            code=TWO_COMPILERS,
            severity=Severity.WARNING,
            message=f"nvcc {chosen.nvcc_version} ({chosen.where}: {chosen.home}) is used, not"
            f" {other.nvcc_version} ({other.where}: {other.home})",
            hint=f"--cuda-home {other.home}",
        )
        for other in others
    ]
    if chosen.lacks:
        found.append(
            Diagnostic(
                code=PARTIAL_TOOLKIT,
                severity=Severity.WARNING,
                message=f"{chosen.home} has no {', '.join(chosen.lacks)}:"
                " a module that includes it will not compile",
                hint="pip install nvidia-cublas nvidia-curand",
            )
        )
    return found


def _link(link: Path, to: Path) -> None:
    """Make a symlink, replacing one that points elsewhere (an upgraded interpreter)."""
    if link.is_symlink() and link.readlink() == to:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(to)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as e:
        raise ToolError(f"{command[0]} does not run: {e.strerror}", hint="--cuda-home DIR") from e
