import gzip
import os
import threading
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.oci.contents import Sort, visible
from elsa_build.images.oci.layer import Blob
from elsa_build.images.oci.store import BlobStore, digest_of
from elsa_build.images.oci.stored import UnreadableLayerError
from tests.imaging import opened, shown, tar, write_base


def image(tmp_path, *layers):
    return write_base(tmp_path / "image", [tar(layer) for layer in layers])


def test_the_upper_layer_wins(tmp_path):
    stack = image(tmp_path, {"a": b"old", "b": b"kept"}, {"./a": b"new"})

    assert shown(stack) == {"a": b"new", "b": b"kept"}


def test_a_whiteout_hides_a_file_of_the_layers_below_only(tmp_path):
    stack = image(tmp_path, {"d/a": b"1", "d/b": b"1"}, {"d/.wh.a": b""}, {"d/a": b"again"})

    assert shown(stack) == {"d/a": b"again", "d/b": b"1"}


def test_a_whiteout_of_a_folder_hides_all_in_it(tmp_path):
    stack = image(tmp_path, {"d/a": b"", "d/e/f": b"", "dx": b""}, {".wh.d": b""})

    assert shown(stack) == {"dx": b""}


def test_an_opaque_folder_shows_only_what_its_own_layer_brings(tmp_path):
    stack = image(tmp_path, {"d/a": b"", "e": b""}, {"d/new": b"", "d/.wh..wh..opq": b""})

    assert set(shown(stack)) == {"d/new", "e"}


def test_a_file_in_the_place_of_a_folder_hides_what_was_in_it(tmp_path):
    stack = image(tmp_path, {"d/a": b""}, {"d": b"file"})

    assert shown(stack) == {"d": b"file"}


def test_a_folder_in_the_place_of_a_file_hides_the_file(tmp_path):
    stack = image(tmp_path, {"d": b"file"}, {"d": None, "d/a": b""})

    assert shown(stack) == {"d/a": b""}


def test_the_last_of_two_entries_in_one_layer_wins(tmp_path):
    body = tar({"a": b"first"})[:-1024].rstrip(b"\0")
    body += bytes(-len(body) % 512) + tar({"a": b"last"})

    stack = write_base(tmp_path / "image", [body])

    assert visible(stack, lambda _: True)["a"].digest == digest_of(b"last")


def test_reading_stops_above_a_layer_that_cannot_decide_anything(tmp_path):
    zstd = b"\x28\xb5\x2f\xfd nothing that can be read here"
    top = tar({"d/a": b"new", "d/.wh.b": b""})
    stack = write_base(tmp_path / "image", [zstd, top])
    wanted = {"d/a", "d/b"}

    seen = visible(stack, wanted.__contains__, only=wanted)

    assert {path: held.sort for path, held in seen.items()} == {"d/a": Sort.FILE}


def test_a_zstd_layer_that_has_to_be_read_says_what_is_missing(tmp_path):
    stack = write_base(tmp_path / "image", [b"\x28\xb5\x2f\xfd" + bytes(20)])

    with pytest.raises(UnreadableLayerError, match="zstd") as caught:
        shown(stack)

    assert caught.value.hint == "pip install zstandard"


@pytest.mark.parametrize("cut", [20, 200])
def test_a_layer_that_ends_early_is_named(tmp_path, cut):
    packed = gzip.compress(tar({"a": os.urandom(5000)}))[:-cut]
    stack = write_base(
        tmp_path / "image",
        [tar({})],
        stored=[packed],
        media_type="application/vnd.oci.image.layer.v1.tar+gzip",
    )

    with pytest.raises(ConfigError, match="broken layer"):
        shown(stack)


# --- the store --------------------------------------------------------------------------------


def put(store: BlobStore, body: bytes) -> Blob:
    def write(out):
        out.write(body)
        return Blob(digest=digest_of(body), diff_id=digest_of(body), size=len(body))

    return store.add(write)


def test_a_key_finds_its_blob_only_with_the_same_compressor(tmp_path):
    store = BlobStore(tmp_path)
    blob = put(store, b"layer")
    store.remember(digest_of(b"key"), "zlib-6/1.2.13", blob)

    assert store.recall(digest_of(b"key"), "zlib-6/1.2.13") == blob
    assert store.recall(digest_of(b"key"), "zlib-1/1.2.13") is None
    assert store.recall(digest_of(b"other"), "zlib-6/1.2.13") is None


@pytest.mark.parametrize("damage", ["blob gone", "blob cut", "entry broken"])
def test_a_damaged_cache_is_a_cache_without_the_layer(tmp_path, damage):
    store = BlobStore(tmp_path)
    blob = put(store, b"layer")
    store.remember(digest_of(b"key"), "zlib-6", blob)
    path = store.path(blob.digest)
    if damage == "blob gone":
        path.unlink()
    elif damage == "blob cut":
        path.chmod(0o644)
        path.write_bytes(b"lay")
    else:
        next((tmp_path / "keys").iterdir()).write_text('{"digest": ')

    assert store.recall(digest_of(b"key"), "zlib-6") is None


def test_an_error_while_a_blob_is_written_leaves_nothing(tmp_path):
    def write(out):
        out.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BlobStore(tmp_path).add(write)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_is_a_tool_error_and_leaves_nothing(tmp_path):
    def write(out):
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(ToolError, match="No space left on device") as caught:
        BlobStore(tmp_path).add(write)

    assert "free space" in caught.value.hint
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_a_killed_run_left_is_swept_away_and_what_a_living_one_writes_is_not(tmp_path):
    store = BlobStore(tmp_path)
    put(store, b"first")
    left = tmp_path / "blobs/sha256/.new-killed"
    left.write_bytes(b"half")
    seen = []

    def write(out):
        thread = threading.Thread(target=put, args=(store, b"second"))
        thread.start()
        thread.join()
        seen.extend(path.name for path in left.parent.glob(".new-*"))
        out.write(b"third")
        return Blob(digest=digest_of(b"third"), diff_id=digest_of(b"third"), size=5)

    store.add(write)

    assert not left.exists()
    assert len(seen) == 1
    assert store.path(digest_of(b"third")).read_bytes() == b"third"


def test_a_base_blob_is_linked_and_not_changed(tmp_path):
    base = write_base(tmp_path / "base", [tar({"a": b"1"})])
    layer = base.layers[0]
    path = base.source.path(layer.file)
    before = path.stat()

    kept = BlobStore(tmp_path / "cache").take(
        lambda: base.source.open(layer.file), layer.digest, layer.size, path
    )

    assert kept.samefile(path)
    assert (path.stat().st_mode, path.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert opened(tmp_path / "base").layers == base.layers
