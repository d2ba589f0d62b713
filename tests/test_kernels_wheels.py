"""Two wheels of one Triton for two Pythons: one compiler, or refused."""

import base64
import hashlib
import zipfile

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels import wheels

FILES = {
    "triton/__init__.py": b"__version__ = '3.8.0'\n",
    "triton/compiler/compiler.py": b"def compile(): ...\n",
    "triton/backends/nvidia/bin/ptxas": b"an assembler",
    wheels.LIBTRITON: b"for one Python",
    "triton/_C/libproton.so": b"for one Python too",
    "triton/plugins/libplugin.so": b"and this",
}


def digest(body):
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


def wheel(path, files=FILES, *, tag="cp311", record=True):
    """Write a wheel whose list names each file but itself."""
    files = files | {"triton-3.8.0.dist-info/WHEEL": f"Tag: {tag}\n".encode()}
    rows = [f"{name},sha256={digest(body)},{len(body)}" for name, body in files.items()]
    rows.append("triton-3.8.0.dist-info/RECORD,,")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
        if record:
            archive.writestr("triton-3.8.0.dist-info/RECORD", "\n".join(rows) + "\n")
    return path


def other(**changed):
    """Return the files of the wheel for another Python, some of them changed."""
    own = {name: body + b" 3.12" for name, body in FILES.items() if name.endswith(".so")}
    return FILES | own | {name.replace("__", "/"): body for name, body in changed.items()}


def test_the_key_for_another_python_is_made_with_that_wheels_library(tmp_path):
    ours = wheels.record(wheel(tmp_path / "cp311.whl"))
    theirs = wheels.record(wheel(tmp_path / "cp312.whl", other(), tag="cp312"))

    found = wheels.libtriton_for(ours, theirs)

    assert found == hashlib.sha256(b"for one Python 3.12").hexdigest()
    assert found != ours[wheels.LIBTRITON]


def test_an_installed_list_has_digests_in_the_same_words(tmp_path):
    ours = {name: f"sha256={digest(body)}" for name, body in FILES.items()}
    ours["../../../bin/proton"] = f"sha256={digest(b'a script')}"
    theirs = wheels.record(wheel(tmp_path / "cp312.whl", other()))

    assert wheels.libtriton_for(wheels.installed(ours), theirs) == theirs[wheels.LIBTRITON]


@pytest.mark.parametrize(
    "name", ["triton/compiler/compiler.py", "triton/backends/nvidia/bin/ptxas", "triton/new.py"]
)
def test_wheels_that_differ_in_what_decides_a_cubin_are_refused(tmp_path, name):
    ours = wheels.record(wheel(tmp_path / "cp311.whl"))
    theirs = wheels.record(wheel(tmp_path / "cp312.whl", other() | {name: b"changed"}))

    with pytest.raises(ConfigError, match=name) as caught:
        wheels.libtriton_for(ours, theirs)

    assert "--python PATH" in caught.value.hint


def test_a_wheel_without_the_library_is_refused(tmp_path):
    files = {name: body for name, body in FILES.items() if name != wheels.LIBTRITON}
    theirs = wheels.record(wheel(tmp_path / "any.whl", files))

    with pytest.raises(ConfigError, match=r"libtriton\.so"):
        wheels.libtriton_for(wheels.record(wheel(tmp_path / "cp311.whl")), theirs)


def test_a_list_that_was_kept_is_the_same_list(tmp_path):
    found = wheels.record(wheel(tmp_path / "cp311.whl"))

    wheels.keep(found, tmp_path / "kept.json")

    assert wheels.kept(tmp_path / "kept.json") == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cp311.whl", "kept.json"]


@pytest.mark.parametrize("body", ["", "{", "\x00", '{"a": "b"'])
def test_a_damaged_list_is_named_with_how_to_get_rid_of_it(tmp_path, body):
    path = tmp_path / "kept.json"
    path.write_text(body)

    with pytest.raises(ToolError, match=r"kept\.json: cannot be read") as caught:
        wheels.kept(path)

    assert caught.value.hint == f"rm {path}"


def damage_short(path):
    path.write_bytes(path.read_bytes()[:-40])


def damage_list(path):
    """Change bytes inside the compressed list."""
    body = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("triton-3.8.0.dist-info/RECORD").header_offset + 60
    body[start : start + 40] = b"\xff" * 40
    path.write_bytes(body)


@pytest.mark.parametrize(
    "damage",
    [
        damage_short,
        damage_list,
        lambda path: wheel(path, record=False),
        lambda path: path.write_bytes(b"no zip"),
        lambda path: path.unlink(),
    ],
    ids=["cut short", "changed inside", "without a list", "no zip", "gone"],
)
def test_what_is_no_wheel_is_said(tmp_path, damage):
    path = wheel(tmp_path / "triton.whl")
    damage(path)

    with pytest.raises(ToolError, match=r"triton\.whl: cannot be read as a wheel"):
        wheels.record(path)
