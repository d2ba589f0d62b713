"""Objects in and out: the bytes and the ids are git's."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elsa_build.errors import ToolError
from elsa_build.git.objects import EXECUTABLE, FILE, Change, Entry, blob_id
from elsa_build.model import Oid


def test_a_written_tree_has_the_id_that_git_gives_it(story):
    objects = story.git.objects
    names = ["a", "a-b", "a.b", "a/x.py", "ab", "ä.py", "z/y/x"]
    blob = objects.write("blob", b"text\n")

    tree = objects.edit(None, {name: Entry(FILE, blob) for name in names if name != "a"})

    listed = story.git.run("ls-tree", "-r", "-z", "--name-only", tree)[1].decode().split("\0")
    assert sorted(filter(None, listed)) == sorted(set(names) - {"a"})
    assert story.git.run("fsck", "--strict", "--no-dangling")[0] == 0


def test_editing_leaves_what_is_not_named_and_drops_empty_folders(story):
    objects = story.git.objects
    blob = objects.write("blob", b"text\n")
    tree = objects.edit(None, {"a/b/c": Entry(FILE, blob), "d": Entry(EXECUTABLE, blob)})

    edited = objects.edit(tree, {"a/b/c": None, "e/f": Entry(FILE, blob)})

    assert dict(objects.files(edited)) == {"d": Entry(EXECUTABLE, blob), "e/f": Entry(FILE, blob)}


def test_a_file_gives_way_to_a_folder_of_its_name(story):
    objects = story.git.objects
    blob = objects.write("blob", b"text\n")
    tree = objects.edit(None, {"a": Entry(FILE, blob)})

    edited = objects.edit(tree, {"a/b": Entry(FILE, blob)})

    assert list(objects.changes(tree, edited)) == [
        Change("a/b", None, Entry(FILE, blob)),
        Change("a", Entry(FILE, blob), None),
    ]


def test_a_missing_object_is_named(story):
    with pytest.raises(ToolError, match="1234567890123456789012345678901234567890"):
        story.git.objects.blob(Oid("1234567890" * 4))


def test_the_reader_can_be_closed_and_used_again(story):
    oid = story.git.objects.write("blob", b"x")

    story.git.objects.close()

    assert story.git.objects.blob(oid) == b"x"


@given(st.binary(max_size=200))
def test_a_blob_id_is_what_hash_object_says(body):
    said = subprocess.run(
        ["git", "hash-object", "--stdin"], input=body, capture_output=True, check=True
    )

    assert blob_id(body) == said.stdout.decode().strip()
