"""How long an audit of GPU code takes, and whether it counts what cuobjdump counts, in one run.

    python benchmarks/coverage.py SITE_PACKAGES --cuobjdump PATH

The folder should hold what an image holds: torch with its CUDA wheels and sglang-kernel, 8 GB. The
audit runs in one process, with the files in the page cache and after they were dropped from it.
cuobjdump (pip: nvidia-cuda-cuobjdump) lists every library in which we found something, and entries
are compared by kind and architecture. Prints one JSON document; medians of `--runs`.
"""

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elsa_build.kernels.allowances import DEFAULT, load
from elsa_build.kernels.census import Census, Library, census
from elsa_build.kernels.coverage import audit
from elsa_build.kernels.members import members
from elsa_build.kernels.target import target
from elsa_build.reports.kernels_coverage import document

LIMIT_S = 10
LIMIT_BYTES = 8_000_000_000
WORDS = {"elf": "sass", "ptx": "ptx", "nvvm": "lto"}
"""What cuobjdump calls a kind of entry, and what we call it."""


def drop(folder: Path) -> None:
    """Ask the system to forget the files' content; names and inodes stay known."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(action: Callable[[], object], runs: int) -> dict[str, float]:
    """Return the median wall and CPU seconds of some runs."""
    walls, cpus = [], []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {
        "wall_s": round(statistics.median(walls), 2),
        "cpu_s": round(statistics.median(cpus), 2),
    }


def cold(folder: Path, runs: int) -> dict[str, float]:
    """Time the reading with nothing in the page cache."""
    walls = []
    for _ in range(runs):
        drop(folder)
        start = time.perf_counter()
        census(members(folder))
        walls.append(time.perf_counter() - start)
    return {"wall_s": round(statistics.median(walls), 2)}


def counted(program: str, library: Path) -> tuple[Counter[str], float]:
    """Return what cuobjdump's default listing counts, and its seconds.

    `-lelf` and `-elf` leave the letter `f` out, so the listing it is.
    """
    start = time.perf_counter()
    ran = subprocess.run([program, str(library)], capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    pairs = re.findall(r"^Fatbin (\w+) code:\n=+\narch = sm_(\w+)$", ran.stdout, re.MULTILINE)
    return Counter(f"{WORDS.get(kind, kind)} {form}" for kind, form in pairs), seconds


def ours(library: Library) -> Counter[str]:
    """Return our own count in the same words."""
    return Counter(f"{code.kind} {code.form}" for part in library.containers for code in part)


def compare(folder: Path, seen: Census, program: str) -> dict[str, Any]:
    """Count every library with both, once."""
    rows: list[dict[str, Any]] = []
    for library in seen.libraries:
        if library.cubins:
            continue
        theirs, seconds = counted(program, folder / library.name)
        (member,) = members(folder / library.name)
        start = time.perf_counter()
        census([member])
        own_s = time.perf_counter() - start
        rows.append(
            {
                "library": library.name,
                "bytes": library.size,
                "entries": sum(theirs.values()),
                "equal": theirs == ours(library),
                "cuobjdump_s": round(seconds, 3),
                "ours_s": round(own_s, 4),
            }
        )
    whole = sum(row["cuobjdump_s"] for row in rows)
    return {
        "libraries": len(rows),
        "equal": sum(row["equal"] for row in rows),
        "entries": sum(row["entries"] for row in rows),
        "cuobjdump_s": round(whole, 1),
        "each": sorted(rows, key=lambda row: -row["entries"]),
    }


def main() -> None:
    """Measure, compare, print the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cuobjdump", default=shutil.which("cuobjdump"))
    parser.add_argument("--arch", default="sm_120")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the document there as well")
    asked = parser.parse_args()
    card, allowed = target(asked.arch), load((DEFAULT,))
    seen = census(members(asked.folder))

    def whole() -> dict[str, Any]:
        return document(audit(census(members(asked.folder)), card, allowances=allowed))

    found, warm = whole(), timed(whole, asked.runs)
    verdicts = Counter(one["verdict"] for one in found["libraries"])
    peers = compare(asked.folder, seen, asked.cuobjdump) if asked.cuobjdump else None
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "runs": asked.runs,
        "arch": card.name,
        "files": seen.files,
        "bytes": seen.size,
        "warm": warm,
        "cold": cold(asked.folder, asked.runs),
        "reached": seen.size >= LIMIT_BYTES and warm["wall_s"] <= LIMIT_S,
        "libraries": len(seen.libraries),
        "verdicts": dict(sorted(verdicts.items())),
        "failing": found["failing"],
        "gpu_code_bytes": found["gpu_code_bytes"],
        "fits_bytes": found["fits_bytes"],
        "dead_bytes": found["dead_bytes"],
        "against_cuobjdump": peers,
        "cuobjdump_to_whole_audit": round(peers["cuobjdump_s"] / warm["wall_s"], 1)
        if peers
        else None,
    }
    text = json.dumps(result, indent=2) + "\n"
    if asked.out:
        asked.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
