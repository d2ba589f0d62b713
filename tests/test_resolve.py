"""A conflict laid out for a person's own tools, and what they made of it kept for everyone."""

import subprocess

import pytest

from elsa_build.patches.proposals import memory
from tests.downstream import begin

POOL = "python/sglang/pool.py"


def python(**lines):
    """Return ten assignments, some of them replaced."""
    return "".join(f"{lines.get(f'l{i}', f'x{i} = {i}')}\n" for i in range(10))


@pytest.fixture
def project(tmp_path, story, monkeypatch):
    files = {POOL: python(), "python/sglang/other.py": python(), "README": "far away\n"}
    project = begin(tmp_path, story, monkeypatch, files)
    project.patch("Chunk the copy", {POOL: python(l4="x4 = chunked(4)")})
    project.patch("Keep nine", {POOL: python(l4="x4 = chunked(4)", l9="x9 = 99")})
    return project


@pytest.fixture
def moved(project):
    """The same, after upstream changed the line that the first patch changes."""
    project.upstream("Rename the pool (#7)", {POOL: python(l4="x4 = pages(4)")})
    return project


def git(folder, *args, check=True):
    return subprocess.run(
        ["git", "-C", str(folder), *args], capture_output=True, text=True, check=check
    ).stdout


def begun(project, *args):
    return project.json("resolve", "chunk-the-copy", "--onto", "main", *args)


def folder_of(project):
    return project.root / "dist/resolve/chunk-the-copy"


def settle(project, body=None):
    path = folder_of(project) / POOL
    path.write_text(body or python(l4="x4 = chunked(pages(4))"))


# --- laying out ------------------------------------------------------------------------------


def test_the_conflict_is_in_the_files_and_in_the_index(moved):
    laid = begun(moved)

    folder = folder_of(moved)
    assert laid["folder"] == str(folder)
    body = (folder / POOL).read_text()
    assert "<<<<<<< " in body
    assert "||||||| " in body
    assert "x4 = pages(4)\n" in body
    assert "x4 = chunked(4)\n" in body
    stages = git(folder, "ls-files", "-u").splitlines()
    assert [line.split()[2] for line in stages] == ["1", "2", "3"]
    assert git(folder, "status", "--porcelain") == f"UU {POOL}\n"


def test_the_cause_upstream_is_named(moved):
    (site,) = begun(moved)["sites"]

    assert (site["path"], site["line"]) == (POOL, 5)
    assert [(c["pr"], c["commit"]) for c in site["causes"]] == [(7, moved.main)]


def test_the_cause_is_found_for_a_pin_on_a_release_branch_too(project):
    branch = project.story.commit(project.main, "Release", {"README": "released\n"})
    project.git.move_refs({"refs/heads/release": (branch, None)})
    project.run("pin", "set", "release")
    project.upstream("Other (#6)", {"python/sglang/other.py": python(l1="x1 = 11")})
    guilty = project.upstream(
        "Rename the pool (#7)",
        {POOL: python(l4="x4 = pages(4)")},
    )
    project.upstream("More (#8)", {"python/sglang/other.py": python(l1="x1 = 12")})

    (site,) = begun(project)["sites"]

    assert [cause["commit"] for cause in site["causes"]] == [guilty]


def test_people_get_commands_that_work(moved):
    ran = moved.run("resolve", "chunk-the-copy", "--onto", "main")

    assert "Rename the pool (#7)" in ran.out
    assert f"git -C {folder_of(moved)} mergetool" in ran.err


def test_a_merge_tool_of_the_persons_git_works_there(moved, tmp_path):
    begun(moved)
    tool = tmp_path / "tool.sh"
    tool.write_text('#!/bin/sh\nsed \'s/pages(4)/chunked(pages(4))/\' "$1" > "$2"\n')
    tool.chmod(0o755)
    folder = folder_of(moved)

    settings = (
        "-c",
        f'mergetool.t.cmd={tool} "$LOCAL" "$MERGED"',
        "-c",
        "mergetool.t.trustExitCode=true",
    )
    git(folder, *settings, "mergetool", "--no-prompt", "--tool=t")
    done = moved.json("resolve", "chunk-the-copy", "--continue")

    assert done["paths"] == [POOL]
    assert not folder.exists()


