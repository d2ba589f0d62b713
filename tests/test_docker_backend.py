"""The docker backend against a real daemon: what is built, and how failures are told.

Bases are made here (a static busybox, no network).
"""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import docker
import pytest
from docker.utils import kwargs_from_env

from elsa_build.errors import ConfigError, FailedError, ToolError
from elsa_build.git.door import Git
from elsa_build.git.objects import blob_id
from elsa_build.images import dockerd
from elsa_build.images.base import Pinned, open_base
from elsa_build.images.docker_backend import build_on_base, look_inside
from elsa_build.images.dockerfile import STALE, render, stale_list
from elsa_build.images.oci.archive import write_archive
from elsa_build.images.oci.contents import visible
from elsa_build.images.oci.layer import Compressor, File, write_layer
from elsa_build.images.oci.layout import Assembled, manifest_of, to_json
from elsa_build.images.oci.store import BlobStore
from elsa_build.images.recipe import load
from elsa_build.model import BuildOptions, Digest, Layer
from tests import release
from tests.docking import busybox

ROOT = Path(__file__).parent.parent
SITE = "/usr/lib/python3.12/site-packages"
NASTY = """a b'c"d $HOME `id` \\ # é"""


# --- arranging --------------------------------------------------------------------------------


@pytest.fixture
def images(daemon):
    """Names for images of this test; what has one of them afterwards is removed."""
    names = []

    def name(stem):
        names.append(f"elsa-build-test/{stem}:p{os.getpid()}")
        return names[-1]

    yield name
    for used in names:
        if daemon.inspect(used):
            daemon.remove(used)


@pytest.fixture
def recipe():
    return replace(load(ROOT / "recipes" / "elsa-1.7.yaml"), package_dir=None)


def rootfs(files, path):
    """Write a root file system with a shell and these files, as `docker import` takes it."""
    with tarfile.open(path, "w") as tar:
        tar.add(busybox(), "bin/busybox", filter=_owned_by_root)
        for command in ("sh", "rm", "mkdir", "chown", "cat", "find"):
            link = tarfile.TarInfo(f"bin/{command}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name, body in files.items():
            member = tarfile.TarInfo(name.lstrip("/"))
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return path


def _owned_by_root(member):
    member.uid = member.gid = 0
    return member


def imported(daemon, path, name):
    """Import a root file system under a name."""
    repository, _, tag = name.rpartition(":")
    client = docker.APIClient(version="auto", **kwargs_from_env())
    try:
        client.import_image_from_file(str(path), repository=repository, tag=tag)
    finally:
        client.close()
    assert daemon.inspect(name)
    return name


def overlay(tmp_path, name, written, deleted=()):
    """Write an overlay archive: changed files, and what the Dockerfile must remove."""
    store = BlobStore(tmp_path / "store")
    layers = []
    proof = File(path=STALE.strip("/"), body=stale_list(written, deleted))
    delta = [File(path=f"{SITE}/{path}".lstrip("/"), body=body) for path, body in written.items()]
    for members in (delta, [proof]):
        blob = store.add(
            lambda out, members=members: write_layer(members, out, mtime=0, compressor=Compressor())
        )
        layers.append(
            Layer(
                name="x",
                key=Digest("sha256:x"),
                digest=blob.digest,
                diff_id=blob.diff_id,
                size=blob.size,
                media_type="application/vnd.oci.image.layer.v1.tar+gzip",
            )
        )
    diff_ids = [layer.diff_id for layer in layers]
    config = to_json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    )
    image = Assembled(
        tag=name.rpartition(":")[2],
        name=name,
        config=config,
        manifest=manifest_of(config, layers, {}),
        platform="linux/amd64",
        layers=tuple(layer.digest for layer in layers),
        blobs={layer.digest: store.path(layer.digest) for layer in layers},
    )
    path = tmp_path / "overlay.tar"
    with path.open("wb") as out:
        write_archive(out, image, mtime=0)
    return path


def contents(daemon, image, folder=SITE):
    """Return every file below a folder of an image, read back through `docker save`."""
    prefix = f"{folder.strip('/')}/".lstrip("/")
    with daemon.saved(image) as path:
        stored = open_base(path)
        found = visible(stored, lambda name: name.startswith(prefix))
        bodies = visible(stored, lambda name: name in found, keep=set(found))
    return {name.removeprefix(prefix): seen.body for name, seen in bodies.items()}


