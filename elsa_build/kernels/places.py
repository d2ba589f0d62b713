"""The same work on another machine: its folders in place of ours, in whatever names a path.

Jobs, setup and environment hold absolute paths, some inside a compiler's command line. A machine of
the farm has its own build and scratch folder, so every path below one of ours is rewritten there,
and what it tells is rewritten back.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elsa_build.kernels.jobs import Job
from elsa_build.kernels.workers import WorkerStart

PYTHON, SOURCES = "ELSA_KERNELS_PYTHON", "ELSA_KERNELS_PATH"
"""Set where a machine's interpreter, or the patched tree, lies elsewhere than on the caller's."""


@dataclass(frozen=True, slots=True)
class Places:
    """Pairs of a folder on the caller's machine and the one that stands for it here."""

    pairs: tuple[tuple[str, str], ...]

    def here(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Return plain data with the caller's folders replaced by ours."""
        return _moved(value, self.pairs)

    def back(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Return plain data with our folders replaced by the caller's."""
        return _moved(value, [(new, old) for old, new in self.pairs])

    def job(self, job: Job) -> Job:
        """Return a job as it is done here."""
        return replace(job, arguments=self.here(job.arguments))


def start_here(
    start: WorkerStart,
    places: Places,
    *,
    inherited: frozenset[str],
    package: str,
    own: Mapping[str, str],
) -> WorkerStart:
    """Return how a worker is started on this machine.

    Args:
        start: How the caller starts one.
        places: Which folder stands for which.
        inherited: Names that the caller only has from its shell; here they are this machine's.
        package: A folder that holds our package and nothing else.
        own: The environment of this machine's process.
    """
    given = {name: text for name, text in start.env.items() if name not in inherited}
    env = {name: own[name] for name in inherited if name in own} | places.here(given)
    sources = own.get(SOURCES) or env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (package, sources)))
    env["PATH"] = os.pathsep.join(filter(None, (env.get("PATH"), own.get("PATH"))))
    command = places.here(list(start.command))
    return WorkerStart(
        command=(own.get(PYTHON) or command[0], *command[1:]),
        env=env,
        setup=places.here(start.setup),
    )


def _moved(value: Any, pairs: Sequence[tuple[str, str]]) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            return _path(value, dict(pairs))
        case Mapping():
            return {key: _moved(one, pairs) for key, one in value.items()}
        case list() | tuple():
            return [_moved(one, pairs) for one in value]
        case _:
            return value


def _path(text: str, pairs: Mapping[str, str]) -> str:
    """Replace whole folders only: `/w/build` is not the beginning of `/w/build-2`."""
    longest = sorted(pairs, key=len, reverse=True)
    found = "|".join(map(re.escape, longest))
    return re.sub(rf"({found})(?![\w.-])", lambda one: pairs[one[1]], text) if found else text
