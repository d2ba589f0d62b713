"""Picks written out as files: the same tree, without the history that they came from."""

import shutil

import pytest

from elsa_build.git.door import Git
from tests.downstream import begin
from tests.test_replay import text


@pytest.fixture
def project(tmp_path, story, monkeypatch):
    project = begin(tmp_path, story, monkeypatch, {"pool.py": text(), "other.py": text()})
    project.patch("Keep our pool", {"pool.py": text(l9="ours")})
    project.upstream("Far (#1)", {"pool.py": text(l5="far")})
    project.upstream("Fix (#2)", {"pool.py": text(l5="far", l1="fix")})
    project.upstream("More (#3)", {"other.py": text(l1="more")})
    project.run("cherry-pick", "#2", "#3", "--from", "main", "--into", "local")
    return project


def tree(project):
    return project.json("apply", "--dry-run")["tree"]


def test_a_vendored_pick_gives_the_same_tree_and_keeps_its_origin(project):
    before = tree(project)

    made = project.json("patch", "vendor")["patchsets"]

    assert made == [
        {
            "patchset": "local",
            "files": ["0002-fix-2.patch", "0003-more-3.patch", "series.yaml"],
            "patches": ["fix-2", "more-3"],
        }
    ]
    assert tree(project) == before
    assert project.run("check", "--json", code=4).document["status"] == "stale"
    listed = {p["id"]: p for p in project.json("patch", "list")["patches"]}
    assert listed["fix-2"]["kind"] == "cherry-pick"
    assert listed["fix-2"]["origin"]["pr"] == 2
    mail = project.text("patchsets/local/0002-fix-2.patch")
    assert f"Upstream-Commit: {listed['fix-2']['origin']['commit']}" in mail


def test_a_vendored_series_needs_only_the_pinned_tree(project, tmp_path, monkeypatch):
    before = tree(project)
    project.run("patch", "vendor")
    pin = project.json("pin", "show")["pin"]["commit"]
    alone = tmp_path / "alone.git"
    with Git.init(alone) as git:
        git.borrow(project.git.path, pin)
        git.move_refs({"refs/heads/main": (pin, None)})
    project.git.close()
    shutil.rmtree(project.git.path)
    alone.rename(project.git.path)
    monkeypatch.setenv("ELSA_BUILD_CACHE", str(tmp_path / "fresh"))

    assert tree(project) == before


def test_one_pick_is_vendored_and_the_other_stays_a_reference(project):
    project.run("patch", "vendor", "more-3")

    files = {p["id"]: p["file"] for p in project.json("patch", "list")["patches"]}

    assert files["fix-2"] is None
    assert files["more-3"] == "0002-more-3.patch"


def test_a_dry_run_writes_nothing_and_a_second_run_has_nothing_to_do(project):
    before = project.files()
    project.run("patch", "vendor", "--dry-run")
    assert project.files() == before
    project.run("patch", "vendor")

    assert "no picks without a file" in project.run("patch", "vendor").err


# --- what references need ---------------------------------------------------------------------


def test_a_fresh_mirror_fetches_what_references_need(project, tmp_path, monkeypatch):
    before = tree(project)
    monkeypatch.setenv("ELSA_BUILD_CACHE", str(tmp_path / "fresh"))

    assert tree(project) == before


def test_a_mirror_from_before_the_pick_is_brought_up_to_date(tmp_path, story, monkeypatch):
    project = begin(tmp_path, story, monkeypatch, {"pool.py": text()})
    cache = tmp_path / "other machine"
    with monkeypatch.context() as inside:
        inside.setenv("ELSA_BUILD_CACHE", str(cache))
        project.pin()
    project.upstream("Fix (#2)", {"pool.py": text(l1="fix")})
    project.run("cherry-pick", "#2", "--from", "main", "--into", "local")
    before = tree(project)
    monkeypatch.setenv("ELSA_BUILD_CACHE", str(cache))

    assert tree(project) == before


def test_a_reference_that_upstream_no_longer_has_is_named(project):
    series = project.root / "patchsets/local/series.yaml"
    listed = {p["id"]: p for p in project.json("patch", "list")["patches"]}
    series.write_text(series.read_text().replace(listed["fix-2"]["origin"]["commit"], "a" * 40))

    ran = project.run("apply", code=5)

    assert "patchsets/local/series.yaml:" in ran.err
    assert "patch vendor fix-2 --upstream PATH" in ran.err
