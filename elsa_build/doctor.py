"""What this machine can do and what is lost without the rest, so that nobody learns it mid-build.

`examine` looks through doors that it is given; `this_machine` makes the real ones.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from elsa_build.errors import ToolError

PYTHON = (3, 11)
CACHE_GB = 2
PROJECT_GB = 4
"""A release takes 0.1 GB in the cache; an image with a base a few GB beside the project."""


class State(StrEnum):
    """How one row stands; only `missing` and `too old` of a required one are failures."""

    OK = "ok"
    MISSING = "missing"
    OLD = "too old"
    LOW = "low"
    UNASKED = "not asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One capability: what was found, and what is lost when it is not ok."""

    name: str
    state: State
    found: str
    lost: str
    required: bool = False

    @property
    def failed(self) -> bool:
        """Say whether the tool cannot work at all."""
        return self.required and self.state in (State.MISSING, State.OLD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The doors: `run` gives an exit code and the output, `free` is in bytes, `daemon` a version.

    `run` of a program that hangs or cannot be started gives a code other than 0. `daemon` raises
    ToolError when there is none.
    """

    which: Callable[[str], str | None]
    run: Callable[[Sequence[str]], tuple[int, str]]
    daemon: Callable[[], str]
    free: Callable[[Path], int]
    python: tuple[int, int, int]
    executable: str


def examine(
    machine: Machine, *, git: tuple[int, int], cache: Path, project: Path, network: bool = False
) -> tuple[Row, ...]:
    """Return one row a capability, required ones first.

    Args:
        machine: The doors to look through.
        git: The oldest git that works.
        cache: The folder of upstream's sources; it need not exist.
        project: The folder of the lock.
        network: Ask the package index whether it answers.
    """
    return (
        _git(machine, git),
        _python(machine),
        _pip(machine),
        _index(machine, asked=network),
        _docker(machine),
        _buildx(machine),
        _tool(machine, "skopeo", "--version", "an image cannot be pushed or inspected elsewhere"),
        _tool(machine, "umoci", "--version", "an OCI layout cannot be unpacked by a second tool"),
        _nvcc(machine),
        _gpu(machine),
        _tool(machine, "hadolint", "--version", "the rendered Dockerfile is not linted"),
        _disk(machine, "disk of the cache", cache, CACHE_GB),
        _disk(machine, "disk of the project", project, PROJECT_GB),
    )


# --- rows -------------------------------------------------------------------------------------


def _git(machine: Machine, minimum: tuple[int, int]) -> Row:
    lost = "nothing works: every tree and merge is git's"
    wanted = f"{minimum[0]}.{minimum[1]} or newer"
    said = _version(machine, "git", "--version")
    numbers = re.search(r"(\d+)\.(\d+)", said or "")
    state = State.MISSING
    if said and numbers:
        old = (int(numbers[1]), int(numbers[2])) < minimum
        state = State.OLD if old else State.OK
    found = said or f"not on PATH ({wanted})"
    if state is State.OLD:
        found = f"{said} ({wanted})"
    return Row(name="git", state=state, found=found, lost=lost, required=True)


def _python(machine: Machine) -> Row:
    old = machine.python[:2] < PYTHON
    return Row(
        name="Python",
        state=State.OLD if old else State.OK,
        found=".".join(map(str, machine.python)) + f" {machine.executable}",
        lost=f"nothing works: {PYTHON[0]}.{PYTHON[1]} or newer is needed",
        required=True,
    )


def _pip(machine: Machine) -> Row:
    code, said = machine.run((machine.executable, "-m", "pip", "--version"))
    return Row(
        name="pip",
        state=State.MISSING if code else State.OK,
        found="not in this Python" if code else said.partition(" from ")[0].strip(),
        lost="no release can be pinned or fetched; a git source still works",
    )


def _index(machine: Machine, *, asked: bool) -> Row:
    state, found = State.UNASKED, "elsa-build doctor --network asks it"
    if asked:
        code, said = machine.run((machine.executable, "-m", "pip", "index", "versions", "sglang"))
        newest = re.search(r"^sglang \((\S+)\)", said, re.MULTILINE)
        state = State.OK if code == 0 and newest else State.MISSING
        found = f"sglang {newest[1]} is the newest" if newest else _last(said) or "no answer"
    return Row(
        name="package index",
        state=state,
        found=found,
        lost="only releases that are already in the cache can be pinned",
    )


def _docker(machine: Machine) -> Row:
    try:
        state, found = State.OK, machine.daemon()
    except ToolError as e:
        state, found = State.MISSING, str(e)
    return Row(
        name="docker daemon",
        state=state,
        found=found,
        lost="no backend docker, and no check of a loaded image; backend oci needs no daemon",
    )


def _buildx(machine: Machine) -> Row:
    code, said = (1, "")
    if machine.which("docker"):
        code, said = machine.run(("docker", "buildx", "version"))
    return Row(
        name="docker buildx",
        state=State.MISSING if code else State.OK,
        found="no buildx plugin" if code else _first(said),
        lost="backend docker uses the classic builder, layer by layer and without mounts",
    )


def _nvcc(machine: Machine) -> Row:
    lost = "CUDA kernels cannot be compiled ahead of time here"
    said = _version(machine, "nvcc", "--version")
    if said is None:
        return Row(name="nvcc", state=State.MISSING, found="not on PATH", lost=lost)
    release = re.search(r"release [\d.]+", said)
    code, listed = machine.run(("nvcc", "--list-gpu-arch"))
    archs = "" if code else " ".join(listed.split()).replace("compute_", "sm_")
    version = release[0] if release else _first(said)
    return Row(name="nvcc", state=State.OK, found=f"{version}, {archs}".rstrip(", "), lost=lost)


def _gpu(machine: Machine) -> Row:
    code, said = 1, ""
    if machine.which("nvidia-smi"):
        query = "--query-gpu=name,compute_cap,memory.total,driver_version"
        code, said = machine.run(("nvidia-smi", query, "--format=csv,noheader"))
    cards = "; ".join(line.strip() for line in said.splitlines() if line.strip())
    there = code == 0 and cards
    return Row(
        name="GPU",
        state=State.OK if there else State.MISSING,
        found=cards if there else "none found",
        lost="no boot can be recorded or measured here; everything up to the image works",
    )


def _tool(machine: Machine, name: str, option: str, lost: str) -> Row:
    said = _version(machine, name, option)
    return Row(
        name=name,
        state=State.MISSING if said is None else State.OK,
        found="not on PATH" if said is None else _first(said),
        lost=lost,
    )


def _disk(machine: Machine, name: str, folder: Path, wanted_gb: int) -> Row:
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free_gb = machine.free(there) / 1e9
    return Row(
        name=name,
        state=State.LOW if free_gb < wanted_gb else State.OK,
        found=f"{free_gb:.1f} GB free at {folder}",
        lost=f"a build may stop half way: it wants {wanted_gb} GB",
    )


def _version(machine: Machine, name: str, option: str) -> str | None:
    """Return what a program says of itself, or None when it is not there or does not run."""
    if machine.which(name) is None:
        return None
    code, said = machine.run((name, option))
    return None if code else said.strip()


def _first(said: str) -> str:
    return said.strip().partition("\n")[0]


def _last(said: str) -> str:
    return said.strip().rpartition("\n")[2]


# --- words ------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text: state, name, what was found, and below it what is lost."""
    return "\n".join(_words(rows))


def _words(rows: Sequence[Row]) -> Iterator[str]:
    width = max(len(row.name) for row in rows)
    for row in rows:
        yield f"{row.state:<9}  {row.name:<{width}}  {row.found}"
        if row.state is not State.OK:
            yield f"{'':<9}  {'':<{width}}  without it: {row.lost}"


# --- doors ------------------------------------------------------------------------------------


def this_machine() -> Machine:
    """Return the doors to the machine that we run on."""
    # Tools that were installed beside us (hadolint) count although nobody activated the venv.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    env = {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8"}

    def run(command: Sequence[str]) -> tuple[int, str]:
        program = shutil.which(command[0], path=path) or command[0]
        try:
            done = subprocess.run(
                (program, *command[1:]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
                timeout=20,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            return 1, str(e)
        return done.returncode, done.stdout.decode("utf-8", "replace")

    return Machine(
        which=lambda name: shutil.which(name, path=path),
        run=run,
        daemon=_daemon,
        free=lambda folder: shutil.disk_usage(folder).free,
        python=sys.version_info[:3],
        executable=sys.executable,
    )


def _daemon() -> str:
    """Return the version of the docker daemon that the environment points at.

    Raises:
        ToolError: It does not answer.
    """
    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        _knock(host)
    except (OSError, ValueError) as e:
        raise ToolError(f"no answer from {host}: {getattr(e, 'strerror', None) or e}") from e
    import docker  # noqa: PLC0415 - 306 ms, only where somebody listens

    try:
        with closing(docker.DockerClient.from_env(timeout=5)) as client:
            said = client.version()
    except (docker.errors.DockerException, OSError) as e:
        raise ToolError(f"no docker daemon answers at {host}: {_first(str(e))}") from e
    return f"{said['Version']}, API {said['ApiVersion']}, {said['Os']}/{said['Arch']}"


def _knock(host: str) -> None:
    """Raise OSError when nobody listens; the SDK would leave an open socket behind in that case."""
    parts = urlsplit(host)
    if parts.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(5)
            door.connect(parts.path)
    elif parts.scheme in ("tcp", "http", "https") and parts.hostname:
        socket.create_connection((parts.hostname, parts.port or 2375), timeout=5).close()
