"""What a review holds beside the replay: places, surroundings, reasons, commands."""

import dataclasses

import pytest

from elsa_build.git.objects import Entry
from elsa_build.model import Oid, Outcome, Pin, Proposal, Series, SourceKind
from elsa_build.patches.causes import Deed
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.replay import replay
from elsa_build.patches.review import Revision
from elsa_build.patches.reviewing import review
from elsa_build.patches.sites import scope
from elsa_build.reports import wording
from tests.reporting import example

NOW = "2026-03-02T06:00:00+00:00"
CLASS = """\
class Pool:
    def take(
        self,
    ):
        one = 1
        two = 2
        three = 3
        return one, two, three

    def give(self):
        return 0
"""


def made(story, base, onto, *patches, name="v2", **changed):
    done = replay(story.git, Series(name="s", patches=patches), onto)
    form = {
        "series": "s",
        "base": Revision(name="v1", commit=base),
        "onto": name,
        "now": NOW,
        **changed,
    }
    return review(story.git, done, **form)


def only(found):
    (case,) = (case for case in found.cases if case.sites)
    (site,) = case.sites
    return site


def test_a_region_has_its_function_its_lines_and_its_surroundings(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    moved = "import os\n\n\n" + CLASS.replace("two = 2", "two = 22")
    onto = story.commit(base, "Double two (#5)", {"pool.py": moved})
    patch = story.patch(base, "p", {"pool.py": CLASS.replace("two = 2", "two = 'two'")})

    site = only(made(story, base, onto, patch))

    assert site.scope == "Pool.take"
    assert (site.line, site.patch.line, site.upstream.line) == (9, 6, 9)
    assert site.patch.above == ("        self,", "    ):", "        one = 1")
    assert site.upstream.below[0] == "        three = 3"
    assert [c.pr for c in site.causes] == [5]
    assert site.exact


def test_the_line_is_ontos_even_below_earlier_patches(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    onto = story.commit(base, "Double two (#5)", {"pool.py": CLASS.replace("two = 2", "two = 22")})
    first = story.patch(base, "first", {"pool.py": "import os\n" * 9 + CLASS})
    second = story.patch(base, "second", {"pool.py": CLASS.replace("two = 2", "two = 'two'")})
    second = dataclasses.replace(second, base=base)

    site = only(made(story, base, onto, first, second))

    assert site.line == 6
    assert site.stacked == ()
    assert [c.pr for c in site.causes] == [5]


def test_a_conflict_with_an_earlier_patch_of_ours_names_it_and_not_upstream(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    onto = story.commit(base, "Elsewhere (#5)", {"pool.py": CLASS.replace("return 0", "return 1")})
    first = story.patch(base, "first", {"pool.py": CLASS.replace("two = 2", "two = 22")}, base=base)
    text = CLASS.replace("two = 2", "two = 'two'")
    second = story.patch(base, "second", {"pool.py": text}, base=story.commit(base, "same", {}))

    site = only(made(story, base, onto, first, second))

    assert site.stacked == ("first",)
    assert not site.exact
    assert wording.upstream_did(site) == "Nothing: our own patch first changed these lines."


def test_a_deleted_file_shows_the_patch_alone(story):
    base = story.commit(None, "base", {"pool.py": CLASS, "x": "1\n"})
    onto = story.commit(base, "Delete the pool (#6)", {"pool.py": None})
    patch = story.patch(base, "p", {"pool.py": CLASS.replace("two = 2", "two = 22")})

    site = only(made(story, base, onto, patch))

    assert (site.gone, site.home, site.region) == (True, None, None)
    assert "+        two = 22" in site.patch_diff
    assert [(c.pr, c.deed) for c in site.causes] == [(6, Deed.DELETED)]
    assert wording.upstream_did(site) == "Upstream deleted the file."


def test_a_file_that_the_patch_deletes_says_so(story):
    base = story.commit(None, "base", {"pool.py": CLASS, "x": "1\n"})
    onto = story.commit(base, "Reword (#6)", {"pool.py": CLASS.replace("two = 2", "two = 22")})
    patch = story.patch(base, "p", {"pool.py": None})

    site = only(made(story, base, onto, patch))

    assert wording.patch_wants(site) == "The patch deletes the file."
    assert wording.upstream_did(site) == "Upstream changed the file that the patch deletes."


@pytest.mark.parametrize(
    ("old", "theirs", "ours"),
    [
        (b"\x00one\xff", b"\x00two\xff", b"\x00three\xff"),
        (b"caf\xe9\nb\n", b"th\xe9\nb\n", b"lait\xe9\nb\n"),
        (b"a\r\nb\n", b"x\r\nb\n", b"y\nb\n"),
        (b"a", b"x", b"y"),
    ],
    ids=["binary", "latin-1", "mixed newlines", "no last newline"],
)
def test_a_file_of_any_bytes_can_be_reviewed(story, old, theirs, ours):
    base = story.commit(None, "base", {"f": old})
    onto = story.commit(base, "Theirs (#9)", {"f": theirs})

    found = made(story, base, onto, story.patch(base, "p", {"f": ours}))

    assert found.done.steps[0].outcome is Outcome.CONFLICT
    assert [c.pr for c in only(found).causes] == [9]


def test_a_long_file_is_reviewed_quickly_enough_to_wait_for(story):
    lines = [f"value_{n} = {n}" for n in range(100_000)]
    text = lambda at, word: "\n".join([*lines[:at], word, *lines[at + 1 :]]) + "\n"  # noqa: E731
    base = story.commit(None, "base", {"big.py": "\n".join(lines) + "\n"})
    onto = story.commit(base, "Change (#1)", {"big.py": text(50_000, "theirs = 1")})

    found = made(story, base, onto, story.patch(base, "p", {"big.py": text(50_000, "ours = 1")}))

    assert only(found).line == 50_001


def test_histories_without_a_common_commit_are_told_as_the_steps_given(story):
    base = story.commit(None, "release 1", {"pool.py": CLASS})
    onto = story.commit(None, "release 2", {"pool.py": CLASS.replace("two = 2", "two = 22")})
    patch = story.patch(base, "p", {"pool.py": CLASS.replace("two = 2", "two = 'two'")})
    trees = [story.git.commit(oid).tree for oid in (base, onto)]
    jump = UpstreamCommit(
        oid=onto,
        author="release",
        date=NOW,
        message="release 2",
        changes=tuple(story.git.objects.changes(*trees)),
    )

    site = only(made(story, base, onto, patch, history=(jump,)))

    assert [c.subject for c in site.causes] == ["release 2"]


def test_a_message_that_is_not_utf_8_is_kept_as_far_as_it_can_be_read(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    onto = story.commit(base, "Schr\udcf6der (#3)", {"pool.py": CLASS.replace("two = 2", "2")})
    patch = story.patch(base, "p", {"pool.py": CLASS.replace("two = 2", "two = 'two'")})

    site = only(made(story, base, onto, patch))

    assert site.causes[0].subject == "Schr\N{REPLACEMENT CHARACTER}der (#3)"


def test_a_patch_that_applied_among_other_lines_is_compared_with_itself(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    onto = story.commit(base, "Near (#4)", {"pool.py": CLASS.replace("one = 1", "one = 11")})
    near = story.patch(base, "near", {"pool.py": CLASS.replace("return 0", "return 'x'")})
    same = story.patch(base, "same", {"new.py": "1\n"})

    near_case, same_case = made(story, base, onto, near, same).cases

    assert near_case.drift.changed == ""
    assert same_case.drift.changed == ""
    assert near_case.drift.moves == ()

    close = story.patch(base, "close", {"pool.py": CLASS.replace("three = 3", "three = 33")})
    (case,) = made(story, base, onto, close).cases
    assert "+         one = 11" in case.drift.changed


def test_the_first_command_is_what_to_type_and_a_blocked_patch_sends_to_its_blocker(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    onto = story.commit(base, "Double (#5)", {"pool.py": CLASS.replace("two = 2", "two = 22")})
    ours = CLASS.replace("two = 2", "two = 'two'")
    first = story.patch(base, "first", {"pool.py": ours})
    written = story.commit(base, "first", {"pool.py": ours})
    second = story.patch(written, "second", {"pool.py": ours.replace("'two'", "'zwei'")})

    found = made(story, base, onto, first, second, name="a b")

    assert [case.commands[0].line for case in found.cases] == [
        "elsa-build resolve first --onto 'a b'",
        "elsa-build resolve first --onto 'a b'",
    ]
    assert "git mergetool --tool=meld -- pool.py" in [c.line for c in found.cases[0].commands]


def test_a_proposal_comes_with_its_diff(story):
    base = story.commit(None, "base", {"pool.py": CLASS})
    onto = story.commit(base, "Double (#5)", {"pool.py": CLASS.replace("two = 2", "two = 22")})
    patch = story.patch(base, "p", {"pool.py": CLASS.replace("two = 2", "two = 'two'")})
    done = replay(story.git, Series(name="s", patches=(patch,)), onto)
    settled = CLASS.replace("two = 2", "two = '22'").encode()
    blob = story.git.objects.write("blob", settled)
    tree = story.git.objects.edit(done.tree, {"pool.py": Entry("100644", blob)})
    proposal = Proposal(tree=tree, how=("by hand",), paths=("pool.py",))
    step = dataclasses.replace(done.steps[0], outcome=Outcome.PROPOSED, proposal=proposal)
    done = dataclasses.replace(done, steps=(step,))

    revision = Revision(name="v1", commit=base)
    found = review(story.git, done, series="s", base=revision, onto="v2", now=NOW)

    assert "-        two = 22\n+        two = '22'" in found.cases[0].proposal
    assert found.cases[0].commands[0].line.endswith("--accept")


@pytest.mark.parametrize(
    ("url", "project"),
    [
        ("https://github.com/sgl-project/sglang", "https://github.com/sgl-project/sglang"),
        ("git@github.com:sgl-project/sglang.git", "https://github.com/sgl-project/sglang"),
        ("https://example.org/sglang", None),
        ("sglang", None),
    ],
)
def test_pull_requests_are_linked_only_where_the_pin_says_where_they_are(story, url, project):
    base = story.commit(None, "base", {"pool.py": CLASS})
    pin = Pin(
        source=SourceKind.GIT,
        url=url,
        ref="v1",
        commit=base,
        tree=story.git.commit(base).tree,
        date=NOW,
    )

    assert made(story, base, base, pin=pin).project == project


def test_a_review_names_no_place_of_this_machine():
    files = [step.patch.file for step in example().done.steps]

    assert str(files[0]) == "patchsets/kiln-1.4/0001-note-copies.patch"


def test_the_headline_counts_every_way_to_fail():
    assert wording.headline(example()) == (
        "2 of 6 patches clean on nightly; 1 with a proposal to accept, 1 blocked, "
        "1 stopped by a guard, 1 in conflict"
    )


@pytest.mark.parametrize(
    ("path", "line", "name"),
    [
        ("a.py", 6, "Pool.take"),
        ("a.py", 9, "Pool.take"),
        ("a.py", 11, "Pool.give"),
        ("a.py", 1, "Pool"),
    ],
)
def test_a_scope_is_the_class_and_function_around(path, line, name):
    assert scope(path, CLASS.split("\n"), line) == name


def test_a_closing_bracket_at_the_margin_does_not_end_a_function():
    lines = ["def f(", "    a,", ") -> int:", "    b = [", "]", "    return a"]

    assert scope("a.py", lines, 6) == "f"


def test_a_scope_of_another_language_is_gits_function_line():
    lines = ["__global__ void f(int a) {", "  int b;", "}"]

    assert scope("a.cu", lines, 2) == "__global__ void f(int a) {"


def test_the_same_trouble_on_another_upstream_has_the_same_fingerprint():
    there = dataclasses.replace(
        example(), onto=Revision(name="later", commit=Oid("8" * 40)), made="2027-01-01T00:00:00Z"
    )

    assert wording.fingerprint(there) == wording.fingerprint(example())


def test_other_trouble_has_another_fingerprint():
    steps = example().done.steps[:-1]
    fewer = dataclasses.replace(
        example(),
        done=dataclasses.replace(example().done, steps=steps),
        cases=example().cases[:-1],
    )

    assert wording.fingerprint(fewer) != wording.fingerprint(example())
