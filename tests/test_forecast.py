"""The first upstream commit that breaks each patch, and what kind of change it was."""

import dataclasses

import pytest

from elsa_build.model import Outcome, Series
from elsa_build.patches.breakage import Breakage
from elsa_build.patches.forecast import forecast
from elsa_build.patches.history import between
from elsa_build.patches.replay import replay
from tests.test_replay import text

BODY = "".join(f"    statement_number_{i} = compute({i})\n" for i in range(12))


@pytest.fixture
def base(story):
    return story.commit(
        None,
        "base",
        {"pool.py": text(), "other.py": text(), "moving.py": f"def f():\n{BODY}", "new/a": "a\n"},
    )


class Upstream:
    """A line of upstream commits on a story."""

    def __init__(self, story, base):
        self.story, self.base, self.tip, self.made = story, base, base, []

    def commit(self, subject, files):
        self.tip = self.story.commit(self.tip, subject, files)
        self.made.append(self.tip)
        return self.tip


@pytest.fixture
def upstream(story, base):
    return Upstream(story, base)


def run(story, series, base, until, **options):
    commits = between(story.git, base, until)
    return forecast((story.git.path,), series, base, commits, **options)


def look(story, base, patches, until, **options):
    based = tuple(dataclasses.replace(patch, base=base) for patch in patches)
    series = Series(name="story", patches=based)
    return series, run(story, series, base, until, **options)


def test_the_first_breaking_commit_is_named_with_its_pull_request(story, base, upstream):
    upstream.commit("quiet", {"other.py": text(l3="quiet")})
    guilty = upstream.commit("Reword the pool (#1234)", {"pool.py": text(l4="upstream")})
    upstream.commit("later", {"pool.py": text(l4="again")})
    patches = [
        story.patch(base, "hit", {"pool.py": text(l4="ours")}),
        story.patch(base, "well", {"other.py": text(l8="ours")}),
    ]

    _, seen = look(story, base, patches, upstream.tip)

    (only,) = seen.breaks
    assert (only.patch, only.commit.oid, only.commit.pr) == ("hit", guilty, 1234)
    assert only.breakage is Breakage.REWORDED


def test_what_upstream_takes_over_is_absorbed(story, base, upstream):
    taken = upstream.commit("Take it (#7)", {"pool.py": text(l4="ours")})

    _, seen = look(
        story, base, [story.patch(base, "one", {"pool.py": text(l4="ours")})], upstream.tip
    )

    assert [(b.commit.oid, b.outcome) for b in seen.breaks] == [(taken, Outcome.ABSORBED)]
    assert seen.breaks[0].breakage is Breakage.ABSORBED


def test_moved_and_deleted_code_are_told_apart(story, base, upstream):
    changed = BODY.replace("number_6 = compute(6)", "number_6 = ours(6)")
    upstream.commit("move", {"moving.py": "def f():\n    pass\n", "home.py": f"def f():\n{BODY}"})
    upstream.commit("delete", {"other.py": None})
    patches = [
        story.patch(base, "moved", {"moving.py": f"def f():\n{changed}"}),
        story.patch(base, "deleted", {"other.py": text(l4="ours")}),
    ]

    _, seen = look(story, base, patches, upstream.tip)

    assert [b.breakage for b in seen.breaks] == [Breakage.MOVED, Breakage.DELETED]


def test_a_rename_that_git_follows_breaks_nothing(story, base, upstream):
    upstream.commit("rename", {"pool.py": None, "mem/pool.py": text()})
    upstream.commit("edit there", {"mem/pool.py": text(l8="upstream")})
    broken = upstream.commit("reword there", {"mem/pool.py": text(l4="upstream", l8="upstream")})

    _, seen = look(
        story, base, [story.patch(base, "one", {"pool.py": text(l4="ours")})], upstream.tip
    )

    assert [b.commit.oid for b in seen.breaks] == [broken]


def test_a_patch_falls_with_the_one_that_it_was_written_on(story, base, upstream):
    first = story.patch(base, "first", {"pool.py": text(l4="ours"), "other.py": text(l1="ours")})
    files = {"pool.py": text(l4="ours"), "other.py": text(l1="ours")}
    between_them = story.commit(base, "first", files)
    second = story.patch(between_them, "second", {"pool.py": text(l4="ours more")})
    guilty = upstream.commit("only the other file", {"other.py": text(l1="upstream")})

    _, seen = look(story, base, [first, second], upstream.tip)

    assert {b.patch: b.commit.oid for b in seen.breaks} == {"first": guilty, "second": guilty}
    assert seen.breaks[1].breakage is Breakage.ELSEWHERE


def test_a_patch_that_is_broken_at_the_start_has_no_first_break(story, base, upstream):
    start = upstream.commit("already", {"pool.py": text(l4="upstream")})
    upstream.commit("later", {"pool.py": text(l4="again")})
    series = Series(
        name="story",
        patches=(
            dataclasses.replace(story.patch(base, "one", {"pool.py": text(l4="ours")}), base=base),
        ),
    )

    assert run(story, series, start, upstream.tip).breaks == ()


def test_the_walk_agrees_with_a_replay_at_every_commit(story, base, upstream):
    """Many commits and dependent patches; more than one worker."""
    for i in range(45):
        line, name = i * 7 % 10, ("pool.py", "other.py")[i % 2]
        entry = story.git.objects.find(story.git.commit(upstream.tip).tree, name)
        lines = story.git.objects.blob(entry.oid).decode().splitlines()
        lines[line] = f"upstream {i}"
        upstream.commit(f"commit {i} (#{i})", {name: "\n".join(lines) + "\n"})
    head, patches = base, []
    for i in range(8):
        entry = story.git.objects.find(story.git.commit(head).tree, ("pool.py", "other.py")[i % 2])
        lines = story.git.objects.blob(entry.oid).decode().splitlines()
        lines[i] += f"\nours {i}"
        files = {("pool.py", "other.py")[i % 2]: "\n".join(lines) + "\n"}
        patches.append(story.patch(head, f"p{i}", files))
        head = story.commit(head, f"p{i}", files)

    series, seen = look(story, base, patches, upstream.tip, workers=2)

    first, broken = {}, set()
    for commit in between(story.git, base, upstream.tip):
        for step in replay(story.git, series, commit.oid).steps:
            if step.outcome is not Outcome.CLEAN and step.patch.id not in broken:
                broken.add(step.patch.id)
                first[step.patch.id] = commit.oid
    assert {b.patch: b.commit.oid for b in seen.breaks} == first
    assert len(first) > 3


def test_a_forecast_goes_on_where_the_last_one_ended(story, base, upstream):
    middle = upstream.commit("Reword (#1)", {"pool.py": text(l4="upstream")})
    upstream.commit("Reword (#2)", {"other.py": text(l4="upstream")})
    patches = [
        story.patch(base, "one", {"pool.py": text(l4="ours")}),
        story.patch(base, "two", {"other.py": text(l4="ours")}),
    ]
    series, early = look(story, base, patches, middle)
    known = {one.patch: one for one in early.breaks}

    late = run(story, series, middle, upstream.tip, known=known)

    assert late.breaks == look(story, base, patches, upstream.tip)[1].breaks