def test_nothing_but_the_folder_is_written_and_abort_leaves_no_trace(moved):
    before = moved.files()
    begun(moved)
    (folder_of(moved) / "notes.txt").write_text("mine\n")
    outside = {p: b for p, b in moved.files().items() if folder_of(moved) not in p.parents}
    assert outside == before

    moved.run("resolve", "chunk-the-copy", "--abort")

    assert moved.files() == before
    assert list((moved.root / "dist/resolve").iterdir()) == []


def test_a_dry_run_leaves_no_trace(moved):
    before = moved.files()

    begun(moved, "--dry-run")

    assert moved.files() == before


def test_a_second_start_is_refused_and_says_how_to_go_on(moved):
    begun(moved)
    settle(moved)

    ran = moved.run("resolve", "chunk-the-copy", "--onto", "main", code=7)

    assert "--continue" in ran.err
    assert "chunked(pages(4))" in (folder_of(moved) / POOL).read_text()


@pytest.mark.parametrize("kind", ["files", "repository", "file"])
def test_a_folder_that_is_not_ours_is_refused(moved, tmp_path, kind):
    mine = tmp_path / "mine"
    if kind == "file":
        mine.write_text("x")
    else:
        mine.mkdir()
        (mine / "a").write_text("x")
    if kind == "repository":
        git(mine, "init", "-q")

    begin_ = moved.run("resolve", "chunk-the-copy", "--onto", "main", "--to", str(mine), code=5)
    go_on = moved.run("resolve", "chunk-the-copy", "--to", str(mine), "--continue", code=5)
    stop = moved.run("resolve", "chunk-the-copy", "--to", str(mine), "--abort", code=5)

    assert all("hint:" in ran.err for ran in (begin_, go_on, stop))
    assert mine.exists()


def test_a_killed_run_can_be_run_again(moved):
    left = moved.root / "dist/resolve/.chunk-the-copy-abcd1234"
    left.mkdir(parents=True)
    (left / "half").write_text("x")

    begun(moved)
    moved.run("resolve", "chunk-the-copy", "--abort")

    assert not left.exists()


def test_a_patch_that_applies_has_nothing_to_resolve(moved):
    ran = moved.run("resolve", "keep-nine", "--onto", "main", code=5)

    assert "nothing to resolve" in ran.err


def test_a_blocked_patch_names_the_one_to_resolve_first(moved):
    moved.upstream("Rename again (#8)", {POOL: python(l4="x4 = pages(4)", l9="x9 = pages(9)")})

    ran = moved.run("resolve", "keep-nine", "--onto", "main", code=5)

    assert "elsa-build resolve chunk-the-copy" in ran.err


@pytest.mark.parametrize("asked", [("--continue", "--abort"), ("--continue", "--onto", "main")])
def test_options_that_do_not_fit_are_usage_errors(moved, asked):
    moved.run("resolve", "chunk-the-copy", *asked, code=2)


# --- going on --------------------------------------------------------------------------------


def test_what_was_settled_is_remembered_with_author_reason_and_day(moved):
    begun(moved)
    settle(moved)
    before = moved.text("patchsets/local/series.yaml")

    done = moved.json("resolve", "chunk-the-copy", "--continue", "--why", "pages are chunks too")

    (stored,) = memory.load(moved.root / "patchsets/local").resolutions
    assert done["stored"] == [f"resolutions/{stored.name}"]
    assert stored.reason == "pages are chunks too"
    assert stored.base == moved.main
    assert stored.lines == ("x4 = chunked(pages(4))",)
    assert moved.text("patchsets/local/series.yaml") == before
    assert not folder_of(moved).exists()


def test_a_stored_resolution_lets_the_next_patch_be_resolved(moved):
    moved.upstream("Rename again (#8)", {POOL: python(l4="x4 = pages(4)", l9="x9 = pages(9)")})
    begun(moved)
    settle(moved, python(l4="x4 = chunked(pages(4))", l9="x9 = pages(9)"))
    moved.run("resolve", "chunk-the-copy", "--continue")

    laid = moved.json("resolve", "keep-nine", "--onto", "main")

    (site,) = laid["sites"]
    assert site["line"] == 10
    body = (moved.root / "dist/resolve/keep-nine" / POOL).read_text()
    assert "x4 = chunked(pages(4))\n" in body


