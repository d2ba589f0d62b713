import gc
import json
import os
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError
from elsa_build.images import record
from elsa_build.images.ingredients import Base
from elsa_build.images.oci.archive import read_archive
from elsa_build.images.oci.layer import Compressor, File, Symlink, Whiteout, write_layer
from elsa_build.images.oci.layout import Assembled, manifest_of, write_layout
from elsa_build.images.oci.store import BlobStore
from elsa_build.images.opening import open_image
from elsa_build.images.verify import verify
from elsa_build.model import Layer
from tests.imaging import (
    EPOCH,
    WHERE,
    built,
    compiled_file,
    edit_json,
    opened,
    prepared,
    tar,
    write_base,
)
from tests.test_oci_archive import docker_save
from tests.test_oci_layout import blob

ROOT = WHERE.strip("/")
PATCH = {"python/sglang/pool.py": "SIZE = 2\n", "python/sglang/old/thing.py": None}


def codes(image, stamped=None):
    return [found.code for found in verify(image, stamped=stamped).findings]


def make(story, tmp_path, patch=None, **changes):
    return built(prepared(story, tmp_path, patch or PATCH, **changes), tmp_path)


def tampered(made, folder: Path, *members, labels=None):
    """Return the image with one more layer, as somebody would make it who edits an image."""
    store = BlobStore(folder / "store")
    top = store.add(lambda out: write_layer(members, out, mtime=EPOCH, compressor=Compressor()))
    extra = Layer(
        name="extra", key=top.digest, digest=top.digest, diff_id=top.diff_id, size=top.size,
        media_type=top.media_type,
    )  # fmt: skip
    config = json.loads(blob(made.layout, made.record.config).read_bytes())
    # Between the layers of ours, below the proof: so that the proof itself is still the last one.
    layers = [*made.record.layers[:-1], extra, made.record.layers[-1]]
    config["rootfs"]["diff_ids"] = [layer.diff_id for layer in layers]
    config["config"]["Labels"] |= labels or {}
    body = json.dumps(config).encode()
    annotations = dict(made.record.labels) | (labels or {})
    write_layout(
        folder / "image",
        Assembled(
            tag="elsa-v1",
            name="elsa:elsa-v1",
            config=body,
            manifest=manifest_of(body, layers, annotations),
            platform="linux/amd64",
            layers=tuple(layer.digest for layer in layers),
            blobs={
                **{x.digest: blob(made.layout, x.digest) for x in made.record.layers},
                top.digest: store.path(top.digest),
            },
        ),
    )
    return opened(folder / "image")


def test_an_image_that_was_just_built_is_what_it_says(story, tmp_path):
    made = make(story, tmp_path)
    stamped = record.read(tmp_path / "dist/elsa-v1.json")

    found = verify(opened(made.layout), stamped=stamped)

    assert found.findings == ()
    assert (found.files, found.absent) == (1, 1)


def test_the_archive_is_what_it_says(story, tmp_path):
    made = make(story, tmp_path)

    assert codes(read_archive(made.archive)) == []


def test_an_image_with_a_compiled_extension_links_and_bytecode_is_what_it_says(story, tmp_path):
    made = make(
        story,
        tmp_path,
        bytecode=f"{sys.version_info.major}.{sys.version_info.minor}",
        compiled=compiled_file("_x.so", b"elf"),
    )

    assert codes(opened(made.layout)) == []


@pytest.mark.parametrize(
    ("member", "code"),
    [
        (File(path=f"{ROOT}/sglang/pool.py", body=b"SIZE = 666\n"), "E523"),
        (File(path=f"{ROOT}/sglang/pool.py", body=b"SIZE = 2\n", executable=True), "E523"),
        (Symlink(path=f"{ROOT}/sglang/pool.py", target="/tmp/evil.py"), "E523"),
        (Symlink(path=f"{ROOT}/sglang", target="/tmp/evil"), "E523"),
        (Whiteout(path=f"{ROOT}/sglang/pool.py"), "E523"),
        (Whiteout(path=f"{ROOT}/sglang"), "E523"),
        (File(path=f"{ROOT}/sglang/old/thing.py", body=b"back again"), "E524"),
        (File(path=f"{ROOT}/sglang/srt/engine.py", body=b"not patched, not upstream's"), "E531"),
        (File(path=f"{ROOT}/sglang/more.py", body=b"in nobody's tree"), "E531"),
    ],
)
def test_a_changed_file_is_found_whatever_changed_it(story, tmp_path, member, code):
    image = tampered(make(story, tmp_path), tmp_path / "evil", member)

    assert code in codes(image)


@pytest.mark.parametrize(
    "member",
    [
        File(path=f"{ROOT}/sglang/_x.so", body=b"other"),
        Whiteout(path=f"{ROOT}/sglang/_x.so"),
        Symlink(path=f"{ROOT}/sglang/_x.so", target="/tmp/evil.so"),
    ],
)
def test_a_compiled_file_that_is_not_the_wheels_is_found(story, tmp_path, member):
    made = make(story, tmp_path, compiled=compiled_file("_x.so", b"elf"))

    assert codes(tampered(made, tmp_path / "evil", member))[-1] == "E533"


