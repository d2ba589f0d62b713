"""Starts a command, marks the phases of its boot from outside, sends requests, and ends it.

What a server does when is known from what it prints, from when it answers, and from what is asked
of it; it needs no change. It runs in a process group of its own, so that ending it ends its
children.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib import error, request

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels import ledger
from elsa_build.kernels.ledger import Mark
from elsa_build.progress import SILENT, Progress

PHASES: Mapping[str, str] = {
    ledger.WEIGHTS: r"Load weight begin",
    ledger.CAPTURE: r"Capture .*graph begin",
}
"""Lines that begin a phase. Source: sglang v0.5.23 srt/model_executor/model_runner.py and
model_runner_components/cuda_graph_setup.py."""

_POLL_S = 0.05
_ASK_S = 2.0
_ANSWER_S = 900.0
_GRACE_S = 20.0
_REST_S = 3.0
"""Patience with what a command that has ended left behind in its process group."""
_LAST = 20
"""How many of the command's last lines are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What marks the phases of a boot, and when the command is ended.

    It is ready when `ready_url` answers, or when a line matches `ready_line`; then `requests`
    requests are posted to `request_url`, one after the other. After that a command that had to
    become ready is ended, unless `stay`. `within_s` bounds the time until it is ready (without a
    condition: until it ends).
    """

    ready_url: str | None = None
    ready_line: str | None = None
    phases: Mapping[str, str] = field(default_factory=lambda: dict(PHASES))
    request_url: str | None = None
    body: bytes = b""
    requests: int = 2
    within_s: float | None = None
    stay: bool = False

    def __post_init__(self) -> None:
        if self.request_url and not self.waits:
            raise ConfigError(
                "a request needs to know when the command is ready", hint="--ready URL"
            )
        for name, pattern in (*self.phases.items(), ("ready-line", self.ready_line or "")):
            try:
                re.compile(pattern)
            except re.error as e:
                raise ConfigError(f"{name}: '{pattern}' is no regular expression: {e}") from e

    @property
    def waits(self) -> bool:
        """Return whether being ready can be told."""
        return bool(self.ready_url or self.ready_line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What became of one run. `exit` is None when we ended it; times are seconds since the epoch.

    `problem` says what went wrong in words (late, a request refused), `last` are its last lines,
    `log` all of them; `interrupted` is ^C.
    """

    exit: int | None
    marks: tuple[Mark, ...]
    began: float
    ended: float
    last: tuple[str, ...]
    log: Path
    problem: str | None = None
    late: bool = False
    interrupted: bool = False


