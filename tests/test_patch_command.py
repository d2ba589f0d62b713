"""`elsa-build patch` as a person types it: what is shown, what is edited, what is refused."""

import json
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from elsa_build.cli import main as command_line
from elsa_build.cli.main import app
from elsa_build.errors import ConfigError, ConflictError, ToolError, UsageError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Status
from elsa_build.patches import editing, importing, lint, mail, sources
from elsa_build.patches.seriesfile import load

TEXT = "".join(f"line {n}\n" for n in range(1, 41))

command_line.load(["patch"])


def edited(**lines: str) -> str:
    text = TEXT.splitlines(keepends=True)
    for key, words in lines.items():
        text[int(key[1:]) - 1] = f"{words}\n"
    return "".join(text)


@pytest.fixture
def world(story, tmp_path, monkeypatch):
    """A repository with a base, a project with a patchset of three patches, and a command line."""
    root = tmp_path / "project"
    (root / "patchsets").mkdir(parents=True)
    monkeypatch.chdir(root)
    base = story.commit(None, "base", {"a.py": TEXT})
    one = story.commit(base, "first", {"a.py": edited(l3="three")})
    two = story.commit(one, "second", {"a.py": edited(l3="three", l4="four"), "b.py": "new\n"})
    three = story.commit(two, "third", {"a.py": edited(l3="three", l4="four", l30="thirty")})
    story.git.move_refs({"refs/heads/work": (three, None)})
    world = SimpleNamespace(
        story=story, root=root, base=base, commits=[one, two, three], folder=root / "patchsets/ours"
    )
    world.upstream = ["--upstream", str(story.git.path)]
    world.pinned = tmp_path / "pinned.git"
    with Git.init(world.pinned) as pinned:
        # As a mirror has it: the base and nothing of ours.
        pinned.borrow(story.git.path, base)
    run(["import", f"{base}..work", "--into", "ours", *world.upstream])
    return world


def run(args: list[str], **kwargs) -> SimpleNamespace:
    """Run a command that must succeed and return its document."""
    result = CliRunner().invoke(app, ["patch", *args, "--json", "--no-progress"], **kwargs)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return SimpleNamespace(**json.loads(result.stdout))


def words(args: list[str]) -> str:
    result = CliRunner().invoke(app, ["patch", *args, "--no-progress"])
    assert result.exit_code == 0, result.output
    return result.stdout


def check(world) -> list[str]:
    with Git(world.pinned) as git, git.quarantine() as inner:
        return [str(found) for found in lint.check(world.folder, world.root, inner)]


def tree_of(world) -> Oid:
    with Git(world.pinned) as git, git.quarantine() as inner:
        return editing.stack(inner, load(world.folder)).tree


def content(world, path: str) -> str:
    """Return a file as the whole patchset leaves it."""
    with Git(world.pinned) as git, git.quarantine() as inner:
        tree = editing.stack(inner, load(world.folder)).tree
        return inner.objects.blob(inner.objects.find(tree, path).oid).decode()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- looking ----------------------------------------------------------------------------------


def test_the_list_has_a_line_a_patch_and_totals(world):
    run(["drop", "second", "--why", "no gain in two boots of one image"])

    text = words(["list"])

    assert [line.split() for line in text.splitlines()] == [
        ["ours"],
        ["?", "first", "local", "candidate", "first"],
        ["-", "second", "local", "dropped", "second"],
        ["?", "third", "local", "candidate", "third"],
        ["2", "candidate,", "1", "dropped"],
    ]
    document = run(["list", "--status", "dropped"])
    assert document.schema == "elsa-build/patch-list/1"
    assert [patch["id"] for patch in document.data["patches"]] == ["second"]


def test_a_project_without_patches_says_what_to_type(tmp_path, monkeypatch):
    (tmp_path / "patchsets").mkdir()
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(app, ["patch", "list"])

    assert result.stdout == ""
    assert "elsa-build patch import" in result.stderr


