"""The door to git: names, refs, commits, merges, quarantine."""

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import Git, environment
from elsa_build.model import Signature
from tests.conftest import AUTHOR


def test_hooks_leak_nothing_into_git_but_transport_settings_stay():
    env = environment(
        {"GIT_DIR": "/x", "GIT_INDEX_FILE": "i", "GIT_CONFIG_NOSYSTEM": "1", "A": "b"}
    )

    assert "GIT_DIR" not in env
    assert "GIT_INDEX_FILE" not in env
    assert env["GIT_CONFIG_NOSYSTEM"] == "1"
    assert env["A"] == "b"


def test_an_unknown_revision_is_the_persons_error_not_gits(story):
    with pytest.raises(ConfigError, match="unknown revision 'nope'"):
        story.git.resolve("nope")


def test_a_revision_that_looks_like_an_option_is_only_a_revision(story):
    with pytest.raises(ConfigError, match="unknown revision '--help'"):
        story.git.resolve("--help")


def test_a_folder_without_git_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a git repository"):
        Git(tmp_path)


def test_refs_move_together_or_not_at_all(story):
    one = story.commit(None, "one", {"a": "1"})
    two = story.commit(one, "two", {"a": "2"})
    story.git.move_refs({"refs/heads/a": (one, None)})

    with pytest.raises(ToolError, match="update-ref"):
        story.git.move_refs({"refs/heads/b": (two, None), "refs/heads/a": (two, two)})

    assert story.git.find("refs/heads/a") == one
    assert story.git.find("refs/heads/b") is None


@pytest.mark.parametrize("message", ["subject", "subject\n\nbody: ü\n\nTrailer: x"])
def test_a_commit_is_read_back_as_it_was_written(story, message):
    author = Signature(name="Ünal B. O'Neil", email="u@example.org", date="1700000000 -0530")
    tree = story.git.objects.edit(None, {})

    commit = story.git.commit(story.git.commit_tree(tree, (), message, author))

    assert commit.author == author
    assert commit.message == message + "\n"
    assert commit.tree == tree


def test_the_committer_is_elsa_build_at_the_authors_date(story):
    oid = story.git.commit_tree(story.git.objects.edit(None, {}), (), "x", AUTHOR)

    assert story.git.text("log", "-1", "--format=%cn %cd", "--date=raw", oid) == (
        "elsa-build 1700000000 +0100"
    )


def test_nothing_of_a_quarantine_stays_unless_it_is_kept(story):
    with story.git.quarantine() as inner:
        lost = inner.objects.write("blob", b"lost")
    with story.git.quarantine() as inner:
        kept = inner.objects.write("blob", b"kept")
        inner.keep()

    with Git(story.git.path) as again:
        assert again.objects.get(lost) is None
        assert again.objects.blob(kept) == b"kept"


def test_a_merge_names_its_conflicts_in_gits_words(story):
    base = story.commit(None, "base", {"a": "1\n", "gone": "x\n"})
    ours = story.commit(base, "ours", {"a": "2\n", "gone": None})
    theirs = story.commit(base, "theirs", {"a": "3\n", "gone": "y\n"})
    trees = [story.git.commit(c).tree for c in (base, ours, theirs)]

    merge = story.git.merge_trees(*trees)

    assert not merge.clean
    assert merge.reasons == {"a": "contents", "gone": "modify/delete"}


def test_renames_are_followed(story):
    text = "".join(f"line {i}\n" for i in range(30))
    base = story.commit(None, "base", {"old/a.py": text})
    ours = story.commit(base, "ours", {"old/a.py": None, "new/a.py": text})
    theirs = story.commit(base, "theirs", {"old/a.py": text.replace("line 9\n", "nine\n")})
    trees = [story.git.commit(c).tree for c in (base, ours, theirs)]

    merge = story.git.merge_trees(*trees)

    assert merge.clean
    entry = story.git.objects.find(merge.tree, "new/a.py")
    assert b"nine\n" in story.git.objects.blob(entry.oid)
