import gzip
import io
import json
import shutil
import subprocess
import tarfile

import pytest

from elsa_build.errors import ConfigError
from elsa_build.images.oci.archive import read_archive
from elsa_build.images.oci.contents import visible
from elsa_build.images.oci.layout import OCI_INDEX
from elsa_build.images.oci.store import digest_of
from tests.imaging import EPOCH, built, descriptor, prepared, shown, tar

LAYER = tar({"usr": None, "usr/file": b"text\n"})


def docker_save(path, layers, *, links=(), config_name=None, names=("elsa:v1",)):
    """Write what `docker save` of 20.10 writes: `<id>/layer.tar`, plain, no digests of them."""
    config = json.dumps({"rootfs": {"diff_ids": [digest_of(layer) for layer in layers]}}).encode()
    config_name = config_name or f"{digest_of(config)[7:]}.json"
    files = {f"{number}/layer.tar": layer for number, layer in enumerate(layers)}
    listed = {"Config": config_name, "RepoTags": list(names), "Layers": list(files)}
    with tarfile.open(path, "w") as out:
        for name, body in [(config_name, config), ("manifest.json", json.dumps([listed]).encode())]:
            add(out, name, body)
        for name, body in files.items():
            if name in dict(links):
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, dict(links)[name]
                out.addfile(info)
            else:
                add(out, name, body)
    return path


def add(out, name, body):
    info = tarfile.TarInfo(name)
    info.size = len(body)
    out.addfile(info, io.BytesIO(body))


def test_one_tar_has_what_docker_wants_and_what_podman_wants(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    with tarfile.open(made.archive) as archive:
        names = archive.getnames()
        docker = json.load(archive.extractfile("manifest.json"))

    assert names[:3] == ["oci-layout", "index.json", "manifest.json"]
    assert docker == [
        {
            "RepoTags": ["elsa:elsa-v1"],
            "Config": f"blobs/sha256/{made.record.config[7:]}",
            "Layers": [f"blobs/sha256/{layer.digest[7:]}" for layer in made.record.layers],
        }
    ]


def test_the_tar_is_deterministic_and_carries_the_date_of_the_pin(story, tmp_path):
    first = built(prepared(story, tmp_path / "a"), tmp_path / "a")
    second = built(prepared(story, tmp_path / "b"), tmp_path / "b")

    assert first.archive.read_bytes() == second.archive.read_bytes()
    with tarfile.open(first.archive) as archive:
        assert {(m.mtime, m.uid, m.uname) for m in archive} == {(EPOCH, 0, "")}


def test_what_was_written_is_read_back(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    image = read_archive(made.archive)

    assert image.manifest == made.record.manifest
    assert shown(image)["opt/elsa/upstream.lock"] == b"# a lock\n"


@pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is not installed")
@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_skopeo_reads_both_sides_of_the_tar(story, tmp_path, kind):
    made = built(prepared(story, tmp_path), tmp_path)

    ran = subprocess.run(
        ["skopeo", "inspect", "--config", f"{kind}:{made.archive}"],
        capture_output=True,
        check=True,
    )

    diff_ids = json.loads(ran.stdout)["rootfs"]["diff_ids"]
    assert diff_ids == [layer.diff_id for layer in made.record.layers]


def test_an_old_docker_save_is_read(tmp_path):
    image = read_archive(docker_save(tmp_path / "saved.tar", [LAYER]))

    assert shown(image) == {"usr/file": b"text\n"}
    assert (image.manifest, image.tag) == (None, "v1")


def test_a_plain_layer_of_a_docker_save_has_its_diff_id_as_digest(tmp_path):
    packed = gzip.compress(LAYER)
    image = read_archive(docker_save(tmp_path / "saved.tar", [LAYER, packed]))

    assert [layer.digest for layer in image.layers] == [digest_of(LAYER), None]


def test_equal_layers_that_docker_save_linked_to_each_other_are_read(tmp_path):
    links = [("1/layer.tar", "../0/layer.tar")]

    image = read_archive(docker_save(tmp_path / "saved.tar", [LAYER, LAYER], links=links))

    assert visible(image, lambda _: True)["usr/file"].layer == 1


def test_a_link_out_of_the_tar_is_no_file(tmp_path):
    links = [("0/layer.tar", "../../../../etc/passwd")]

    with pytest.raises(ConfigError, match=r"0/layer\.tar: missing"):
        read_archive(docker_save(tmp_path / "saved.tar", [LAYER], links=links))


def test_a_link_that_leads_to_itself_is_no_file(tmp_path):
    links = [("0/layer.tar", "layer.tar")]

    with pytest.raises(ConfigError, match=r"0/layer\.tar: missing"):
        read_archive(docker_save(tmp_path / "saved.tar", [LAYER], links=links))


def test_a_config_that_is_not_what_its_name_says_is_refused(tmp_path):
    path = docker_save(tmp_path / "saved.tar", [LAYER], config_name=f"{'0' * 64}.json")

    with pytest.raises(ConfigError, match="not what its name says"):
        read_archive(path)


def test_the_nested_index_of_docker_29_is_passed_over_for_its_manifest_json(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)
    inner = (made.layout / "index.json").read_bytes()
    outer = json.dumps({"manifests": [descriptor(inner, OCI_INDEX)]}).encode()
    nested = tmp_path / "nested.tar"
    with tarfile.open(made.archive) as old, tarfile.open(nested, "w") as new:
        for member in old:
            body = old.extractfile(member).read() if member.isfile() else b""
            add(new, member.name, outer if member.name == "index.json" else body)
        add(new, f"blobs/sha256/{digest_of(inner)[7:]}", inner)

    image = read_archive(nested)

    assert image.config_digest == made.record.config


@pytest.mark.parametrize("share", [0.2, 0.6, 0.99])
def test_a_tar_that_was_cut_off_is_refused(story, tmp_path, share):
    made = built(prepared(story, tmp_path), tmp_path)
    body = made.archive.read_bytes().rstrip(b"\0")
    made.archive.write_bytes(body[: int(len(body) * share)])

    with pytest.raises(ConfigError):
        read_archive(made.archive)


@pytest.mark.parametrize("body", [b"", b"PK\x03\x04 a zip", LAYER])
def test_what_is_no_image_is_refused(tmp_path, body):
    (tmp_path / "x.tar").write_bytes(body)

    with pytest.raises(ConfigError, match=r"x\.tar"):
        read_archive(tmp_path / "x.tar")


def test_several_images_in_one_tar_are_refused_unless_a_tag_is_named(tmp_path):
    path = docker_save(tmp_path / "saved.tar", [LAYER], names=("elsa:v1",))
    with tarfile.open(path) as old:
        listed = json.load(old.extractfile("manifest.json"))
        rest = [(m.name, old.extractfile(m).read()) for m in old if m.name != "manifest.json"]
    two = [listed[0], listed[0] | {"RepoTags": ["elsa:v2"]}]
    with tarfile.open(path, "w") as out:
        for name, body in [*rest, ("manifest.json", json.dumps(two).encode())]:
            add(out, name, body)

    assert read_archive(path, tag="v2").layers
    with pytest.raises(ConfigError, match="2 images"):
        read_archive(path)
