"""Releases: real pip on small wheels made here; the real wheel where it can be had."""

import http.server
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import Git
from elsa_build.model import Artifact, Pin
from elsa_build.progress import SILENT
from elsa_build.upstream import wheel
from elsa_build.upstream.cache import cache_dir, hold
from elsa_build.upstream.lock import Lock
from elsa_build.upstream.pip import Target
from elsa_build.upstream.release_source import ReleaseSource
from elsa_build.upstream.requirements import compare, decisive, from_metadata, from_pyproject
from elsa_build.upstream.source import open_pinned, open_wheel

FILES = {
    "sglang/__init__.py": b"",
    "sglang/pool.py": b"size = 1\n",
    "sglang/_version.py": b"version = 'x'\n",
    "sglang/run.sh": b"#!/bin/sh\n",
    "sglang/ext.cpython-312-x86_64-linux-gnu.so": b"\x7fELF",
}
METADATA = """Metadata-Version: 2.4
Name: sglang
Version: {version}
Requires-Dist: torch==2.14.1
Requires-Dist: av==16.1.0; sys_platform == "linux"
Requires-Dist: ray; extra == "ray"
"""


def make_wheel(
    folder: Path,
    version: str = "0.5.23",
    files: dict[str, bytes] = FILES,
    *,
    tags: str = "cp312-cp312-manylinux_2_34_x86_64",
    executable: bool = False,
) -> Path:
    """Write a wheel; `executable` sets the bits that some build machines leave."""
    folder.mkdir(exist_ok=True)
    path = folder / f"sglang-{version}-{tags}.whl"
    inside = f"sglang-{version}.dist-info"
    everything = {
        **files,
        f"{inside}/METADATA": METADATA.format(version=version).encode(),
        f"{inside}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tags}\n".encode(),
        f"{inside}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in everything.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, body)
    return path


def fill(cache: Path, *wheels: Path) -> None:
    """Put wheels where a download leaves them; pip takes half a second for each."""
    for path in wheels:
        place = cache / "wheels" / wheel.sha256(path)
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that the person's own pip configuration points at."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def releases(tmp_path: Path) -> ReleaseSource:
    return ReleaseSource(url="sglang", cache=tmp_path / "cache")


def contents(repository: Path, revision: str) -> dict[str, str]:
    with Git(repository) as git:
        return {path: e.mode for path, e in git.objects.files(git.resolve(revision, "tree"))}


def leftovers(cache: Path) -> list[Path]:
    """What a failed run may not leave: wheels, scratch files, refs, half a pack."""
    return [
        path
        for path in cache.rglob("*")
        if path.is_file()
        and (path.is_relative_to(cache / "tmp") or path.suffix == ".whl" or "tmp_" in path.name)
    ]


# --- what a release becomes -------------------------------------------------------------------


def test_a_release_becomes_one_commit_without_compiled_or_generated_files(index, releases):
    made = make_wheel(index)

    pin = releases.resolve("0.5.23")

    assert [path.name for path in releases.cache.glob("wheels/*/*.whl")] == [made.name]
    repository = releases.ensure(pin)
    assert contents(repository, pin.commit) == {
        "python/sglang/__init__.py": "100644",
        "python/sglang/pool.py": "100644",
        "python/sglang/run.sh": "100644",
    }
    assert pin.ref == "v0.5.23"
    assert pin.artifacts == (Artifact(filename=made.name, sha256=wheel.sha256(made)),)
    assert pin.requires == ("torch==2.14.1", 'av==16.1.0; sys_platform == "linux"')
    with Git(repository) as git:
        assert git.find("refs/tags/v0.5.23") == pin.commit
        assert git.find("refs/heads/releases") == pin.commit
        assert git.commit(pin.commit).parents == ()


def test_every_wheel_of_a_release_gives_the_same_commit_on_every_machine(tmp_path):
    other = {name.replace("312", "311"): body for name, body in reversed(FILES.items())}
    fill(tmp_path / "here", make_wheel(tmp_path))
    tags = "cp311-cp311-manylinux_2_28_aarch64"
    fill(tmp_path / "there", make_wheel(tmp_path, files=other, tags=tags, executable=True))
    here = ReleaseSource(url="sglang", cache=tmp_path / "here")
    target = Target(python="3.11", machine="aarch64")
    there = ReleaseSource(url="SGLang", cache=tmp_path / "there", target=target)

    one, two = here.resolve("v0.5.23"), there.resolve("0.5.23")

    assert one.commit == two.commit
    assert one.url == two.url
    assert one.artifacts != two.artifacts


def test_the_commit_of_a_release_does_not_depend_on_what_was_imported_before(tmp_path):
    sources = [ReleaseSource(url="sglang", cache=tmp_path / name) for name in ("one", "two")]
    for source in sources:
        fill(source.cache, *(make_wheel(tmp_path, version) for version in ("0.5.22", "0.5.23")))
    one, two = sources

    pins = [one.resolve("0.5.22"), one.resolve("0.5.23")]
    turned = [two.resolve("0.5.23"), two.resolve("0.5.22")]

    assert pins == turned[::-1]
    for source in sources:
        with Git(source.ensure(pins[0])) as git:
            assert git.find("refs/heads/releases") == pins[1].commit


def test_latest_is_the_newest_final_release(index, releases):
    for version in ("0.5.9", "0.5.10", "0.5.11rc1"):
        make_wheel(index, version)

    assert releases.resolve("latest").ref == "v0.5.10"


def test_a_release_in_the_cache_needs_no_index(index, releases):
    fill(releases.cache, make_wheel(index / "gone"))

    pin = releases.resolve("0.5.23")

    assert releases.resolve("v0.5.23") == pin
    assert releases.ensure(pin).is_dir()
    assert releases.wheel(pin).read_bytes()[:2] == b"PK"


def test_a_lost_cache_is_filled_again_from_the_lock(index, tmp_path, pin):
    make_wheel(index)
    cache = tmp_path / "new"

    repository = open_pinned(Lock(pin=pin), cache=cache)

    assert "python/sglang/pool.py" in contents(repository, pin.commit)
    found = open_wheel(Lock(pin=pin), python="3.12", cache=cache)
    assert wheel.sha256(found) == pin.artifacts[0].sha256


# --- bad input --------------------------------------------------------------------------------


def test_an_unknown_release_is_told_with_the_ones_there_are(index, releases):
    make_wheel(index)

    with pytest.raises(ConfigError, match=r"has no sglang==0\.5\.99 .* are 0\.5\.23"):
        releases.resolve("0.5.99")

    assert leftovers(releases.cache) == []


def test_a_release_without_a_wheel_for_the_python_is_unknown(index, tmp_path):
    make_wheel(index, tags="cp311-cp311-manylinux_2_34_x86_64")
    source = ReleaseSource(url="sglang", cache=tmp_path / "cache")

    with pytest.raises(ConfigError, match=r"for Python 3\.12 on x86_64"):
        source.resolve("0.5.23")


@pytest.mark.parametrize("ref", ["main", "v", "0.5.x", "--help", "0.5.23; rm"])
def test_what_is_not_a_version_is_refused_before_pip_is_asked(releases, ref):
    with pytest.raises(ConfigError, match="is not a release"):
        releases.resolve(ref)


@pytest.mark.parametrize("name", ["", "-r", "../x", "sglang==1", "a b", "https://example.org/x"])
def test_what_is_not_a_package_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="is not the name of a package"):
        ReleaseSource(url=name, cache=tmp_path)