def test_show_gives_as_much_context_as_asked_for(world):
    stored = words(["show", "third"])
    assert stored.count("\n line ") == 2

    wide = words(["show", "third", "--context", "6", *world.upstream])
    none = words(["show", "third", "--context", "0", *world.upstream])

    assert wide.count("\n line ") == 12
    assert none.count("\n line ") == 0
    assert "+thirty" in stored
    assert "Elsa-Patch-Id: third" in stored
    # The stored file has one line; the repository was only read.
    assert "@@ -29,3 +29,3 @@" in (world.folder / "0003-third.patch").read_text()


def test_an_unknown_id_names_the_nearest(world):
    with pytest.raises(ConfigError, match="did you mean 'third'"):
        run(["show", "thrid"])


def test_every_mistake_of_a_patchset_is_a_finding_of_its_own(world):
    path = world.folder / "series.yaml"
    path.write_text(path.read_text().replace("kind: local", "kind: locl"))

    result = CliRunner().invoke(app, ["patch", "list", "--json"])

    document = json.loads(result.stdout)
    assert [(d["code"], d["line"]) for d in document["diagnostics"]] == [
        ("E101", 8), ("E101", 15), ("E101", 22),
    ]  # fmt: skip
    assert document["status"] == "error"


# --- import and export ------------------------------------------------------------------------


def test_an_import_writes_files_that_pass_the_check(world):
    assert sorted(snapshot(world.folder)) == [
        "0001-first.patch",
        "0002-second.patch",
        "0003-third.patch",
        "series.yaml",
    ]
    assert check(world) == []
    assert tree_of(world) == world.story.git.commit(world.commits[2]).tree


def test_a_dry_run_writes_nothing(world, tmp_path):
    before = snapshot(world.folder)

    for args in (
        ["import", f"{world.base}..work", "--into", "other", *world.upstream],
        ["export", "--to", str(tmp_path / "out"), *world.upstream],
        ["add", str(world.commits[0]), "--into", "new", "--base", world.base, *world.upstream],
        ["keep", "first"],
        ["drop", "first", "--why", "a reason that is long enough"],
        ["edit", "first", "--kind", "hand-port", *world.upstream],
        ["refresh", "first", "--commit", world.commits[0], *world.upstream],
    ):
        run([*args, "--dry-run"])

    assert snapshot(world.folder) == before
    assert not (tmp_path / "out").exists()
    assert [path.name for path in world.folder.parent.iterdir()] == ["ours"]


def test_import_needs_a_base_and_a_free_name(world, tmp_path):
    (tmp_path / "x.patch").write_text("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-line 1\n+1\n")

    with pytest.raises(UsageError, match="--base"):
        run(["import", str(tmp_path / "x.patch"), "--into", "other", *world.upstream])
    with pytest.raises(ConfigError, match="exists already"):
        run(["import", str(tmp_path / "x.patch"), "--into", "ours", *world.upstream])
    with pytest.raises(ConfigError, match="must be words of a-z"):
        run(["import", str(tmp_path / "x.patch"), "--into", "../x", *world.upstream])
    with pytest.raises(ConfigError, match="neither a file nor a commit"):
        run(["import", "nope", "--into", "other", *world.upstream])


def test_an_id_of_another_patchset_is_not_taken_again(world):
    args = ["import", f"{world.base}..work", "--into", "other", *world.upstream]

    document = run(args)

    ids = [patch["id"] for patch in document.data["patches"]]
    assert ids == ["first-2", "second-2", "third-2"]
    assert [d["code"] for d in document.diagnostics] == ["E110"] * 3
    assert len(run(["list"]).data["patches"]) == 6


def test_an_export_leaves_dropped_patches_out(world, tmp_path):
    run(["drop", "first", "--why", "no gain in two boots of one image"])

    document = run(["export", "--to", str(tmp_path / "out"), "--form", "quilt", *world.upstream])

    assert document.data["files"] == ["0002-second.patch", "0003-third.patch"]
    assert (tmp_path / "out" / "series").read_text() == "0002-second.patch\n0003-third.patch\n"


# --- add --------------------------------------------------------------------------------------


