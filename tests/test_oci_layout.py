import gzip
import json
import shutil
import subprocess

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.oci.layout import OCI_INDEX, read_layout
from elsa_build.images.oci.store import BlobStore, digest_of
from elsa_build.images.oci.stored import FolderSource
from tests.imaging import built, descriptor, edit_json, opened, prepared, tar, write_base

PLAIN = tar({"usr": None, "usr/file": b"base\n"})


def blob(folder, digest):
    return folder / "blobs/sha256" / digest.removeprefix("sha256:")


def test_what_was_written_is_read_back(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    image = opened(made.layout)

    assert image.manifest == made.record.manifest
    assert image.config_digest == made.record.config
    assert [layer.diff_id for layer in image.layers] == [x.diff_id for x in made.record.layers]
    assert image.tag == "elsa-v1"
    assert image.platform == "linux/amd64"


def test_the_index_has_the_tag_for_podman_and_the_full_name_for_containerd(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    entry = json.loads((made.layout / "index.json").read_bytes())["manifests"][0]

    assert entry["annotations"] == {
        "org.opencontainers.image.ref.name": "elsa-v1",
        "io.containerd.image.name": "docker.io/library/elsa:elsa-v1",
    }


def test_layers_are_hard_links_to_the_cache_and_read_only(story, tmp_path):
    ready = prepared(story, tmp_path)
    made = built(ready, tmp_path)

    for layer in made.record.layers:
        here, cached = blob(made.layout, layer.digest), blob(ready.cache, layer.digest)
        assert here.samefile(cached)
        assert here.stat().st_mode & 0o222 == 0


@pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is not installed")
def test_skopeo_accepts_the_layout(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    ran = subprocess.run(
        ["skopeo", "inspect", f"oci:{made.layout}"], capture_output=True, check=True
    )

    said = json.loads(ran.stdout)
    assert said["Digest"] == made.record.manifest
    assert said["Labels"]["org.opencontainers.image.version"] == "elsa-v1"


@pytest.mark.skipif(not shutil.which("umoci"), reason="umoci is not installed")
def test_umoci_accepts_the_layout(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    ran = subprocess.run(
        ["umoci", "stat", "--json", "--image", f"{made.layout}:elsa-v1"],
        capture_output=True,
        check=True,
    )

    assert len(json.loads(ran.stdout)["history"]) == len(made.record.layers)


# --- reading what others wrote ----------------------------------------------------------------


def test_a_base_of_one_kilobyte_is_read(tmp_path):
    image = write_base(tmp_path / "base", [PLAIN])

    assert image.layers[0].diff_id == digest_of(PLAIN)


def test_dockers_own_media_types_are_read_as_the_same_bytes(tmp_path):
    packed = gzip.compress(PLAIN)

    image = write_base(
        tmp_path / "base",
        [PLAIN],
        stored=[packed],
        media_type="application/vnd.docker.image.rootfs.diff.tar.gzip",
    )

    assert image.layers[0].media_type == "application/vnd.oci.image.layer.v1.tar+gzip"
    assert image.layers[0].digest == digest_of(packed)


def test_a_missing_blob_is_named(tmp_path):
    image = write_base(tmp_path / "base", [PLAIN])
    blob(tmp_path / "base", image.layers[0].digest).unlink()

    with pytest.raises(ConfigError, match=rf"{digest_of(PLAIN)[7:]}: missing"):
        opened(tmp_path / "base")


def test_a_truncated_blob_is_named_with_both_sizes(tmp_path):
    image = write_base(tmp_path / "base", [PLAIN])
    blob(tmp_path / "base", image.layers[0].digest).write_bytes(PLAIN[:100])

    with pytest.raises(ConfigError, match=f"100 bytes, expected {len(PLAIN)}"):
        opened(tmp_path / "base")


@pytest.mark.parametrize("which", ["manifest", "config_digest"])
def test_an_edited_document_of_the_same_size_is_refused(tmp_path, which):
    image = write_base(tmp_path / "base", [PLAIN])
    path = blob(tmp_path / "base", getattr(image, which))
    path.write_bytes(
        path.read_bytes().replace(b"linux", b"LINUX").replace(b'Version":2', b'Version":3')
    )

    with pytest.raises(ConfigError, match="not what its digest says"):
        opened(tmp_path / "base")


def test_an_edited_layer_of_the_same_size_is_refused_when_it_is_used(tmp_path):
    image = write_base(tmp_path / "base", [PLAIN])
    layer = image.layers[0]
    path = blob(tmp_path / "base", layer.digest)
    path.write_bytes(PLAIN.replace(b"base\n", b"evil\n"))

    with pytest.raises(ConfigError, match="is really"):
        BlobStore(tmp_path / "cache").take(lambda: path.open("rb"), layer.digest, layer.size, path)

    assert not list((tmp_path / "cache").rglob("*.*"))
    assert not blob(tmp_path / "cache", layer.digest).exists()


def test_a_wrong_media_type_of_a_layer_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"layers\.mediaType: 'application/x-nothing'"):
        write_base(tmp_path / "base", [PLAIN], media_type="application/x-nothing")


def test_an_index_of_several_platforms_is_refused_with_their_names(tmp_path):
    write_base(tmp_path / "base", [PLAIN])

    def two(index):
        first = index["manifests"][0]
        index["manifests"] = [
            first | {"platform": {"os": "linux", "architecture": arch}}
            for arch in ("amd64", "arm64")
        ]

    edit_json(tmp_path / "base/index.json", two)

    with pytest.raises(ConfigError, match="linux/amd64, no name linux/arm64"):
        opened(tmp_path / "base")


def test_an_index_in_the_index_is_refused_with_the_command_that_picks_a_platform(tmp_path):
    write_base(tmp_path / "base", [PLAIN])
    inner = (tmp_path / "base/index.json").read_bytes()
    blob(tmp_path / "base", digest_of(inner)).write_bytes(inner)
    edit_json(
        tmp_path / "base/index.json",
        lambda index: index.update(manifests=[descriptor(inner, OCI_INDEX)]),
    )

    with pytest.raises(ConfigError, match="an index inside the index") as caught:
        opened(tmp_path / "base")

    assert "--override-arch amd64" in caught.value.hint


def test_an_attestation_beside_the_image_is_not_a_second_platform(tmp_path):
    write_base(tmp_path / "base", [PLAIN])
    mark = {"annotations": {"vnd.docker.reference.type": "attestation-manifest"}}
    edit_json(
        tmp_path / "base/index.json",
        lambda index: index["manifests"].append(index["manifests"][0] | mark),
    )

    assert opened(tmp_path / "base").layers


def test_a_tag_chooses_among_several_images(tmp_path):
    image = write_base(tmp_path / "base", [PLAIN])
    name = "org.opencontainers.image.ref.name"

    def two(index):
        first = index["manifests"][0]
        index["manifests"] = [first | {"annotations": {name: tag}} for tag in ("a", "b")]

    edit_json(tmp_path / "base/index.json", two)
    source = FolderSource(tmp_path / "base")

    assert read_layout(source, tag="b").manifest == image.manifest
    with pytest.raises(ConfigError, match="2 images"):
        read_layout(source)
    with pytest.raises(ConfigError, match="no image is named 'c'"):
        read_layout(source, tag="c")


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("oci-layout", None, "oci-layout: missing"),
        ("oci-layout", '{"imageLayoutVersion": "2.0.0"}', "only version 1"),
        ("index.json", None, "index.json: missing"),
        ("index.json", "{", "not JSON"),
        ("index.json", "[]", "not a JSON object"),
        ("index.json", "{}", "manifests: missing"),
        ("index.json", '{"manifests": []}', "0 images"),
        ("index.json", '{"manifests": [{"mediaType": "text/plain"}]}', "'text/plain' is not an"),
    ],
)
def test_what_is_no_layout_is_refused_with_file_and_field(tmp_path, file, text, complaint):
    write_base(tmp_path / "base", [PLAIN])
    path = tmp_path / "base" / file
    path.unlink() if text is None else path.write_text(text)

    with pytest.raises(ConfigError, match=complaint):
        opened(tmp_path / "base")


@pytest.mark.parametrize("digest", ["sha256:../../../etc/passwd", "md5:00", 7, None])
def test_a_digest_cannot_name_a_path(tmp_path, digest):
    write_base(tmp_path / "base", [PLAIN])
    edit_json(
        tmp_path / "base/index.json", lambda index: index["manifests"][0].update(digest=digest)
    )

    with pytest.raises(ConfigError, match="is not a sha256 digest"):
        opened(tmp_path / "base")


def test_a_config_with_too_few_diff_ids_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"rootfs\.diff_ids: 0, but the manifest lists 1"):
        write_base(tmp_path / "base", [PLAIN], config={"rootfs": {"diff_ids": []}})


def test_a_layout_that_cannot_be_written_is_a_tool_error(story, tmp_path):
    (tmp_path / "dist").write_text("a file is in the way")

    with pytest.raises(ToolError, match="cannot write"):
        built(prepared(story, tmp_path), tmp_path)