def test_an_index_that_cannot_be_reached_is_a_tool_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    source = ReleaseSource(url="sglang", cache=tmp_path / "cache")

    with pytest.raises(ToolError, match="cannot download sglang") as caught:
        source.resolve("0.5.23")

    assert caught.value.hint is not None
    assert "pip config debug" in caught.value.hint


def test_a_truncated_wheel_is_refused_and_not_kept(index, releases):
    made = make_wheel(index)
    made.write_bytes(made.read_bytes()[:-40])

    with pytest.raises(ToolError):
        releases.resolve("0.5.23")

    assert leftovers(releases.cache) == []
    with Git(next((releases.cache / "upstream").glob("*.git"))) as git:
        assert git.text("for-each-ref") == ""


def test_a_wheel_with_a_damaged_member_is_refused_and_not_kept(index, releases):
    made = make_wheel(index, files={**FILES, "sglang/big.py": os.urandom(5000)})
    body = bytearray(made.read_bytes())
    body[body.index(b"sglang/big.py") + 2000] ^= 0xFF
    made.write_bytes(body)

    with pytest.raises(ToolError, match="truncated or corrupt"):
        releases.resolve("0.5.23")

    assert leftovers(releases.cache) == []


@pytest.fixture
def pin(tmp_path) -> Pin:
    """The pin of a small release, made with another cache."""
    fill(tmp_path / "first", make_wheel(tmp_path / "made"))
    return ReleaseSource(url="sglang", cache=tmp_path / "first").resolve("0.5.23")


