"""A series on a new base: each outcome, and that one run tells all of them."""

import dataclasses
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elsa_build.git.door import Git
from elsa_build.model import Outcome, Region, Series, Status
from elsa_build.patches.replay import replay
from elsa_build.patches.threeway import regions


def text(**lines: str) -> str:
    """Return ten lines, some of them replaced: `text(l4="ours")`."""
    return "".join(f"{lines.get(f'l{i}', f'line {i}')}\n" for i in range(10))


def run(story, patches, onto, base=None):
    based = tuple(dataclasses.replace(patch, base=base) for patch in patches)
    return replay(story.git, Series(name="story", patches=based), onto)


def outcomes(done):
    return [step.outcome for step in done.steps]


@pytest.fixture
def base(story):
    return story.commit(None, "base", {"pool.py": text(), "other.py": text()})


def test_a_conflict_does_not_hide_the_patches_after_it(story, base):
    onto = story.commit(base, "upstream", {"pool.py": text(l1="upstream", l8="merged")})
    series = [
        story.patch(base, "clash", {"pool.py": text(l1="ours")}),
        story.patch(base, "clean", {"pool.py": text(l4="ours")}),
    ]

    done = run(story, series, onto, base)

    assert outcomes(done) == [Outcome.CONFLICT, Outcome.CLEAN]
    assert done.steps[0].conflicts[0].regions == (
        Region(line=2, ours="upstream\n", base="line 1\n", theirs="ours\n"),
    )
    assert not done.clean


def test_a_series_on_its_own_base_is_the_series_itself(story, base):
    one = story.patch(base, "one", {"pool.py": text(l1="ours")})
    between = story.commit(base, "one", {"pool.py": text(l1="ours")})
    two = story.patch(between, "two", {"pool.py": text(l1="ours", l2="more")})

    done = run(story, [one, two], base, base)

    assert done.clean
    entry = story.git.objects.find(done.tree, "pool.py")
    assert story.git.objects.blob(entry.oid).decode() == text(l1="ours", l2="more")


def test_the_same_inputs_give_the_same_commits(story, base):
    onto = story.commit(base, "upstream", {"pool.py": text(l8="merged")})
    series = [story.patch(base, "one", {"pool.py": text(l1="ours")})]

    assert run(story, series, onto).head == run(story, series, onto).head


def test_what_upstream_took_is_absorbed(story, base):
    onto = story.commit(base, "upstream", {"pool.py": text(l1="ours", l8="merged")})
    patch = story.patch(base, "taken", {"pool.py": text(l1="ours")})

    done = run(story, [patch], onto, base)

    assert outcomes(done) == [Outcome.ABSORBED]
    assert done.clean
    assert done.head == onto


def test_a_patch_that_changes_nothing_is_empty_not_absorbed(story, base):
    done = run(story, [story.patch(base, "void", {"pool.py": text()})], base)

    assert outcomes(done) == [Outcome.EMPTY]
    assert not done.clean


def test_a_conflict_in_the_shadow_of_another_is_blocked(story, base):
    onto = story.commit(base, "upstream", {"pool.py": text(l1="upstream")})
    first = story.patch(base, "first", {"pool.py": text(l1="ours")})
    between = story.commit(base, "first", {"pool.py": text(l1="ours")})
    second = story.patch(between, "second", {"pool.py": text(l1="ours more")})

    done = run(story, [first, second], onto, base)

    assert outcomes(done) == [Outcome.CONFLICT, Outcome.BLOCKED]
    assert done.steps[1].blocked_by == "first"


def test_dropping_a_patch_leaves_the_one_written_on_it_standing(story, base):
    first = story.patch(base, "first", {"pool.py": text(l1="ours")}, status=Status.DROPPED)
    between = story.commit(base, "first", {"pool.py": text(l1="ours")})
    second = story.patch(between, "second", {"pool.py": text(l1="ours", l7="more")})

    done = run(story, [first, second], base, base)

    assert outcomes(done) == [Outcome.SKIPPED, Outcome.CLEAN]
    entry = story.git.objects.find(done.tree, "pool.py")
    assert story.git.objects.blob(entry.oid).decode() == text(l7="more")


def test_a_renamed_file_is_followed(story, base):
    onto = story.commit(base, "moved", {"pool.py": None, "mem/pool.py": text()})

    done = run(story, [story.patch(base, "one", {"pool.py": text(l4="ours")})], onto, base)

    assert outcomes(done) == [Outcome.CLEAN]
    assert done.steps[0].paths == ("mem/pool.py",)


