"""What a job cost, though the kernel counts for the life of a process and not for a job.

The peak that `getrusage` gives for children never falls, so a small job after a large one would
seem large as well. So peaks are those of living processes, looked at while the job runs.
"""

import contextlib
import os
import re
import resource
from pathlib import Path

_SELF = Path("/proc/self")


class Meter:
    """Measure one job at a time: `start`, now and then `sample` (from any thread), `stop`."""

    def __init__(self) -> None:
        self.running = False
        self._cpu_s = 0.0
        self._children_kib = 0
        self._seen_kib = 0

    def start(self) -> None:
        """Begin a job: forget the peak of this process, remember the clocks."""
        # "5" resets the peak resident set to the present one (Linux, proc(5)).
        with contextlib.suppress(OSError):
            (_SELF / "clear_refs").write_text("5")
        self._cpu_s, self._children_kib, self._seen_kib = _cpu_s(), _children_kib(), 0
        self.running = True

    def sample(self) -> None:
        """Look at the peaks of every living descendant."""
        peaks = [_peak_kib(pid) for pid in _descendants(os.getpid())]
        self._seen_kib = max(self._seen_kib, *peaks, 0)

    def stop(self) -> tuple[float, int]:
        """Return CPU seconds (children that ended included) and the peak of one process, MiB."""
        self.running = False
        grown = _children_kib()
        peak = max(
            _peak_kib(os.getpid()), self._seen_kib, grown if grown > self._children_kib else 0
        )
        return round(_cpu_s() - self._cpu_s, 3), peak // 1024


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _children_kib() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def _peak_kib(pid: int) -> int:
    """Return the peak resident set of a process, 0 when it has gone."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _descendants(pid: int) -> list[int]:
    """Return the living descendants of a process; none on a kernel that does not list them."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                found += [child, *_descendants(child)]
    return found