def test_another_file_under_the_same_name_is_refused_by_its_sha256(index, releases, pin):
    make_wheel(index, files={**FILES, "sglang/pool.py": b"evil = 1\n"})

    with pytest.raises(ToolError, match=f"the lock wants .* with {pin.artifacts[0].sha256}"):
        releases.ensure(pin)


def test_a_wheel_that_rotted_in_the_cache_is_fetched_again(index, releases, pin):
    fill(releases.cache, make_wheel(index))
    releases.wheel(pin).write_bytes(b"rotten")

    assert wheel.sha256(releases.wheel(pin)) == pin.artifacts[0].sha256


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("commit", "holds commit .*, the lock says 1111"),
        ("tree", "has tree .*, the lock says 1111"),
        ("artifacts", "names no wheel"),
    ],
)
def test_a_pin_that_is_not_what_its_wheel_holds_is_refused(releases, tmp_path, pin, field, words):
    fill(releases.cache, make_wheel(tmp_path))
    wrong = replace(pin, **{field: () if field == "artifacts" else "1" * 40})

    with pytest.raises(ConfigError, match=words) as caught:
        releases.ensure(wrong)

    assert caught.value.hint == "elsa-build pin set v0.5.23 --source release"


def test_a_wheel_for_another_python_than_the_lock_has_is_asked_for_with_a_command(tmp_path, pin):
    with pytest.raises(ConfigError, match=r"no wheel for Python 3\.11") as caught:
        open_wheel(Lock(pin=pin), python="3.11", cache=tmp_path / "first")

    assert caught.value.hint == "elsa-build pin set v0.5.23 --source release --python 3.11"


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "/etc/evil.py",
        "sglang/../../evil.py",
        "sglang/.git/config",
        "sglang/.GIT/config",
        "sglang\\evil.py",
        "c:/evil.py",
        "sglang/./evil.py",
        "sglang//evil.py",
        "sglang/a\nb.py",
    ],
)
def test_a_name_that_would_leave_the_tree_refuses_the_wheel(tmp_path, name):
    made = make_wheel(tmp_path, files={**FILES, name: b""})

    for read in (wheel.check, wheel.sources, wheel.extensions):
        with pytest.raises(ConfigError, match="would leave the tree"):
            read(made)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_refuses_the_wheel(tmp_path):
    made = make_wheel(tmp_path)
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr("sglang/pool.py", b"other")

    with pytest.raises(ConfigError, match=r"holds 'sglang/pool\.py' twice"):
        wheel.check(made)


def test_a_wheel_of_another_package_is_refused(tmp_path):
    made = make_wheel(tmp_path, files={"other/__init__.py": b""})

    with pytest.raises(ConfigError, match="holds no sglang/ tree"):
        wheel.sources(made)


