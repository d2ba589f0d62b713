"""The earlier commits that a pick stands on: few, in order, and each answer merged as it stands."""

import pytest

from elsa_build.model import Outcome
from elsa_build.nightly.prerequisites import Ground, prerequisites
from elsa_build.nightly.trial import landed, outcome
from elsa_build.patches.history import between
from tests.test_replay import text


class Line:
    """A line of upstream commits after a base."""

    def __init__(self, story, files):
        self.story = story
        self.base = self.tip = story.commit(None, "base", files)

    def commit(self, subject, **files):
        self.tip = self.story.commit(
            self.tip, subject, {name.replace("__", "."): body for name, body in files.items()}
        )
        return self.tip

    def ground(self, onto=None, scope=""):
        tree = self.story.git.commit(onto or self.base).tree
        history = between(self.story.git, self.base, self.tip)
        return Ground(git=self.story.git, onto=tree, history=history, scope=scope)

    def needed(self, pick, onto=None, **options):
        found = prerequisites(self.ground(onto), pick, **options)
        return [one.subject for one in found.commits], found.reason


@pytest.fixture
def line(story):
    return Line(story, {"pool.py": text(), "other.py": text()})


def test_the_commit_that_wrote_the_lines_comes_first_and_no_other(line):
    line.commit("far", pool__py=text(l8="far"))
    line.commit("other", other__py=text(l1="other"))
    line.commit("near", pool__py=text(l8="far", l3="near"))
    pick = line.commit("pick", pool__py=text(l8="far", l3="near and more"))

    assert line.needed(pick) == (["near"], None)


def test_a_prerequisite_brings_its_own(line):
    line.commit("first", pool__py=text(l3="first"))
    line.commit("second", pool__py=text(l3="first second"))
    pick = line.commit("third", pool__py=text(l3="first second third"))

    assert line.needed(pick) == (["first", "second"], None)


def test_a_file_that_the_pin_lacks_is_brought_by_the_commit_that_made_it(line):
    line.commit("make", new__py=text())
    line.commit("touch", other__py=text(l2="touched"))
    pick = line.commit("fix", new__py=text(l4="fixed"))

    assert line.needed(pick) == (["make"], None)


def test_the_answer_merges_as_it_stands(line):
    line.commit("first", pool__py=text(l3="first"))
    pick = line.commit("pick", pool__py=text(l3="first pick"))
    ground = line.ground()

    tree = ground.onto
    for one in (*prerequisites(ground, pick).commits, ground.history[-1]):
        merged = landed(ground.git, one, tree)
        assert outcome(merged, tree) is Outcome.CLEAN
        tree = merged.tree

    assert tree == line.story.git.commit(pick).tree


def test_a_clean_pick_needs_nothing(line):
    line.commit("far", pool__py=text(l8="far"))
    pick = line.commit("pick", other__py=text(l1="pick"))

    assert line.needed(pick) == ([], None)


def test_a_conflict_with_our_own_patch_has_no_prerequisite_and_says_so(line):
    ours = line.story.commit(line.base, "ours", {"pool.py": text(l3="ours")})
    pick = line.commit("pick", pool__py=text(l3="upstream"))

    names, reason = line.needed(pick, onto=ours)

    assert names == []
    assert "pool.py" in reason
    assert "our patches" in reason


def test_a_pick_that_needs_too_many_is_given_up_with_the_reason(line):
    body = ""
    for number in range(4):
        body += f"{number} "
        line.commit(f"step {number}", pool__py=text(l3=body))
    pick = line.commit("pick", pool__py=text(l3=body + "pick"))

    names, reason = line.needed(pick, limit=3)

    assert names == []
    assert "more than 3" in reason


def test_a_commit_of_another_history_is_no_pick_with_prerequisites(line):
    line.commit("far", pool__py=text(l8="far"))
    alien = line.story.commit(line.base, "alien", {"pool.py": text(l3="alien")})

    assert "not in upstream's history" in line.needed(alien)[1]


def test_what_the_guards_miss_is_brought_too(story):
    line = Line(story, {"python/sglang/__init__.py": "", "python/sglang/old.py": "x = 1\n"})

    def commit(subject, **files):
        named = {f"python/sglang/{name}.py": body for name, body in files.items()}
        line.tip = story.commit(line.tip, subject, named)
        return line.tip

    commit("make a module", fresh="def f():\n    return 1\n")
    commit("something else", other="y = 1\n")
    commit("make a name", old="x = 1\n\n\ndef g():\n    return 2\n")
    both = "from sglang.fresh import f\nfrom sglang.old import g\n\nf(g)\n"
    pick = commit("use both", user=both)

    assert line.needed(pick) == ([], None)
    assert line.needed(pick, guarded=True) == (["make a module", "make a name"], None)


def test_what_no_commit_since_the_pin_brings_is_said(story):
    line = Line(story, {"python/sglang/__init__.py": ""})
    pick = line.tip = story.commit(
        line.tip, "use", {"python/sglang/user.py": "from sglang.nowhere import f\n"}
    )

    names, reason = line.needed(pick, guarded=True)

    assert names == []
    assert "sglang.nowhere" in reason


def test_what_lies_outside_of_a_release_does_not_conflict(story):
    line = Line(story, {"python/a.py": text(), "test/test_a.py": text()})
    line.tip = story.commit(line.tip, "tests", {"test/test_a.py": text(l3="tests")})
    pick = line.tip = story.commit(
        line.tip, "fix", {"python/a.py": text(l3="fix"), "test/test_a.py": text(l3="tests fix")}
    )
    release = story.commit(None, "release", {"python/a.py": text()})

    assert prerequisites(line.ground(release), pick).commits == ()
    inside = line.ground(release, scope="python/")
    merged = landed(inside.git, inside.history[-1], inside.onto, "python/")
    assert outcome(merged, inside.onto) is Outcome.CLEAN
    assert inside.git.objects.find(merged.tree, "test") is None
