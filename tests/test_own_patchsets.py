"""Our own patches on other releases of SGLang: what breaks there is named, clean or not.

Needs the wheels of three releases from the package index.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.git.door import Git
from elsa_build.git.objects import FILE, Entry
from elsa_build.model import Outcome, Series, SourceKind
from elsa_build.patches import probes, seriesfile
from elsa_build.patches.diff import changes
from elsa_build.patches.guarding import guarded
from elsa_build.patches.replay import replay
from elsa_build.upstream.source import open_source

pytestmark = pytest.mark.wheel

PATCHSETS = Path(__file__).parent.parent / "patchsets"
POOLS = "python/sglang/srt/mem_cache"


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """The repository that holds three releases, and their commits by version."""
    cache = os.environ.get("ELSA_BUILD_TEST_CACHE") or tmp_path_factory.mktemp("cache")
    source = open_source(SourceKind.RELEASE, None, cache=Path(cache))
    pins = {version: source.resolve(version) for version in ("0.5.21", "0.5.22", "0.5.23")}
    repository = [source.ensure(pin) for pin in pins.values()][-1]
    return repository, {version: pin.commit for version, pin in pins.items()}


@pytest.fixture
def git(releases):
    with Git(releases[0]) as outer, outer.quarantine() as inner:
        yield inner


def on(git, releases, version, *names):
    """Replay patchsets on a release and return the steps by patch, and the probes' codes."""
    series = seriesfile.combine(*(seriesfile.load(PATCHSETS / name) for name in names))
    done = guarded(git, replay(git, series, releases[1][version]))
    standing = [step.patch for step in done.steps if step.commit]
    found = probes.examine(git.objects, done.tree, standing)
    return {step.patch.id: step for step in done.steps}, [finding.code for finding in found]


@pytest.mark.parametrize("name", ["chunked-state-copy", "mamba-checkpoint-guard", "sparse-verify"])
def test_each_patchset_stands_alone_on_its_release(git, releases, name):
    steps, broken = on(git, releases, "0.5.23", name)

    assert {step.outcome for step in steps.values()} == {Outcome.CLEAN}
    assert not any(step.failed for step in steps.values())
    assert broken == []


def test_they_stack_in_either_order_to_the_same_tree(git, releases):
    names = ["chunked-state-copy", "mamba-checkpoint-guard", "sparse-verify"]

    trees = []
    for order in (names, names[::-1]):
        steps, broken = on(git, releases, "0.5.23", *order)
        assert all(step.outcome is Outcome.CLEAN for step in steps.values())
        assert broken == []
        trees.append(list(steps.values())[-1].tree)

    assert trees[0] == trees[1]


def test_the_release_before_lacks_what_two_patches_build_upon(git, releases):
    steps, _ = on(git, releases, "0.5.22", "chunked-state-copy", "mamba-checkpoint-guard")

    paths = {name: [c.path for c in step.conflicts] for name, step in steps.items()}
    assert paths["chunked-state-copy"] == [
        f"{POOLS}/unified_draft_pool.py",
        f"{POOLS}/unified_memory_pool.py",
    ]
    assert steps["direct-state-copy"].blocked_by == "chunked-state-copy"
    (lost_argument,) = steps["mamba-checkpoint-guard"].conflicts
    assert len(lost_argument.regions) == 4
    assert all("req" in region.base for region in lost_argument.regions)
    assert not any("(req" in region.ours for region in lost_argument.regions)


def test_a_clean_merge_that_cannot_run_is_found_by_its_probes(git, releases):
    steps, broken = on(git, releases, "0.5.21", "sparse-verify")

    assert steps["sparse-verify"].outcome is Outcome.CLEAN
    assert "E324" in broken


def test_a_patch_that_no_longer_covers_upstream_is_found_by_its_probes(git, releases):
    """The copy patch as it would have been written for 0.5.22, before the pools had overrides."""
    series = seriesfile.load(PATCHSETS / "chunked-state-copy")
    patch = series.patches[0]
    old = releases[1]["0.5.22"]
    change = [c for c in changes(git, patch.mail.diff) if "unified_" not in c.path]
    written = {c.path: git.objects.find(git.commit(old).tree, c.path) for c in change}
    ours = replay(git, Series(name="s", patches=(_of(git, patch, old, change, written),)), old)
    assert ours.steps[0].outcome is Outcome.CLEAN

    moved = replay(
        git,
        Series(name="s", patches=(_of(git, patch, old, change, written),)),
        releases[1]["0.5.23"],
    )

    assert moved.steps[0].outcome is Outcome.CLEAN
    found = probes.examine(git.objects, moved.tree, [patch])
    assert {(f.code, f.path) for f in found if f.code == "E321"} == {
        ("E321", f"{POOLS}/unified_draft_pool.py"),
        ("E321", f"{POOLS}/unified_memory_pool.py"),
    }


def _of(git, patch, base, change, written):
    """Return the patch ported to `base`: git's own merge of the files that are named."""
    tree = git.commit(base).tree
    before = git.objects.edit(None, {c.path: c.old for c in change if c.old})
    after = git.objects.edit(None, {c.path: c.new for c in change if c.new})
    here = git.objects.edit(None, {path: entry for path, entry in written.items() if entry})
    merged = git.merge_trees(before, here, after)
    assert merged.clean
    entries = {c.path: git.objects.find(merged.tree, c.path) for c in change}
    author = patch.mail.author
    commit = git.commit_tree(git.objects.edit(tree, entries), (base,), "ported", author)
    form = ("--full-index", "-U1", "--no-renames", "--binary")
    diff = git.run("diff-tree", "-p", *form, base, commit)[1]
    return replace(patch, base=base, mail=replace(patch.mail, diff=diff))


def test_a_caller_that_the_release_added_is_named(git, releases):
    """A patch of 0.5.22 that lets the slot allocator return None, as the guard's idea was there."""
    old = releases[1]["0.5.22"]
    path = f"{POOLS}/unified_cache/components/mamba.py"
    tree = git.commit(old).tree
    text = git.objects.blob(git.objects.find(tree, path).oid)
    lines = text.split(b"\n")
    start = next(i for i, line in enumerate(lines) if b"def _alloc_mamba_slot(" in line)
    at = next(i for i in range(start, len(lines)) if b"assert" in lines[i])
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines.insert(at, indent + b"if slot is None:\n" + indent + b"    return None")
    blob = git.objects.write("blob", b"\n".join(lines))
    edited = git.objects.edit(tree, {path: Entry(FILE, blob)})
    patch = seriesfile.load(PATCHSETS / "mamba-checkpoint-guard").patches[0]
    commit = git.commit_tree(edited, (old,), "optional slots", patch.mail.author)
    form = ("--full-index", "-U1", "--no-renames")
    diff = git.run("diff-tree", "-p", *form, old, commit)[1]
    ours = replace(patch, id="optional", base=old, mail=replace(patch.mail, diff=diff))

    done = replay(git, Series(name="s", patches=(ours,)), releases[1]["0.5.23"])
    (step,) = guarded(git, done).steps

    assert step.outcome is Outcome.CLEAN
    named = [f.message for f in step.findings if f.code == "E318"]
    assert any("build_external_linker_transfer" in message for message in named), step.findings


def test_no_patch_quotes_more_than_one_line_of_context():
    for path in PATCHSETS.glob("*/*.patch"):
        run = 0
        for line in path.read_bytes().split(b"\n"):
            run = run + 1 if line.startswith(b" ") and b"|" not in line else 0
            # One line below a change and one above the next may meet.
            assert run <= 2, (path, line)
            assert not line.startswith(b"@@") or line.endswith(b"@@"), (path, line)
