"""The door to worker processes: start one in any interpreter, ask it, and know how it died.

The other end is `elsa_build.kernels.inside.worker`. A worker has its own process group, so that ^C
reaches it only through us and its compilers end with it.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elsa_build.errors import ToolError
from elsa_build.kernels.jobs import Job, Outcome

_TAIL_LINES = 20
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """How a worker is started: its command line, its whole environment, its line of setup."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    setup: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a worker said of a job. `lacked` is "disk" or "memory" when that is why it failed."""

    job: str
    error: str | None
    found: Mapping[str, Any]
    fresh: bool
    cpu_s: float
    peak_mib: int
    lacked: str | None = None

    def outcome(self) -> Outcome:
        """Return it as an outcome, without a wall time."""
        return Outcome(
            job=self.job,
            error=self.error,
            found=self.found,
            fresh=self.fresh,
            cpu_s=self.cpu_s,
            peak_mib=self.peak_mib,
        )


class WorkerDiedError(Exception):
    """A worker ended though it had a job; the text says how."""


class Worker:
    """A worker process, which does one job at a time; `log` gets what it and its children print."""

    def __init__(self, start: WorkerStart, log: Path) -> None:
        """Start it.

        Raises:
            ToolError: The program cannot be run (exit 6).
        """
        self.name = shlex.join(start.command)
        self.ready = False
        self._log = log
        self._rest = b""
        self._stopped = False
        try:
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    start.command,
                    env=dict(start.env),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=file,
                    start_new_session=True,
                )
        except OSError as e:
            raise ToolError(
                f"cannot start the worker {self.name}: {e.strerror}: {e.filename}"
            ) from e
        self._write({**start.setup, "greet": True})

    def fileno(self) -> int:
        """Return the descriptor that its answers come on, to wait for several workers."""
        assert self._process.stdout
        return self._process.stdout.fileno()

    def send(self, job: Job) -> None:
        """Give it a job; when it has died, `receive` says so."""
        self._write({"id": job.id, "call": job.call, "arguments": job.arguments})

    def receive(self) -> Answer | None:
        """Read what is there (waits for something); None while an answer is not whole.

        Raises:
            WorkerDiedError: It ended.
            ToolError: It never started, or what it says is no answer (exit 6).
        """
        block = os.read(self.fileno(), 1 << 16)
        if not block:
            raise self.died()
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            if not self.ready:
                self._greeted(line)
            else:
                return self._parsed(line)
        return None

    def ask(self, job: Job) -> Answer:
        """Give it a job and wait for the answer. Raises like `receive`."""
        self.send(job)
        while True:
            answer = self.receive()
            if answer is not None:
                return answer

    def dead(self) -> bool:
        """Return whether it ended; its channel may still be held open by a child of its."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it and its children: at once when it is idle, else by signal."""
        if self._stopped:  # its number may be another process's by now
            return
        self._stopped = True
        process = self._process
        assert process.stdin
        assert process.stdout
        with contextlib.suppress(OSError):
            process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
                break
        # Whatever of its group outlived it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()

    def died(self) -> WorkerDiedError:
        """Return how it ended, after ending what is left of its group.

        Raises:
            ToolError: It never came as far as to serve (exit 6).
        """
        self.stop()
        code = self._process.returncode
        how = f"ended with exit code {code}"
        if code == -signal.SIGKILL:
            how = "was killed (signal 9), probably out of memory"
        elif code < 0:
            how = f"died of {signal.Signals(-code).name}"
        said = self._log.read_text("utf-8", "replace").rstrip().splitlines()[-_TAIL_LINES:]
        tail = "".join(f"\n  {line}" for line in said)
        if not self.ready and code > 0:
            raise ToolError(f"the worker {self.name} does not start: it {how}{tail}")
        return WorkerDiedError(f"its worker {how}{tail}")

    def _write(self, document: Mapping[str, Any]) -> None:
        assert self._process.stdin
        # One that has died is found out when its answer is read.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(document).encode() + b"\n")
            self._process.stdin.flush()

    def _greeted(self, line: bytes) -> None:
        try:
            self.ready = bool(json.loads(line)["ready"])
        except (ValueError, KeyError, TypeError):
            raise self._nonsense(line) from None

    def _parsed(self, line: bytes) -> Answer:
        try:
            told = json.loads(line)
            return Answer(**{"job" if key == "id" else key: told[key] for key in told})
        except (ValueError, TypeError):
            raise self._nonsense(line) from None

    def _nonsense(self, line: bytes) -> ToolError:
        said = line.decode("utf-8", "backslashreplace")
        return ToolError(f"the worker {self.name} gave an answer that is none: {said}")