class _Run:
    """One running command: its marks and its last lines, which several threads write."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.marks: list[Mark] = []
        self.last: deque[str] = deque(maxlen=_LAST)
        self.ready = threading.Event()
        self.done = threading.Event()
        self.stop = threading.Event()
        self.problem: str | None = None
        self._patterns = {name: re.compile(text) for name, text in watch.phases.items()}
        self._ready_line = re.compile(watch.ready_line) if watch.ready_line else None

    def mark(self, name: str, at: float | None = None) -> None:
        self.marks.append(Mark(name=name, at=time.time() if at is None else at))

    def line(self, text: str) -> None:
        self.last.append(text)
        for name, pattern in list(self._patterns.items()):
            if pattern.search(text):
                del self._patterns[name]
                self.mark(name)
        if self._ready_line and self._ready_line.search(text):
            self.ready.set()

    def drive(self) -> None:
        """Wait until the command is ready, then send the requests; runs in a thread of its own."""
        while not (self.ready.is_set() or self.stop.is_set()):
            if self.watch.ready_url and _answers(self.watch.ready_url):
                self.ready.set()
            else:
                self.ready.wait(_POLL_S)
        if self.stop.is_set():
            return
        self.mark(ledger.READY)
        for number in range(self.watch.requests if self.watch.request_url else 0):
            self.mark(ledger.FIRST if number == 0 else ledger.LATER)
            self.problem = _post(self.watch.request_url or "", self.watch.body)
            if self.problem or self.stop.is_set():
                break
        self.done.set()


def boot(
    command: Sequence[str],
    environ: Mapping[str, str],
    watch: Watch,
    *,
    log: Path,
    marks: Path,
    progress: Progress = SILENT,
) -> Boot:
    """Run a command to its end, or until it was ready and has answered the requests.

    What it prints goes to `log`; the lines that it appends to `marks` are names of phases. After ^C
    it is ended too, and what is known by then is returned.

    Raises:
        ConfigError: There is no such command (exit 5).
        ToolError: The log cannot be written (exit 6).
    """
    run = _Run(watch)
    began = time.time()
    try:
        written = log.open("wb")
    except OSError as e:
        raise ToolError(f"{log}: cannot be written: {e.strerror}") from e
    with written:
        process = _start(command, environ)
        reader = threading.Thread(target=_copy, args=(process.stdout, written, run), daemon=True)
        driver = threading.Thread(target=run.drive, daemon=True)
        for thread in (reader, *((driver,) if watch.waits else ())):
            thread.start()
        late = interrupted = False
        try:
            with progress.task("booting", now=lambda: run.last[-1] if run.last else "") as step:
                late = _follow(process, run, marks, lambda: step(0))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            run.stop.set()
            ours = _end(process)
            reader.join(timeout=_REST_S)
            if process.stdout and not reader.is_alive():  # a daemon of its may hold it open
                process.stdout.close()
        _marks(marks, run, 0)
        ended = time.time()
    return Boot(
        exit=None if ours else process.returncode,
        marks=tuple(run.marks),
        began=began,
        ended=ended,
        last=tuple(run.last),
        log=log,
        problem=f"not ready within {watch.within_s:g} s" if late else run.problem,
        late=late,
        interrupted=interrupted,
    )


def _start(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as e:
        raise ConfigError(f"cannot start {command[0]}: {e.strerror}") from e


def _copy(source: IO[bytes], log: IO[bytes], run: _Run) -> None:
    """Keep what the command prints; a log that cannot be written any more is no reason to stop."""
    for line in source:
        with contextlib.suppress(OSError, ValueError):
            log.write(line)
            log.flush()
        run.line(line.decode("utf-8", "replace").rstrip())


def _follow(
    process: subprocess.Popen[bytes], run: _Run, marks: Path, tick: Callable[[], None]
) -> bool:
    """Wait for the end of the command or of our part; return whether it was late."""
    watch, seen, began = run.watch, 0, time.monotonic()
    while process.poll() is None:
        seen = _marks(marks, run, seen)
        tick()
        if run.done.is_set() and not watch.stay:
            return False
        waiting = not (watch.waits and run.ready.is_set())
        if watch.within_s and waiting and time.monotonic() - began > watch.within_s:
            return True
        time.sleep(_POLL_S)
    return False


def _marks(path: Path, run: _Run, seen: int) -> int:
    """Take over the whole lines of the marks file after the first `seen`; return how many."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    except OSError:
        return seen
    known = {mark.name for mark in run.marks}
    for line in lines[seen:]:
        name, _, at = line.strip().partition(" ")
        if name and name not in known:
            with contextlib.suppress(ValueError):
                run.mark(name, float(at) if at else None)
    return len(lines)


def _end(process: subprocess.Popen[bytes]) -> bool:
    """End the command's process group; return whether the command was still running."""
    running = process.poll() is None
    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        try:
            process.wait(timeout=patience_s if running else 0.1)
        except subprocess.TimeoutExpired:
            continue
        if not _group_lives(process.pid):
            break
    return running


def _group_lives(group: int) -> bool:
    """Wait for the rest of a process group; return whether something of it is left."""
    until = time.monotonic() + _REST_S
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        time.sleep(_POLL_S)
    return True


def _open(asked: str | request.Request, timeout_s: float) -> Any:  # noqa: ANN401 - urllib's answer
    """Ask a server, never through a proxy: it is ours, and most often on this machine."""
    return request.build_opener(request.ProxyHandler({})).open(asked, timeout=timeout_s)


def _answers(url: str) -> bool:
    try:
        with _open(url, _ASK_S) as answer:
            return bool(answer.status < 400)
    except (OSError, ValueError):
        return False


def _post(url: str, body: bytes) -> str | None:
    """Send one request; return what went wrong."""
    asked = request.Request(url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - the person's own URL
    try:
        with _open(asked, _ANSWER_S) as answer:
            answer.read()
    except error.HTTPError as e:
        return f"{url} answered {e.code} {e.reason}"
    except OSError as e:
        return f"{url} did not answer: {e}"
    return None