def test_on_the_pin_itself_the_patchset_is_written_anew(moved):
    moved.run("pin", "update")
    assert moved.json("apply", code=3)["steps"][0]["outcome"] == "conflict"
    moved.json("resolve", "chunk-the-copy")
    settle(moved)

    done = moved.json("resolve", "chunk-the-copy", "--continue")

    assert done["rewritten"] == ["0001-chunk-the-copy.patch", "0002-keep-nine.patch", "series.yaml"]
    assert moved.main in moved.text("patchsets/local/series.yaml")
    applied = moved.json("apply")
    assert [s["outcome"] for s in applied["steps"]] == ["clean", "clean"]
    assert moved.run("check", "--json").document["status"] == "ok"


def test_on_the_pin_two_conflicts_are_settled_one_after_the_other(moved):
    both = python(l4="x4 = pages(4)", l9="x9 = pages(9)")
    moved.upstream("Rename again (#8)", {POOL: both})
    moved.run("pin", "update")
    moved.json("resolve", "chunk-the-copy")
    settle(moved, python(l4="x4 = chunked(pages(4))", l9="x9 = pages(9)"))
    first = moved.json("resolve", "chunk-the-copy", "--continue")
    moved.json("resolve", "keep-nine")
    path = moved.root / "dist/resolve/keep-nine" / POOL
    path.write_text(python(l4="x4 = chunked(pages(4))", l9="x9 = pages(99)"))

    second = moved.json("resolve", "keep-nine", "--continue")

    assert (first["left"], first["rewritten"]) == (["keep-nine"], [])
    assert second["rewritten"]
    moved.run("apply", "--to", str(moved.root / "applied"))
    found = (moved.root / "applied" / POOL).read_text()
    assert found == python(l4="x4 = chunked(pages(4))", l9="x9 = pages(99)")


def test_a_marker_that_is_left_is_named_with_its_line(moved):
    begun(moved)

    ran = moved.run("resolve", "chunk-the-copy", "--continue", code=3)

    assert f"{POOL}:5: a conflict marker" in ran.err
    assert folder_of(moved).exists()


def test_a_guard_that_objects_keeps_the_folder_until_it_is_overruled(moved):
    begun(moved)
    settle(moved, python(l4="x4 = chunked(pages(4)"))

    ran = moved.run("resolve", "chunk-the-copy", "--continue", code=7)
    assert folder_of(moved).exists()
    moved.run("resolve", "chunk-the-copy", "--continue", "--accept")

    assert POOL in ran.err
    assert not folder_of(moved).exists()


def test_a_resolution_that_leaves_nothing_says_to_drop_the_patch(moved):
    begun(moved)
    settle(moved, python(l4="x4 = pages(4)"))

    ran = moved.run("resolve", "chunk-the-copy", "--continue", code=3)

    assert "patch drop chunk-the-copy" in ran.err


def test_a_committed_resolution_counts_too(moved):
    begun(moved)
    settle(moved)
    who = ("-c", "user.name=a", "-c", "user.email=b")
    git(folder_of(moved), *who, "commit", "-qam", "settled")

    assert moved.json("resolve", "chunk-the-copy", "--continue")["stored"]


def test_another_patchs_folder_is_refused(moved):
    begun(moved)

    ran = moved.run("resolve", "keep-nine", "--to", str(folder_of(moved)), "--continue", code=5)

    assert "chunk-the-copy" in ran.err


def test_patchsets_that_changed_meanwhile_are_stale(moved):
    moved.run("patch", "drop", "keep-nine", "--why", "it has not earned its place here")
    moved.upstream("Rename nine (#9)", {POOL: python(l4="x4 = pages(4)", l9="x9 = pages(9)")})
    begun(moved)
    settle(moved)
    series = moved.root / "patchsets/local/series.yaml"
    before = series.read_text()
    series.write_text(before.replace("status: candidate", "status: dropped", 1))

    ran = moved.run("resolve", "chunk-the-copy", "--continue", code=5)

    assert "dropped" in ran.err


