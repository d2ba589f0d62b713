"""Who changed the lines in conflict upstream, and how a patch that applied differs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elsa_build.git.objects import GITLINK, Entry
from elsa_build.model import Oid
from elsa_build.patches import drift
from elsa_build.patches.causes import Deed, Spot, Tracer, before, file_lines
from elsa_build.patches.guards.linediff import hunks
from elsa_build.patches.history import between

LINES = [f"line {n}" for n in range(1, 21)]


def text(**changed):
    """Return twenty lines; `l3="x"` replaces the third, `l3=None` takes it away."""
    lines = [changed.get(f"l{n}", line) for n, line in enumerate(LINES, 1)]
    return "".join(f"{line}\n" for line in lines if line is not None)


def traced(story, base, head):
    return Tracer(story.git, between(story.git, base, head))


def test_the_commit_that_changed_the_lines_is_named_and_no_other(story):
    base = story.commit(None, "base", {"a.py": text(), "b.py": "1\n"})
    one = story.commit(base, "Reword three (#31)\n\nIt was unclear.", {"a.py": text(l3="three")})
    two = story.commit(one, "Far away (#32)", {"a.py": text(l3="three", l15="fifteen")})
    head = story.commit(two, "Another file (#33)", {"b.py": "2\n"})

    causes = traced(story, base, head).causes(Spot(path="a.py", lines=(2, 3)))

    assert [(c.oid, c.pr, c.deed, c.subject, c.body) for c in causes] == [
        (one, 31, Deed.LINES, "Reword three (#31)", "It was unclear.")
    ]


def test_lines_are_followed_through_what_was_added_above_them(story):
    base = story.commit(None, "base", {"a.py": text()})
    one = story.commit(base, "Reword nine (#1)", {"a.py": text(l9="nine")})
    head = story.commit(one, "Add on top (#2)", {"a.py": "x\n" * 50 + text(l9="nine")})

    causes = traced(story, base, head).causes(Spot(path="a.py", lines=(58, 59)))

    assert [c.pr for c in causes] == [1]


def test_a_commit_that_took_the_lines_away_is_found_where_they_were(story):
    base = story.commit(None, "base", {"a.py": text()})
    head = story.commit(base, "Remove (#7)", {"a.py": text(l9=None, l10=None)})

    causes = traced(story, base, head).causes(Spot(path="a.py", lines=(8, 8)))

    assert [(c.pr, c.deed) for c in causes] == [(7, Deed.LINES)]


def test_a_renamed_file_is_followed_to_its_old_name(story):
    base = story.commit(None, "base", {"old/a.py": text()})
    one = story.commit(base, "Reword (#1)", {"old/a.py": text(l3="three")})
    two = story.commit(one, "Rename (#2)", {"old/a.py": None, "new/a.py": text(l3="three", l9="9")})
    head = story.commit(two, "Reword again (#3)", {"new/a.py": text(l3="drei", l9="9")})
    tracer = traced(story, base, head)

    causes = tracer.causes(Spot(path="new/a.py", lines=(2, 3)))

    assert [(c.pr, c.deed) for c in causes] == [
        (1, Deed.LINES),
        (2, Deed.RENAMED),
        (3, Deed.LINES),
    ]
    assert tracer.home("old/a.py") == "new/a.py"


def test_a_deleted_file_names_the_commit_that_deleted_it(story):
    base = story.commit(None, "base", {"a.py": text(), "b.py": "1\n"})
    one = story.commit(base, "Reword (#1)", {"a.py": text(l3="three")})
    head = story.commit(one, "Delete (#2)", {"a.py": None})
    tracer = traced(story, base, head)

    causes = tracer.causes(Spot(path="a.py"))

    assert [(c.pr, c.deed) for c in causes] == [(2, Deed.DELETED)]
    assert tracer.home("a.py") is None


def test_where_nobody_changed_the_lines_all_commits_of_the_file_are_named(story):
    base = story.commit(None, "base", {"a.py": text()})
    one = story.commit(base, "First (#1)", {"a.py": text(l15="x")})
    head = story.commit(one, "Second (#2)", {"a.py": text(l15="y")})

    causes = traced(story, base, head).causes(Spot(path="a.py", lines=(2, 3)))

    assert [(c.pr, c.deed) for c in causes] == [(1, Deed.FILE), (2, Deed.FILE)]


def test_a_folder_that_moved_is_found_by_the_files_that_left_it(story):
    base = story.commit(None, "base", {"ops/a.py": text(), "ops/b.py": "1\n2\n3\n"})
    moved = {"ops/a.py": None, "ops/b.py": None, "kernels/a.py": text(), "kernels/b.py": "1\n2\n"}
    head = story.commit(base, "Move ops (#4)", moved)

    causes = traced(story, base, head).folder_moves("ops", "kernels")

    assert [(c.pr, c.deed, c.path) for c in causes] == [(4, Deed.FOLDER, "kernels")]


def test_a_history_of_nothing_has_no_causes(story):
    base = story.commit(None, "base", {"a.py": text()})

    assert traced(story, base, base).causes(Spot(path="a.py", lines=(0, 1))) == ()


def test_a_submodule_and_a_file_that_is_gone_have_no_lines(story):
    submodule = Entry(GITLINK, Oid("7" * 40))

    assert file_lines(story.git, submodule) == ()
    assert file_lines(story.git, None) == ()


some_lines = st.lists(st.sampled_from("abcdef"), max_size=14)


@given(some_lines, some_lines)
def test_lines_that_no_hunk_touches_have_the_same_text_before(old, new):
    found = hunks(old, new)

    for start in range(len(new)):
        hit, (first, stop) = before(found, (start, start + 1))
        if not hit:
            assert old[first:stop] == new[start : start + 1]


@given(some_lines, some_lines, st.data())
def test_a_range_maps_into_the_old_text(old, new, data):
    start = data.draw(st.integers(0, len(new)))
    stop = data.draw(st.integers(start, len(new)))

    _, (first, last) = before(hunks(old, new), (start, stop))

    assert 0 <= first <= last <= len(old)


@given(some_lines, some_lines)
def test_the_whole_text_maps_to_the_whole_text(old, new):
    _, lines = before(hunks(old, new), (0, len(new)))

    assert lines == (0, len(old))


# --- how a patch that applied differs ---------------------------------------------------------

WRITTEN = """\
diff --git a/a.py b/a.py
index 1..2 100644
--- a/a.py
+++ b/a.py
@@ -10,7 +10,7 @@ def take(self):
 one
 two
 three
