import gzip
import hashlib
import importlib.util
import io
import os
import random
import subprocess
import sys
import tarfile
import tracemalloc

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.oci.layer import (
    Compressor,
    File,
    Folder,
    Stream,
    Symlink,
    Whiteout,
    write_layer,
)

USUAL = Compressor()
MEMBERS = (
    File(path="opt/a/run.sh", body=b"#!/bin/sh\n", executable=True),
    File(path="opt/a/text", body=b"text\n"),
    Symlink(path="opt/link", target="a/text"),
    Whiteout(path="opt/b/gone.py"),
)


def layer(members=MEMBERS, *, mtime=1_700_000_000, compressor=USUAL, folders=None):
    out = io.BytesIO()
    blob = write_layer(members, out, mtime=mtime, compressor=compressor, folders=folders)
    return blob, out.getvalue()


def listing(body: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:gz") as tar:
        return tar.getmembers()


def test_digests_are_of_the_stored_bytes_and_of_the_plain_tar():
    blob, body = layer()

    assert blob.digest == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert blob.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(body)).hexdigest()}"
    assert blob.size == len(body)


def test_any_order_of_the_members_gives_the_same_bytes():
    mixed = list(MEMBERS)
    random.Random(7).shuffle(mixed)

    assert layer(mixed) == layer()


def test_members_are_sorted_and_each_folder_comes_once_before_what_is_in_it():
    _, body = layer()

    names = [member.name for member in listing(body)]

    assert names == ["opt", "opt/a", "opt/a/run.sh", "opt/a/text", "opt/b", "opt/b/.wh.gone.py",
                     "opt/link"]  # fmt: skip


def test_a_sibling_that_sorts_before_a_slash_does_not_split_a_folder():
    _, body = layer([File(path="a/b", body=b""), File(path="a-b", body=b"")])

    assert [member.name for member in listing(body)] == ["a", "a/b", "a-b"]


def test_owner_mode_and_date_are_fixed():
    _, body = layer()

    members = {member.name: member for member in listing(body)}

    assert {(m.uid, m.gid, m.uname, m.gname) for m in members.values()} == {(0, 0, "", "")}
    assert {m.mtime for m in members.values()} == {1_700_000_000}
    assert {m.mode for m in members.values() if m.isdir()} == {0o755}
    assert members["opt/a/run.sh"].mode == 0o755
    assert members["opt/a/text"].mode == 0o644


def test_folders_that_the_layers_below_keep_otherwise_stay_so():
    _, body = layer(folders={"opt/a": Folder(mode=0o2750, uid=1000, gid=70_000), "x": Folder()})

    members = {member.name: member for member in listing(body)}

    shown = {name: (m.mode, m.uid, m.gid) for name, m in members.items() if m.isdir()}
    assert shown == {
        "opt": (0o755, 0, 0),
        "opt/a": (0o2750, 1000, 70_000),
        "opt/b": (0o755, 0, 0),
    }


def test_a_deletion_is_an_empty_file_and_never_makes_a_folder_opaque():
    _, body = layer()

    marks = [member for member in listing(body) if "/.wh." in member.name]

    assert [(mark.name, mark.size, mark.isreg()) for mark in marks] == [
        ("opt/b/.wh.gone.py", 0, True)
    ]


def test_the_gzip_header_has_no_time_no_name_and_no_operating_system():
    _, body = layer()

    assert body[:10] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def test_pax_headers_are_there_only_where_a_plain_header_cannot_say_it():
    _, short = layer()
    _, long = layer([File(path="é" + "x" * 150, body=b"")])

    assert b"PaxHeader" not in gzip.decompress(short)
    assert b"PaxHeader" in gzip.decompress(long)
    assert listing(long)[0].name == "é" + "x" * 150


def test_an_empty_layer_is_the_empty_tar():
    blob, _ = layer([])

    assert blob.diff_id == f"sha256:{hashlib.sha256(bytes(1024)).hexdigest()}"