INSTALLED = {
    "sglang/__init__.py": b"",
    "sglang/old.py": b"old\n",
    "sglang/pool.py": b"pool = 1\n",
    "sglang/version.py": b"v\n",
    "sglang/__pycache__/pool.cpython-312.pyc": b"unchecked",
    "sglang/__pycache__/version.cpython-312.pyc": b"kept",
    "sglang/core.cpython-312-x86_64-linux-gnu.so": b"ELF",
}


TREE = Pinned(
    tree="d" * 40, files=lambda: {path: blob_id(body) for path, body in INSTALLED.items()}
)


def base_with_sglang(daemon, tmp_path, name, files=INSTALLED):
    placed = {f"{SITE}/{path}": body for path, body in files.items()}
    return imported(daemon, rootfs(placed, tmp_path / "rootfs.tar"), name)


# --- building ---------------------------------------------------------------------------------


@pytest.mark.docker
def test_the_delta_lands_exactly_where_the_base_keeps_the_package(daemon, images, recipe, tmp_path):
    base = base_with_sglang(daemon, tmp_path, images("base"))
    pyc = "sglang/__pycache__/pool.cpython-312.pyc"
    archive = overlay(
        tmp_path,
        images("overlay"),
        written={"sglang/pool.py": b"pool = 2\n", "sglang/bounded/copy.py": b"new\n"},
        deleted=["sglang/old.py"],
    )
    found = look_inside(
        daemon, base, TREE, recipe=recipe, commit="c" * 40, cache=tmp_path / "cache"
    )

    built = build_on_base(
        daemon,
        recipe,
        template=ROOT / "Dockerfile.j2",
        overlay=archive,
        base=base,
        tag=images("result"),
        package_dir=found.package_dir,
        labels={"org.opencontainers.image.revision": "a" * 40},
    )

    assert contents(daemon, built.image) == {
        **{path: body for path, body in INSTALLED.items() if path not in ("sglang/old.py", pyc)},
        "sglang/pool.py": b"pool = 2\n",
        "sglang/bounded/copy.py": b"new\n",
    }
    config = daemon.inspect(built.image)["Config"]
    assert config["Labels"]["org.opencontainers.image.revision"] == "a" * 40
    assert config["Cmd"][:3] == ["python3", "-m", "sglang.launch_server"]
    assert config["Healthcheck"]["Timeout"] == 30 * 10**9
    assert config["Healthcheck"]["StartPeriod"] >= 120 * 10**9
    assert config["Healthcheck"]["Retries"] >= 3


@pytest.mark.docker
def test_a_base_with_another_tree_is_refused_before_anything_is_built(
    daemon, images, recipe, tmp_path
):
    edited = {**INSTALLED, "sglang/pool.py": b"edited\n"}
    base = base_with_sglang(daemon, tmp_path, images("base"), edited)

    with pytest.raises(FailedError, match=r"1 files differ .*\n  changed  sglang/pool\.py"):
        look_inside(daemon, base, TREE, recipe=recipe, commit="c" * 40, cache=tmp_path / "cache")


@pytest.mark.docker
def test_docker_reads_every_value_as_the_recipe_has_it(daemon, images, recipe, tmp_path):
    base = base_with_sglang(daemon, tmp_path, images("base"))
    archive = overlay(tmp_path, images("overlay"), written={"sglang/pool.py": b""})
    nasty = replace(
        recipe,
        user="1000:1000",
        flags=(("served-model-name", NASTY),),
        env=(("A", NASTY), ("B", ""), ("C", "end\\")),
        labels=(("l", NASTY),),
    )

    built = build_on_base(
        daemon,
        nasty,
        template=ROOT / "Dockerfile.j2",
        overlay=archive,
        base=base,
        tag=images("result"),
        package_dir=SITE,
    )

    config = daemon.inspect(built.image)["Config"]
    assert config["Cmd"][-1] == NASTY
    assert config["Labels"]["l"] == NASTY
    assert {f"A={NASTY}", "B=", "C=end\\"} <= set(config["Env"])
    assert config["User"] == "1000:1000"


