"""How long it takes to name the first upstream commit that breaks each patch of a series.

    python benchmarks/forecast.py --repo R --written-on A --base B --until C --patches DIR

Runs the forecast, and a whole replay at every N-th commit beside it, which is what anyone would do
without it; prints one JSON document. No release has a history, so a git repository must be given.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from replay import as_series, given

from elsa_build.git.door import Git
from elsa_build.model import Outcome
from elsa_build.patches import mail
from elsa_build.patches.forecast import forecast
from elsa_build.patches.history import between
from elsa_build.patches.replay import replay


def main() -> None:
    """Forecast, replay at samples, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repo", type=Path, required=True)
    parser.add_argument("--written-on", required=True, help="what the patches apply to")
    parser.add_argument("--base", required=True, help="where the walk starts")
    parser.add_argument("--until", required=True)
    parser.add_argument("--patches", type=Path, required=True)
    parser.add_argument("--include")
    parser.add_argument("--every", type=int, default=20, help="replay at each N-th commit")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "bench.git"
        clone = ["git", "clone", "-q", "--bare", "--shared", str(asked.repo), str(place)]
        subprocess.run(clone, check=True)
        with Git(place) as git:
            written, base = git.resolve(asked.written_on), git.resolve(asked.base)
            files = sorted(asked.patches.glob("*.patch"), key=lambda p: p.name.encode())
            stack = tuple(given(git, written, files, asked.include))
            series = as_series(written, mail.write_all(git, written, stack[-1]))
            commits = between(git, base, git.resolve(asked.until))
            start = time.perf_counter()
            seen = forecast((place,), series, base, commits)
            ours = time.perf_counter() - start
            breaks = {one.patch: one.commit.oid for one in seen.breaks}
            order = {commit.oid: number for number, commit in enumerate(commits)}
            samples = commits[:: asked.every]
            start, wrong = time.perf_counter(), 0
            with git.quarantine() as inner:
                for commit in samples:
                    for step in replay(inner, series, commit.oid).steps:
                        broken = step.outcome is not Outcome.CLEAN
                        first = order.get(breaks.get(step.patch.id, commit.oid), 0)
                        # Before its first break a patch must be clean at every sample.
                        wrong += broken and step.patch.id in breaks and order[commit.oid] < first
            each = (time.perf_counter() - start) / len(samples)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "patches": len(stack),
        "commits": len(commits),
        "broken": len(breaks),
        "seconds": round(ours, 2),
        "replay_at_one_commit_seconds": round(each, 2),
        "times_faster_than_every_commit": round(each * len(commits) / ours, 1),
        "samples": len(samples),
        "broken_at_a_sample_before_the_first_break": wrong,
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
