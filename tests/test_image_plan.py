import importlib.util
import marshal
import sys
from dataclasses import replace

import pytest

from elsa_build.errors import ConfigError
from elsa_build.git.objects import Entry
from elsa_build.images.bytecode import compiled, module_of, runs_here, stale_pyc
from elsa_build.images.delta import delta_of, hidden
from elsa_build.images.ingredients import Base, PlannedLayer
from elsa_build.images.oci.layer import File, Folder, Symlink, Whiteout
from elsa_build.images.plan import PATCH_LAYERS, layers
from tests.imaging import (
    POOL,
    UPSTREAM,
    WHERE,
    compiled_file,
    prepared,
    tar,
    write_base,
)

ROOT = WHERE.strip("/")
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


def by_name(ready):
    return {layer.name: layer for layer in layers(ready)}


def members(layer):
    return {member.path: member for member in layer.members()}


def patched_members(ready):
    """Return the members of all layers of patched files."""
    layers = [layer for name, layer in by_name(ready).items() if name.startswith("patches-")]
    return {path: member for layer in layers for path, member in members(layer).items()}


def test_the_layers_are_upstream_and_the_patched_files_only(story, tmp_path):
    found = by_name(prepared(story, tmp_path))

    assert list(found) == ["upstream", POOL]
    assert set(members(found[POOL])) == {f"{ROOT}/sglang/pool.py"}
    assert set(members(found["upstream"])) == {
        f"{ROOT}/{path.removeprefix('python/')}" for path in UPSTREAM if "/sglang/" in path
    }


def test_another_patch_changes_the_key_of_the_patches_alone(story, tmp_path):
    one = by_name(prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 2\n"}))
    two = by_name(prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 3\n"}))

    assert one["upstream"].key == two["upstream"].key
    assert one[POOL].key != two[POOL].key


def test_an_edit_moves_the_files_it_touches_whatever_else_the_series_holds(story, tmp_path):
    series = {f"python/sglang/large{number}.py": "X = 1\n" for number in range(40)}
    one = by_name(prepared(story, tmp_path, series))
    two = by_name(prepared(story, tmp_path, series | {"python/sglang/large7.py": "X = 2\n"}))

    changed = [name for name in one if one[name].key != two[name].key]

    assert len(changed) == 1
    assert len(one) <= 1 + PATCH_LAYERS
    assert f"{ROOT}/sglang/large7.py" in members(two[changed[0]])
    assert len(members(two[changed[0]])) <= 5


def test_no_two_layers_of_patched_files_speak_of_one_path(story, tmp_path):
    patch = {f"python/sglang/large{number}.py": "X = 1\n" for number in range(40)}
    ready = prepared(story, tmp_path, patch | {"python/sglang/pool.py": None}, bytecode=HERE)

    found = [members(layer) for layer in layers(ready) if layer.name != "upstream"]

    assert sum(map(len, found)) == len({path for layer in found for path in layer})


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1},
        {"package_dir": "/elsewhere"},
        {"files": {"python/sglang/more.py": ""}},
        {"compiled": compiled_file("old/_x.so", b"elf")},
        {"bytecode": HERE},
    ],
)
def test_everything_that_decides_upstreams_layer_is_in_its_key(story, tmp_path, change):
    before = by_name(prepared(story, tmp_path))["upstream"]

    after = by_name(prepared(story, tmp_path, **change))["upstream"]

    assert after.key != before.key


def test_a_change_outside_the_package_is_in_no_layer_and_is_said(story, tmp_path):
    ready = prepared(story, tmp_path, {"test/test_new.py": "", "python/pyproject.toml": "[x]\n"})

    assert list(by_name(ready)) == ["upstream"]
    assert ready.trees.outside() == ("python/pyproject.toml", "test/test_new.py")


def test_compiled_extensions_of_the_release_are_in_upstreams_layer(story, tmp_path):
    extension = compiled_file("srt/_x.so", b"\x7fELF")

    layer = by_name(prepared(story, tmp_path, compiled=extension))["upstream"]

    assert members(layer)[f"{ROOT}/sglang/srt/_x.so"].body() == b"\x7fELF"


