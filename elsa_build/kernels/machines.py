"""The door to Dask: connect to a scheduler, and see what machines it has.

Dask is an extra and costs 0.3 s, so it is imported when it is used. Its client has no types.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elsa_build.errors import ConfigError, ToolError

Client = Any
"""A `distributed.Client`, most of whose methods are untyped."""

_START = "dask worker {} --nworkers 1 --nthreads 8 --memory-limit 0 --resources 'MEM=24000 CPU=8'"
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What the Dask workers offer together, and the largest of them."""

    count: int = 0
    cpus: int = 0
    memory_mib: int = 0
    largest_mib: int = 0
    largest_cpus: int = 0


@contextlib.contextmanager
def connected(scheduler: str, patience_s: float) -> Iterator[Client]:
    """Connect to a scheduler while the block runs; waits `patience_s` seconds at most.

    Raises:
        ConfigError: Dask is not installed (exit 5).
        ToolError: Nothing answers there (exit 6).
    """
    try:
        import distributed  # noqa: PLC0415 - see above

        connect: Any = distributed.Client
    except ImportError as e:
        raise ConfigError(f"the farm needs Dask: {e}", hint="pip install 'elsa-build[farm]'") from e
    try:
        client = connect(scheduler, timeout=patience_s, set_as_default=False)
    except (OSError, ValueError) as e:
        raise ToolError(
            f"no Dask scheduler at {scheduler}: {e}", hint="dask scheduler --port 8786"
        ) from e
    with client:
        yield client


def wait(client: Client, scheduler: str, patience_s: float) -> Machines:
    """Wait until there is a machine that offers memory and processors.

    Raises:
        ToolError: There is none after `patience_s` seconds (exit 6).
    """
    end = time.monotonic() + patience_s
    while not (found := seen(client)).count:
        if time.monotonic() > end:
            raise ToolError(
                f"no worker of the Dask scheduler at {scheduler} offers MEM and CPU",
                hint=how_to_start(scheduler),
            )
        time.sleep(_PAUSE_S)
    return found


def seen(client: Client) -> Machines:
    """Return what the workers offer now; those without MEM and CPU are not for us."""
    offers = [one["resources"] for one in client.scheduler_info()["workers"].values()]
    usable = [(int(one["MEM"]), int(one["CPU"])) for one in offers if {"MEM", "CPU"} <= set(one)]
    if not usable:
        return Machines()
    largest = max(usable)
    return Machines(
        count=len(usable),
        cpus=sum(cpus for _, cpus in usable),
        memory_mib=sum(mib for mib, _ in usable),
        largest_mib=largest[0],
        largest_cpus=largest[1],
    )


def how_to_start(scheduler: str) -> str:
    """Return a command that gives a scheduler a worker."""
    return _START.format(scheduler)
