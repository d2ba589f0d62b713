"""Putting a series where a person can work, and refusing what is not ours."""

import subprocess

import pytest

from elsa_build.errors import ConfigError, FailedError
from elsa_build.git.door import Git
from elsa_build.model import Replay
from elsa_build.patches.checkout import to_branch, to_folder


@pytest.fixture
def done(story):
    base = story.commit(None, "base", {"a.py": "x = 1\n"})
    head = story.commit(base, "ours", {"a.py": "x = 2\n"})
    return Replay(onto=base, steps=(), head=head, tree=story.git.commit(head).tree)


def git(folder, *args):
    return subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=b", *args],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_a_folder_gets_the_files_and_the_history(story, done, tmp_path):
    folder = tmp_path / "work"

    to_folder(story.git.path, done, folder)

    assert (folder / "a.py").read_text() == "x = 2\n"
    assert git(folder, "log", "--format=%s", "elsa-base..").split() == ["ours"]
    assert not git(folder, "status", "--porcelain")


def test_our_own_clean_folder_is_replaced(story, done, tmp_path):
    folder = tmp_path / "work"
    to_folder(story.git.path, done, folder)
    newer = story.commit(done.head, "newer", {"a.py": "x = 3\n"})
    later = Replay(onto=done.onto, steps=(), head=newer, tree=story.git.commit(newer).tree)

    to_folder(story.git.path, later, folder)

    assert (folder / "a.py").read_text() == "x = 3\n"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".work")] == []


def test_a_changed_folder_is_refused_and_keeps_its_change(story, done, tmp_path):
    folder = tmp_path / "work"
    to_folder(story.git.path, done, folder)
    (folder / "a.py").write_text("mine\n")

    with pytest.raises(FailedError, match=r"changes of its own: a\.py"):
        to_folder(story.git.path, done, folder)

    assert (folder / "a.py").read_text() == "mine\n"


def test_a_folder_with_commits_of_its_own_is_refused(story, done, tmp_path):
    folder = tmp_path / "work"
    to_folder(story.git.path, done, folder)
    (folder / "a.py").write_text("mine\n")
    git(folder, "commit", "-qam", "mine")

    with pytest.raises(FailedError, match="commits of its own"):
        to_folder(story.git.path, done, folder)


@pytest.mark.parametrize("kind", ["files", "repository", "file"])
def test_a_foreign_target_is_refused(story, done, tmp_path, kind):
    folder = tmp_path / "work"
    if kind == "file":
        folder.write_text("x")
    else:
        folder.mkdir()
        (folder / "theirs").write_text("x")
    if kind == "repository":
        git(folder, "init", "-q")

    with pytest.raises(ConfigError, match="work"):
        to_folder(story.git.path, done, folder)


def test_a_branch_moves_with_a_backup(story, done):
    to_branch(story.git, done, "elsa", now=1)
    newer = story.commit(done.head, "newer", {"a.py": "x = 3\n"})
    later = Replay(onto=done.onto, steps=(), head=newer, tree=story.git.commit(newer).tree)

    before = to_branch(story.git, later, "elsa", now=2)

    assert before == done.head
    assert story.git.find("elsa") == newer
    assert story.git.find("refs/elsa/before/2/elsa") == done.head


def test_a_branch_that_someone_else_moved_is_refused(story, done):
    to_branch(story.git, done, "elsa", now=1)
    theirs = story.commit(done.head, "theirs", {"b.py": "y\n"})
    story.git.move_refs({"refs/heads/elsa": (theirs, done.head)})

    with pytest.raises(FailedError, match="did not put there"):
        to_branch(story.git, done, "elsa", now=2)

    assert story.git.find("elsa") == theirs


def test_a_checked_out_branch_is_refused(story, done, tmp_path):
    to_branch(story.git, done, "elsa", now=1)
    git(tmp_path, "clone", "-q", "-b", "elsa", str(story.git.path), "clone")

    with Git(tmp_path / "clone") as clone:
        clone.move_refs({"refs/elsa/applied/elsa": (done.head, None)})
        with pytest.raises(FailedError, match="checked out"):
            to_branch(clone, done, "elsa", now=2)


@pytest.mark.parametrize("name", ["a..b", "-x", "a b", "x.lock"])
def test_a_name_that_git_refuses_is_refused(story, done, name):
    with pytest.raises(ConfigError, match="not a branch name"):
        to_branch(story.git, done, name, now=1)
