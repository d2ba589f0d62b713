"""The loop of a worker, which keeps libraries that print away from the channel that it answers on.

Started as `PYTHON -m elsa_build.kernels.inside.worker`. It reads JSON lines: one of setup, then one
a job (`{"id", "call": "module:function", "arguments"}`), and answers one a job: `{"id", "error",
"found", "fresh", "cpu_s", "peak_mib", "lacked"}`. `lacked` is "disk" or "memory" when that is why a
job failed. With `"greet": true` in the setup it says `{"ready": true}` before the first job.

A call is a function `(setup, arguments) -> found` of a module of the package that `setup["calls"]`
names. The worker ends when its input does, and kills its own process group when its parent dies.
"""

import contextlib
import errno
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from elsa_build.kernels.inside.meter import Meter

CALLS = "elsa_build.kernels.inside"
"""The package of the calls when the setup names no other."""

_CALL = re.compile(r"([a-z]\w*(?:\.[a-z]\w*)*):([a-z]\w*)")
_PAUSE_S = 0.2
_DISK = ("No space left on device", "Disk quota exceeded")
# What compilers and build tools say when the kernel killed one of theirs, or gave it no memory.
_MEMORY = ("Killed", "signal 9", "SIGKILL", "Cannot allocate memory", "out of memory", "bad_alloc")


def main() -> None:
    """Serve until the input ends."""
    parent, meter = os.getppid(), Meter()
    questions, answers = _channel()
    setup = json.loads(questions.readline())
    threading.Thread(target=_watch, args=(parent, meter), daemon=True).start()
    if setup.get("greet"):
        _say(answers, {"ready": True, "python": sys.version.split()[0], "pid": os.getpid()})
    for line in questions:
        _say(answers, perform(setup, json.loads(line), meter))


def perform(setup: Mapping[str, Any], job: Mapping[str, Any], meter: Meter) -> dict[str, Any]:
    """Return the answer to one job; whatever it raises is its error."""
    error, lacked, found = None, None, {}
    meter.start()
    try:
        call = find(job["call"], setup.get("calls", CALLS))
        found = dict(call(setup, job["arguments"]))
        json.dumps(found)
        _check(setup, found)
    except (Exception, SystemExit) as e:  # noqa: BLE001 - a job must not end the worker
        with contextlib.suppress(OSError):
            traceback.print_exc()
        error, lacked, found = words(e), _lacked(e), {}
    cpu_s, peak_mib = meter.stop()
    return {
        "id": job["id"],
        "error": error,
        "fresh": bool(found.pop("fresh", True)),
        "found": found,
        "cpu_s": cpu_s,
        "peak_mib": peak_mib,
        "lacked": lacked,
    }


def _check(setup: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise FileNotFoundError when a job tells of files that it did not make."""
    made = [Path(setup["build"], name) for name in found.get("files", ())]
    made += [Path(found["output"])] if "output" in found else []
    missing = [str(path) for path in made if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"it tells of files that are not there: {', '.join(missing)}")


def find(call: str, package: str) -> Callable[[Any, Any], Mapping[str, Any]]:
    """Return the function that `module:function` names; only one that the package defines.

    Raises:
        LookupError: The name is no call, or another package's.
    """
    named = _CALL.fullmatch(call)
    if named is None:
        raise LookupError(f"'{call}' is not module:function")
    module = importlib.import_module(f"{package}.{named[1]}")
    function = getattr(module, named[2], None)
    if not callable(function) or not function.__module__.startswith(f"{package}."):
        raise LookupError(f"{package}.{named[1]} defines no function '{named[2]}'")
    return function  # type: ignore[no-any-return]


def words(error: BaseException) -> str:
    """Return an exception as its traceback ends, followed by what caused it.

    Without addresses, so that the same failure has the same words in every run.
    """
    said = [
        "".join(traceback.format_exception_only(one)).strip().removeprefix("RuntimeError: ")
        for one in _chain(error)
    ]
    return re.sub(r" at 0x[0-9a-f]{6,}", "", "\ncaused by: ".join(said))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, outermost first."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _lacked(error: BaseException) -> str | None:
    """Return what there was too little of, when the failure says so."""
    text = words(error)
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT):
            return "disk"
        if isinstance(one, subprocess.CalledProcessError):
            said = (one.stdout, one.stderr)
            text += "".join(
                s.decode("utf-8", "replace") if isinstance(s, bytes) else s or "" for s in said
            )
            # A shell or ninja gives 137 for a child that signal 9 ended.
            if one.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
                return "memory"
        if isinstance(one, MemoryError):
            return "memory"
    if any(sign in text for sign in _DISK):
        return "disk"
    return "memory" if any(sign in text for sign in _MEMORY) else None


def _channel() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout to ourselves: children read nothing, and what they print is a log."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, answers


def _say(answers: BinaryIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _watch(parent: int, meter: Meter) -> None:
    """Sample a running job; when the parent has died, end this process and its compilers."""
    while os.getppid() == parent:
        time.sleep(_PAUSE_S)
        if meter.running:
            meter.sample()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
