"""Looking inside a base: where SGLang is, and whether it is the pinned one."""

import json
import sys
import tarfile
import zipfile

import pytest

from elsa_build.errors import ConfigError, FailedError
from elsa_build.git.door import Git
from elsa_build.git.objects import blob_id
from elsa_build.images.base import check, inspect, open_base
from elsa_build.images.oci.stored import UnreadableLayerError
from tests import release
from tests.layouts import layer, layout

SITE = "usr/local/lib/python3.12/dist-packages"
SOURCE = "opt/src/python"
SOURCES = {
    "sglang/__init__.py": b"",
    "sglang/version.py": b"__version__ = '0'\n",
    "sglang/srt/pool.py": b"pool = 1\n",
}
TREE = {path: blob_id(body) for path, body in SOURCES.items()}


def installed(where=SITE, **changed):
    """Return the files of an ordinary installation below a folder."""
    files = {f"{where}/{path}": body for path, body in SOURCES.items()}
    files |= {
        f"{where}/sglang-0.5.23.dist-info/METADATA": b"Name: sglang\n",
        f"{where}/sglang/_version.py": b"stamp\n",
        f"{where}/sglang/srt/core.cpython-312-x86_64-linux-gnu.so": b"ELF",
        f"{where}/sglang/srt/__pycache__/pool.cpython-312.pyc": b"pyc",
    }
    return files | {f"{where}/{path}": body for path, body in changed.items()}


def look(tmp_path, *layers, package_dir=None, tree=TREE, zipped=True):
    base = open_base(layout(tmp_path / "base", [layer(files) for files in layers], zipped=zipped))
    return inspect(base, tree, package_dir=package_dir)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_wheel_installation_is_found_and_equal_whatever_is_compiled_in_it(tmp_path, zipped):
    found = look(tmp_path, {"bin/sh": b"x"}, installed(), zipped=zipped)

    assert (found.package_dir, found.python, found.editable) == (f"/{SITE}", "3.12", False)
    assert found.equal
    assert "sglang/srt/__pycache__/pool.cpython-312.pyc" in found.paths
    assert "sglang/srt/core.cpython-312-x86_64-linux-gnu.so" in found.paths
    check(found, base="b", commit="c", python="3.12")


def editable(**extra):
    """Return an editable installation: the metadata in one place, the package in another."""
    info = f"{SITE}/sglang-0.5.23.dist-info"
    url = {"url": f"file:///{SOURCE}", "dir_info": {"editable": True}}
    return {
        f"{info}/METADATA": b"Name: sglang\n",
        f"{info}/direct_url.json": json.dumps(url).encode(),
        **{f"{SOURCE}/{path}": body for path, body in SOURCES.items()},
        **extra,
    }


def test_an_editable_installation_is_found_where_it_points(tmp_path):
    found = look(tmp_path, editable())

    assert (found.package_dir, found.python, found.editable) == (f"/{SOURCE}", "3.12", True)
    assert found.equal


def test_an_old_editable_installation_is_found_by_its_pth_file(tmp_path):
    files = {f"{SOURCE}/{path}": body for path, body in SOURCES.items()}
    cache = {f"root/cache/{path}": body for path, body in SOURCES.items()}

    found = look(
        tmp_path, files | cache | {f"{SITE}/__editable__.sglang-0.pth": b"/opt/src/python\n"}
    )

    assert (found.package_dir, found.editable) == (f"/{SOURCE}", True)


def test_a_copy_in_a_cache_does_not_count_beside_one_that_python_imports(tmp_path):
    cache = {f"root/.cache/uv/archive-v0/x/{path}": body for path, body in SOURCES.items()}

    assert look(tmp_path, installed() | cache).package_dir == f"/{SITE}"


def test_files_that_were_linked_from_a_cache_are_hashed(tmp_path):
    body = SOURCES["sglang/srt/pool.py"]
    files = {"root/.cache/blobs/1": body} | installed()
    files[f"{SITE}/sglang/srt/pool.py"] = "=> root/.cache/blobs/1"

    assert look(tmp_path, files).equal


def test_names_with_a_leading_dot_are_the_same_names(tmp_path):
    assert look(tmp_path, {f"./{path}": body for path, body in installed().items()}).equal


# --- layers -----------------------------------------------------------------------------------


def test_the_topmost_version_of_a_file_counts(tmp_path):
    older = installed(**{"sglang/srt/pool.py": b"older\n"})

    assert look(tmp_path, older, {f"{SITE}/sglang/srt/pool.py": b"pool = 1\n"}).equal
    found = look(tmp_path / "2", installed(), {f"{SITE}/sglang/srt/pool.py": b"patched\n"})
    assert found.changed == ("sglang/srt/pool.py",)


