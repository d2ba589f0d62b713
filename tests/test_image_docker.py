"""Images of ours in a real docker daemon: loaded, run and verified there.

The base is a static busybox (no network). Without a daemon these tests are skipped with the reason,
unless ELSA_BUILD_REQUIRE_DOCKER is set, as in CI.
"""

import io
import json
import os
import shutil
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images import dockerd
from elsa_build.images.oci.archive import write_archive
from elsa_build.images.oci.layer import Compressor
from elsa_build.images.oci.layout import Assembled
from elsa_build.images.opening import open_image
from elsa_build.images.plan import Base, SourceTrees
from elsa_build.images.ship import Backend, ship
from elsa_build.images.verify import verify
from tests.imaging import POOL, WHERE, built, destination, prepared, recipe, write_base

pytestmark = pytest.mark.docker
ROOT = WHERE.strip("/")
PROJECT = Path(__file__).parent.parent
TAG = f"p{os.getpid()}"


@pytest.fixture
def daemon():
    try:
        connected = dockerd.connect()
    except ToolError as e:
        if os.environ.get("ELSA_BUILD_REQUIRE_DOCKER"):
            raise
        pytest.skip(str(e))
    with connected:
        yield connected


@pytest.fixture
def load(daemon):
    """Load archives; what they brought goes away again."""
    names = []

    def loaded(archive):
        names.extend(daemon.load(archive))
        return names[-1]

    yield loaded
    for name in names:
        if daemon.inspect(name):
            daemon.remove(name)


def run(image, script):
    with closing(docker.from_env()) as client:
        return client.containers.run(
            image, ["/bin/busybox", "sh", "-c", script], remove=True, network_mode="none"
        ).decode()


