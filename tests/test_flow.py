"""The whole path as a person walks it: pin, patch, apply, image, verify, and what goes wrong."""

import json
import subprocess
import sys

import pytest

from tests.conftest import AUTHOR

POOL = "class Pool:\n    def copy(self):\n        return all_at_once()\n\n\ndef all_at_once():\n    return 1\n"
CHUNKED = POOL.replace("return all_at_once()", "return in_chunks()", 1) + (
    "\n\ndef in_chunks():\n    return 60\n"
)
RECIPE = """\
version: 1
name: small
tag: "small-v1"
model: /models/m
arch: sm_120
patchsets: [local]
base:
  package_dir: /opt/packages
"""


def elsa(root, *args, code=0):
    """Run the program in a project; the last line of stderr comes with a wrong exit code."""
    ran = subprocess.run(
        [sys.executable, "-c", "from elsa_build.cli.main import run; run()", *args],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    return ran


def document(root, *args, code=0):
    return json.loads(elsa(root, *args, "--json", code=code).stdout)


@pytest.fixture
def upstream(story):
    files = {
        "python/sglang/__init__.py": "",
        "python/sglang/pool.py": POOL,
        "python/pyproject.toml": '[project]\nname = "sglang"\ndependencies = ["torch==2.14.1"]\n',
    }
    base = story.commit(None, "base", files)
    fix = story.commit(base, "Copy in chunks", {"python/sglang/pool.py": CHUNKED})
    story.git.move_refs({"refs/heads/main": (base, None), "refs/heads/fix": (fix, None)})
    return story


@pytest.fixture
def root(tmp_path, upstream):
    root = tmp_path / "project"
    (root / "recipes").mkdir(parents=True)
    (root / "recipes/small.yaml").write_text(RECIPE)
    elsa(root, "pin", "set", "main", "--source", "git", "--url", str(upstream.git.path))
    where = ("--upstream", str(upstream.git.path), "--base", "main")
    elsa(root, "patch", "add", "main..fix", "--into", "local", *where)
    return root


def test_from_a_pin_to_a_verified_image(root, tmp_path):
    assert document(root, "check", code=4)["status"] == "stale"
    elsa(root, "apply", "--to", str(tmp_path / "work"))
    elsa(root, "image", "--tag", "small-v1")

    verified = document(root, "verify", "dist/small-v1.tar")

    assert (tmp_path / "work/python/sglang/pool.py").read_text() == CHUNKED
    assert verified["status"] == "ok"
    assert document(root, "check")["status"] == "ok"
    assert document(root, "status")["data"]["recipes"]["small"]["stale"] == []


def test_two_projects_give_the_same_image(root, tmp_path, upstream):
    other = tmp_path / "elsewhere" / "deeper"
    (other / "recipes").mkdir(parents=True)
    (other / "recipes/small.yaml").write_text(RECIPE)
    for name in ("upstream.lock", "patchsets"):
        subprocess.run(["cp", "-r", root / name, other], check=True)

    records = [document(place, "image", "--tag", "small-v1")["data"] for place in (root, other)]

    assert records[0]["config"] == records[1]["config"]
    assert records[0]["manifest"] == records[1]["manifest"]


def test_an_edited_patch_moves_only_its_layer_and_the_proof(root, tmp_path, upstream):
    before = document(root, "image", "--tag", "small-v1")["data"]
    elsa(root, "apply", "--to", str(tmp_path / "work"))
    pool = tmp_path / "work/python/sglang/pool.py"
    pool.write_text(pool.read_text().replace("60", "30"))
    elsa(root, "patch", "refresh", "copy-in-chunks", "--work-tree", str(tmp_path / "work"))

    after = document(root, "image", "--tag", "small-v1", "--replace-local")["data"]

    made = [layer["name"] for layer in after["layers"] if layer["made"]]
    assert "upstream" not in made
    assert "provenance" in made
    assert before["layers"][0]["diff_id"] == after["layers"][0]["diff_id"]
    assert after["made_bytes"] < 100_000


def test_a_tag_that_names_another_image_is_refused(root, tmp_path):
    elsa(root, "image", "--tag", "small-v1")
    recipe = root / "recipes/small.yaml"
    recipe.write_text(recipe.read_text().replace("/models/m", "/models/n"))

    ran = elsa(root, "image", "--tag", "small-v1", code=7)

    assert "small-v1" in ran.stderr
    assert "hint:" in ran.stderr


def test_a_conflict_writes_nothing_and_shows_both_sides(root, upstream, tmp_path):
    moved = upstream.commit(
        upstream.git.resolve("main"),
        "Copy by pages",
        {"python/sglang/pool.py": POOL.replace("return all_at_once()", "return by_pages()", 1)},
    )
    upstream.git.move_refs({"refs/heads/main": (moved, upstream.git.resolve("main"))})
    elsa(root, "pin", "update")
    lock = (root / "upstream.lock").read_bytes()

    ran = elsa(root, "apply", "--to", str(tmp_path / "work"), code=3)

    assert "by_pages" in ran.stdout
    assert "in_chunks" in ran.stdout
    assert not (tmp_path / "work").exists()
    assert (root / "upstream.lock").read_bytes() == lock
    assert document(root, "apply", code=3)["data"]["steps"][0]["outcome"] == "conflict"
    assert "do not apply" in elsa(root, "image", "--tag", "small-v1", code=3).stderr


def test_a_stale_lock_is_refused_when_locked(root):
    elsa(root, "apply")
    series = root / "patchsets/local/series.yaml"
    series.write_text(series.read_text() + "# a word\n")

    ran = elsa(root, "apply", "--locked", code=4)

    assert "patchsets/local/series.yaml" in ran.stderr


def test_a_hand_edited_lock_is_refused(root):
    lock = root / "upstream.lock"
    lock.write_text(lock.read_text().replace('ref = "main"', 'ref = "other"'))

    ran = elsa(root, "apply", code=5)

    assert "edited" in ran.stderr


def test_an_unknown_recipe_names_the_known_ones(root):
    assert "small" in elsa(root, "apply", "--recipe", "smal", code=5).stderr


def test_a_dry_run_leaves_no_trace(root, tmp_path):
    before = sorted(p.relative_to(root) for p in root.rglob("*"))
    lock = (root / "upstream.lock").read_bytes()

    elsa(root, "apply", "--to", str(tmp_path / "work"), "-n")
    elsa(root, "image", "--tag", "small-v1", "-n")

    assert sorted(p.relative_to(root) for p in root.rglob("*")) == before
    assert (root / "upstream.lock").read_bytes() == lock
    assert not (tmp_path / "work").exists()


def test_a_branch_goes_into_the_persons_own_repository(root, upstream):
    elsa(root, "apply", "--branch", "elsa", "--upstream", str(upstream.git.path))

    entry = upstream.git.objects.find(upstream.git.resolve("elsa", "tree"), "python/sglang/pool.py")
    assert upstream.git.objects.blob(entry.oid).decode() == CHUNKED


def test_json_errors_are_documents_too(root):
    (root / "patchsets/local/series.yaml").write_text("version: 1\nnmae: local\n")

    said = document(root, "apply", code=5)

    assert said["status"] == "error"
    assert any("nmae" in found["message"] for found in said["diagnostics"])


# --- upstream moves ---------------------------------------------------------------------------


def upstream_commit(upstream, subject, files):
    old = upstream.git.resolve("main")
    made = upstream.commit(old, subject, files)
    upstream.git.move_refs({"refs/heads/main": (made, old)})
    return made


def test_a_clean_rebase_moves_patches_and_lock_together(root, upstream):
    tip = upstream_commit(upstream, "Grow (#1)", {"python/sglang/pool.py": "# more\n" + POOL})
    before = (root / "upstream.lock").read_bytes()
    tried = document(root, "rebase", "--onto", "main")
    assert (root / "upstream.lock").read_bytes() == before

    elsa(root, "rebase", "--onto", "main", "--write")

    assert tried["data"]["steps"][0]["outcome"] == "clean"
    assert document(root, "pin", "show")["data"]["pin"]["commit"] == tip
    assert tip in (root / "patchsets/local/series.yaml").read_text()
    assert document(root, "apply")["data"]["tree"] == tried["data"]["tree"]
    assert document(root, "check")["status"] == "ok"


def test_what_upstream_took_is_marked_absorbed_and_keeps_its_id(root, upstream):
    upstream_commit(upstream, "Take it (#2)", {"python/sglang/pool.py": CHUNKED})

    elsa(root, "rebase", "--onto", "main", "--write")

    listed = document(root, "patch", "list")["data"]["patches"]
    assert [(p["id"], p["status"]) for p in listed] == [("copy-in-chunks", "absorbed")]


def test_a_conflicting_rebase_writes_nothing(root, upstream):
    upstream_commit(
        upstream,
        "Pages (#3)",
        {"python/sglang/pool.py": POOL.replace("return all_at_once()", "return by_pages()", 1)},
    )
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}

    ran = elsa(root, "rebase", "--onto", "main", "--write", code=3)

    assert "by_pages" in ran.stdout
    assert {p: p.read_bytes() for p in root.rglob("*") if p.is_file()} == before