def test_the_tar_is_the_same_for_every_compressor_and_the_blob_is_not():
    fast, _ = layer(compressor=Compressor.parse("zlib-1"))
    small, _ = layer(compressor=Compressor.parse("zlib-9"))

    assert fast.diff_id == small.diff_id
    assert fast.digest != small.digest


def test_the_label_of_a_compressor_has_name_level_and_version():
    assert Compressor.parse("zlib-6").label.startswith("zlib-6/1.")
    assert Compressor().label == Compressor.parse("zlib-6").label


@pytest.mark.parametrize("name", ["zlib", "zlib-0", "zlib-10", "zlib-x", "zstd-3", "isal-4", ""])
def test_an_unknown_compressor_is_refused(name):
    with pytest.raises(ConfigError, match="unknown compressor"):
        Compressor.parse(name)


@pytest.mark.skipif(
    importlib.util.find_spec("isal") is not None, reason="isal is installed, nothing to refuse"
)
def test_a_compressor_that_is_not_installed_is_refused_with_the_command_that_installs_it():
    with pytest.raises(ConfigError, match="not installed") as caught:
        Compressor.parse("isal-1")

    assert caught.value.hint == "pip install isal"


@pytest.mark.skipif(importlib.util.find_spec("isal") is None, reason="isal is not installed")
def test_isal_gives_the_same_tar_as_zlib():
    blob, body = layer(compressor=Compressor.parse("isal-1"))

    assert blob.diff_id == layer()[0].diff_id
    assert gzip.decompress(body) == gzip.decompress(layer()[1])


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "a/../b", "", "a//b", "./a", "a/", "a/.wh.b", ".wh..wh..opq", "a\0b"]
)
def test_a_path_that_an_image_cannot_hold_is_refused(path):
    with pytest.raises(ConfigError):
        layer([File(path=path, body=b"")])


def test_a_name_that_is_not_utf8_is_refused():
    with pytest.raises(ConfigError, match="not UTF-8"):
        layer([File(path="caf\udce9.py", body=b"")])


@pytest.mark.parametrize(
    "second",
    [
        File(path="a", body=b""),
        Whiteout(path="a"),
        File(path="a/b", body=b""),
        Whiteout(path="a/b"),
    ],
)
def test_two_members_at_one_path_are_refused(second):
    with pytest.raises(ConfigError, match="two members"):
        layer([File(path="a", body=b""), second])


class Nowhere(io.RawIOBase):
    def write(self, piece):
        return len(piece)


def test_a_large_file_is_streamed_and_has_the_bytes_of_one_in_memory(tmp_path):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(os.urandom(1 << 20) * 64)
    tracemalloc.start()

    streamed = write_layer(
        [File(path="k", body=Stream.of(path))], Nowhere(), mtime=0, compressor=Compressor(level=1)
    )

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole = [File(path="k", body=path.read_bytes())]
    assert streamed == write_layer(whole, Nowhere(), mtime=0, compressor=Compressor(level=1))
    assert peak < 8 << 20


@pytest.mark.parametrize("size", [4, 6])
def test_a_file_that_changes_its_size_while_it_is_read_is_an_error(size):
    body = Stream(size=size, open=lambda: io.BytesIO(b"12345"))

    with pytest.raises(ToolError, match="k: 5 bytes, not"):
        layer([File(path="k", body=body)])


def test_memory_does_not_grow_with_the_number_of_files():
    body = os.urandom(1 << 20)
    members = [File(path=f"f{number:02}", body=lambda: bytes(body)) for number in range(40)]
    tracemalloc.start()

    write_layer(members, Nowhere(), mtime=0, compressor=Compressor(level=1))

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_the_hash_seed_does_not_reach_the_bytes():
    code = (
        "import io\n"
        "from elsa_build.images.oci.layer import *\n"
        "members = {File(path=f'd{n % 3}/f{n}', body=b'x') for n in range(50)}\n"
        "print(write_layer(members, io.BytesIO(), mtime=0, compressor=Compressor()).digest)\n"
    )
    ran = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(ran) == 1