def test_add_puts_a_commit_on_the_last_patch_by_a_merge(world):
    story = world.story
    other = story.commit(world.base, "elsewhere (#77)", {"a.py": edited(l20="twenty")})

    run(["add", other, "--into", "ours", "--kind", "cherry-pick", *world.upstream])

    assert check(world) == []
    last = load(world.folder).patches[-1]
    assert (last.id, last.file.name) == ("elsewhere-77", "0004-elsewhere-77.patch")
    assert content(world, "a.py") == edited(l3="three", l4="four", l20="twenty", l30="thirty")


def test_add_starts_a_patchset_and_takes_a_diff(world, tmp_path):
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-line 1\n+one\n line 2\n"
    (tmp_path / "tidy up.diff").write_text(diff)

    args = ["add", str(tmp_path / "tidy up.diff"), "--into", "more", "--base", world.base]
    document = run([*args, *world.upstream])

    assert document.data["files"] == ["0001-tidy-up.patch", "series.yaml"]
    (patch,) = load(world.folder.parent / "more").patches
    assert (patch.id, patch.base) == ("tidy-up", world.base)


def test_add_refuses_what_conflicts_or_changes_nothing(world):
    before = snapshot(world.folder)
    clash = world.story.commit(world.base, "clash", {"a.py": edited(l3="drei")})

    with pytest.raises(ConflictError, match=r"conflicts in a\.py"):
        run(["add", clash, "--into", "ours", *world.upstream])
    again = world.story.commit(world.base, "again", {"a.py": edited(l30="thirty")})
    with pytest.raises(ConflictError, match="changes nothing on top of ours"):
        run(["add", again, "--into", "ours", *world.upstream])

    assert snapshot(world.folder) == before


# --- keep, drop, edit -------------------------------------------------------------------------


def test_keep_and_drop_change_one_line_each_and_nothing_is_lost(world):
    path = world.folder / "series.yaml"
    path.write_text(path.read_text().replace("status: candidate", "status: candidate  # hm", 1))

    run(["keep", "first"])
    assert "    status: kept  # hm\n" in path.read_text()

    old = load(world.folder).patches[1].why
    run(["drop", "second", "--why", "no gain in two boots of one image."])

    second = load(world.folder).patches[1]
    assert second.status is Status.DROPPED
    assert second.why == f"Dropped: no gain in two boots of one image. Carried before: {old}"
    assert second.file.is_file()
    assert check(world) == []


def test_drop_wants_a_reason_and_no_patch_that_needs_it(world):
    with pytest.raises(ConfigError, match="20 or more"):
        run(["drop", "first", "--why", "because"])
    run(["edit", "second", "--requires", "first"])
    with pytest.raises(ConfigError, match="'first' is dropped"):
        run(["drop", "first", "--why", "a reason that is long enough"])

    assert load(world.folder).patches[0].status is Status.CANDIDATE


def test_edit_keeps_mail_and_series_in_step(world):
    before = snapshot(world.folder)

    run(["edit", "first", "--drop-when", "upstream has it", "--hot-path", "--test", "t/a.py"])
    assert snapshot(world.folder)["0001-first.patch"] == before["0001-first.patch"]

    run(
        [
            "edit",
            "first",
            "--kind",
            "hand-port",
            "--pr",
            "12",
            "--commit",
            "4" * 40,
            *world.upstream,
        ]
    )

    first = load(world.folder).patches[0]
    assert (first.drop_when, first.hot_path, first.tests) == ("upstream has it", True, ("t/a.py",))
    assert first.mail.message.endswith(
        f"Elsa-Kind: hand-port\nUpstream-Commit: {'4' * 40}\nUpstream-PR: 12"
    )
    assert check(world) == []
    run(["edit", "first", "--drop-when", "", "--no-hot-path"])
    again = load(world.folder).patches[0]
    assert (again.drop_when, again.hot_path) == (None, False)


def test_a_wrong_value_is_refused_before_anything_is_written(world):
    before = snapshot(world.folder)

    with pytest.raises(ConfigError, match="must be a full commit id"):
        run(["edit", "first", "--commit", "abc", *world.upstream])
    with pytest.raises(ConfigError, match="unknown patch 'nope'"):
        run(["edit", "second", "--requires", "nope"])
    with pytest.raises(UsageError, match="nothing to change"):
        run(["edit", "second"])

    assert snapshot(world.folder) == before


