"""Jobs and workers for the tests of pool and farm."""

import contextlib
import os
import sys
import time
from pathlib import Path

from elsa_build.kernels.jobs import Family, Job
from elsa_build.kernels.workers import WorkerStart

ROOT = Path(__file__).parent.parent


def start(*command, **setup):
    """A worker of this interpreter, whose calls are those of `tests.worker_calls`."""
    return WorkerStart(
        command=command or (sys.executable, "-m", "elsa_build.kernels.inside.worker"),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "ELSA_TEST": "given"},
        setup={"calls": "tests.worker_calls", **setup},
    )


def job(id_, call="nap", *, needs=(), mib=1, cpu_s=1.0, **arguments):
    if call == "nap":
        arguments.setdefault("seconds", 0)
    return Job(
        id=id_,
        family=Family.TRITON,
        name=f"kernel {id_}",
        call=f"probe:{call}",
        arguments=arguments,
        memory_mib=mib,
        cpu_s=cpu_s,
        needs=tuple(needs),
    )


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False
