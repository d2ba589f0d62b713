import zipfile
from dataclasses import replace

import pytest

from elsa_build.errors import FailedError
from elsa_build.images.build import build
from elsa_build.images.prepare import compiled_files, prepare
from elsa_build.images.verify import verify
from elsa_build.model import Kind, Outcome, Patch, Replay, Status, Step
from tests.imaging import EPOCH, destination, opened, prepared, recipe, shown, tar, write_base

SITE = "usr/lib/python3.12/site-packages"
HELD = {
    "sglang/__init__.py": b"",
    "sglang/pool.py": b"SIZE = 1\n",
    "sglang/__pycache__/pool.cpython-312.pyc": b"old",
    "sglang/_version.py": b"version = '0.5.23'\n",
}


@pytest.fixture
def ready(story, tmp_path):
    """Call `prepare` as a project does, for a package of two files with one patch."""

    def call(**changes):
        files = {f"python/{path}": body for path, body in HELD.items() if body != b"old"}
        del files["python/sglang/_version.py"]
        base = story.commit(None, "upstream", files)
        head = story.commit(base, "ours", {"python/sglang/pool.py": "SIZE = 2\n"})
        tree = story.git.commit(head).tree
        (tmp_path / "small.yaml").write_text("a recipe\n")
        (tmp_path / "0001.patch").write_text("a mail\n")
        patch = Patch(
            id="bigger-pool", patchset="one", file=tmp_path / "0001.patch", line=1,
            kind=Kind.LOCAL, status=Status.KEPT, why="it was too small", mail=None,
        )  # fmt: skip
        step = Step(patch=patch, outcome=Outcome.CLEAN, tree=tree, commit=head)
        pin = replace(prepared(story, tmp_path).pin, commit=base, tree=story.git.commit(base).tree)
        given = {
            "pin": pin,
            "recipe": recipe(path=tmp_path / "small.yaml", package_dir=None),
            "done": Replay(onto=base, steps=(step,), head=head, tree=tree),
            "objects": story.git.objects,
            "lock": b"# a lock\n",
            "cache": tmp_path / "cache",
        }
        return prepare(**(given | changes))

    return call


def on(tmp_path, files):
    write_base(tmp_path / "base", [tar({f"{SITE}/{path}": body for path, body in files.items()})])
    return recipe(path=tmp_path / "small.yaml", package_dir=None, base_layout=tmp_path / "base")


def test_the_date_of_the_pin_is_the_date_of_every_file(ready):
    assert ready().epoch == EPOCH


def test_without_a_base_an_overlay_is_prepared_at_a_place_of_our_own(ready):
    found = ready()

    assert (found.base, found.where) == (None, "/opt/elsa/overlay/python")
    assert found.series[0].sha256 is not None


def test_on_a_base_the_delta_lands_where_the_look_inside_found_the_package(ready, tmp_path):
    found = ready(recipe=on(tmp_path, HELD))

    image = opened(build(found, destination(tmp_path)).layout)

    files = shown(image)
    assert found.where == f"/{SITE}"
    assert files[f"{SITE}/sglang/pool.py"] == b"SIZE = 2\n"
    assert not any(path.endswith(".pyc") for path in files)
    assert verify(image).findings == ()


def test_a_base_with_another_tree_is_refused_with_the_files_that_differ(ready, tmp_path):
    other = on(tmp_path, HELD | {"sglang/pool.py": b"SIZE = 7\n"})

    with pytest.raises(FailedError, match=r"changed  sglang/pool\.py"):
        ready(recipe=other)


def test_compiled_files_of_a_wheel_are_read_when_they_are_needed(tmp_path):
    wheel = tmp_path / "sglang-0.5.23-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/__init__.py", "")
        archive.writestr("sglang/_version.py", "version = '0.5.23'\n")
        archive.writestr("sglang/srt/_x.so", b"\x7fELF")

    found = compiled_files(wheel)

    assert found.paths == ("srt/_x.so", "_version.py")
    assert dict(found.read()) == {"srt/_x.so": b"\x7fELF", "_version.py": b"version = '0.5.23'\n"}