def test_a_deletion_must_be_decided_in_the_index(moved):
    moved.upstream("Drop the pool (#9)", {POOL: None})
    begun(moved)
    folder = folder_of(moved)

    undecided = moved.run("resolve", "chunk-the-copy", "--continue", code=3)
    git(folder, "add", POOL)
    done = moved.json("resolve", "chunk-the-copy", "--continue")

    assert "git add" in undecided.err
    assert done["paths"] == [POOL]
    assert done["stored"] == []


def test_a_pick_that_had_to_be_resolved_becomes_a_file_and_keeps_its_origin(project):
    common = project.main
    fix = project.upstream("Fix zero (#5)", {POOL: python(l0="x0 = fixed(0)")})
    project.run("cherry-pick", fix, "--from", "main", "--into", "local")
    branch = project.story.commit(common, "Other zero", {POOL: python(l0="x0 = other(0)")})
    project.git.move_refs({"refs/heads/release": (branch, None)})
    project.run("pin", "set", "release")
    project.run("resolve", "fix-zero-5")
    path = project.root / "dist/resolve/fix-zero-5" / POOL
    path.write_text(
        path.read_text().partition("<<<<<<<")[0]
        + "x0 = fixed(other(0))\n"
        + "".join(
            f"{line}\n" for line in python(l4="x4 = chunked(4)", l9="x9 = 99").splitlines()[1:]
        )
    )

    done = project.json("resolve", "fix-zero-5", "--continue")

    assert "0003-fix-zero-5.patch" in done["rewritten"]
    (picked,) = [p for p in project.json("patch", "list")["patches"] if p["id"] == "fix-zero-5"]
    assert (picked["file"], picked["origin"]["commit"]) == ("0003-fix-zero-5.patch", fix)
    assert {s["outcome"] for s in project.json("apply")["steps"]} == {"clean"}
    assert project.run("check", "--json").document["status"] == "ok"


# --- proposals -------------------------------------------------------------------------------


def test_a_proposal_is_taken_and_remembered_without_a_work_tree(tmp_path, story, monkeypatch):
    old, theirs = "import a\n\nuse(a)\n", "import a\nimport c\n\nuse(a)\n"
    project = begin(tmp_path, story, monkeypatch, {POOL: old})
    project.patch("Import b", {POOL: "import a\nimport b\n\nuse(a)\n"})
    project.upstream("Import c (#7)", {POOL: theirs})

    done = project.json("resolve", "import-b", "--onto", "main", "--accept")

    assert done["how"]
    assert done["stored"]
    assert not (project.root / "dist").exists()


def test_where_nothing_can_be_proposed_accept_says_so(moved):
    moved.upstream("Drop the pool (#9)", {POOL: None})

    ran = moved.run("resolve", "chunk-the-copy", "--onto", "main", "--accept", code=3)

    assert "no proposal" in ran.err


def test_what_was_settled_for_a_new_upstream_lets_the_rebase_be_written(moved):
    assert moved.json("rebase", "--onto", "main", code=3)["steps"][0]["outcome"] != "clean"
    begun(moved)
    settle(moved)
    moved.json("resolve", "chunk-the-copy", "--continue")

    done = moved.json("rebase", "--onto", "main", "--write")

    assert [step["outcome"] for step in done["steps"]] == ["clean", "clean"]
    assert done["written"]
    assert moved.json("apply")["tree"] == done["tree"]
    assert moved.json("check")["errors"] == 0


def test_a_probe_that_no_longer_holds_keeps_a_rebase_from_being_written(project):
    series = next((project.root / "patchsets").glob("*/series.yaml"))
    probe = '    probes:\n      - {absent: pages, paths: ["python/**/*.py"]}\n'
    text = series.read_text()
    series.write_text(text.rstrip("\n") + "\n" + probe)
    project.upstream("Pages elsewhere (#8)", {"python/sglang/other.py": python(l1="pages = 1")})

    done = project.json("rebase", "--onto", "main", "--write", code=7)

    assert not done["written"]
    assert [step["outcome"] for step in done["steps"]] == ["clean", "clean"]