def test_modes_and_links_come_from_git(story, tmp_path):
    ready = prepared(story, tmp_path)
    objects = story.git.objects
    patched = objects.edit(
        ready.trees.patched,
        {
            "python/sglang/run.sh": Entry("100755", objects.write("blob", b"#!/bin/sh\n")),
            "python/sglang/link.py": Entry("120000", objects.write("blob", b"pool.py")),
        },
    )
    changed = prepared(story, tmp_path, trees=type(ready.trees)(
        objects=objects, upstream=ready.trees.upstream, patched=patched))  # fmt: skip

    found = patched_members(changed)

    assert isinstance(found[f"{ROOT}/sglang/run.sh"], File)
    assert found[f"{ROOT}/sglang/run.sh"].executable
    assert found[f"{ROOT}/sglang/link.py"] == Symlink(
        path=f"{ROOT}/sglang/link.py", target="pool.py"
    )


def test_a_submodule_is_refused(story, tmp_path):
    ready = prepared(story, tmp_path)
    objects = story.git.objects
    patched = objects.edit(ready.trees.patched, {"python/sglang/sub": Entry("160000", "1" * 40)})
    broken = prepared(story, tmp_path, trees=type(ready.trees)(
        objects=objects, upstream=ready.trees.upstream, patched=patched))  # fmt: skip

    with pytest.raises(ConfigError, match="sglang/sub: a submodule"):
        layers(broken)


def test_a_tree_without_the_package_is_refused(story, tmp_path):
    ready = prepared(story, tmp_path)
    empty = story.git.commit(story.commit(None, "nothing", {"README": ""})).tree

    with pytest.raises(ConfigError, match="has no folder python/sglang"):
        ready.trees.package(empty)


@pytest.fixture
def on_base(story, tmp_path):
    """A delta on a base whose package and whose `/opt` belong to somebody."""
    folders = {
        ROOT.partition("/")[0]: Folder(mode=0o711),
        f"{ROOT}/sglang/srt": Folder(mode=0o700, uid=1000, gid=1000),
        "opt/elsa/cache": Folder(uid=7),
    }
    image = write_base(tmp_path / "base", [tar({"bin/sh": b""})])
    base = Base(name="b", image=image, paths=frozenset(), folders=folders)
    patch = {"python/sglang/pool.py": "SIZE = 2\n", "python/sglang/srt/engine.py": "X = 1\n"}
    return prepared(story, tmp_path, patch, base=base)


def test_each_layer_says_again_how_the_base_keeps_the_folders_above_its_files(on_base):
    found = {name: layer.inputs.get("folders") for name, layer in by_name(on_base).items()}

    assert found.pop(POOL) == {"opt": "711 0:0"}
    assert list(found.values()) == [{"opt": "711 0:0", f"{ROOT}/sglang/srt": "700 1000:1000"}]


def test_a_layer_of_kernels_keeps_every_folder_of_ours_in_the_base(on_base):
    kernels = PlannedLayer(name="kernels", inputs={"arch": "sm_120"}, members=tuple)

    layer = by_name(replace(on_base, kernels=(kernels,)))["kernels"]

    assert {path: str(folder) for path, folder in layer.folders.items()} == {
        "opt": "711 0:0",
        "opt/elsa/cache": "755 7:0",
    }
    assert layer.key != kernels.key


# --- what goes --------------------------------------------------------------------------------


def test_a_deleted_file_is_hidden(story, tmp_path):
    ready = prepared(story, tmp_path, {"python/sglang/pool.py": None})

    found = patched_members(ready)

    assert found == {f"{ROOT}/sglang/pool.py": Whiteout(path=f"{ROOT}/sglang/pool.py")}


def test_a_folder_that_a_patch_empties_goes_as_a_whole_so_that_it_cannot_be_imported(
    story, tmp_path
):
    ready = prepared(
        story,
        tmp_path,
        {"python/sglang/old/__init__.py": None, "python/sglang/old/thing.py": None},
    )

    delta = delta_of(ready)

    assert delta.absent == ("sglang/old",)
    assert delta.deleted == ("sglang/old/__init__.py", "sglang/old/thing.py")


def test_a_folder_with_a_compiled_extension_left_in_it_stays(story, tmp_path):
    extension = compiled_file("old/_x.so", b"elf")
    patch = {"python/sglang/old/__init__.py": None, "python/sglang/old/thing.py": None}

    delta = delta_of(prepared(story, tmp_path, patch, compiled=extension))

    assert delta.absent == ("sglang/old/__init__.py", "sglang/old/thing.py")


