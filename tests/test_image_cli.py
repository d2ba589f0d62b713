"""`image`, `verify` and `image-diff` as typed, in a project of one patch on a git upstream."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elsa_build.git.door import Git
from tests.conftest import Story
from tests.gpucode import built
from tests.imaging import POOL, UPSTREAM, tar, write_base

RECIPE = """\
version: 1
name: small
tag: "elsa-v1"
model: /models/m
arch: sm_120
patchsets:
  - work
"""


class Project:
    """A project whose commands are called as `project("image", "--tag", ...)`."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self.cache = cache

    def __call__(self, *arguments, code=0):
        # The seal of the tests is around each test, this also runs before the first one.
        env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        env |= {"ELSA_BUILD_CACHE": str(self.cache), "GIT_CONFIG_GLOBAL": os.devnull}
        ran = subprocess.run(
            [sys.executable, "-c", "from elsa_build.cli.main import run; run()", *arguments],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code, ran.stderr
        return ran


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The project that each test has a copy of, since making it takes two seconds."""
    folder = tmp_path_factory.mktemp("model")
    with Git.init(folder / "upstream.git") as git:
        story = Story(git)
        base = story.commit(None, "upstream", UPSTREAM)
        patch = {"python/sglang/pool.py": "SIZE = 2\n"}
        head = story.commit(base, "pool: a bigger pool\n\nIt was too small.", patch)
        git.move_refs({"refs/heads/main": (base, None), "refs/heads/work": (head, None)})
    made = Project(folder / "project", folder / "cache")
    (made.root / "recipes").mkdir(parents=True)
    (made.root / "patchsets").mkdir()
    (made.root / "recipes/small.yaml").write_text(RECIPE)
    repository = str(folder / "upstream.git")
    made("pin", "set", "main", "--source", "git", "--url", repository)
    made("patch", "import", f"{base}..{head}", "--into", "work", "--upstream", repository)
    return made


@pytest.fixture
def project(model, tmp_path):
    shutil.copytree(model.root, tmp_path / "project")
    return Project(tmp_path / "project", model.cache)


def document(ran):
    return json.loads(ran.stdout)


def test_one_command_makes_a_tagged_image_that_verifies(project):
    made = document(project("image", "--tag", "elsa-v1", "--json"))
    checked = document(project("verify", "elsa-v1", "--json"))

    assert made["schema"] == "elsa-build/image/1"
    assert made["data"]["layers"][0]["name"] == "upstream"
    assert checked["data"]["config"] == made["data"]["config"]
    assert (checked["status"], checked["data"]["patched_files"]) == ("ok", 1)
    assert checked["data"]["record"] is True


def test_the_delta_goes_on_a_base_that_is_named_and_the_second_time_nothing_is_looked_at(
    project, tmp_path
):
    site = "usr/lib/python3.12/site-packages"
    installed = {
        f"{site}/{path.removeprefix('python/')}": text.encode()
        for path, text in UPSTREAM.items()
        if "/sglang/" in path
    }
    write_base(tmp_path / "base", [tar(installed)])
    named = ("image", "--tag", "elsa-v1", "--base", str(tmp_path / "base"))

    first = project(*named, "--json")
    again = project(*named)

    layers = [layer["name"] for layer in document(first)["data"]["layers"]]
    assert layers == ["base", POOL, "provenance"]
    assert "look into layer 1 of 1" in first.stderr
    assert "look into" not in again.stderr
    assert document(project("verify", "elsa-v1", "--json"))["status"] == "ok"
    elsewhere = project(*named, "--package-dir", "/opt/x", code=5)
    assert f"no sglang in /opt/x of the base; it is in /{site}" in elsewhere.stderr


def test_a_base_with_a_library_that_the_card_cannot_run_fails_unless_asked_not_to_look(
    project, tmp_path
):
    site = "usr/lib/python3.12/site-packages"
    installed = {
        f"{site}/{path.removeprefix('python/')}": text.encode()
        for path, text in UPSTREAM.items()
        if "/sglang/" in path
    }
    installed[f"{site}/old_kernels/ops.so"] = built("90a", "100f")
    write_base(tmp_path / "base", [tar(installed)])
    named = ("image", "--tag", "elsa-v1", "--base", str(tmp_path / "base"))

    unseen = project(*named, "--no-audit")
    found = project(*named, code=7)

    assert "E41" not in unseen.stderr
    assert "old_kernels/ops.so" in found.stderr
    assert "nothing for sm_120" in found.stderr


def test_a_base_that_is_no_file_and_no_name_is_told(project):
    ran = project("image", "--tag", "elsa-v1", "--base", "./none/", code=5)

    assert "'./none/' is no image reference" in ran.stderr


def test_the_next_commands_are_named_on_stderr(project):
    said = project("image", "--tag", "elsa-v1")

    assert "next: elsa-build verify" in said.stderr
    assert "docker load -i" in said.stderr
    assert "next:" not in said.stdout


def test_a_dry_run_writes_nothing(project):
    before = sorted(project.root.rglob("*"))

    said = document(project("image", "--tag", "elsa-v1", "--dry-run", "--json"))

    assert [layer["name"] for layer in said["data"]["layers"]] == ["upstream", POOL]
    assert sorted(project.root.rglob("*")) == before


def test_a_tag_that_docker_refuses_is_told_before_anything_runs(project):
    ran = project("image", "--tag", "1.7+cu130", code=5)

    assert "hint: --tag 1.7-cu130" in ran.stderr


def test_another_image_for_the_same_tag_is_refused_and_moves_when_asked(project):
    project("image", "--tag", "elsa-v1")
    (project.root / "recipes/small.yaml").write_text(RECIPE + 'labels:\n  team: "other"\n')

    refused = project("image", "--tag", "elsa-v1", code=7)

    assert "already names" in refused.stderr
    assert "--replace-local" in refused.stderr
    project("image", "--tag", "elsa-v1", "--replace-local")
    project("verify", "elsa-v1")


def test_two_images_are_compared_with_the_reason(project):
    project("image", "--tag", "elsa-v1", "--recipe", "small")
    project("image", "--tag", "elsa-v2", "--recipe", "small")

    found = document(project("image-diff", "elsa-v1", "elsa-v2", "--json"))
    words = project("image-diff", "elsa-v1", "dist/elsa-v2.tar")

    fates = {layer["name"]: layer["fate"] for layer in found["data"]["layers"]}
    assert (fates["upstream"], fates["provenance"]) == ("same", "changed")
    assert found["data"]["layers"][-1]["why"] == ["build.json: companions, tag"]
    assert "build.json" in words.stdout
    assert "bytes to a host that has A" in words.stderr


def test_a_tampered_image_fails_verification_with_exit_7(project):
    project("image", "--tag", "elsa-v1")
    layers = json.loads((project.root / "dist/elsa-v1.json").read_text())["layers"]
    path = project.root / "dist/elsa-v1/blobs/sha256" / layers[1]["digest"][7:]
    body = path.read_bytes()
    path.unlink()
    path.write_bytes(body[:-1] + b"\x01")

    ran = project("verify", "elsa-v1", "--json", code=7)

    assert document(ran)["status"] == "failed"
    assert [found["code"] for found in document(ran)["diagnostics"]] == ["E521"]


def test_an_image_that_is_nowhere_is_told_with_exit_5(project, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")

    ran = project("verify", "elsa-v9", code=5)

    assert "no file, folder or tag 'elsa-v9'" in ran.stderr
