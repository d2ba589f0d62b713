"""Images of ours in a real docker daemon: loaded, run and verified there.

The base is a static busybox (no network).
"""

import io
import json
import os
import subprocess
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images.docker_backend import BASES
from elsa_build.images.ingredients import Base
from elsa_build.images.oci.archive import write_archive
from elsa_build.images.oci.layer import Compressor
from elsa_build.images.oci.layout import assembled
from elsa_build.images.opening import open_image
from elsa_build.images.prepare import prepare
from elsa_build.images.ship import Backend, on_base, ship
from elsa_build.images.verify import verify
from elsa_build.model import Replay
from tests.docking import busybox, run, tool
from tests.imaging import WHERE, built, destination, opened, prepared, recipe, write_base

pytestmark = pytest.mark.docker
ROOT = WHERE.strip("/")
PROJECT = Path(__file__).parent.parent
TAG = f"p{os.getpid()}"


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


def base(tmp_path, files, *, root=ROOT, folders=None):
    """Return a base with a shell, these files below a folder, and folders of `(mode, owner)`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, (mode, owner) in (folders or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, mode, owner, owner
            archive.addfile(info)
        content = {"bin/busybox": busybox().read_bytes()}
        content |= {f"{root}/{path}": body for path, body in files.items()}
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
    with (tmp_path / "base.tar").open("wb") as out:
        write_archive(out, assembled(found.image, name), mtime=0)
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


def test_other_tools_read_the_layout_and_name_the_same_digests(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)
    named = f"{made.layout}:{made.record.tag}"

    inspected = asked(tool("skopeo"), "inspect", f"oci:{named}")
    config = asked(tool("skopeo"), "inspect", "--config", f"oci:{named}")
    listed = asked(tool("umoci"), "stat", "--image", named, "--json")

    assert inspected["Digest"] == made.record.manifest
    assert inspected["Layers"] == [layer.digest for layer in made.record.layers]
    assert config["rootfs"]["diff_ids"] == [layer.diff_id for layer in made.record.layers]
    assert [entry["layer"]["digest"] for entry in listed["history"]] == inspected["Layers"]


def asked(*words):
    return json.loads(subprocess.run(words, check=True, capture_output=True).stdout)


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


# --- on a base, by either backend -------------------------------------------------------------


@pytest.fixture
def project(story, tmp_path):
    """Call `image` as the command does: a pin, a patch, a base by its name, a backend."""
    files = UPSTREAM | {"sglang/srt/gone.py": b"GONE = 1\n"}
    sources = {f"python/{path}": body for path, body in files.items() if not path.endswith("pyc")}
    head = story.commit(None, "upstream", sources)
    deleted = ("srt/gone.py", "old/__init__.py", "old/thing.py")
    patch = {"python/sglang/pool.py": "SIZE = 2\n"}
    patch |= {f"python/sglang/{path}": None for path in deleted}
    patched = story.commit(head, "ours", patch)
    tree = story.git.commit(patched).tree
    (tmp_path / "Dockerfile.j2").write_bytes((PROJECT / "Dockerfile.j2").read_bytes())
    (tmp_path / "small.yaml").write_text("a recipe\n")
    pin = prepared(story, tmp_path).pin
    pin = replace(pin, commit=head, tree=story.git.commit(head).tree, artifacts=())

    def image(name, base, backend, **changes):
        chosen = recipe(path=tmp_path / "small.yaml", package_dir=None, **changes)
        with on_base(chosen, base, backend=backend) as settled:
            ready = prepare(
                pin=pin,
                recipe=settled,
                done=Replay(onto=head, steps=(), head=patched, tree=tree),
                objects=story.git.objects,
                lock=b"# a lock\n",
                cache=tmp_path / "cache",
            )
            return ship(ready, destination(tmp_path), name=name, backend=backend, root=tmp_path)

    image.files = files
    return image


@pytest.fixture
def gone(daemon):
    """Names that are taken off again, with what they name."""
    names = []
    yield names.append
    for name in names:
        if daemon.inspect(name):
            daemon.remove(name)


@pytest.mark.parametrize("place", ["daemon", "layout", "archive"])
@pytest.mark.parametrize("backend", list(Backend))
def test_a_base_is_taken_from_where_it_is_by_either_backend(
    project, tmp_path, daemon, load, gone, place, backend
):
    held = base(tmp_path, project.files)
    known = f"elsa-build-test/base-{place}-{backend}:{TAG}"
    archive = archive_of(held, known, tmp_path)
    named = {"daemon": known, "layout": str(tmp_path / "base"), "archive": str(archive)}
    if place == "daemon":
        load(archive)
    result = f"elsa-build-test/result-{place}-{backend}:{TAG}"
    for name in (
        result,
        result.replace(":", "-overlay:"),
        known,
        f"{BASES}:{held.image.config_digest[7:]}",
    ):
        gone(name)

    shipped = project(result, named[place], backend)

    if backend is Backend.OCI:
        load(shipped.built.archive)
    assert run(result, f"/bin/busybox cat {WHERE}/sglang/pool.py") == "SIZE = 2\n"
    listed = run(result, f"/bin/busybox find {WHERE}/sglang").split()
    assert sorted(path.removeprefix(f"{WHERE}/") for path in listed) == [
        "sglang",
        "sglang/__init__.py",
        "sglang/__pycache__",
        "sglang/__pycache__/engine.cpython-312.pyc",
        "sglang/pool.py",
        "sglang/srt",
        "sglang/srt/engine.py",
    ]
    with open_image(result, tmp_path / "nowhere") as (image, _):
        found = verify(image)
    expected = ["E532"] if backend is Backend.DOCKER else []
    assert [finding.code for finding in found.findings] == expected
    assert (found.files, found.absent) == (1, 3)
    assert verify(opened(shipped.built.layout)).findings == ()


def test_the_second_image_on_a_base_in_the_daemon_does_not_save_it_again(
    project, tmp_path, daemon, load, gone, monkeypatch
):
    known = f"elsa-build-test/base:{TAG}"
    load(archive_of(base(tmp_path, project.files), known, tmp_path))
    result = f"elsa-build-test/twice:{TAG}"
    gone(result)
    gone(result.replace(":", "-overlay:"))
    first = project(result, known, Backend.DOCKER)
    # With no folder for temporary files, nothing can be saved.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))

    again = project(result, known, Backend.DOCKER)

    assert again.built.record == first.built.record


def test_a_base_that_is_nowhere_is_answered_with_the_command(project, daemon):
    for backend in Backend:
        with pytest.raises(ToolError, match="the daemon has no image") as caught:
            project(f"elsa-build-test/no:{TAG}", "elsa-build-test/nothing:v0", backend)

        assert caught.value.hint == "docker pull elsa-build-test/nothing:v0"


HOME = "home/user/python"
OWNED = {
    "home": (0o711, 0),
    "home/user": (0o700, 1000),
    HOME: (0o750, 1000),
    f"{HOME}/sglang": (0o700, 1000),
    f"{HOME}/sglang/srt": (0o2750, 1000),
    "opt": (0o700, 7),
}
STAT = "/bin/busybox stat -c '%a %u:%g' " + " ".join(f"/{path}" for path in OWNED)


@pytest.mark.parametrize("backend", list(Backend))
def test_folders_of_the_base_keep_their_mode_and_their_owner(
    project, tmp_path, daemon, load, gone, backend
):
    known = f"elsa-build-test/owned-base-{backend}:{TAG}"
    load(archive_of(base(tmp_path, project.files, root=HOME, folders=OWNED), known, tmp_path))
    result = f"elsa-build-test/owned-{backend}:{TAG}"
    gone(result)
    gone(result.replace(":", "-overlay:"))
    before = run(known, STAT)

    shipped = project(result, known, backend)

    if backend is Backend.OCI:
        load(shipped.built.archive)
    assert run(result, STAT) == before
    assert before.splitlines() == [f"{mode:o} {uid}:{uid}" for mode, uid in OWNED.values()]
    assert run(result, f"/bin/busybox cat /{HOME}/sglang/pool.py") == "SIZE = 2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can unpack foreign owners")
def test_umoci_unpacks_the_folders_as_docker_shows_them(project, tmp_path):
    base(tmp_path, project.files, root=HOME, folders=OWNED)
    shipped = project(f"elsa-build-test/owned:{TAG}", str(tmp_path / "base"), Backend.OCI)

    subprocess.run(
        [
            tool("umoci"),
            "unpack",
            "--image",
            f"{shipped.built.layout}:{TAG}",
            tmp_path / "unpacked",
        ],
        check=True,
        capture_output=True,
    )

    for path, (mode, owner) in OWNED.items():
        found = (tmp_path / "unpacked/rootfs" / path).stat()
        assert (path, found.st_mode & 0o7777, found.st_uid) == (path, mode, owner)


def test_a_name_that_the_daemon_does_not_know_is_told(tmp_path, daemon):
    with (
        pytest.raises(ConfigError, match="the docker daemon has no such image"),
        open_image("elsa-build-test/nothing:v0", tmp_path),
    ):
        pass