# --- refresh ----------------------------------------------------------------------------------


def test_refresh_takes_the_later_patches_along(world):
    better = world.story.commit(
        world.base, "first, better\n\nWith a body.", {"a.py": edited(l3="three", l2="two")}
    )

    document = run(["refresh", "first", "--commit", better, *world.upstream])

    assert document.data["files"] == ["0001-first.patch", "0002-second.patch", "0003-third.patch"]
    assert check(world) == []
    assert load(world.folder).patches[0].mail.message.startswith("first, better\n\nWith a body.\n")
    assert content(world, "a.py") == edited(l2="two", l3="three", l4="four", l30="thirty")


def test_refresh_names_the_later_patch_that_it_would_break(world):
    before = snapshot(world.folder)
    clash = world.story.commit(world.base, "first", {"a.py": edited(l3="three", l4="vier")})

    with pytest.raises(ConflictError, match=r"second does not merge any more: a\.py"):
        run(["refresh", "first", "--commit", clash, *world.upstream])
    with pytest.raises(ConflictError, match="second would change nothing"):
        run(["refresh", "first", "--commit", squashed(world), *world.upstream])

    assert snapshot(world.folder) == before


def squashed(world) -> Oid:
    files = {"a.py": edited(l3="three", l4="four"), "b.py": "new\n"}
    return world.story.commit(world.base, "both", files)


def test_refresh_folds_a_work_tree_into_a_patch(world, tmp_path):
    work = tmp_path / "work"
    subprocess.run(
        ["git", "clone", "-q", "-b", "work", str(world.story.git.path), str(work)], check=True
    )
    (work / "a.py").write_text(edited(l3="three", l4="four", l12="twelve", l30="thirty"))
    (work / "untracked.py").write_text("x = 1\n")
    index = (work / ".git" / "index").read_bytes()

    run(["refresh", "first", "--work-tree", str(work)])

    assert check(world) == []
    first = load(world.folder).patches[0].mail
    assert b"+twelve" in first.diff
    assert b"untracked.py" in first.diff
    assert (work / ".git" / "index").read_bytes() == index
    with Git(work) as git, git.quarantine() as inner:
        head, tree = editing.work_tree(inner, work)
        assert editing.stack(inner, load(world.folder)).tree == tree != head


def test_refresh_alone_puts_a_files_form_right(world):
    path = world.folder / "0002-second.patch"
    right = path.read_bytes()
    message = mail.parse("x", right).message
    path.write_bytes(right.replace(b"Elsa-Kind: local", b"Elsa-Kind: hand-port\nOther: x"))
    assert "trailer Elsa-Kind" in check(world)[0]

    run(["refresh", "second", *world.upstream])

    assert check(world) == []
    assert mail.parse("x", path.read_bytes()).message == message.replace(
        "Elsa-Patch-Id", "Other: x\nElsa-Patch-Id"
    )
    path.write_bytes(right)
    assert run(["refresh", "second", *world.upstream]).data["files"] == []


# --- check ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        (b"\n\nElsa-", b"\n\ndiff -u cut\n\nElsa-", "E105", 6),
        (b"\n\nElsa-", b"\n\n---\n\nElsa-", "E105", 6),
        (b"\n\nElsa-", b"\n\nFrom: Eve <e@x>\n\nElsa-", "E105", 6),
        (b"[PATCH] first", b"[PATCH] Re: first", "E105", None),
        (b"Patch-Id: first", b"Patch-Id: fist", "E107", None),
        (b"Patch-Id: first", b"Patch-Id: first\nUpstream-PR: 4", "E107", None),
        (b"+three", b"+thre", "E104", 9),
        (b" line 2", b"line 2", "E104", 14),
        (b"From 0000000000000000", b"From 1111111111111111", "E106", 1),
        (b"@@ -2,3 +2,3 @@\n", b"@@ -2,3 +2,3 @@ other\n", "E106", 13),
    ],
)
def test_check_names_what_is_wrong_with_a_file(world, old, new, code, line):
    path = world.folder / "0001-first.patch"
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new, 1))

    with Git(world.pinned) as git, git.quarantine() as inner:
        findings = lint.check(world.folder, world.root, inner)

    assert (findings[0].code, findings[0].line or line) == (code, line)
    assert findings[0].path == "patchsets/ours/0001-first.patch"


