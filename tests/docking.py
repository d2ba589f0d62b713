"""A real docker daemon for tests marked `docker`, and small images for it.

Without a daemon, or a static busybox for the bases, these tests are skipped with the reason,
unless ELSA_BUILD_REQUIRE_DOCKER is set, as in CI: then they fail.
"""

import os
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import docker
import pytest

REQUIRED = bool(os.environ.get("ELSA_BUILD_REQUIRE_DOCKER"))
"""Read when the tests are collected, since the seal around each test takes the variable away."""


def lacking(what: str) -> NoReturn:
    """Fail where docker is required, else skip."""
    if REQUIRED:
        pytest.fail(f"ELSA_BUILD_REQUIRE_DOCKER is set, but {what}")
    pytest.skip(what)


def busybox() -> Path:
    """Return a static busybox: a base of one file that has a shell."""
    found = shutil.which("busybox")
    if found is None or not _is_static(Path(found).read_bytes()):
        lacking("no static busybox: apt-get install busybox-static")
    return Path(found).resolve()


def _is_static(program: bytes) -> bool:
    """Say whether a 64-bit ELF program asks for no interpreter (program header type 3)."""
    start, size, count = struct.unpack_from("<Q14xHH", program, 32)
    headers = range(start, start + size * count, size)
    return all(struct.unpack_from("<I", program, at)[0] != 3 for at in headers)


def tool(name: str) -> str:
    """Return another tool that reads images."""
    return shutil.which(name) or lacking(f"no {name}: apt-get install {name}")


def run(image: str, script: str) -> str:
    """Run a script with busybox's shell in an image and return what it prints."""
    with closing(docker.from_env()) as client:
        return client.containers.run(
            image, ["/bin/busybox", "sh", "-c", script], remove=True, network_mode="none"
        ).decode()
