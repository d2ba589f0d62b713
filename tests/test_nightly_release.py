"""A pinned release has no history and no tests in its tree; upstream's repository lends both."""

import os
from pathlib import Path

import pytest

from elsa_build.git.door import Git
from tests.downstream import Downstream
from tests.test_replay import text
from tests.test_upstream_git import Remote
from tests.test_upstream_release import fill, make_wheel

POOL = "python/sglang/pool.py"


@pytest.fixture
def project(tmp_path, story, monkeypatch):
    """A project on a wheel's tree, and the history that the wheel was made from."""
    wheel = make_wheel(tmp_path / "index", "0.5.23", {"sglang/pool.py": text().encode()})
    fill(Path(os.environ["ELSA_BUILD_CACHE"]), wheel)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    root = tmp_path / "project"
    (root / "patchsets").mkdir(parents=True)
    project = Downstream(root, story, monkeypatch)
    base = project.upstream("release", {POOL: text(), "test/test_pool.py": text()})
    project.git.move_refs({"refs/tags/v0.5.23": (base, None)})
    project.run("pin", "set", "v0.5.23", "--source", "release")
    return project


def where(project):
    return ("--upstream", str(project.git.path))


def test_a_scan_begins_at_the_releases_tag_and_looks_at_shipped_files_only(project):
    project.upstream("Mamba tests (#1)", {"test/test_pool.py": text(l1="a")})
    project.upstream("Mamba pool (#2)", {POOL: text(l1="a"), "test/test_pool.py": text(l1="b")})

    found = project.json("nightly", "scan", *where(project), "--until", "main")["candidates"]

    assert [(one["pr"], one["alone"]) for one in found] == [(2, "clean")]


def test_without_a_repository_the_scan_says_what_to_add(project):
    assert "--upstream" in project.run("nightly", "scan", code=2).err
    assert "--upstream" in project.run("nightly", "watch", code=2).err


def test_without_the_tag_the_scan_asks_where_the_release_stands(project):
    base = project.main
    project.git.move_refs({"refs/tags/v0.5.23": (None, base)})
    project.upstream("Mamba (#1)", {POOL: text(l1="a")})

    lost = project.run("nightly", "scan", *where(project), "--until", "main", code=5)
    found = project.json("nightly", "scan", *where(project), "--until", "main", "--since", base)[
        "candidates"
    ]

    assert "--since" in lost.err
    assert [one["alone"] for one in found] == ["clean"]


def test_a_pick_is_written_as_a_file_without_the_tests_and_with_its_origin(project):
    first = project.upstream("Mamba one (#1)", {POOL: text(l2="one"), "test/test_pool.py": "x\n"})
    second = project.upstream("Mamba two (#2)", {POOL: text(l2="one two"), "test/x.py": "x\n"})

    done = project.json(
        "cherry-pick", "#2", *where(project), "--from", "main", "--with-prerequisites"
    )

    assert [s["commit"] for s in done["steps"]] == [first, second]
    listed = project.json("patch", "list")["patches"]
    assert [(p["file"], p["kind"], p["origin"], p["requires"]) for p in listed] == [
        ("0001-mamba-one-1.patch", "cherry-pick", {"commit": first, "pr": 1}, []),
        ("0002-mamba-two-2.patch", "cherry-pick", {"commit": second, "pr": 2}, ["mamba-one-1"]),
    ]
    assert "prerequisite of #2" in listed[0]["why"]
    mail = project.text("patchsets/picks/0002-mamba-two-2.patch")
    assert "test/" not in mail
    assert f"Upstream-Commit: {second}" in mail
    project.run("check")


def test_a_file_that_was_picked_is_carried(project):
    fix = project.upstream("Mamba one (#1)", {POOL: text(l2="one")})
    project.run("cherry-pick", fix, *where(project), "--from", "main")

    (one,) = project.json("nightly", "scan", *where(project), "--until", "main")["candidates"]
    again = project.run("cherry-pick", "#1", *where(project), "--from", "main", code=2)

    assert (one["carried"], one["alone"]) == ("mamba-one-1", "absorbed")
    assert "carried already" in again.err


def test_watch_follows_a_picked_file(project):
    fix = project.upstream("Mamba one (#1)", {POOL: text(l2="one")})
    project.run("cherry-pick", fix, *where(project), "--from", "main")
    project.upstream('Revert "Mamba one (#1)" (#2)', {POOL: text()})

    found = project.json("nightly", "watch", *where(project), "--until", "main", code=7)

    assert [one["verdict"] for one in found["findings"]] == ["reverted-upstream"]


# --- an address instead of a path ------------------------------------------------------------


def lacking(mirror, span):
    listed = mirror.text("rev-list", "--objects", "--missing=print", span)
    return [line for line in listed.splitlines() if line.startswith("?")]


def test_a_partial_mirror_gets_the_files_of_a_range_in_one_go(tmp_path, story, monkeypatch):
    project = Downstream(tmp_path / "none", story, monkeypatch)
    base = project.upstream("base", {POOL: text()})
    project.upstream("Mamba one (#1)", {POOL: text(l1="a")})
    project.upstream("Mamba two (#2)", {POOL: text(l1="b")})
    tip = project.upstream("Mamba three (#3)", {POOL: text(l1="c")})
    project.git.run("config", "uploadpack.allowFilter", "true")
    project.git.run("config", "uploadpack.allowAnySHA1InWant", "true")
    source = Remote(url=project.git.path.as_uri(), cache=tmp_path / "cache")
    with Git(source.ensure(source.resolve(base))) as mirror:
        before = lacking(mirror, f"{base}..{tip}")

        source.complete(base, tip)

        assert len(before) == 3
        assert lacking(mirror, f"{base}..{tip}") == []