@pytest.mark.docker
def test_a_failed_step_is_an_error_with_its_last_forty_lines(daemon, images, tmp_path):
    base = imported(daemon, rootfs({}, tmp_path / "r.tar"), images("base"))
    loop = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; exit 9"

    with pytest.raises(ToolError) as caught:
        daemon.build({"Dockerfile": f"FROM {base}\nRUN {loop}\n".encode()}, tag=images("result"))

    first, *tail = str(caught.value).splitlines()
    assert first.startswith("docker: build ")
    assert first.endswith("returned a non-zero code: 9")
    assert (len(tail), tail[0], tail[-2]) == (40, "  | line 61", "  | line 99")


@pytest.mark.docker
def test_a_step_has_no_network_unless_the_recipe_says_so(daemon, images, tmp_path):
    base = imported(daemon, rootfs({}, tmp_path / "r.tar"), images("base"))
    ran = f"FROM {base}\nRUN cat /proc/net/dev > /devices\n".encode()

    daemon.build({"Dockerfile": ran}, tag=images("result"))

    devices = contents(daemon, images("result"), "/")["devices"]
    assert [line.split(b":")[0].strip() for line in devices.splitlines()[2:]] == [b"lo"]


@pytest.mark.docker
def test_the_certificates_of_the_recipe_reach_the_step_that_needs_them(
    daemon, images, recipe, tmp_path
):
    python = b'#!/bin/sh\necho "$PIP_CERT: $(cat $PIP_CERT): $*" > /asked\n'
    placed = {f"{SITE}/{path}": body for path, body in INSTALLED.items()}
    path = rootfs(placed, tmp_path / "r.tar")
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("bin/python3")
        member.size, member.mode = len(python), 0o755
        tar.addfile(member, io.BytesIO(python))
    base = imported(daemon, path, images("base"))
    archive = overlay(tmp_path, images("overlay"), written={"sglang/pool.py": b""})
    bundle = tmp_path / "ca.pem"
    bundle.write_text("CERTIFICATE")
    options = BuildOptions(packages=("a==1",), pip_args=("--timeout=9",), ca_bundle=bundle)

    built = build_on_base(
        daemon,
        replace(recipe, build=options),
        template=ROOT / "Dockerfile.j2",
        overlay=archive,
        base=base,
        tag=images("result"),
        package_dir=SITE,
    )

    asked = contents(daemon, built.image, "/")["asked"].decode()
    assert asked.startswith("/opt/elsa/ca-bundle.pem: CERTIFICATE: -m pip install")
    assert asked.endswith("--timeout=9 a==1\n")


@pytest.mark.docker
def test_a_base_that_the_daemon_lacks_is_answered_with_the_command(
    daemon, images, recipe, tmp_path
):
    missing = images("missing")

    with pytest.raises(ToolError, match="the daemon has no image") as caught:
        build_on_base(
            daemon,
            recipe,
            template=ROOT / "Dockerfile.j2",
            overlay=tmp_path / "no.tar",
            base=missing,
            tag=images("result"),
            package_dir=SITE,
        )

    assert caught.value.hint == f"docker pull {missing}"


@pytest.mark.docker
def test_the_command_of_the_rendered_dockerfile_stops_without_a_base(daemon, images, recipe):
    text = render(recipe, ROOT / "Dockerfile.j2", package_dir=SITE)

    with pytest.raises(ToolError, match="should not be blank"):
        daemon.build({"Dockerfile": text.encode()}, tag=images("result"))


# --- the door ---------------------------------------------------------------------------------


@pytest.mark.docker
@pytest.mark.parametrize("name", ["elsa v1", "Elsa:1", "e" * 300, "elsa:1.7+cu130"])
def test_a_name_that_docker_would_refuse_never_reaches_it(daemon, name):
    with pytest.raises(ConfigError, match="no image reference"):
        daemon.build({"Dockerfile": b"FROM scratch\n"}, tag=name)


@pytest.mark.docker
def test_an_archive_that_docker_cannot_load_is_an_error(daemon, tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("hello")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))

    with pytest.raises(ToolError, match="docker: load"):
        daemon.load(path)


@pytest.mark.docker
def test_an_image_that_is_not_there_cannot_be_saved(daemon):
    assert daemon.inspect("elsa-build-test/none:x") is None
    with (
        pytest.raises(ToolError, match="docker: save elsa-build-test/none:x"),
        daemon.saved("elsa-build-test/none:x"),
    ):
        pass


