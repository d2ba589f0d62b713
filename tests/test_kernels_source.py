"""The patched tree as files for the other interpreter: whole or not there, and written once."""

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.objects import EXECUTABLE, FILE, SYMLINK, Entry
from elsa_build.kernels.source import materialise


@pytest.fixture
def tree(story):
    """A tree with a program, a link, and a file beside the package."""
    objects = story.git.objects
    blob = objects.write("blob", b"SIZE = 1\n")
    entries = {
        "python/sglang/__init__.py": Entry(FILE, blob),
        "python/sglang/deep/kernel.py": Entry(FILE, blob),
        "python/sglang/run.sh": Entry(EXECUTABLE, objects.write("blob", b"#!/bin/sh\n")),
        "python/sglang/link.py": Entry(SYMLINK, objects.write("blob", b"deep/kernel.py")),
        "docs/page.md": Entry(FILE, blob),
    }
    return objects.edit(None, entries)


def test_the_package_is_written_with_its_modes_and_links_and_nothing_else(story, tree, tmp_path):
    place = materialise(story.git.objects, tree, tmp_path / "trees")

    found = {path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir()}
    assert found == {f"sglang/{n}" for n in ("__init__.py", "deep/kernel.py", "run.sh", "link.py")}
    assert (place / "sglang/link.py").readlink().as_posix() == "deep/kernel.py"
    assert (place / "sglang/run.sh").stat().st_mode & 0o777 == 0o755
    assert (place / "sglang/deep/kernel.py").stat().st_mode & 0o777 == 0o644
    assert place.stat().st_mode & 0o777 == 0o755


def test_one_tree_is_written_once_and_two_trees_with_one_package_share_it(story, tree, tmp_path):
    objects = story.git.objects
    first = materialise(objects, tree, tmp_path / "trees")
    (first / "sglang/mark").touch()
    other = objects.edit(tree, {"docs/page.md": None})

    assert materialise(objects, other, tmp_path / "trees") == first
    assert (first / "sglang/mark").exists()
    assert [path.name for path in (tmp_path / "trees").iterdir()] == [first.name]


def test_another_package_is_another_folder(story, tree, tmp_path):
    objects = story.git.objects
    changed = objects.edit(
        tree, {"python/sglang/deep/kernel.py": Entry(FILE, objects.write("blob", b"SIZE = 2\n"))}
    )

    first, second = (materialise(objects, one, tmp_path / "trees") for one in (tree, changed))

    assert (first / "sglang/deep/kernel.py").read_text() == "SIZE = 1\n"
    assert (second / "sglang/deep/kernel.py").read_text() == "SIZE = 2\n"


@pytest.mark.parametrize("path", ["docs/page.md", "python/sglang"])
def test_a_tree_without_the_package_is_an_error(story, tmp_path, path):
    objects = story.git.objects
    tree = objects.edit(None, {path: Entry(FILE, objects.write("blob", b"text\n"))})

    with pytest.raises(ConfigError, match="has no folder python/sglang"):
        materialise(objects, tree, tmp_path / "trees")


def test_a_place_that_cannot_be_written_is_said_and_nothing_is_left(story, tree, tmp_path):
    (tmp_path / "trees").write_text("a file\n")

    with pytest.raises(ToolError, match="cannot write the patched tree"):
        materialise(story.git.objects, tree, tmp_path / "trees")

    assert (tmp_path / "trees").read_text() == "a file\n"