def test_a_deleted_file_is_a_conflict_that_says_so(story, base):
    onto = story.commit(base, "deleted", {"pool.py": None})

    done = run(story, [story.patch(base, "one", {"pool.py": text(l4="ours")})], onto, base)

    assert done.steps[0].conflicts[0].reason == "modify/delete"
    assert done.steps[0].conflicts[0].path == "pool.py"


def test_one_file_added_by_both_sides_is_a_conflict(story, base):
    onto = story.commit(base, "added", {"new.py": "theirs\n"})

    done = run(story, [story.patch(base, "one", {"new.py": "ours\n"})], onto, base)

    assert done.steps[0].conflicts[0].path == "new.py"


def test_without_the_written_base_only_renames_are_lost(story, base):
    onto = story.commit(base, "upstream", {"pool.py": text(l8="merged"), "other.py": None})
    patch = story.patch(base, "one", {"pool.py": text(l4="ours")})

    done = run(story, [patch], onto)

    assert outcomes(done) == [Outcome.CLEAN]
    entry = story.git.objects.find(done.tree, "pool.py")
    assert story.git.objects.blob(entry.oid).decode() == text(l4="ours", l8="merged")


def test_patches_of_different_bases_keep_their_own_ancestors(story, base):
    onto = story.commit(base, "moved", {"pool.py": None, "mem/pool.py": text()})
    old = dataclasses.replace(story.patch(base, "old", {"pool.py": text(l4="ours")}), base=base)
    new = dataclasses.replace(story.patch(onto, "new", {"mem/pool.py": text(l8="ours")}), base=onto)

    done = replay(story.git, Series(name="story", patches=(old, new)), onto)

    assert outcomes(done) == [Outcome.CLEAN, Outcome.CLEAN]


def test_a_line_that_looks_like_a_marker_is_text():
    heading = b"Title\n=======\n"
    body = heading + b"<" * 32 + b" ours\na\n" + b"|" * 32 + b" base\nb\n" + b"=" * 32 + b"\nc\n"

    found = regions(body + b">" * 32 + b" theirs\n", heading + b"a\n")

    assert found == (Region(line=3, ours="a\n", base="b\n", theirs="c\n"),)


def test_a_region_is_where_our_own_file_has_it(story, base):
    onto = story.commit(base, "upstream", {"pool.py": text(l8="upstream")})
    grown = text(l1="ours\nand more\nand more", l8="ours")

    done = run(story, [story.patch(base, "one", {"pool.py": grown})], onto, base)

    assert [region.line for region in done.steps[0].conflicts[0].regions] == [9]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.permutations([0, 4, 8]), st.integers(0, 9))
def test_patches_on_far_lines_commute(story, order, touched):
    base = story.commit(None, "base", {"pool.py": text()})
    onto = story.commit(base, "upstream", {"new.py": str(touched)})
    patches = [story.patch(base, f"p{i}", {"pool.py": text(**{f"l{i}": "ours"})}) for i in order]

    done = run(story, patches, onto, base)

    assert done.clean
    assert done.tree == run(story, sorted(patches, key=lambda p: p.id), onto, base).tree


def test_outcomes_are_those_of_git_rebase(story, base, tmp_path):
    """A stack with a conflict, a rename and an absorbed patch, against the real `git rebase`."""
    onto = story.commit(
        base,
        "upstream",
        {"pool.py": text(l1="upstream", l5="taken"), "other.py": None, "mem/other.py": text()},
    )
    stack = [
        {"pool.py": text(l1="ours")},
        {"other.py": text(l3="ours")},
        {"pool.py": text(l1="ours", l5="taken")},
        {"pool.py": text(l1="ours", l5="taken", l9="ours")},
    ]
    head, patches = base, []
    for i, files in enumerate(stack):
        patches.append(story.patch(head, f"p{i}", files))
        head = story.commit(head, f"p{i}", files)
    story.git.move_refs({"refs/heads/stack": (head, None), "refs/heads/onto": (onto, None)})
    work = tmp_path / "work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=b", "-C", str(work)]
    subprocess.run(["git", "clone", "-q", "-b", "stack", story.git.path, work], check=True)
    step = subprocess.run([*git, "rebase", "-q", "--onto", onto, base], check=False)
    stops = 0
    while step.returncode:
        stops += 1
        step = subprocess.run([*git, "rebase", "--skip"], capture_output=True, check=False)

    done = run(story, patches, onto, base)

    assert sum(o in (Outcome.CONFLICT, Outcome.BLOCKED) for o in outcomes(done)) == stops == 1
    with Git(work) as rebased:
        assert rebased.resolve("HEAD", "tree") == done.tree
