"""The series as a whole: parts, the patch that breaks a command, two states, what it costs."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elsa_build.errors import FailedError
from elsa_build.stacks.bisect import Mark, search
from tests.downstream import begin
from tests.test_replay import text as ten_lines


def text(**lines):
    """Return ten lines, some of them replaced, far enough below the top of their file."""
    return "top\n" * 5 + ten_lines(**lines)


@pytest.fixture
def project(tmp_path, story, monkeypatch):
    files = {"a.py": text(), "b.py": text()}
    project = begin(tmp_path, story, monkeypatch, files)
    stack = {}
    for number, name in enumerate(("one", "two", "three", "four")):
        stack[f"l{2 * number + 2}"] = name
        project.patch(name, {"a.py": text(**stack)})
    return project


def tree_file(project, *args):
    folder = project.root / "dist" / "applied"
    project.run("apply", "--to", str(folder), *args)
    return (folder / "a.py").read_text()


# --- parts -----------------------------------------------------------------------------------


def test_one_patch_is_left_out_and_the_ones_after_it_stay(project):
    assert tree_file(project, "--without", "two") == text(l2="one", l6="three", l8="four")


def test_only_some_patches_apply_in_the_order_of_the_series(project):
    assert tree_file(project, "--only", "four", "--only", "one") == text(l2="one", l8="four")


def test_a_part_is_never_recorded_in_the_lock(project):
    before = project.text("upstream.lock")

    project.json("apply", "--without", "two")

    assert project.text("upstream.lock") == before


def test_a_patch_that_is_required_cannot_be_left_out(project):
    project.run("patch", "edit", "three", "--requires", "two")

    without = project.run("apply", "--without", "two", code=2)
    only = project.run("apply", "--only", "three", code=2)

    assert "three requires two" in without.err
    assert "--without three too" in without.err
    assert "--only two" in only.err
    project.run("apply", "-n", "--without", "two", "--without", "three")
    project.run("apply", "-n", "--only", "three", "--only", "two")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--without", "thre"), 5, "three"),
        (("--only", "two", "--without", "two"), 2, "--only and in --without"),
    ],
)
def test_names_that_do_not_fit_are_refused(project, args, code, said):
    assert said in project.run("apply", *args, code=code).err


def test_an_inactive_patch_is_in_no_part(project):
    project.run("patch", "drop", "two", "--why", "it has not earned its place")

    assert "dropped" in project.run("apply", "--only", "two", code=5).err


# --- bisect ----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.data())
def test_the_first_bad_patch_is_found_in_few_runs(count, data):
    first = data.draw(st.integers(1, count))
    runs = []

    def judge(size):
        runs.append(size)
        return Mark.BAD if size >= first else Mark.GOOD

    assert search(count, judge) == (first - 1, first)
    assert len(runs) <= 2 + count.bit_length()


@given(st.integers(2, 20), st.data())
def test_skips_leave_only_what_they_hide(count, data):
    first = data.draw(st.integers(1, count))
    untold = data.draw(st.sets(st.integers(1, count - 1)))

    low, high = search(
        count,
        lambda size: Mark.SKIP if size in untold else Mark.BAD if size >= first else Mark.GOOD,
    )

    assert low < first <= high
    assert set(range(low + 1, high)) <= untold


@pytest.mark.parametrize(("always", "said"), [(Mark.BAD, "without patches"), (Mark.GOOD, "whole")])
def test_both_ends_must_be_as_they_should(always, said):
    with pytest.raises(FailedError, match=said):
        search(3, lambda _: always)


def test_bisect_names_the_patch_whose_tree_breaks_the_command(project):
    before = project.files()

    found = project.json("bisect", "--run", "! grep -q three a.py")

    assert found["first_bad"] == "three"
    assert [(t["patches"], t["mark"]) for t in found["trials"]] == [
        (0, "good"),
        (4, "bad"),
        (2, "good"),
        (3, "bad"),
    ]
    assert project.files() == before


def test_the_command_knows_the_tree_and_finds_nothing_of_the_run_before(project):
    tree = '"$ELSA_PATCHED_TREE"'
    command = f"cd / && test ! -e {tree}/junk && touch {tree}/junk && ! grep -q two {tree}/a.py"

    assert project.json("bisect", "--run", command)["first_bad"] == "two"


def test_exit_125_skips_and_the_answer_says_what_is_left(project):
    command = "grep -q four a.py && exit 1; grep -q two a.py && exit 125; exit 0"

    found = project.json("bisect", "--run", command, code=7)

    assert found["first_bad"] is None
    assert found["suspects"] == ["two", "three", "four"]


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("true", 7, "whole series"), ("false", 7, "without patches"), ("exit 200", 6, "200")],
)
def test_a_command_that_cannot_tell_ends_the_search(project, command, code, said):
    assert said in project.run("bisect", "--run", command, code=code).err


def test_a_series_that_does_not_apply_is_not_bisected(project):
    project.upstream("Clash", {"a.py": text(l2="theirs")})
    project.run("pin", "update")

    assert "one" in project.run("bisect", "--run", "true", code=3).err


def test_people_see_each_trial(project):
    ran = project.run("bisect", "--run", "! grep -q one a.py")

    assert "! bad      4 patches, to four" in ran.out
    assert "first bad patch: one" in ran.out


# --- range-diff ------------------------------------------------------------------------------


def git(root, *args):
    who = ("-c", "user.name=a", "-c", "user.email=b")
    ran = subprocess.run(
        ["git", "-C", str(root), *who, *args], capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def commit(project, message):
    if not (project.root / ".git").exists():
        git(project.root, "init", "-q", "-b", "main")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-qm", message)
    return git(project.root, "rev-parse", "HEAD")


def fates(project, *args):
    found = project.json("range-diff", *args)["patches"]
    return [(p["old"], p["new"], p["fate"]) for p in found]


def test_what_only_shifted_is_the_same_patch(project):
    commit(project, "before")
    project.upstream("More above", {"a.py": "# new\n" * 30 + text()})
    project.run("rebase", "--onto", "main", "--write")

    assert {fate for _, _, fate in fates(project, "HEAD")} == {"same"}


def test_changed_added_and_removed_patches_are_told_by_their_ids(project):
    commit(project, "before")
    project.run("patch", "drop", "four", "--why", "it has not earned its place")
    project.patch("Five by the way", {"b.py": text(l1="five")})
    commit(project, "after")
    folder = project.root / "dist" / "applied"
    project.run("apply", "--to", str(folder))
    (folder / "a.py").write_text((folder / "a.py").read_text().replace("three", "drei"))
    project.run("patch", "refresh", "three", "--work-tree", str(folder))

    found = project.json("range-diff", "HEAD~1")["patches"]

    assert [(p["old"], p["new"], p["fate"]) for p in found] == [
        ("one", "one", "same"),
        ("two", "two", "same"),
        ("three", "three", "changed"),
        ("four", None, "removed"),
        (None, "five-by-the-way", "added"),
    ]
    assert "drei" in found[2]["diff"]
    assert fates(project, "HEAD~1", "HEAD")[2][2] == "same"


def test_an_unknown_revision_and_a_project_without_history_are_refused(project):
    assert "git init" in project.run("range-diff", "HEAD", code=5).err
    commit(project, "one")
    assert "nope" in project.run("range-diff", "nope", code=5).err


def test_a_project_in_a_folder_of_a_repository_is_found_there(project):
    (project.root.parent / "README").write_text("x")
    git(project.root.parent, "init", "-q", "-b", "main")
    git(project.root.parent, "add", "project", "README")
    git(project.root.parent, "commit", "-qm", "all")

    assert {fate for _, _, fate in fates(project, "HEAD")} == {"same"}
    assert len(project.json("stats")["trend"]) == 1


# --- stats -----------------------------------------------------------------------------------


def test_stats_count_lines_files_and_hot_files(project):
    found = project.json("stats")

    first = found["patches"][0]
    assert (first["id"], first["added"], first["removed"]) == ("one", 1, 1)
    assert (first["files"], first["age_days"] > 0) == (["a.py"], True)
    assert (found["added"], found["removed"]) == (4, 4)
    assert found["hot"] == [{"path": "a.py", "patches": ["one", "two", "three", "four"]}]
    assert found["trend"] == []


def test_the_trend_counts_the_conflicts_of_each_rebase(project):
    commit(project, "begin")
    project.upstream("Shift", {"a.py": "# new\n" + text()})
    project.run("rebase", "--onto", "main", "--write")
    commit(project, "rebase that only shifts")
    project.upstream("Clash", {"a.py": "# new\n" + text(l6="theirs")})
    project.run("pin", "update")
    project.run("resolve", "three")
    path = project.root / "dist/resolve/three/a.py"
    path.write_text("# new\n" + text(l2="one", l4="two", l6="theirs three"))
    project.run("resolve", "three", "--continue")
    commit(project, "rebase with a conflict")

    trend = project.json("stats")["trend"]

    assert [(p["rebase"], p["conflicts"]) for p in trend] == [
        (False, []),
        (True, []),
        (True, ["three"]),
    ]
    assert [p["patches"] for p in trend] == [4, 4, 4]
    assert project.json("stats", "--limit", "1")["trend"][0]["commit"] == trend[-1]["commit"]


def test_a_revision_that_cannot_be_read_is_listed_and_not_fatal(project):
    series = project.root / "patchsets/local/series.yaml"
    good = series.read_text()
    series.write_text("version: 99\n")
    broken = commit(project, "broken")
    series.write_text(good)
    commit(project, "mended")

    found = project.json("stats")

    assert found["unreadable"] == [broken]
    assert len(found["trend"]) == 1
    assert "four" in project.run("stats").out