def test_a_forecast_names_the_commit_to_blame(root, upstream):
    upstream_commit(upstream, "Quiet", {"python/sglang/other.py": "x = 1\n"})
    guilty = upstream_commit(
        upstream,
        "Pages (#3)",
        {"python/sglang/pool.py": POOL.replace("return all_at_once()", "return by_pages()", 1)},
    )

    seen = document(root, "forecast", "--until", "main")["data"]

    assert [(b["patch"], b["commit"], b["pr"]) for b in seen["breaks"]] == [
        ("copy-in-chunks", guilty, 3)
    ]


def test_a_pick_by_pull_request_is_kept_as_a_reference(root, upstream):
    fix = upstream_commit(upstream, "Fix it (#44)", {"python/sglang/fix.py": "y = 1\n"})

    elsa(root, "cherry-pick", "#44", "--from", "main")

    series = (root / "patchsets/picks/series.yaml").read_text()
    assert fix in series
    assert [p.name for p in (root / "patchsets/picks").iterdir()] == ["series.yaml"]
    recipe = root / "recipes/small.yaml"
    recipe.write_text(recipe.read_text().replace("[local]", "[local, picks]"))
    assert [s["outcome"] for s in document(root, "apply")["data"]["steps"]] == ["clean", "clean"]
    again = elsa(root, "cherry-pick", fix, "--from", "main", code=2)
    assert "carried already" in again.stderr