def test_a_deleted_file_is_missing(tmp_path):
    found = look(tmp_path, installed(), {f"{SITE}/sglang/srt/.wh.pool.py": b""})

    assert (found.missing, found.changed, found.extra) == (("sglang/srt/pool.py",), (), ())


def test_a_deleted_folder_takes_everything_below_it_away(tmp_path):
    extra = installed(**{"sglang/old/a.py": b"", "sglang/old/b/c.py": b""})

    assert look(tmp_path, extra, {f"{SITE}/sglang/.wh.old": b""}).equal


def test_an_opaque_folder_hides_only_what_is_below_its_layer(tmp_path):
    old = installed(**{"sglang/srt/old.py": b""})
    new = {f"{SITE}/sglang/srt/.wh..wh..opq": b"", f"{SITE}/sglang/srt/pool.py": b"pool = 1\n"}

    found = look(tmp_path, old, new)

    assert found.equal
    assert "sglang/srt/__pycache__/pool.cpython-312.pyc" not in found.paths


def test_a_link_on_top_of_a_folder_hides_the_folder(tmp_path):
    found = look(tmp_path, installed(), {f"{SITE}/sglang/srt": "-> /elsewhere"})

    assert (found.missing, found.extra) == (("sglang/srt/pool.py",), ("sglang/srt",))


def test_a_folder_on_top_of_a_file_hides_the_file(tmp_path):
    old = installed(**{"sglang/srt/x": b"a file"})

    found = look(tmp_path, old, {f"{SITE}/sglang/srt/x": None, f"{SITE}/sglang/srt/x/y.py": b""})

    assert found.extra == ("sglang/srt/x/y.py",)


# --- folders ----------------------------------------------------------------------------------


def test_folders_that_a_delta_writes_into_are_told_when_they_are_not_755_and_roots(tmp_path):
    home = "home/u/python"
    folders = {
        "home": (0o711, 0, 0),
        "home/u": (0o700, 1000, 1000),
        home: None,
        f"{home}/sglang": (0o2750, 1000, 1000),
        f"{home}/sglang/srt": (0o700, 1000, 1000),
        "home/other": (0o700, 1001, 1001),
        "opt": (0o775, 0, 50),
        "root": (0o700, 0, 0),
    }

    found = look(tmp_path, folders | installed(home))

    assert {path: str(folder) for path, folder in found.folders.items()} == {
        "home": "711 0:0",
        "home/u": "700 1000:1000",
        f"{home}/sglang": "2750 1000:1000",
        f"{home}/sglang/srt": "700 1000:1000",
        "opt": "775 0:50",
    }


def test_the_topmost_entry_says_how_a_folder_is_kept(tmp_path):
    lower = {"opt": (0o700, 1, 1), "opt/elsa": (0o700, 2, 2), **installed()}
    upper = {"opt": None, "opt/.wh.elsa": b""}

    assert look(tmp_path, lower, upper).folders == {}


@pytest.mark.parametrize("name", ["opt", "opt/elsa"])
def test_a_link_where_our_folder_must_be_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"the base has a link at /{name}, where"):
        look(tmp_path, {name: "-> /data", **installed()})


def test_a_link_that_an_upper_layer_replaced_by_a_folder_is_none(tmp_path):
    assert look(tmp_path, {"opt": "-> /data", **installed()}, {"opt": None}).equal


# --- refusals ---------------------------------------------------------------------------------


def test_another_tree_is_refused_with_the_files_that_differ(tmp_path):
    files = installed(**{"sglang/srt/pool.py": b"other\n", "sglang/plugin.py": b""})
    del files[f"{SITE}/sglang/version.py"]
    found = look(tmp_path, files)

    with pytest.raises(FailedError) as caught:
        check(found, base="some/image", commit="f" * 40, python="3.12")

    first, *listed = str(caught.value).splitlines()
    assert first.startswith(f"base some/image: /{SITE}/sglang is not the pinned tree of {'f' * 40}")
    assert first.endswith(": 3 files differ (1 changed, 1 missing, 1 extra)")
    assert listed == [
        "  changed  sglang/srt/pool.py",
        "  missing  sglang/version.py",
        "  extra    sglang/plugin.py",
    ]


def test_many_differences_are_counted_and_twenty_are_named(tmp_path):
    extra = {f"sglang/m{number:02}.py": b"" for number in range(30)}
    found = look(tmp_path, installed(**extra))

    with pytest.raises(FailedError) as caught:
        check(found, base="b", commit="c", python="3.12")

    lines = str(caught.value).splitlines()
    assert "30 files differ" in lines[0]
    assert (len(lines), lines[20], lines[21]) == (22, "  extra    sglang/m19.py", "  and 10 more")


def test_another_python_than_the_recipes_is_refused(tmp_path):
    found = look(tmp_path, installed())

    with pytest.raises(FailedError, match=r"has Python 3\.12, the recipe says 3\.11"):
        check(found, base="b", commit="c", python="3.11")


