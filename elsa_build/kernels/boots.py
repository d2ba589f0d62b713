"""Boots a command once or several times with the hook, and keeps what each boot told.

The events and the output of a boot stay on disk: when something was missed, the next question is
what the process printed just before.
"""

import fcntl
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import InterruptedRunError, ToolError
from elsa_build.kernels import events, lending
from elsa_build.kernels import ledger as ledgers
from elsa_build.kernels.booting import Boot, Watch, boot
from elsa_build.kernels.events import Heard
from elsa_build.kernels.ledger import Ledger, Mark
from elsa_build.progress import SILENT, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """One boot and what it told; `phases` are the beginnings of its phases, oldest first."""

    boot: Boot
    heard: Heard
    phases: tuple[Mark, ...]
    ledger: Ledger

    @property
    def broke(self) -> bool:
        """Return whether the command ended with an error, or was ended by ^C."""
        return self.boot.interrupted or self.boot.exit not in (0, None)


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """Provide a folder, emptied, that no other run uses while the block runs.

    Raises:
        ToolError: Another run has it, or it cannot be written (exit 6).
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f"{folder.name}.lock").open("w")
    except OSError as e:
        raise ToolError(f"{e.filename}: cannot be written: {e.strerror}") from e
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            raise ToolError(
                f"{folder} is in use by another run", hint="wait for it, or give another --logs"
            ) from e
        shutil.rmtree(folder, ignore_errors=True)
        yield folder


def run(
    command: Sequence[str],
    environ: Mapping[str, str],
    watch: Watch,
    folder: Path,
    *,
    boots: int = 1,
    strict: bool = False,
    progress: Progress = SILENT,
) -> tuple[Booted, ...]:
    """Boot a command so many times; a boot that breaks is the last.

    Args:
        command: The program and its arguments; no shell.
        environ: Its environment, to which the hook's variables are added.
        watch: What marks the phases, and when the command is ended.
        folder: Ours: it gets `boot-N/` with `events/` and `output.log`.
        boots: How many times.
        strict: Whether a kernel that is not in its cache is refused.
        progress: Where the boots are announced.

    Raises:
        ConfigError: There is no such command (exit 5).
        ToolError: The folder cannot be written (exit 6).
    """
    found: list[Booted] = []
    try:
        lent = lending.lend(folder / "hook")
        for number in range(1, boots + 1):
            place = folder / f"boot-{number}"
            (place / "events").mkdir(parents=True)
            found.append(_once(command, environ, watch, place, lent, strict, progress))
            if found[-1].broke:
                break
    except OSError as e:
        raise ToolError(f"{e.filename}: cannot be written: {e.strerror}") from e
    return tuple(found)


def _once(
    command: Sequence[str],
    environ: Mapping[str, str],
    watch: Watch,
    place: Path,
    lent: Path,
    strict: bool,
    progress: Progress,
) -> Booted:
    marks = place / "marks"
    marks.touch()
    done = boot(
        command,
        lending.hooked(environ, lent, place / "events", marks=marks, strict=strict),
        watch,
        log=place / "output.log",
        marks=marks,
        progress=progress,
    )
    heard = events.read(place / "events")
    return Booted(
        boot=done,
        heard=heard,
        phases=ledgers.phases(heard.events, done.marks, began=done.began),
        ledger=ledgers.ledger(heard.events, done.marks, began=done.began, ended=done.ended),
    )


def check(booted: Sequence[Booted], command: Sequence[str], kept: str) -> None:
    """Raise what became of a command that broke; `kept` says where what it told is.

    Raises:
        InterruptedRunError: The person pressed ^C (exit 130).
        ToolError: It ended with an error (exit 6); its last lines are in the message.
    """
    last = booted[-1].boot
    if last.interrupted:
        raise InterruptedRunError(f"interrupted in boot {len(booted)}; {kept}")
    if last.exit not in (0, None):
        lines = "".join(f"\n  {line}" for line in last.last)
        how = f"signal {-last.exit}" if last.exit < 0 else f"exit {last.exit}"
        raise ToolError(
            f"{command[0]} ended with {how} in boot {len(booted)}; {kept}{lines}",
            hint=f"less {last.log}",
        )