def test_a_file_that_becomes_a_folder_needs_no_whiteout(story, tmp_path):
    patch = {"python/sglang/pool.py": None, "python/sglang/pool.py/__init__.py": ""}

    delta = delta_of(prepared(story, tmp_path, patch))

    assert (set(delta.written), delta.absent) == ({"sglang/pool.py/__init__.py"}, ())


def test_a_folder_that_becomes_a_file_needs_no_whiteouts(story, tmp_path):
    patch = {
        "python/sglang/old/__init__.py": None,
        "python/sglang/old/thing.py": None,
        "python/sglang/old": "now a file\n",
    }

    delta = delta_of(prepared(story, tmp_path, patch))

    assert (set(delta.written), delta.absent) == ({"sglang/old"}, ())


def test_nothing_is_hidden_that_is_not_below():
    assert hidden(gone=(), written=("sglang/a.py",), lower=("sglang/b.py",)) == ()


# --- bytecode ---------------------------------------------------------------------------------

BASE = (
    "sglang/pool.py",
    "sglang/pool.pyc",
    "sglang/__pycache__/pool.cpython-312.pyc",
    "sglang/__pycache__/pool.cpython-312.opt-1.pyc",
    "sglang/__pycache__/pool_other.cpython-312.pyc",
    "sglang/srt/__pycache__/pool.cpython-312.pyc",
)


def test_every_compiled_copy_of_a_changed_module_is_stale_and_no_other_is():
    assert stale_pyc(BASE, {"sglang/pool.py"}) == (
        "sglang/__pycache__/pool.cpython-312.opt-1.pyc",
        "sglang/__pycache__/pool.cpython-312.pyc",
        "sglang/pool.pyc",
    )


def test_a_changed_file_that_is_no_python_leaves_no_bytecode():
    assert stale_pyc(BASE, {"sglang/pool", "sglang/pool.json"}) == ()


def test_a_module_at_the_top_has_its_bytecode_beside_it():
    assert module_of("__pycache__/a.cpython-312.pyc") == "a"
    assert module_of("a.pyc") == "a"
    assert module_of("a.py") is None


def test_bytecode_has_an_unchecked_hash_and_the_final_path_in_it():
    path, body = compiled("opt/sglang/pool.py", b"SIZE = 2\n", HERE)

    assert path == f"opt/sglang/__pycache__/pool.cpython-{HERE.replace('.', '')}.pyc"
    assert body[4:8] == b"\x01\0\0\0"
    assert marshal.loads(body[16:]).co_filename == "/opt/sglang/pool.py"


def test_bytecode_runs(tmp_path):
    path, body = compiled("pool.py", b"def size():\n    return {1, 2} and 'x' * 3\n", HERE)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_bytes(body)
    (tmp_path / "pool.py").write_text("raise SystemError('the source was read')\n")

    spec = importlib.util.spec_from_file_location("pool", tmp_path / "pool.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    assert module.size() == "xxx"


def test_bytecode_of_another_python_is_not_made():
    assert not runs_here("3.4")
    with pytest.raises(ConfigError, match=r"bytecode of Python 3\.4 cannot be made"):
        compiled("a.py", b"", "3.4")


@pytest.mark.parametrize("source", [b"{{ template }} !", b"x = '\0'"])
def test_a_file_that_is_no_python_despite_its_name_gets_no_bytecode(source):
    assert compiled("a.py", source, HERE) is None


def test_an_image_has_no_bytecode_unless_it_is_asked_for(story, tmp_path):
    found = by_name(prepared(story, tmp_path))

    assert not [path for layer in found.values() for path in members(layer) if "pyc" in path]


def test_asked_for_bytecode_is_in_the_layer_of_its_source(story, tmp_path):
    ready = prepared(story, tmp_path, bytecode=HERE)

    found = by_name(ready)

    tag = f"cpython-{HERE.replace('.', '')}"
    assert f"{ROOT}/sglang/__pycache__/pool.{tag}.pyc" in members(found[POOL])
    assert f"{ROOT}/sglang/srt/__pycache__/engine.{tag}.pyc" in members(found["upstream"])