def test_a_zip_that_is_not_a_wheel_has_no_requirements(tmp_path):
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/__init__.py", b"")

    with pytest.raises(ConfigError, match="has no METADATA"):
        wheel.requires(path)


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    for path in Path(pytest.__file__).parent.parent.iterdir():
        if not path.name.startswith("pip"):
            (packages / path.name).symlink_to(path)
    (packages / "ours.pth").write_text(str(Path(__file__).parent.parent))
    code = "from elsa_build.cli.main import run; run()"

    ran = subprocess.run(
        [str(venv / "bin" / "python"), "-c", code, "pin", "set", "0.5.23", "-C", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 6, ran.stderr
    assert "this Python has no pip" in ran.stderr
    assert "-m ensurepip --upgrade" in ran.stderr


# --- interrupted, shared, full ----------------------------------------------------------------


class Halfway(http.server.BaseHTTPRequestHandler):
    """An index that sends half of a wheel and then hangs up, or waits for `release`."""

    body = b""
    name = ""
    stalls = False
    reached = threading.Event()
    release = threading.Event()

    def do_GET(self):
        page = f'<a href="/{self.name}#sha256={"0" * 64}">{self.name}</a>'.encode()
        body = page if self.path.startswith("/simple") else self.body
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if body is page else "application/zip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if body is page else body[: len(body) // 2])
        self.wfile.flush()
        if body is not page:
            self.reached.set()
            if self.stalls:
                self.release.wait(30)
            self.close_connection = True

    def log_message(self, *args):
        del args


@pytest.fixture
def halfway(tmp_path, monkeypatch):
    made = make_wheel(tmp_path / "half", files={**FILES, "sglang/big.py": os.urandom(200_000)})
    handler = type("Handler", (Halfway,), {"body": made.read_bytes(), "name": made.name})
    handler.reached, handler.release = threading.Event(), threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield handler
    handler.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def pin_set(root: Path, *, under: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    command = [*under, sys.executable, "-c", "from elsa_build.cli.main import run; run()"]
    return subprocess.Popen(
        [*command, "pin", "set", "0.5.23", "-C", str(root)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def test_a_download_that_breaks_half_way_leaves_nothing(halfway, releases):
    with pytest.raises(ToolError) as caught:
        releases.resolve("0.5.23")

    assert halfway.reached.is_set()
    assert "0.5.23" in str(caught.value)
    assert leftovers(releases.cache) == []


def test_an_interrupt_in_the_middle_of_a_download_leaves_nothing(halfway, tmp_path):
    halfway.stalls = True
    cache = Path(os.environ["ELSA_BUILD_CACHE"])

    with pin_set(tmp_path) as process:
        assert halfway.reached.wait(30)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)

    assert process.returncode == 130, said
    assert leftovers(cache) == []
    assert not (tmp_path / "upstream.lock").exists()


def test_a_second_run_on_one_cache_waits_and_says_for_whom(tmp_path):
    lock = tmp_path / "sglang-1.lock"
    told, waiting, done = [], threading.Event(), threading.Event()

    class Noted:
        @contextmanager
        def task(self, description, total=None, unit=""):
            told.append(description)
            waiting.set()
            yield lambda _: None

    def second():
        with hold(lock, Noted()):
            done.set()

    with hold(lock, SILENT):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(30)
        assert not done.is_set()
    thread.join(30)

    assert done.is_set()
    assert told == [f"waiting for process {os.getpid()}, which uses sglang-1 in the cache"]


def test_two_processes_that_start_at_once_on_one_cache_write_the_same_lock(index, tmp_path):
    make_wheel(index)
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        root.mkdir()

    processes = [pin_set(root) for root in roots]

    assert [p.wait(30) for p in processes] == [0, 0], [p.communicate() for p in processes]
    locks = [(root / "upstream.lock").read_bytes() for root in roots]
    assert locks[0] == locks[1]
    for process in processes:
        process.communicate()


def test_a_full_disk_is_told_with_the_way_out(index, tmp_path, monkeypatch):
    """A tmpfs of our own in a mount namespace, where the system lets us have one."""
    make_wheel(index, files={**FILES, "sglang/big.py": os.urandom(3_000_000)})
    cache = tmp_path / "small"
    cache.mkdir()
    mount = f'mount -t tmpfs -o size=2m none {cache} && exec "$@"'
    under = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*under, "true"], check=False).returncode:
        pytest.skip("no mount namespace of our own here")
    monkeypatch.setenv("ELSA_BUILD_CACHE", str(cache))

    process = pin_set(tmp_path, under=under)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 6, said
    assert "no space left on device" in said
    assert "ELSA_BUILD_CACHE=DIR" in said
    assert not (tmp_path / "upstream.lock").exists()


def test_a_cache_that_cannot_be_written_is_told_with_the_way_out(index, tmp_path):
    make_wheel(index)
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ToolError, match="cannot use the cache: Not a directory") as caught:
        ReleaseSource(url="sglang", cache=tmp_path / "file" / "cache").resolve("0.5.23")

    assert caught.value.hint is not None
    assert "ELSA_BUILD_CACHE=DIR" in caught.value.hint


def test_the_cache_is_where_the_environment_says(tmp_path):
    assert cache_dir({"ELSA_BUILD_CACHE": str(tmp_path)}) == tmp_path
    assert cache_dir({"ELSA_BUILD_CACHE": "~/x"}) == Path("~/x").expanduser()
    assert cache_dir({}).name == "elsa-build"


# --- compiled extensions ----------------------------------------------------------------------


def test_extensions_are_listed_and_read_with_their_digest(tmp_path):
    made = make_wheel(tmp_path)

    (found,) = wheel.extensions(made)

    assert (found.name, found.size) == ("sglang/ext.cpython-312-x86_64-linux-gnu.so", 4)
    assert wheel.read_extension(made, found) == b"\x7fELF"
    version = wheel.generated(made)
    assert version is not None
    assert wheel.read_extension(made, version) == FILES["sglang/_version.py"]


def test_an_extension_that_is_not_the_listed_one_is_refused(tmp_path):
    (found,) = wheel.extensions(make_wheel(tmp_path / "a"))
    other = make_wheel(tmp_path / "b", files={**FILES, found.name: b"ELF?"})

    with pytest.raises(ToolError, match="is not the file that was listed"):
        wheel.read_extension(other, found)


# --- requirements -----------------------------------------------------------------------------


def test_requirements_of_extras_are_left_out_and_markers_stay():
    text = (
        b"Requires-Dist: a==1\n"
        b'Requires-Dist: b; python_version < "4"\n'
        b'Requires-Dist: c; sys_platform == "linux" and extra == "all"\n'
        b"Requires-Dist: not a requirement\n"
    )

    assert from_metadata(text) == ("a==1", 'b; python_version < "4"', "not a requirement")


def test_a_pyproject_gives_its_dependencies():
    assert from_pyproject(b'[project]\ndependencies = ["a==1"]\n', "p") == ("a==1",)
    assert from_pyproject(b"", "p") == ()


@pytest.mark.parametrize("text", [b"[project", b"\xff", b"[project]\ndependencies = [1]\n"])
def test_a_broken_pyproject_is_named(text):
    with pytest.raises(ConfigError, match=r"^python/pyproject\.toml: "):
        from_pyproject(text, "python/pyproject.toml")


def test_what_moved_between_two_upstreams_is_listed_by_package():
    old = ["torch==1", "gone", 'av==1; os_name == "nt"', 'av==2; os_name != "nt"', "Same_Name"]
    new = ["torch==2", "new", 'av==1; os_name == "nt"', "same-name"]

    shifts = {shift.name: (shift.old, shift.new) for shift in compare(old, new)}

    assert shifts["torch"] == ("torch==1", "torch==2")
    assert shifts["gone"] == ("gone", None)
    assert shifts["new"] == (None, "new")
    assert shifts["av"] == (
        'av==1; os_name == "nt", av==2; os_name != "nt"',
        'av==1; os_name == "nt"',
    )
    assert decisive(new) == ("torch==2",)


# --- the real release -------------------------------------------------------------------------


@pytest.mark.wheel
def test_the_real_release_has_one_commit_whichever_wheel_it_came_from(tmp_path):
    cache = Path(os.environ.get("ELSA_BUILD_TEST_CACHE") or tmp_path)
    pins = [
        ReleaseSource(url="sglang", cache=cache, target=Target(python=python)).resolve("0.5.23")
        for python in ("3.11", "3.12")
    ]

    assert {pin.commit for pin in pins} == {"f23cbfb5554d93573cfa78d9a51f8ce01233fb9c"}
    assert {pin.tree for pin in pins} == {"234451a9bb490109dfc16d26e0734a1879cb6a0e"}
    assert len({pin.artifacts for pin in pins}) == 2
    names = [
        Path(found.name).name
        for found in wheel.extensions(ReleaseSource(url="sglang", cache=cache).wheel(pins[1]))
    ]
    assert len(names) == 5
    assert all("cpython-312" in name for name in names)