@pytest.mark.docker
def test_an_image_can_have_a_second_name(daemon, images, tmp_path):
    one, two = images("one"), images("two")
    imported(daemon, rootfs({}, tmp_path / "r.tar"), one)

    daemon.tag(one, two)

    assert daemon.inspect(one)["Id"] == daemon.inspect(two)["Id"]


def test_no_daemon_is_one_clear_error(tmp_path):
    with pytest.raises(ToolError, match="docker daemon not reachable") as caught:
        dockerd.connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})

    assert caught.value.hint == "use --backend oci"


def test_an_error_inside_a_stream_is_an_error():
    events = [{"stream": "Step 1/1 : RUN x\n"}, {"errorDetail": {"message": "no space left"}}]

    with pytest.raises(ToolError, match=r"docker: push failed: no space left\n  \| Step 1/1"):
        list(dockerd._lines(events, "push"))


def test_a_context_has_the_files_that_were_named_and_nothing_else():
    with tarfile.open(fileobj=dockerd.context_tar({"b": b"2", "Dockerfile": b"FROM x"})) as tar:
        assert [(m.name, m.mtime, m.mode) for m in tar] == [
            ("Dockerfile", 315532800, 0o644),
            ("b", 315532800, 0o644),
        ]


# --- BuildKit ---------------------------------------------------------------------------------


def cli(folder, version, *, buildx=False):
    """Put a docker command line of some version into a folder."""
    folder.mkdir()
    path = folder / "docker"
    path.write_text(
        f"""#!/bin/sh
case "$1" in
buildx) {"echo buildx v0.14" if buildx else "exit 1"} ;;
version) echo {version}; exit 1 ;;
esac
"""
    )
    path.chmod(0o755)
    return str(folder)


def probe(*folders):
    found = dockerd.probe_buildkit({"PATH": os.pathsep.join((*folders, "/bin"))})
    return found and (str(found.cli), found.via)


def test_buildkit_is_found_in_the_second_command_line_when_the_first_has_none(tmp_path):
    new, old = cli(tmp_path / "a", "28.2.2"), cli(tmp_path / "b", "20.10.24")

    assert probe(new, old) == (f"{old}/docker", "built-in")


def test_a_new_command_line_with_the_plugin_has_buildkit(tmp_path):
    new = cli(tmp_path / "a", "28.2.2", buildx=True)

    assert probe(new) == (f"{new}/docker", "buildx")


# --- the real wheel ---------------------------------------------------------------------------


@pytest.mark.wheel
@pytest.mark.docker
def test_a_base_with_the_real_wheel_takes_the_delta_and_nothing_else_changes(
    daemon, images, recipe, tmp_path
):
    pin, wheel, source = release.fetch(tmp_path)
    site = tmp_path / "site"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"),
            *("--no-index", "--python-version", "3.12", "--only-binary=:all:", "--platform"),
            *("manylinux_2_34_x86_64", "--target", str(site), str(wheel)),
        ],
        check=True,
    )
    files = {
        str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()
    }
    base = base_with_sglang(daemon, tmp_path, images("base"), files)
    with Git(source.ensure(pin)) as git:
        python = git.objects.find(git.resolve(pin.commit, "tree"), "python").oid
        tree = {name: entry.oid for name, entry in git.objects.files(python)}
    found = look_inside(
        daemon,
        base,
        Pinned(tree=python, files=lambda: tree),
        recipe=recipe,
        commit=pin.commit,
        cache=tmp_path / "cache",
    )
    changed = {"sglang/srt/mem_cache/memory_pool.py": b"# patched\n", "sglang/srt/new.py": b"#\n"}
    archive = overlay(tmp_path, images("overlay"), written=changed)

    built = build_on_base(
        daemon,
        recipe,
        template=ROOT / "Dockerfile.j2",
        overlay=archive,
        base=base,
        tag=images("result"),
        package_dir=found.package_dir,
    )

    assert (found.package_dir, found.equal) == (SITE, True)
    assert contents(daemon, built.image) == {**files, **changed}
    with zipfile.ZipFile(wheel) as names:
        assert len(files) > len([n for n in names.namelist() if n.endswith(".py")])
