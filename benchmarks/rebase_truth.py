"""What the merge and the proposals make of real rebases, held against what the maintainers made.

    python benchmarks/rebase_truth.py --series REPOSITORY --cache DIR

REPOSITORY is a checkout (or a bare clone) of the public series
`mattbucci/2x-R9700-RDNA4-GFX1201-sglang-inference`; DIR keeps the releases of SGLang, downloaded
through pip. Nothing of either is written anywhere else. Each old patch is put on the tree that its
maintainers had before the patch of the same number at the next release, and the result is compared
with theirs: byte by byte, then as syntax with imports in any order. Prints one JSON document.

A proposal that differs was looked at by a person: `results/rebase_truth_classes.json` says, for the
exact tree, what it is and why. `--words` adds how each proposal was made, which quotes the sources.
"""

import argparse
import ast
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from elsa_build.diagnostics import errors
from elsa_build.git.door import Git
from elsa_build.model import Oid, SourceKind
from elsa_build.patches.proposals.propose import assembled, attempts, findings
from elsa_build.patches.threeway import put
from elsa_build.upstream.source import open_source

FLIPS = (
    ("192dde7^", "0.5.12", "192dde7", "0.5.13.post1"),
    ("192dde7", "0.5.13.post1", "5d2fa09", "0.5.14"),
    ("6dfa754^", "0.5.14", "6dfa754", "0.5.15"),
)
"""Series commit and release before and after, from the series' own history (not its `setup.sh`)."""
PACKAGE = "python/sglang/*"
"""What a wheel holds of the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One old patch and what its maintainers made of it: trees."""

    flip: str
    number: str
    before: Oid
    after: Oid
    onto: Oid
    truth: Oid


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of one conflicting port; the verdict compares with the maintainers' tree."""

    flip: str
    patch: str
    verdict: str
    hunks: int
    proposed: int
    guard_errors: int
    guard_errors_in_theirs: int
    seconds: float
    tree: Oid | None
    differs_in: tuple[str, ...]
    looked_at: Mapping[str, str]
    how: tuple[str, ...]
    left: tuple[str, ...]


# --- the stacks ---------------------------------------------------------------------------------


def stack(
    git: Git, series: Git, revision: str, release: Oid, folder: Path
) -> dict[str, tuple[Oid, Oid]]:
    """Return the trees before and after each patch of a series, by its number."""
    listed = series.run("ls-tree", "--name-only", "-z", revision, "patches/")[1].decode()
    names = [name for name in listed.split("\0") if re.fullmatch(r"patches/\d+\w?-.*\.patch", name)]
    env = {"GIT_INDEX_FILE": str(folder / "index")}
    git.run("read-tree", release, env=env)
    tree = git.commit(release).tree
    found: dict[str, tuple[Oid, Oid]] = {}
    for name in sorted(names, key=str.encode):
        path = folder / "one.patch"
        path.write_bytes(series.run("show", f"{revision}:{name}")[1])
        git.run("apply", "--cached", f"--include={PACKAGE}", str(path), env=env)
        new = Oid(git.run("write-tree", env=env)[1].decode().strip())
        if new != tree:
            found[Path(name).name.split("-")[0]] = (tree, new)
        tree = new
    return found


def ports(git: Git, series: Git, releases: dict[str, Oid], folder: Path) -> Iterator[Port]:
    """Yield every patch that both releases have; what the maintainers dropped has no truth."""
    for old_revision, old, new_revision, new in FLIPS:
        written = stack(git, series, old_revision, releases[old], folder)
        rebased = stack(git, series, new_revision, releases[new], folder)
        for number, (before, after) in written.items():
            if number in rebased:
                onto, truth = rebased[number]
                yield Port(
                    flip=f"{old} -> {new}",
                    number=number,
                    before=before,
                    after=after,
                    onto=onto,
                    truth=truth,
                )


# --- the comparison -----------------------------------------------------------------------------


def meaning(body: bytes) -> str:
    """Return a Python text's syntax with import lists and runs of imports in one order."""
    tree = ast.parse(body)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names.sort(key=lambda alias: (alias.name, alias.asname or ""))
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, list(_imports_sorted(statements)))
    return ast.dump(tree)