def test_check_tells_a_missing_base_from_a_damaged_patch(world, tmp_path):
    with Git.init(tmp_path / "empty.git") as git:
        findings = lint.check(world.folder, world.root, git)

    assert {found.code for found in findings} == {"E109"}
    assert "is not in the repository" in findings[0].message


def test_the_help_of_every_command_has_an_example():
    for name in ("list", "show", "import", "export", "add", "edit", "refresh", "keep", "drop"):
        result = CliRunner().invoke(app, ["patch", name, "--help"])
        assert result.exit_code == 0
        assert f"elsa-build patch {name}" in result.stdout


def test_check_misses_the_commit_of_a_reference(world):
    with (world.folder / "series.yaml").open("a") as file:
        file.write(
            f'\n  - id: pick\n    kind: cherry-pick\n    origin: {{commit: "{"4" * 40}"}}\n'
            "    why: upstream merged it after the release\n"
        )

    assert check(world) == [
        f"patchsets/ours/series.yaml:27: pick: the commit {'4' * 40} is not in the repository"
    ]


def test_a_reference_is_shown_and_exported_as_the_commit_that_it_names(world, tmp_path):
    pick = world.story.commit(world.base, "upstream's fix", {"a.py": edited(l20="twenty")})
    with (world.folder / "series.yaml").open("a") as file:
        file.write(
            f'\n  - id: pick\n    kind: cherry-pick\n    origin: {{commit: "{pick}"}}\n'
            "    why: upstream merged it after the release\n"
        )

    shown = words(["show", "pick", *world.upstream])
    run(["export", "--to", str(tmp_path / "out"), *world.upstream])

    assert "+twenty" in shown
    mails = sorted((tmp_path / "out").iterdir())
    assert mails[-1].name == "0004-pick.patch"
    message = mail.parse("x", mails[-1].read_bytes()).message
    assert f"(cherry picked from commit {pick})" in message
    assert f"Upstream-Commit: {pick}\nElsa-Why: upstream merged it after the release" in message


@pytest.fixture
def tiny_disk():
    """Let no file grow beyond 100 bytes, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit


def test_a_full_disk_leaves_the_patchset_as_it_was(world, tiny_disk):
    before = snapshot(world.folder)
    made = editing.set_fields(world.folder, world.root, "first", {"status": "kept"})

    with tiny_disk(), pytest.raises(ToolError, match="File too large"):
        editing.write(made)

    assert snapshot(world.folder) == before


def test_a_full_disk_leaves_no_half_of_a_new_patchset(world, tiny_disk):
    with Git(world.story.git.path) as git, git.quarantine() as inner:
        _, found = sources.of_range(inner, f"{world.base}..work")
        made = importing.build(inner, found.patches, world.base, "new", importing.Choice())

    with tiny_disk(), pytest.raises(ToolError, match="File too large"):
        importing.store(world.folder.parent / "new", made)

    assert [path.name for path in world.folder.parent.iterdir()] == ["ours"]


def test_check_takes_a_file_that_is_no_yaml(world):
    (world.folder / "series.yaml").write_text("patches: [\n")

    assert check(world)[0].startswith("patchsets/ours/series.yaml:2: not YAML")


def test_a_dropped_patch_does_not_hold_up_those_around_it(world):
    run(["drop", "second", "--why", "no gain in two boots of one image"])
    better = world.story.commit(world.base, "first", {"a.py": edited(l3="three", l2="two")})

    run(["refresh", "first", "--commit", better, *world.upstream])

    assert content(world, "a.py") == edited(l2="two", l3="three", l30="thirty")
    with Git(world.pinned) as git, git.quarantine() as inner:
        findings = lint.check(world.folder, world.root, inner)
    assert [(found.code, found.severity) for found in findings] == [("E109", "warning")]
