"""A folder that, first on PYTHONPATH, has every Python process of a command tell of its kernels.

The folder is complete in itself, so it can also be mounted into a container. Our package lies below
`package/`, which a process adds to the end of its search path when it first needs it: a command
that has an `elsa_build` of its own keeps it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from elsa_build.errors import ToolError
from elsa_build.kernels.inside import hook

HOOK = "ELSA_KERNELS_HOOK"
"""Environment variable: the lent folder, for a command that starts a container."""
MARKS = "ELSA_KERNELS_MARKS"
"""Environment variable: the file to which a command may append the names of phases."""

_SITE = '''\
"""Loads the hook of elsa-build, then the sitecustomize that would have been found without it."""

import os
import sys

# Loaded in every interpreter; importlib.util would bring ten more modules into each process.
from _frozen_importlib_external import PathFinder, SourceFileLoader

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load(name, path):
    module = sys.modules[name] = type(sys)(name)
    module.__file__ = path
    module.__loader__ = SourceFileLoader(name, path)
    module.__loader__.exec_module(module)
    return module


if os.environ.get("ELSA_KERNELS_EVENTS"):
    try:
        _load(
            "_elsa_kernels_hook",
            os.path.join(_HERE, "package", "elsa_build", "kernels", "inside", "hook.py"),
        ).install()
    except Exception as e:  # the command must run all the same
        sys.stderr.write(f"elsa-build: kernels are not recorded: {e!r}\\n")


def _next():
    others = [path for path in sys.path if os.path.abspath(path or ".") != _HERE]
    return PathFinder.find_spec("sitecustomize", others)


_other = _next()
if _other is not None and _other.origin:
    _load("sitecustomize", _other.origin)
'''


def lend(folder: Path) -> Path:
    """Write the folder and return it; what is in it is replaced file by file.

    Raises:
        ToolError: It cannot be written (exit 6).
    """
    package = Path(hook.__file__).parents[2]
    files = {"sitecustomize.py": _SITE}
    for path in ("__init__.py", "kernels/__init__.py", *_inside(package)):
        files[f"package/{package.name}/{path}"] = (package / path).read_text(encoding="utf-8")
    try:
        for name, text in files.items():
            _write(folder / name, text)
    except OSError as e:
        raise ToolError(f"{e.filename}: cannot be written: {e.strerror}") from e
    return folder


def _inside(package: Path) -> list[str]:
    found = (package / "kernels" / "inside").glob("*.py")
    return sorted(str(path.relative_to(package)) for path in found)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{path.name}.{os.getpid()}")
    making.write_text(text, encoding="utf-8")
    making.replace(path)


def hooked(
    environ: Mapping[str, str], lent: Path, events: Path, *, marks: Path, strict: bool
) -> dict[str, str]:
    """Return an environment whose Python processes write their events to a folder."""
    path = [str(lent), *filter(None, [environ.get("PYTHONPATH")])]
    return {
        **environ,
        "PYTHONPATH": os.pathsep.join(path),
        hook.FOLDER: str(events),
        HOOK: str(lent),
        MARKS: str(marks),
        **({hook.STRICT: "1"} if strict else {}),
    }
