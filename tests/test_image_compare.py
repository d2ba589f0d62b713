from dataclasses import replace

from elsa_build.images.build import build
from elsa_build.images.compare import Fate, FileDiff, compare
from tests.imaging import POOL, WHERE, destination, opened, prepared, recipe, tar, write_base


def image(story, folder, patch=None, **changes):
    ready = prepared(story, folder, patch, **changes)
    return opened(build(ready, destination(folder, archive=False)).layout)


def package_files(found):
    return [file for file in found.files if file.path.startswith(WHERE)]


def test_equal_images_have_no_difference(story, tmp_path):
    found = compare(image(story, tmp_path / "a"), image(story, tmp_path / "b"))

    assert found.same
    assert (found.files, found.moved) == ((), 0)


def test_an_edited_patch_is_named_as_the_reason(story, tmp_path):
    old = image(story, tmp_path / "a", {"python/sglang/pool.py": "SIZE = 2\n"})
    new = image(story, tmp_path / "b", {"python/sglang/pool.py": "SIZE = 3\n"})

    found = compare(old, new)

    assert [(layer.name, layer.fate) for layer in found.layers] == [
        ("upstream", Fate.SAME),
        (POOL, Fate.CHANGED),
        ("provenance", Fate.CHANGED),
    ]
    assert found.layers[1].why == ("patch bigger-pool changed",)
    assert package_files(found) == [
        FileDiff(path=f"{WHERE}/sglang/pool.py", fate=Fate.CHANGED, patches=("bigger-pool",))
    ]


def test_what_a_pull_moves_is_the_stored_size_of_the_changed_layers(story, tmp_path):
    old = image(story, tmp_path / "a", {"python/sglang/pool.py": "SIZE = 2\n"})
    new = image(story, tmp_path / "b", {"python/sglang/pool.py": "SIZE = 3\n"})

    assert compare(old, new).moved == new.layers[1].size + new.layers[2].size


def test_a_dropped_patch_shows_the_file_as_it_was_upstream(story, tmp_path):
    old = image(story, tmp_path / "a", {"python/sglang/pool.py": "SIZE = 2\n"})
    new = image(story, tmp_path / "b", {}, series=())

    found = compare(old, new)

    assert {layer.name: (layer.fate, layer.why) for layer in found.layers}[POOL] == (
        Fate.REMOVED,
        ("patch bigger-pool removed",),
    )
    assert [file.fate for file in package_files(found)] == [Fate.CHANGED]


def test_added_removed_and_moved_files_are_told_apart(story, tmp_path):
    old = image(story, tmp_path / "a", {"python/sglang/pool.py": "SIZE = 2\n"})
    patch = {
        "python/sglang/new.py": "NEW = 1\n",
        "python/sglang/old/__init__.py": None,
        "python/sglang/old/thing.py": None,
        "python/sglang/thing.py": "THING = 1\n",
        "python/sglang/pool.py": "SIZE = 2\n",
    }

    found = package_files(compare(old, image(story, tmp_path / "b", patch)))

    assert {(f.path.removeprefix(f"{WHERE}/sglang/"), f.fate) for f in found} == {
        ("new.py", Fate.ADDED),
        ("old/__init__.py", Fate.REMOVED),
        ("thing.py", Fate.MOVED),
    }
    assert next(f.source for f in found if f.source) == f"{WHERE}/sglang/old/thing.py"


def test_another_pin_is_the_reason_for_another_upstream_layer(story, tmp_path):
    old = image(story, tmp_path / "a")
    new = image(story, tmp_path / "b", files={"python/sglang/extra.py": "EXTRA = 1\n"})

    found = compare(old, new)

    assert found.layers[0].fate is Fate.CHANGED
    assert found.layers[0].why[0].startswith("tree: ")
    assert (f"{WHERE}/sglang/extra.py", Fate.ADDED) in [(f.path, f.fate) for f in found.files]


def test_another_recipe_changes_the_proof_alone(story, tmp_path):
    old = image(story, tmp_path / "a")
    new = image(story, tmp_path / "b", recipe=replace(recipe(), arch="sm_100"))

    found = compare(old, new)

    assert [layer.name for layer in found.layers if layer.fate is not Fate.SAME] == ["provenance"]
    assert found.layers[2].why == ("build.json: recipe",)


def test_images_of_other_tools_are_compared_by_their_layers(tmp_path):
    first, second, third = (tar({name: name.encode()}) for name in ("a", "b", "c"))
    old = write_base(tmp_path / "old", [first, second])
    new = write_base(tmp_path / "new", [first, third])

    found = compare(old, new)

    assert [layer.fate for layer in found.layers] == [Fate.SAME, Fate.CHANGED]
    assert {(file.path, file.fate) for file in found.files} == {
        ("/b", Fate.REMOVED),
        ("/c", Fate.ADDED),
    }
