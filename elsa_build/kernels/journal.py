"""What was finished, on disk line by line, so that a run that was killed is not lost.

A line is written whole and synced before the next job is told; what a kill leaves half written is
cut away by the next run. Only success is remembered: what failed is tried again.
"""

import errno
import fcntl
import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from elsa_build.errors import ToolError
from elsa_build.kernels.jobs import Job, Outcome


@dataclass(frozen=True, slots=True)
class Journal:
    """An open journal; `done` is what earlier runs finished."""

    file: io.FileIO
    path: Path
    done: Mapping[str, Outcome] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Append one outcome; it is on the disk when this returns.

        Raises:
            ToolError: The disk is full, or failed (exit 6).
        """
        line = json.dumps(asdict(outcome), sort_keys=True).encode() + b"\n"
        why = os.strerror(errno.ENOSPC)
        try:
            # A disk that has room for a part of it takes that part.
            whole = self.file.write(line) == len(line)
            os.fsync(self.file.fileno())
        except OSError as e:
            whole, why = False, e.strerror or why
        if not whole:
            raise disk_failed(f"cannot write {self.path}: {why}", self.path.parent)

    def finished(self, job: Job, build: Path) -> Outcome | None:
        """Return the outcome of a job that is done and whose files are still there.

        Its `fresh` is False, since now nothing had to be compiled; its costs are those of then.
        """
        outcome = self.done.get(job.id)
        if outcome is None or not all(map(Path.is_file, products(outcome, build))):
            return None
        return replace(outcome, fresh=False)


@contextmanager
def opened(path: Path, build: Path) -> Iterator[Journal]:
    """Open a journal for one run, cut off a half last line, and keep other runs out.

    Its folder and the build folder are made.

    Raises:
        ToolError: Another run holds it, or it cannot be written (exit 6).
    """
    try:
        for folder in (path.parent, build):
            folder.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a line is one write, and no half of one is written again at closing.
        file = path.open("a+b", buffering=0)
    except OSError as e:
        raise ToolError(f"cannot write {e.filename}: {e.strerror}") from e
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ToolError(
                f"{path} is in use by another run", hint="wait for it, or build in another folder"
            ) from None
        text = path.read_bytes()
        whole = text.rpartition(b"\n")[0]
        file.truncate(len(whole) + 1 if whole else 0)
        yield Journal(file, path, dict(_successes(whole)))


def products(outcome: Outcome, build: Path) -> list[Path]:
    """Return the files that a job made, by what it told.

    `files` are those of the bundle, relative to the build folder; `output` is one that other jobs
    go on with, wherever it lies.
    """
    output = outcome.found.get("output")
    return [
        *(build / name for name in outcome.found.get("files", ())),
        *([Path(output)] if output else ()),
    ]


def disk_failed(what: str, place: Path) -> ToolError:
    """Return the error that a full or broken disk ends a run with."""
    return ToolError(
        f"{what}; what is finished is kept",
        hint=f"free space for {place} (df -h), then run the same command again",
    )


def _successes(text: bytes) -> Iterator[tuple[str, Outcome]]:
    for line in text.splitlines():
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if outcome.error is None:
            yield outcome.job, outcome
