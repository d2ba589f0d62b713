import zipfile
from dataclasses import replace

import pytest

from elsa_build.errors import FailedError
from elsa_build.images.build import build
from elsa_build.images.oci.store import digest_of
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

    assert (found.base, found.where) == (None, "/opt/elsa-overlay/python")
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


def wheel_of(tmp_path, body):
    wheel = tmp_path / "sglang-0.5.23-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/__init__.py", "")
        archive.writestr("sglang/_version.py", "version = '0.5.23'\n")
        archive.writestr("sglang/srt/_x.so", body)
    return wheel


def test_compiled_files_of_a_wheel_are_listed_and_read_when_they_are_needed(story, tmp_path):
    wheel = wheel_of(tmp_path, b"\x7fELF")

    found = compiled_files(wheel, prepared(story, tmp_path).pin, tmp_path / "cache")

    assert [(file.path, file.size) for file in found.files] == [
        ("srt/_x.so", 4),
        ("_version.py", 19),
    ]
    assert [found.read(file) for file in found.files] == [b"\x7fELF", b"version = '0.5.23'\n"]
    assert found.files[0].digest == digest_of(b"\x7fELF")
    assert found.wheel_sha256 == digest_of(wheel.read_bytes())[7:]


def test_a_wheel_is_scanned_once_and_another_wheel_of_that_name_again(story, tmp_path):
    pin, cache = prepared(story, tmp_path).pin, tmp_path / "cache"
    first = compiled_files(wheel_of(tmp_path, b"\x7fELF"), pin, cache)
    (note,) = (cache / "notes").iterdir()
    note.write_text(note.read_text().replace("srt/_x.so", "srt/_noted.so"))

    noted = compiled_files(wheel_of(tmp_path, b"\x7fELF"), pin, cache)
    other = compiled_files(wheel_of(tmp_path, b"\x7fELF 2"), pin, cache)

    assert [file.path for file in first.files] == ["srt/_x.so", "_version.py"]
    assert [file.path for file in noted.files] == ["srt/_noted.so", "_version.py"]
    assert other.files[0].size == 6


def test_the_second_look_into_a_base_reads_no_layer(ready, tmp_path):
    chosen = on(tmp_path, HELD)
    first = ready(recipe=chosen)
    blob = tmp_path / "base" / first.base.image.layers[0].file
    blob.write_bytes(bytes(blob.stat().st_size))

    again = ready(recipe=chosen)

    assert (again.where, again.base.paths) == (first.where, first.base.paths)
    assert len(first.base.paths) == len(HELD)


def test_another_pin_is_looked_for_again(ready, tmp_path):
    chosen = on(tmp_path, HELD)
    first = ready(recipe=chosen)

    with pytest.raises(FailedError, match="is not the pinned tree"):
        ready(recipe=chosen, pin=replace(first.pin, tree=first.trees.patched))


@pytest.mark.parametrize("text", ["", "{}", '{"paths": 1}', "[]"])
def test_a_broken_note_is_no_note(ready, tmp_path, text):
    first = ready(recipe=on(tmp_path, HELD))
    (note,) = (tmp_path / "cache/notes").glob("base-*")
    note.write_text(text)

    again = ready(recipe=replace(first.recipe))

    assert again.base.paths == first.base.paths
    assert note.stat().st_size > len(text)