def test_a_base_without_sglang_says_so(tmp_path):
    with pytest.raises(ConfigError, match="the base holds no sglang"):
        look(tmp_path, {"bin/sh": b"x"})


def test_two_installations_are_a_question(tmp_path):
    two = "opt/venv/lib/python3.12/site-packages"

    with pytest.raises(ConfigError) as caught:
        look(tmp_path, installed() | installed(two))

    assert f"in several places: /{two}, /{SITE}" in str(caught.value)
    assert look(tmp_path / "2", installed() | installed(two), package_dir=f"/{two}").equal


def test_an_editable_installation_beside_another_one_is_a_question(tmp_path):
    with pytest.raises(ConfigError, match="in several places"):
        look(tmp_path, installed() | editable())


def test_a_recipe_that_names_another_place_is_told_where_it_is(tmp_path):
    with pytest.raises(
        ConfigError, match=rf"package_dir: no sglang in /opt/x of the base; it is in /{SITE}"
    ):
        look(tmp_path, installed(), package_dir="/opt/x")


def test_a_package_of_that_name_inside_the_package_is_not_another_one(tmp_path):
    files = installed(**{"sglang/test/sglang/__init__.py": b""})

    assert look(tmp_path, files).package_dir == f"/{SITE}"


def test_a_missing_blob_is_named(tmp_path):
    folder = layout(tmp_path / "base", [layer(installed())])
    blob = folder / open_base(folder).layers[0].file
    blob.unlink()

    with pytest.raises(ConfigError, match=blob.name):
        open_base(folder)


def test_a_layer_that_is_cut_short_is_an_error_not_a_smaller_tree(tmp_path):
    body = layer(installed())
    base = open_base(layout(tmp_path / "base", [body[: len(body) // 2]]))

    with pytest.raises(ConfigError, match="broken layer"):
        inspect(base, TREE)


def test_an_image_for_another_machine_is_refused(tmp_path):
    folder = layout(tmp_path / "base", [layer(installed())], architecture="arm64")

    with pytest.raises(ConfigError, match="is for linux/arm64, not linux/amd64"):
        open_base(folder)


def test_a_damaged_layer_is_an_error(tmp_path):
    folder = layout(tmp_path / "base", [layer(installed())])
    base = open_base(folder)
    blob = folder / base.layers[0].file
    body = bytearray(blob.read_bytes())
    body[len(body) // 2 :] = bytes(len(body) - len(body) // 2)
    blob.write_bytes(body)

    with pytest.raises(ConfigError, match="broken layer"):
        inspect(base, TREE)


@pytest.mark.parametrize("made", ["nothing", "empty folder", "text"])
def test_what_is_no_image_is_refused(tmp_path, made):
    path = tmp_path / "base"
    if made == "empty folder":
        path.mkdir()
    elif made == "text":
        path.write_text("hello")

    with pytest.raises(ConfigError):
        open_base(path)


@pytest.mark.skipif("zstandard" in sys.modules, reason="a zstd module is installed")
def test_a_zstd_layer_says_what_is_missing(tmp_path):
    base = open_base(layout(tmp_path / "base", [b"\x28\xb5\x2f\xfd rest"], zipped=False))

    with pytest.raises(UnreadableLayerError) as caught:
        inspect(base, TREE)

    assert caught.value.hint == "pip install zstandard"


def test_an_archive_of_a_layout_is_read_like_the_layout(tmp_path):
    folder = layout(tmp_path / "base", [layer(installed())])
    archive = tmp_path / "base.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder, arcname=".")

    assert inspect(open_base(archive), TREE).equal


# --- the real wheel ---------------------------------------------------------------------------


@pytest.mark.wheel
def test_the_real_wheel_installed_is_the_pinned_tree_and_one_changed_byte_is_seen(tmp_path):
    pin, path, source = release.fetch(tmp_path)
    with Git(source.ensure(pin)) as git:
        files = git.objects.files(git.objects.find(git.resolve(pin.commit, "tree"), "python").oid)
        tree = {name: entry.oid for name, entry in files}
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
        unpacked = {f"{SITE}/{name}": wheel.read(name) for name in names}
    wheel_layer = layer(unpacked)
    edited = layer({f"{SITE}/sglang/srt/server_args.py": b"#\n"})
    folder = layout(tmp_path / "base", [wheel_layer], zipped=False)
    second = layout(tmp_path / "edited", [wheel_layer, edited], zipped=False)

    equal = inspect(open_base(folder), tree)
    other = inspect(open_base(second), tree)

    assert (equal.package_dir, equal.python) == (f"/{SITE}", "3.12")
    assert equal.equal
    assert other.changed == ("sglang/srt/server_args.py",)
    assert not other.missing
    assert not other.extra