def _imports_sorted(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    run: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            run.append(statement)
            continue
        yield from sorted(run, key=ast.dump)
        run = []
        yield statement
    yield from sorted(run, key=ast.dump)


def compare(git: Git, proposed: Oid, truth: Oid) -> tuple[str, tuple[str, ...]]:
    """Return `identical`, `equal` (but for layout and import order) or `differs`, and where."""
    if proposed == truth:
        return "identical", ()
    differing = []
    for change in git.objects.changes(proposed, truth):
        bodies = [git.objects.blob(entry.oid) if entry else b"" for entry in change[1:]]
        if not change.path.endswith(".py") or meaning(bodies[0]) != meaning(bodies[1]):
            differing.append(change.path)
    return ("differs", tuple(differing)) if differing else ("equal", ())


def judged(git: Git, port: Port) -> Line | str:
    """Return what became of one port: `identical` or `differs` when git alone is clean."""
    merged = put(git, port.before, port.after, port.onto)
    if not merged.conflicts:
        return "identical" if merged.tree == port.truth else "differs"
    start = time.perf_counter()
    tried = attempts(git, before=port.before, after=port.after, onto=port.onto, merged=merged)
    proposal = assembled(
        git, before=port.before, after=port.after, onto=port.onto, merged=merged, tried=tried
    )
    seconds = time.perf_counter() - start
    verdict, where = ("left", ()) if proposal is None else compare(git, proposal.tree, port.truth)
    theirs = findings(
        git, before=port.before, after=port.after, onto=port.onto, tree=port.truth, merged=merged
    )
    tree = proposal.tree if proposal else None
    return Line(
        flip=port.flip,
        patch=port.number,
        verdict=verdict,
        hunks=sum(len(one.hunks) for one in tried),
        proposed=sum(one.proposed for one in tried),
        guard_errors=len(errors(proposal.findings)) if proposal else 0,
        guard_errors_in_theirs=len(errors(theirs)),
        seconds=round(seconds, 2),
        tree=tree,
        differs_in=where,
        looked_at=CLASSES.get(tree or "", {}) if verdict == "differs" else {},
        how=tuple(said for one in tried for said in one.how),
        left=tuple(f"{one.path}: {one.why}" for one in tried if not one.settled),
    )


def table(lines: list[Line], clean: list[str], seconds: float, *, words: bool) -> dict[str, object]:
    """Return the numbers and a line for each conflict, with words only where asked for."""
    hidden = set() if words else {"how", "left"}
    count = {name: sum(line.verdict == name for line in lines) for name in VERDICTS}
    passing = [line for line in lines if line.verdict == "differs" and not line.guard_errors]
    wrong = [line for line in passing if line.looked_at.get("class") != "as good"]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}",
        "ports": len(lines) + len(clean),
        "clean_and_identical": clean.count("identical"),
        "clean_and_not": clean.count("differs"),
        "conflicts": len(lines),
        "proposals_identical": count["identical"],
        "proposals_equal_but_for_layout_and_import_order": count["equal"],
        "proposals_right": count["identical"] + count["equal"],
        "proposals_that_differ": count["differs"],
        "proposals_that_differ_and_pass_the_guards": [
            f"{line.flip} {line.patch}" for line in passing
        ],
        "wrong_proposals_that_pass_the_guards": [f"{line.flip} {line.patch}" for line in wrong],
        "left_in_conflict": count["left"],
        "hunks_in_conflict": sum(line.hunks for line in lines),
        "hunks_proposed": sum(line.proposed for line in lines),
        "seconds": round(seconds, 1),
        "seconds_for_the_slowest_proposal": max((line.seconds for line in lines), default=0.0),
        "each": [
            {key: value for key, value in asdict(line).items() if key not in hidden}
            for line in lines
        ],
    }


VERDICTS = ("identical", "equal", "differs", "left")
CLASSES: Mapping[str, Mapping[str, str]] = json.loads(
    (Path(__file__).parent / "results" / "rebase_truth_classes.json").read_text()
)
"""What a person said of a proposal that differs, by its tree."""


def main() -> None:
    """Import the releases, put every patch, print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--series", type=Path, required=True, help="checkout of the public series")
    parser.add_argument("--cache", type=Path, required=True, help="folder for wheels of SGLang")
    parser.add_argument("--words", action="store_true", help="also how each proposal was made")
    asked = parser.parse_args()
    source = open_source(SourceKind.RELEASE, None, cache=asked.cache)
    names = sorted({name for _, old, _, new in FLIPS for name in (old, new)})
    pins = {name: source.resolve(name) for name in names}
    place = source.ensure(next(iter(pins.values())))
    lines: list[Line] = []
    clean: list[str] = []
    with (
        Git(place) as git,
        Git(asked.series) as series,
        git.quarantine() as inner,
        tempfile.TemporaryDirectory() as folder,
    ):
        found = list(
            ports(inner, series, {name: pin.commit for name, pin in pins.items()}, Path(folder))
        )
        start = time.perf_counter()
        for port in found:
            result = judged(inner, port)
            if isinstance(result, Line):
                lines.append(result)
            else:
                clean.append(result)
        seconds = time.perf_counter() - start
    sys.stdout.write(json.dumps(table(lines, clean, seconds, words=asked.words), indent=2) + "\n")


if __name__ == "__main__":
    main()