-old
+new
 four
 five
 six
"""


def test_an_offset_alone_is_told_as_lines_and_is_no_change():
    landed = WRITTEN.replace("-10,7 +10,7", "-410,7 +410,7").replace("1..2", "3..4")

    found = drift.compare(WRITTEN, landed)

    assert found.changed == ""
    assert [(m.path, m.offset) for m in found.moves] == [("a.py", 400)]


def test_other_neighbours_are_a_diff_of_the_diffs():
    found = drift.compare(WRITTEN, WRITTEN.replace(" three\n", " drei\n"))

    assert "- three" in found.changed
    assert "+ drei" in found.changed
    assert found.moves == ()


def test_another_function_is_told_with_both_names():
    found = drift.compare(WRITTEN, WRITTEN.replace("take(self)", "give_back(self)"))

    (move,) = found.moves
    assert (move.written_scope, move.landed_scope) == ("def take(self):", "def give_back(self):")


def test_a_removed_line_that_looks_like_a_header_is_not_one():
    tricky = WRITTEN.replace("-old", "--- a/other.py")

    found = drift.compare(tricky, tricky.replace("-10,7 +10,7", "-11,7 +11,7"))

    assert [m.path for m in found.moves] == ["a.py"]


def test_all_diffs_come_from_one_call_in_the_order_asked(story):
    trees = [story.git.commit(story.commit(None, "x", {"a": f"{n}\n"})).tree for n in range(3)]
    pairs = [(trees[1], trees[2]), (trees[0], trees[1]), (trees[0], trees[0])]

    first, second, third = drift.diffs(story.git, pairs)

    assert "+2" in first
    assert "+1" in second
    assert third == ""
    assert drift.diffs(story.git, []) == ()


@pytest.mark.parametrize("path", ["a.py", "sub/ü.py"])
def test_a_tree_of_some_paths_leaves_out_what_is_absent(story, path):
    tree = story.git.commit(story.commit(None, "x", {path: "1\n", "z": "2\n"})).tree

    small = drift.mini(story.git, tree, (path, "nowhere"))

    assert [name for name, _ in story.git.objects.files(small)] == [path]
    assert small != Oid(tree)
