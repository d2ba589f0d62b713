"""The door to pip, which fetches releases.

The index, the proxy, the certificates and the passwords are the person's own: pip reads its usual
configuration, and nothing of that is ours.
"""

import os
import re
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, ElsaError, ToolError
from elsa_build.progress import Advance, Progress
from elsa_build.upstream.cache import ELSEWHERE
from elsa_build.upstream.child import lines, running

_GLIBC = range(39, 16, -1)
"""manylinux_2_39 (Ubuntu 24.04, the base of upstream's images) down to manylinux_2_17."""

_SIZE = re.compile(r"(?:Downloading|Using cached) .*\(([\d.]+) ([kMG]?)B\)")
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_TROUBLE = ("Could not fetch URL", "WARNING: Retrying", "ERROR:", "pip._vendor.", "pip._internal.")
_UNREACHABLE = re.compile(
    r"Connection|timed? ?out|ProxyError|SSLError|CERTIFICATE|Name or service|IncompleteRead"
    r"|\b(401|403|407|5\d\d) \w+ Error",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which machine a wheel must run on: `python` is `3.12`, `machine` is `x86_64` or `aarch64`."""

    python: str = "3.12"
    machine: str = "x86_64"

    @property
    def platforms(self) -> tuple[str, ...]:
        """Return the wheel platforms that such a machine accepts, best first."""
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in _GLIBC]
        return (*names, f"manylinux2014_{self.machine}", f"linux_{self.machine}")


def download(requirement: str, target: Target, folder: Path, progress: Progress) -> Path:
    """Download one wheel into an empty folder and return it.

    Args:
        requirement: `NAME` for the newest final release, or `NAME==VERSION`.
        target: Where the wheel will run; this machine may be another.
        folder: An empty folder, on the disk where the wheel will stay.
        progress: Where the download announces itself.

    Raises:
        ConfigError: The index has no such release for this target.
        ToolError: There is no pip, the index cannot be reached, the download broke or the disk is
            full.
    """
    # Only at -vv does pip tell an index that has no such package from one that does not answer.
    command = [sys.executable, "-m", "pip", "download", "-vv"]
    command += ["--no-deps", "--only-binary=:all:"]
    command += ["--python-version", target.python, "--implementation", "cp"]
    for platform in target.platforms:
        command += ["--platform", platform]
    command += ["--dest", str(folder), "--", requirement]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".pip-") as scratch:
        code, output = _watch(command, Path(scratch), requirement, progress)
    wheels = sorted(folder.glob("*.whl"))
    if code or len(wheels) != 1:
        raise _explain(output, requirement, target)
    return wheels[0]


def _watch(
    command: list[str], scratch: Path, requirement: str, progress: Progress
) -> tuple[int, str]:
    """Run pip and show the bytes that arrive in its scratch folder; return its code and output."""
    env = {
        **os.environ,
        "TMPDIR": str(scratch),
        "PYTHONUNBUFFERED": "1",
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_PROGRESS_BAR": "off",
        "LC_ALL": "C.UTF-8",
    }
    said: list[str] = []
    done = 0
    advance: Advance | None = None
    with ExitStack() as shown:
        shown.enter_context(progress.task(f"ask the package index for {requirement}"))
        with running(command, env) as (process, output):
            for line in lines(output, pause=0.2):
                if line:
                    said.append(line)
                if advance is None and (size := _SIZE.search(line)):
                    total = int(float(size[1]) * _SCALE[size[2]])
                    shown.close()  # a terminal shows one task at a time
                    advance = shown.enter_context(
                        progress.task(f"download {requirement}", total=total, unit="B")
                    )
                elif advance is not None:
                    now = _bytes_below(scratch)
                    advance(max(0, now - done))
                    done = max(now, done)
            code = process.wait()
    return code, "\n".join(said)


def _bytes_below(folder: Path) -> int:
    """Return how much lies in a folder that pip fills, moves about and empties meanwhile."""
    total = 0
    for place, _, names in os.walk(folder):  # a folder that goes away is passed over
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total


def _explain(output: str, requirement: str, target: Target) -> ElsaError:
    """Return pip's failure in our words."""
    if "No module named pip" in output:
        return ToolError(
            f"this Python has no pip: {sys.executable}",
            hint=f"{sys.executable} -m ensurepip --upgrade",
        )
    trouble = [line.strip() for line in output.splitlines() if line.startswith(_TROUBLE)]
    if "No space left on device" in output:
        return ToolError(f"cannot download {requirement}: no space left on device", hint=ELSEWHERE)
    versions = re.search(r"from versions: ([^)]*)\)", output)
    where = f"Python {target.python} on {target.machine}"
    if versions and versions[1] != "none":
        newest = ", ".join(versions[1].split(", ")[-5:])
        return ConfigError(
            f"your package index has no {requirement} for {where}; the last of its releases are "
            f"{newest}",
            hint="elsa-build pin set latest --source release",
        )
    if broken := [line for line in trouble if _UNREACHABLE.search(line)]:
        return ToolError(
            f"cannot download {requirement} from your package index: {broken[-1]}",
            hint=f"{sys.executable} -m pip config debug",
        )
    if versions:
        name = requirement.partition("==")[0]
        return ConfigError(
            f"your package index has no '{name}' with a wheel for {where}",
            hint=f"{sys.executable} -m pip index versions {name}",
        )
    faults = [line for line in trouble if line.startswith("ERROR:")] or output.splitlines()
    return ToolError(
        f"pip download {requirement} failed: " + "\n".join(faults[-3:]),
        hint=f"{sys.executable} -m pip config debug",
    )