def base(tmp_path, files):
    """Return a base with a shell and these files below the package's folder."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed (apt install busybox-static)")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        content = {"bin/busybox": Path(busybox).read_bytes()}
        content |= {f"{ROOT}/{path}": body for path, body in files.items()}
        for name, body in content.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(body), 0o755
            archive.addfile(info, io.BytesIO(body))
        for name in ("sh", "rm", "mkdir"):
            info = tarfile.TarInfo(f"bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(info)
    image = write_base(tmp_path / "base", [out.getvalue()])
    return Base(name="example/base", image=image, paths=frozenset(files))


def archive_of(found, name, tmp_path):
    """Write a base as an archive that the daemon takes under this name."""
    image = found.image
    blobs = {layer.digest: image.source.path(layer.file) for layer in image.layers}
    body = image.source.path(f"blobs/sha256/{image.config_digest[7:]}").read_bytes()
    manifest = image.source.path(f"blobs/sha256/{image.manifest[7:]}").read_bytes()
    with (tmp_path / "base.tar").open("wb") as out:
        write_archive(
            out,
            Assembled(
                tag=TAG, name=name, config=body, manifest=manifest, platform="linux/amd64",
                layers=tuple(blobs), blobs=blobs,
            ),
            mtime=0,
        )  # fmt: skip
    return tmp_path / "base.tar"


UPSTREAM = {
    "sglang/__init__.py": b"",
    "sglang/pool.py": b"SIZE = 1\n",
    "sglang/pool.pyc": b"old",
    "sglang/__pycache__/pool.cpython-312.pyc": b"old",
    "sglang/__pycache__/engine.cpython-312.pyc": b"stays",
    "sglang/old/__init__.py": b"",
    "sglang/old/thing.py": b"THING = 1\n",
    "sglang/old/__pycache__/thing.cpython-312.pyc": b"old",
    "sglang/srt/engine.py": b"def run():\n    return 'upstream'\n",
}


def test_a_loaded_overlay_is_the_same_image_and_verifies(story, tmp_path, daemon, load):
    made = built(prepared(story, tmp_path), tmp_path, name=f"elsa-build-test/overlay:{TAG}")

    name = load(made.archive)

    assert name == made.name
    with open_image(f"docker-daemon:{name}", tmp_path / "dist") as (image, stamped):
        assert stamped.record == made.record
        assert image.config_digest == made.record.config
        assert verify(image, stamped=stamped).findings == ()


def test_two_compressors_make_one_image_for_the_daemon(story, tmp_path, daemon, load):
    name = f"elsa-build-test/overlay:{TAG}"
    fast = Compressor.parse("zlib-1")
    small = built(prepared(story, tmp_path / "a"), tmp_path / "a", name=name)
    quick = built(prepared(story, tmp_path / "b"), tmp_path / "b", name=name, compressor=fast)

    load(small.archive)
    before = daemon.inspect(name)["RootFS"]["Layers"]
    load(quick.archive)

    assert daemon.inspect(name)["RootFS"]["Layers"] == before
    assert before == [layer.diff_id for layer in quick.record.layers]


def test_the_patch_holds_and_what_it_deletes_is_gone_at_run_time(story, tmp_path, daemon, load):
    patch = {
        "python/sglang/pool.py": "SIZE = 2\n",
        "python/sglang/old/__init__.py": None,
        "python/sglang/old/thing.py": None,
    }
    ready = prepared(story, tmp_path, patch, base=base(tmp_path, UPSTREAM))
    made = built(ready, tmp_path, name=f"elsa-build-test/patched:{TAG}")

    name = load(made.archive)

    script = (
        f"cd {WHERE}; busybox find . -type f -o -type d | busybox sort; busybox cat sglang/pool.py"
    )
    assert run(name, f"alias busybox=/bin/busybox; {script}").splitlines() == [
        ".",
        "./sglang",
        "./sglang/__init__.py",
        "./sglang/__pycache__",
        "./sglang/__pycache__/engine.cpython-312.pyc",
        "./sglang/pool.py",
        "./sglang/srt",
        "./sglang/srt/engine.py",
        "SIZE = 2",
    ]
    with open_image(name, tmp_path / "dist") as (image, stamped):
        assert verify(image, stamped=stamped).findings == ()


@pytest.mark.parametrize(
    ("patch", "shown"),
    [
        (
            {"python/sglang/pool.py": None, "python/sglang/pool.py/__init__.py": "folder\n"},
            "pool.py/__init__.py",
        ),
        (
            {
                "python/sglang/old/__init__.py": None,
                "python/sglang/old/thing.py": None,
                "python/sglang/old": "file\n",
            },
            "old",
        ),
    ],
    ids=["a file becomes a folder", "a folder becomes a file"],
)
def test_a_path_that_changes_its_sort_is_what_the_patch_says(
    story, tmp_path, daemon, load, patch, shown
):
    ready = prepared(story, tmp_path, patch, base=base(tmp_path, UPSTREAM))
    name = load(built(ready, tmp_path, name=f"elsa-build-test/sort:{TAG}").archive)

    assert run(name, f"/bin/busybox cat {WHERE}/sglang/{shown}") in ("folder\n", "file\n")
    with open_image(name, tmp_path / "dist") as (image, _):
        assert verify(image).findings == ()


def test_folders_above_keep_mode_755(story, tmp_path, daemon, load):
    ready = prepared(story, tmp_path, base=base(tmp_path, UPSTREAM))
    name = load(built(ready, tmp_path, name=f"elsa-build-test/mode:{TAG}").archive)

    found = run(name, f"/bin/busybox stat -c %a:%u /opt /opt/elsa {WHERE} {WHERE}/sglang")

    assert found.split() == ["755:0"] * 4


def test_a_file_edited_inside_a_running_image_is_found(story, tmp_path, daemon, load):
    ready = prepared(story, tmp_path, base=base(tmp_path, UPSTREAM))
    name = load(built(ready, tmp_path, name=f"elsa-build-test/edit:{TAG}").archive)
    repository, _, tag = name.rpartition(":")
    with closing(docker.from_env()) as client:
        edit = f"echo 'SIZE = 9' > {WHERE}/sglang/pool.py"
        container = client.containers.create(name, ["/bin/busybox", "sh", "-c", edit])
        container.start()
        container.wait()
        container.commit(repository, f"{tag}-edited")
        container.remove()

    try:
        with open_image(f"{name}-edited", tmp_path / "dist") as (image, _):
            found = verify(image).findings
    finally:
        daemon.remove(f"{name}-edited")

    assert f"{WHERE}/sglang/pool.py" in [
        finding.path for finding in found if finding.code == "E523"
    ]


def test_the_daemon_reads_the_health_check_and_the_command(story, tmp_path, daemon, load):
    ready = prepared(story, tmp_path, base=base(tmp_path, UPSTREAM))
    name = load(built(ready, tmp_path, name=f"elsa-build-test/health:{TAG}").archive)

    config = daemon.inspect(name)["Config"]

    assert config["Cmd"][2] == "sglang.launch_server"
    assert config["Healthcheck"]["Retries"] >= 3
    assert json.dumps(config["Env"]).count("KEPT=1") == 1


def test_the_docker_backend_puts_the_delta_on_a_base_and_it_verifies(story, tmp_path, daemon, load):
    base_name = f"elsa-build-test/base:{TAG}"
    files = {path: body for path, body in UPSTREAM.items() if "old" not in path}
    load(archive_of(base(tmp_path, files), base_name, tmp_path))
    files = {f"python/{path}": body for path, body in files.items() if not path.endswith("pyc")}
    head = story.commit(None, "upstream", files)
    patched = story.commit(
        head, "ours", {"python/sglang/pool.py": "SIZE = 2\n", "python/sglang/srt/engine.py": None}
    )
    trees = SourceTrees(
        objects=story.git.objects,
        upstream=story.git.commit(head).tree,
        patched=story.git.commit(patched).tree,
    )
    ready = prepared(story, tmp_path, trees=trees, recipe=recipe(base=base_name, package_dir=None))
    ready = replace(ready, pin=replace(ready.pin, tree=trees.upstream))
    (tmp_path / "Dockerfile.j2").write_bytes((PROJECT / "Dockerfile.j2").read_bytes())

    result = f"elsa-build-test/result:{TAG}"
    try:
        shipped = ship(
            ready, destination(tmp_path), name=result, backend=Backend.DOCKER, root=tmp_path
        )
        with open_image(result, tmp_path / "dist") as (image, stamped):
            found = verify(image)
    finally:
        for name in (result, f"elsa-build-test/result-overlay:{TAG}"):
            if daemon.inspect(name):
                daemon.remove(name)

    assert [layer.name for layer in shipped.built.record.layers] == [POOL, "provenance"]
    assert stamped is None
    assert [finding.code for finding in found.findings] == ["E532"]
    assert (found.files, found.absent) == (1, 1)


def test_a_name_that_the_daemon_does_not_know_is_told(tmp_path, daemon):
    with (
        pytest.raises(ConfigError, match="the docker daemon has no such image"),
        open_image("elsa-build-test/nothing:v0", tmp_path),
    ):
        pass