def test_a_pick_can_be_tried_on_any_repository(upstream, tmp_path):
    fix = upstream_commit(upstream, "Fix it (#44)", {"python/sglang/fix.py": "y = 1\n"})
    where = ("--upstream", str(upstream.git.path), "--onto", "main~1")

    tried = document(tmp_path, "cherry-pick", *where, fix[:10], "--dry-run")["data"]

    (step,) = tried["steps"]
    assert (step["commit"], step["outcome"]) == (fix, "clean")
    assert step["tree"] == upstream.git.resolve("main", "tree")


def test_a_reverted_pick_is_said(root, upstream):
    fix = upstream_commit(upstream, "Fix it (#44)", {"python/sglang/fix.py": "y = 1\n"})
    body = f'Revert "Fix it (#44)" (#45)\n\nThis reverts commit {fix}.'
    upstream_commit(upstream, body, {"python/sglang/fix.py": None})

    said = document(root, "cherry-pick", "#44", "--from", "main", "--dry-run")

    assert [d["code"] for d in said["diagnostics"]] == ["W301"]


@pytest.mark.parametrize("asked", ["#99999", "deadbeefdeadbeef", "not/a/ref"])
def test_a_pick_that_is_not_there_is_the_persons_error(root, asked):
    assert "hint:" in elsa(root, "cherry-pick", asked, "--from", "main", code=5).stderr


def test_a_merge_is_not_a_single_change(root, upstream):
    tip = upstream.git.resolve("main")
    merge = upstream.git.commit_tree(
        upstream.git.resolve("fix", "tree"), (tip, upstream.git.resolve("fix")), "Merge", AUTHOR
    )
    upstream.git.move_refs({"refs/heads/main": (merge, tip)})

    assert "merge" in elsa(root, "cherry-pick", merge, "--from", "main", code=5).stderr


IMPORTS = "import os\nimport sys\n\n\ndef use():\n    return os, sys\n"


def test_a_conflicting_pick_has_a_proposal_and_is_kept_only_when_accepted(root, upstream):
    upstream_commit(upstream, "Base (#50)", {"python/sglang/tool.py": IMPORTS})
    elsa(root, "pin", "update")
    elsa(root, "rebase", "--onto", "main", "--write")
    text = IMPORTS.replace("import sys\n", "import sys\nimport re\n").replace(
        "os, sys", "os, sys, 1"
    )
    upstream_commit(upstream, "Number (#51)", {"python/sglang/tool.py": text})
    text = text.replace("import re\n", "import re\nimport json\n")
    upstream_commit(upstream, "Json (#52)", {"python/sglang/tool.py": text})
    where = ("--from", "main", "--upstream", str(upstream.git.path))
    onto = document(root, "pin", "show")["data"]["pin"]["commit"]

    tried = document(root, "cherry-pick", "#52", *where, "--onto", onto, "-n", code=3)["data"]

    (step,) = tried["steps"]
    assert step["outcome"] == "proposed"
    assert step["tree"] is None
    assert step["proposal"]["how"]
    elsa(root, "cherry-pick", "#52", *where, code=3)
    assert not (root / "patchsets/picks").exists()
    elsa(root, "cherry-pick", "#52", *where, "--accept")
    recipe = root / "recipes/small.yaml"
    recipe.write_text(recipe.read_text().replace("[local]", "[local, picks]"))
    applied = document(root, "apply")["data"]
    assert [s["outcome"] for s in applied["steps"]] == ["clean", "clean"]
    assert document(root, "check")["status"] == "ok"
