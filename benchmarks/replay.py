"""How long it takes to put a patch series on a newer SGLang: elsa-build against its peers, one run.

    python benchmarks/replay.py                        # releases from the package index, own series
    python benchmarks/replay.py --repo R --base A --onto B --patches 'DIR/*.patch' --include 'x/*'

Without arguments the two releases are downloaded through pip and a synthetic series is made from
their own text: one added line in each of N functions, so that many patches meet lines that upstream
changed. Every tool gets the same stack and skips what conflicts, where it can. Prints one JSON
document; medians of `--runs`.
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
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elsa_build.git.door import Git, environment
from elsa_build.git.objects import FILE, Entry
from elsa_build.model import Kind, Oid, Outcome, Patch, Series, Signature, SourceKind, Status
from elsa_build.patches import mail
from elsa_build.patches.guarding import guarded
from elsa_build.patches.replay import replay
from elsa_build.upstream.cache import cache_dir
from elsa_build.upstream.source import open_source

AUTHOR = Signature(name="benchmark", email="benchmark@localhost", date="1700000000 +0000")
CONFLICTS = (Outcome.CONFLICT, Outcome.BLOCKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One repository with a stack: `commits` oldest first on `base`, to be put on `onto`."""

    repository: Path
    base: Oid
    onto: Oid
    commits: tuple[Oid, ...]
    mails: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one tool did: seconds, conflicting patches by number, and where it gave up."""

    seconds: float
    conflicts: tuple[int, ...] = ()
    stopped: int | None = None


# --- the stack ----------------------------------------------------------------------------------


def release(version: str) -> tuple[Path, Oid]:
    """Return the repository and the commit of a published release."""
    source = open_source(SourceKind.RELEASE, None, cache=cache_dir(os.environ))
    pin = source.resolve(version)
    return source.ensure(pin), pin.commit


def synthetic(git: Git, base: Oid, onto: Oid, count: int) -> Iterator[Oid]:
    """Yield commits that each add a line to one function of a file that upstream changed."""
    objects, head = git.objects, base
    changed = [
        change
        for change in objects.changes(git.commit(base).tree, git.commit(onto).tree)
        if change.path.endswith(".py") and "/srt/" in change.path and change.old and change.new
    ]
    for number, change in enumerate(changed[:: max(1, len(changed) // count)][:count]):
        assert change.old is not None
        lines = objects.blob(change.old.oid).split(b"\n")
        bodies = [
            i
            for i, line in enumerate(lines)
            if line.endswith(b":") and re.match(rb"\s*(if|for|with|else)\b", line)
        ]
        if not bodies:
            continue
        at = bodies[(number * 7) % len(bodies)]
        indent = re.match(rb"\s*", lines[at + 1])
        added = (indent[0] if indent else b"") + b"benchmark_marker = %d" % number
        blob = objects.write("blob", b"\n".join([*lines[: at + 1], added, *lines[at + 1 :]]))
        tree = objects.edit(git.commit(head).tree, {change.path: Entry(FILE, blob)})
        head = git.commit_tree(tree, (head,), f"change {number}: {change.path}", AUTHOR)
        yield head


def given(git: Git, base: Oid, patches: list[Path], include: str | None) -> Iterator[Oid]:
    """Yield the commits of patch files, applied strictly in order."""
    head = base
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", base, env=env)
        for path in patches:
            only = (f"--include={include}",) if include else ()
            git.run("apply", "--cached", *only, str(path), env=env)
            tree = Oid(git.run("write-tree", env=env)[1].decode().strip())
            if tree != git.commit(head).tree:
                head = git.commit_tree(tree, (head,), path.stem, AUTHOR)
                yield head


def as_series(base: Oid, mails: tuple[bytes, ...]) -> Series:
    """Return the stack as its patch files give it."""
    patches = tuple(
        Patch(
            id=f"p{i}",
            patchset="benchmark",
            file=None,
            line=1,
            kind=Kind.LOCAL,
            status=Status.KEPT,
            why="benchmark",
            base=base,
            mail=mail.parse(f"p{i}", text),
        )
        for i, text in enumerate(mails)
    )
    return Series(name="benchmark", patches=patches)


# --- the tools ----------------------------------------------------------------------------------


def ours(bench: Bench, *, guards: bool = False) -> Run:
    """Replay in the object store, patch files parsed within the time."""
    with Git(bench.repository) as git:
        start = time.perf_counter()
        with git.quarantine() as inner:
            done = replay(inner, as_series(bench.base, bench.mails), bench.onto)
            if guards:
                guarded(inner, done)
        seconds = time.perf_counter() - start
    hit = tuple(i for i, step in enumerate(done.steps) if step.outcome in CONFLICTS)
    return Run(seconds=seconds, conflicts=hit)


def _clone(bench: Bench, folder: Path, at: Oid) -> Callable[..., subprocess.CompletedProcess[str]]:
    env = environment(os.environ) | {
        "GIT_EDITOR": "true",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_COMMITTER_NAME": "benchmark",
        "GIT_COMMITTER_EMAIL": "benchmark@localhost",
        "GIT_AUTHOR_NAME": "benchmark",
        "GIT_AUTHOR_EMAIL": "benchmark@localhost",
    }

    def run(*command: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=folder, env=env, input=stdin, capture_output=True, text=True, check=False
        )

    subprocess.run(
        ["git", "clone", "-q", "--shared", "--no-checkout", str(bench.repository), str(folder)],
        check=True,
        env=env,
    )
    run("git", "fetch", "-q", str(bench.repository), at)
    run("git", "checkout", "-q", "-B", "bench", at)
    return run


def git_rebase(bench: Bench) -> Run:
    """`git rebase --onto`, skipping each patch that stops it."""
    with tempfile.TemporaryDirectory() as folder:
        run = _clone(bench, Path(folder) / "w", bench.commits[-1])
        start = time.perf_counter()
        step = run("git", "rebase", "-q", "--onto", bench.onto, bench.base)
        hit = []
        while step.returncode:
            hit.append(bench.commits.index(Oid(run("git", "rev-parse", "REBASE_HEAD").stdout[:40])))
            step = run("git", "rebase", "--skip")
        return Run(seconds=time.perf_counter() - start, conflicts=tuple(hit))


def git_am(bench: Bench) -> Run:
    """`git am -3` of the same stack as mails, skipping each patch that stops it."""
    with tempfile.TemporaryDirectory() as folder:
        run = _clone(bench, Path(folder) / "w", bench.onto)
        run("git", "format-patch", "-q", "-o", "../mails", f"{bench.base}..{bench.commits[-1]}")
        files = sorted(map(str, (Path(folder) / "mails").glob("*.patch")))
        start = time.perf_counter()
        step, hit = run("git", "am", "-3", "-q", *files), []
        while step.returncode:
            hit.append(int((Path(folder) / "w/.git/rebase-apply/next").read_text()) - 1)
            step = run("git", "am", "--skip")
        return Run(seconds=time.perf_counter() - start, conflicts=tuple(hit))


def quilt(bench: Bench) -> Run:
    """`quilt push -a`, taking out each patch that does not apply (fuzz 2, quilt's default)."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "w"
        run = _clone(bench, work, bench.onto)
        (work / "patches").mkdir()
        names = []
        for i, commit in enumerate(bench.commits):
            names.append(f"{i:04}.patch")
            diff = run("git", "diff", f"{commit}^", commit).stdout
            (work / "patches" / names[-1]).write_text(diff)
        (work / "patches/series").write_text("\n".join(names) + "\n")
        start = time.perf_counter()
        hit = []
        while run("quilt", "push", "-a").returncode:
            blocked = run("quilt", "next").stdout.strip().removeprefix("patches/")
            if not blocked:
                break
            hit.append(names.index(blocked))
            run("quilt", "delete", blocked)
        return Run(seconds=time.perf_counter() - start, conflicts=tuple(hit))


def stgit(bench: Bench) -> Run:
    """`stg rebase` of the stack until it stops for the first time."""
    with tempfile.TemporaryDirectory() as folder:
        run = _clone(bench, Path(folder) / "w", bench.commits[-1])
        run("stg", "init")
        run("stg", "uncommit", "-n", str(len(bench.commits)))
        start = time.perf_counter()
        step = run("stg", "rebase", bench.onto)
        seconds = time.perf_counter() - start
        applied = len(run("stg", "series", "--applied").stdout.splitlines())
        return Run(seconds=seconds, stopped=applied if step.returncode else None)


TOOLS: dict[str, tuple[str | None, Callable[[Bench], Run]]] = {
    "elsa-build replay": (None, ours),
    "elsa-build replay and guards": (None, lambda bench: ours(bench, guards=True)),
    "git rebase": ("git", git_rebase),
    "git am -3": ("git", git_am),
    "quilt push": ("quilt", quilt),
    "stg rebase": ("stg", stgit),
}


def measure(bench: Bench, runs: int) -> dict[str, object]:
    """Return one row per tool: median seconds, ratio to ours, conflicts, agreement with git."""
    done: dict[str, list[Run]] = {}
    for _ in range(runs):
        for name, (program, tool) in TOOLS.items():
            if program is None or shutil.which(program):
                sys.stderr.write(f"{name} ...\n")
                done.setdefault(name, []).append(tool(bench))
    medians = {name: statistics.median(run.seconds for run in r) for name, r in done.items()}
    reference = set(done["git rebase"][0].conflicts)
    return {
        name: {
            "seconds_median": round(medians[name], 3),
            "times_ours": round(medians[name] / medians["elsa-build replay"], 1),
            "conflicts": len(runs_of[0].conflicts),
            "differs_from_git_rebase": sorted(reference ^ set(runs_of[0].conflicts))
            if runs_of[0].stopped is None
            else None,
            "stopped_after": runs_of[0].stopped,
        }
        for name, runs_of in done.items()
    }


def main() -> None:
    """Make the stack, run every tool that is installed, print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--repo", type=Path)
    parser.add_argument("--base", default="0.5.22")
    parser.add_argument("--onto", default="0.5.23")
    parser.add_argument("--patches", type=Path, help="folder of *.patch files, in name order")
    parser.add_argument("--include", help="only paths that match, as git apply --include")
    parser.add_argument("--count", type=int, default=68)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "bench.git"
        if asked.repo:
            source = asked.repo
            with Git(source) as git:
                base, onto = git.resolve(asked.base), git.resolve(asked.onto)
        else:
            source, base = release(asked.base)
            _, onto = release(asked.onto)
        clone = ["git", "clone", "-q", "--bare", "--shared", str(source), str(place)]
        subprocess.run(clone, check=True)
        with Git(place) as git:
            if asked.patches:
                found = sorted(asked.patches.glob("*.patch"), key=lambda p: p.name.encode())
                commits = tuple(given(git, base, found, asked.include))
            else:
                commits = tuple(synthetic(git, base, onto, asked.count))
            mails = mail.write_all(git, base, commits[-1])
            git.move_refs(
                {"refs/heads/stack": (commits[-1], None), "refs/heads/onto": (onto, None)}
            )
        bench = Bench(repository=place, base=base, onto=onto, commits=commits, mails=mails)
        table = measure(bench, asked.runs)
    python = f"Python {platform.python_version()}"
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {python}",
        "git": subprocess.run(
            ["git", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1],
        "base": asked.base,
        "onto": asked.onto,
        "patches": len(commits),
        "runs": asked.runs,
        "tools": table,
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