def test_a_file_beside_build_json_is_compared_too(story, tmp_path):
    made = make(story, tmp_path)
    store = made.record.layers[-1]
    assert store.name == "provenance"
    image = opened(made.layout)
    swapped = replace(image, layers=(*image.layers, image.layers[0]))

    assert "E528" in codes(swapped)


def test_bytecode_of_the_file_before_the_patch_is_found(story, tmp_path):
    lower = tar(
        {
            f"{ROOT}/sglang/pool.py": b"SIZE = 1\n",
            f"{ROOT}/sglang/__pycache__/pool.cpython-312.pyc": b"SIZE = 1, compiled",
        }
    )
    image = write_base(tmp_path / "base", [lower])
    # The base was looked at too little: its bytecode is not in the list.
    base = Base(name="example/base", image=image, paths=frozenset({"sglang/pool.py"}))

    made = make(story, tmp_path, base=base)

    found = verify(opened(made.layout)).findings
    assert [(finding.code, finding.path) for finding in found] == [
        ("E525", f"{WHERE}/sglang/__pycache__/pool.cpython-312.pyc")
    ]


@pytest.mark.parametrize(
    "labels",
    [
        {"org.opencontainers.image.revision": "0" * 40},
        {"ai.elsa-build.upstream.ref": "v9.9.9"},
        {"ai.elsa-build.series": ""},
    ],
)
def test_a_label_that_tells_another_story_is_found(story, tmp_path, labels):
    image = tampered(make(story, tmp_path), tmp_path / "evil", labels=labels)

    assert "E526" in codes(image)


def test_an_edited_blob_is_found(story, tmp_path):
    made = make(story, tmp_path)
    path = blob(made.layout, made.record.layers[1].digest)
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.unlink()
    path.write_bytes(body)

    found = verify(opened(made.layout)).findings

    assert [finding.code for finding in found] == ["E521"]
    assert made.record.layers[1].digest[7:] in found[0].path


def test_a_layer_that_is_not_the_one_of_the_config_is_found(story, tmp_path):
    made = make(story, tmp_path)
    image = opened(made.layout)
    layers = (replace(image.layers[0], diff_id=image.layers[1].diff_id), *image.layers[1:])

    assert "E521" in codes(replace(image, layers=layers))


def test_another_image_than_the_records_is_found(story, tmp_path):
    made = make(story, tmp_path)
    stamped = record.read(tmp_path / "dist/elsa-v1.json")
    image = tampered(made, tmp_path / "evil", File(path="etc/motd", body=b"hello\n"))

    assert codes(image, stamped).count("E527") == 3


def test_an_image_that_another_tool_made_is_told_apart(tmp_path):
    image = write_base(tmp_path / "base", [tar({"a": b""})])

    found = verify(image).findings

    assert [finding.code for finding in found] == ["E522"]
    assert "elsa-build did not make it" in found[0].message


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"schema": "elsa-build/build/1"}', b'{"schema": "other"}']
)
def test_a_broken_build_json_is_a_finding_not_a_crash(tmp_path, body):
    image = write_base(tmp_path / "base", [tar({"opt/elsa/build.json": body})])

    assert codes(image) == ["E522"]


def test_layers_saved_by_an_old_docker_are_verified_as_well(story, tmp_path):
    made = make(story, tmp_path)
    image = opened(made.layout)
    plain = []
    for layer in image.layers:
        with image.plain(layer) as stream:
            plain.append(stream.read())
    saved = docker_save(tmp_path / "saved.tar", plain)
    with tarfile.open(saved) as old:
        assert "0/layer.tar" in old.getnames()

    found = verify(replace(read_archive(saved), config=image.config)).findings

    assert found == ()


# --- finding the image ------------------------------------------------------------------------


def test_an_image_is_found_by_folder_by_tar_and_by_tag(story, tmp_path):
    made = make(story, tmp_path)
    output = tmp_path / "dist"

    for name in (str(made.layout), str(made.archive), "elsa-v1"):
        with open_image(name, output) as (image, stamped):
            assert image.manifest == made.record.manifest
            assert stamped.record == made.record


def test_an_image_that_was_moved_away_from_its_record_is_still_read(story, tmp_path):
    made = make(story, tmp_path)
    shutil.move(made.archive, tmp_path / "elsewhere.tar")

    with open_image(str(tmp_path / "elsewhere.tar"), tmp_path / "dist") as (image, stamped):
        assert codes(image) == []
        assert stamped is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_image_that_is_nowhere_is_told_with_the_next_command(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")

    with (
        pytest.raises(ConfigError, match="no file, folder or tag 'elsa-v9'") as caught,
        open_image("elsa-v9", tmp_path),
    ):
        pass

    assert "elsa-build image --tag" in caught.value.hint
    gc.collect()  # the docker SDK leaves its socket open when nobody answers; see it now


def test_a_broken_layout_is_named(story, tmp_path):
    made = make(story, tmp_path)
    edit_json(made.layout / "index.json", lambda index: index.update(manifests=[]))

    with (
        pytest.raises(ConfigError, match="0 images"),
        open_image(os.fspath(made.layout), tmp_path),
    ):
        pass
