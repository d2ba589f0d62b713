"""Other people's patches become a patchset, and a patchset becomes what other tools read."""

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ConflictError, ToolError
from elsa_build.git.door import Git
from elsa_build.model import Kind, Oid, Signature, Status
from elsa_build.patches import exporting, importing, lint, sources
from elsa_build.patches.diff import changes
from elsa_build.patches.importing import Choice
from elsa_build.patches.seriesfile import load

TEXT = "".join(f"line {n}\n" for n in range(1, 31))


def edited(*pairs: tuple[int, str]) -> str:
    lines = TEXT.splitlines(keepends=True)
    for number, text in pairs:
        lines[number - 1] = f"{text}\n"
    return "".join(lines)


@pytest.fixture
def stack(story) -> list[Oid]:
    """A base and three commits on it; the third touches what the first did."""
    base = story.commit(None, "base", {"src/a.py": TEXT, "other/b.txt": "b\n"})
    one = story.commit(base, "[x] one: é\n\nBody of one.", {"src/a.py": edited((3, "three"))})
    two = story.commit(
        one, "two", {"src/c.py": "new\n", "other/b.txt": "c\n", "src/bin": b"\0\1" * 40}
    )
    three = story.commit(
        two,
        "three\n\n(cherry picked from commit " + "4" * 40 + ")",
        {"src/a.py": edited((3, "drei"), (20, "twenty"))},
    )
    return [base, one, two, three]


def plain(story, old: Oid, new: Oid, *options: str) -> bytes:
    return story.git.run("diff-tree", "-p", "--binary", "--full-index", *options, old, new)[1]


@pytest.fixture
def numbered(story, stack, tmp_path) -> Path:
    folder = tmp_path / "numbered"
    folder.mkdir()
    names = ("9-first.patch", "10_second.patch", "10b-third.patch")
    for name, old, new in zip(names, stack, stack[1:], strict=False):
        (folder / name).write_bytes(plain(story, old, new))
    (folder / "11-maybe.patch.CANDIDATE").write_bytes(b"nothing")
    (folder / "README").write_text("about")
    return folder


def build(git: Git, found: sources.Found, base: Oid, **choice) -> importing.Imported:
    with git.quarantine() as inner:
        return importing.build(inner, found.patches, base, "theirs", Choice(**choice))


# --- sources ----------------------------------------------------------------------------------


def test_a_folder_of_diffs_is_taken_in_natural_order(story, stack, numbered):
    found = sources.read(story.git, numbered)
    made = build(story.git, found, stack[0])

    assert [patch.name for patch in found.patches] == [
        "9-first.patch", "10_second.patch", "10b-third.patch",
    ]  # fmt: skip
    assert found.ignored == ("11-maybe.patch.CANDIDATE", "README")
    assert made.tree == story.git.commit(stack[3]).tree
    assert [patch.id for patch in made.patches] == ["first", "second", "third"]
    assert list(made.files) == ["0001-first.patch", "0002-second.patch", "0003-third.patch"]
    assert made.patches[0].why == "first (imported from 9-first.patch)"
    assert made.patches[0].mail.author == Signature(
        name="elsa-build", email="elsa-build@localhost", date="1700000000 +0100"
    )


def test_natural_order_does_not_know_locales():
    names = ["a10", "a9", "10b-x", "10-x", "9", "B", "a", "010-a"]

    assert sorted(names, key=sources.natural) == [
        "9", "010-a", "10-x", "10b-x", "B", "a", "a9", "a10",
    ]  # fmt: skip


def test_the_numbers_that_people_know_are_kept_when_they_rise(story, stack, numbered):
    for old, new in (("9-first", "007-first"), ("10_second", "021-second"), ("10b-third", "095-x")):
        (numbered / f"{old}.patch").rename(numbered / f"{new}.patch")

    made = build(story.git, sources.read(story.git, numbered), stack[0])

    assert list(made.files) == ["0007-first.patch", "0021-second.patch", "0095-x.patch"]


def test_a_range_of_commits_keeps_author_message_and_tree(story, stack):
    start, found = sources.of_range(story.git, f"{stack[0]}..{stack[3]}")
    made = build(story.git, found, start)

    assert start == stack[0]
    assert made.tree == story.git.commit(stack[3]).tree
    one, _, three = made.patches
    assert one.mail.author == story.git.commit(stack[1]).author
    assert one.mail.message == (
        "[x] one: é\n\nBody of one.\n\nElsa-Patch-Id: x-one\nElsa-Kind: local"
    )
    assert three.kind is Kind.CHERRY_PICK
    assert three.origin.commit == "4" * 40
    assert f"(cherry picked from commit {'4' * 40})" in three.mail.message


def test_a_quilt_series_knows_comments_levels_and_folders(story, stack, tmp_path):
    folder = tmp_path / "patches"
    (folder / "sub").mkdir(parents=True)
    (folder / "z.patch").write_bytes(
        b"Description: DEP-3 head\n more of it\nAuthor: Eve <eve@example.org>\n---\n"
        + plain(story, stack[0], stack[1], "--no-prefix")
    )
    (folder / "sub" / "a.diff").write_bytes(plain(story, stack[1], stack[2]))
    (folder / "back.patch").write_bytes(plain(story, stack[3], stack[2]))
    (folder / "series").write_text("# ours\nz.patch -p0\n\nsub/a.diff # -p9\nback.patch -R\n")

    made = build(story.git, sources.read(story.git, folder), stack[0])

    assert made.tree == story.git.commit(stack[3]).tree
    assert made.patches[0].mail.message.startswith("DEP-3 head\n\nmore of it\n")
    assert made.patches[0].mail.author.name == "Eve"
    assert [patch.id for patch in made.patches] == ["z", "a", "back"]


@pytest.mark.parametrize(
    ("series", "words"),
    [
        ("gone.patch\n", r"series:1: 'gone.patch' is missing"),
        ("\n../x.patch\n", r"series:2: '../x.patch' is outside"),
        ("x.patch --weird\n", r"series:1: unknown option '--weird'"),
        ("# nothing\n", "no patches there"),
    ],
)
def test_a_broken_quilt_series_is_named_with_its_line(story, tmp_path, series, words):
    (tmp_path / "series").write_text(series)
    (tmp_path / "x.patch").write_text("x")

    with pytest.raises(ConfigError, match=words):
        sources.read(story.git, tmp_path)


def test_an_mbox_and_an_encoded_mail_are_read_by_git(story, stack, tmp_path):
    mbox = tmp_path / "all.mbox"
    mbox.write_bytes(story.git.run("format-patch", "--stdout", f"{stack[0]}..{stack[2]}")[1])
    encoded = tmp_path / "0003.eml"
    diff = plain(story, stack[2], stack[3])
    encoded.write_bytes(
        b"From: =?ISO-8859-1?Q?J=F6?= <jo@example.org>\nDate: Mon, 1 Jan 2024 00:00:00 -0500\n"
        b"Subject: Re: [PATCH v2 3/3] third\nMIME-Version: 1.0\n"
        b"Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: base64\n\n"
        + base64.encodebytes(b"From: Ann <ann@example.org>\n\nbody\n---\n a note\n\n" + diff)
    )

    found = sources.Found(
        patches=sources.read(story.git, mbox).patches + sources.read(story.git, encoded).patches
    )
    made = build(story.git, found, stack[0])

    assert made.tree == story.git.commit(stack[3]).tree
    third = made.patches[2].mail
    assert third.message.startswith("third\n\nbody\n\nElsa-Patch-Id:")
    assert third.author == Signature(name="Ann", email="ann@example.org", date="1704085200 -0500")


# --- what happens on the way ------------------------------------------------------------------


def test_hunks_outside_the_include_are_left_out_and_said(story, stack, numbered):
    with_b = story.commit(stack[0], "b", {"other/b.txt": "B\n"})
    (numbered / "12-outside.patch").write_bytes(plain(story, stack[0], with_b))

    found = sources.read(story.git, numbered)
    made = build(story.git, found, stack[0], include=("src/*",))

    tree = story.git.commit(stack[3]).tree
    before = story.git.objects.find(story.git.commit(stack[0]).tree, "other/b.txt")
    assert made.tree == story.git.objects.edit(tree, {"other/b.txt": before})
    assert [(d.code, d.path) for d in made.findings] == [
        ("E111", "10_second.patch"), ("E111", "12-outside.patch"), ("E112", "12-outside.patch"),
    ]  # fmt: skip
    assert "other/b.txt" in made.findings[0].message
    last = made.patches[-1]
    assert (last.status, last.file, last.id) == (Status.DROPPED, None, "outside")


def test_a_patch_that_does_not_apply_exactly_stops_all(story, stack, numbered, tmp_path):
    (numbered / "10_second.patch").unlink()
    third = (numbered / "10b-third.patch").read_bytes().replace(b" line 19", b" line nineteen")
    (numbered / "10b-third.patch").write_bytes(third)

    with pytest.raises(ConflictError, match=r"10b-third.patch: does not apply .* src/a.py"):
        build(story.git, sources.read(story.git, numbered), stack[0])


def test_a_hunk_that_is_not_at_its_line_is_said(story, stack, tmp_path):
    longer = story.commit(stack[0], "longer", {"src/a.py": "more\n" * 5 + TEXT})
    later = story.commit(stack[0], "later", {"src/a.py": edited((15, "fifteen"))})
    (tmp_path / "x.patch").write_bytes(plain(story, stack[0], later))

    made = build(story.git, sources.read(story.git, tmp_path / "x.patch"), longer)

    assert [(d.code, d.message) for d in made.findings] == [
        ("E113", "not at its line, put where its context is: src/a.py:12")
    ]


def test_a_corrupt_patch_is_a_mistake_in_the_file_and_no_conflict(story, stack, numbered):
    broken = (numbered / "9-first.patch").read_bytes().replace(b"@@ -1,6", b"@@ -1,9")
    (numbered / "9-first.patch").write_bytes(broken)

    with pytest.raises(ConfigError, match=r"9-first.patch: .*corrupt patch"):
        build(story.git, sources.read(story.git, numbered), stack[0])


@pytest.mark.parametrize("path", ["../evil", "/evil", ".git/config"])
def test_a_path_outside_the_tree_is_refused(story, stack, tmp_path, path):
    (tmp_path / "x.patch").write_text(f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n")

    with pytest.raises((ConfigError, ConflictError), match=r"x\.patch"):
        build(story.git, sources.read(story.git, tmp_path / "x.patch"), stack[0])


def test_messages_are_made_safe_and_the_change_is_said(story, stack):
    commit = story.git.commit_tree(
        story.git.commit(stack[1]).tree, (stack[0],), "two\nlines\n\ndiff -u a b\n---\nend",
        Signature(name="A", email="a@b", date="1 +0000"),
    )  # fmt: skip

    found = sources.Found(patches=(sources.of_commit(story.git, commit),))
    made = build(story.git, found, stack[0])

    assert made.patches[0].mail.message.startswith("two lines\n\n diff -u a b\n ---\nend\n")
    assert [d.code for d in made.findings] == ["E110"] * 3
    assert "message line 4" in made.findings[0].message


def test_ids_stay_unique_and_the_reason_can_be_given(story, stack, numbered):
    shutil.copy(numbered / "9-first.patch", numbered / "8-third.patch")
    (numbered / "9-first.patch").unlink()

    made = build(story.git, sources.read(story.git, numbered), stack[0], why="because " * 4)

    assert [patch.id for patch in made.patches] == ["third", "second", "third-2"]
    assert {patch.why for patch in made.patches} == {"because " * 4}


def test_a_mail_damaged_to_crlf_is_read_and_said(story, stack, tmp_path):
    raw = story.git.run("format-patch", "--stdout", f"{stack[0]}..{stack[1]}")[1]
    (tmp_path / "x.patch").write_bytes(raw.replace(b"\n", b"\r\n"))

    made = build(story.git, sources.read(story.git, tmp_path / "x.patch"), stack[0])

    assert made.tree == story.git.commit(stack[1]).tree
    assert "CRLF" in made.findings[0].message


def test_content_that_ends_in_crlf_survives_a_mail(story, tmp_path):
    base = story.commit(None, "base", {"w.txt": "1\r\n2\r\n3\r\n"})
    new = story.commit(base, "edit", {"w.txt": "1\r\nzwei\r\n3\r\n"})
    raw = story.git.run("format-patch", "--stdout", f"{base}..{new}")[1]
    (tmp_path / "x.patch").write_bytes(raw)

    made = build(story.git, sources.read(story.git, tmp_path / "x.patch"), base)

    assert made.tree == story.git.commit(new).tree


# --- on disk ----------------------------------------------------------------------------------


@pytest.fixture
def project(story, stack, tmp_path) -> Path:
    """A project with one patchset that was imported from the commits."""
    root = tmp_path / "project"
    (root / "patchsets").mkdir(parents=True)
    _, found = sources.of_range(story.git, f"{stack[0]}..{stack[3]}")
    importing.store(root / "patchsets" / "theirs", build(story.git, found, stack[0]), "v1")
    return root


def test_a_stored_patchset_passes_its_own_check(story, project):
    folder = project / "patchsets" / "theirs"

    with story.git.quarantine() as inner:
        findings = lint.check(folder, project, inner)

    assert [(d.code, d.severity) for d in findings] == [("E108", "warning")]
    assert [patch.id for patch in load(folder).patches] == ["x-one", "two", "three"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["theirs"]


def test_an_import_never_overwrites_and_leaves_nothing_half_done(story, stack, project, tmp_path):
    _, found = sources.of_range(story.git, f"{stack[0]}..{stack[1]}")
    made = build(story.git, found, stack[0])

    with pytest.raises(ConfigError, match="exists already"):
        importing.store(project / "patchsets" / "theirs", made)
    locked = tmp_path / "locked"
    locked.write_text("a file stands where the folder should be")
    with pytest.raises(ToolError, match="cannot write"):
        importing.store(locked / "theirs", made)


def put(git: Git, series, base: Oid) -> Oid:
    with git.quarantine() as inner:
        tree = inner.commit(base).tree
        for patch in series.patches:
            found = changes(inner, patch.mail.diff)
            tree = inner.objects.edit(tree, {change.path: change.new for change in found})
        return tree


@pytest.mark.parametrize("form", list(exporting.Form))
def test_export_then_import_gives_the_same_files(story, stack, project, tmp_path, form):
    folder = project / "patchsets" / "theirs"
    series = load(folder)
    with story.git.quarantine() as inner:
        exporting.store(tmp_path / "out", form, exporting.mails(inner, series))

    again = build(story.git, sources.read(story.git, tmp_path / "out"), stack[0])

    assert again.tree == put(story.git, series, stack[0])
    assert again.files == {path.name: path.read_bytes() for path in sorted(folder.glob("*.patch"))}
    assert [patch.why for patch in again.patches] == [patch.why for patch in series.patches]
    with pytest.raises(ConfigError, match="exists already"):
        exporting.store(tmp_path / "out", form, [])


def checkout(story, base: Oid, folder: Path) -> Path:
    for args in (
        ["init", "-q", str(folder)],
        ["-C", str(folder), "fetch", "-q", str(story.git.path), base],
        ["-C", str(folder), "checkout", "-q", "--detach", base],
    ):
        subprocess.run(["git", *args], check=True)
    return folder


@pytest.mark.parametrize("form", [exporting.Form.AM, exporting.Form.MBOX])
def test_git_am_takes_an_export(story, stack, project, tmp_path, form):
    with story.git.quarantine() as inner:
        mails = exporting.mails(inner, load(project / "patchsets" / "theirs"))
    exporting.store(tmp_path / "out", form, mails)
    work = checkout(story, stack[0], tmp_path / "work")
    files = [tmp_path / "out"] if form is exporting.Form.MBOX else (tmp_path / "out").iterdir()

    who = ["-c", "user.name=c", "-c", "user.email=c@example.org"]
    command = ["git", *who, "-C", str(work), "am", "-q", "--keep-non-patch"]
    subprocess.run([*command, *sorted(map(str, files))], check=True)

    with Git(work) as git:
        head = git.commit(git.resolve("HEAD"))
        assert git.text("log", "-1", "--format=%s", "HEAD~2") == "[x] one: é"
    assert head.tree == story.git.commit(stack[3]).tree
    assert head.message.endswith("Elsa-Why: three (imported from " + stack[3] + ")\n")


@pytest.mark.skipif(shutil.which("quilt") is None, reason="quilt is not installed")
def test_quilt_takes_an_export(story, stack, tmp_path):
    third = story.commit(stack[1], "three", {"src/a.py": edited((3, "drei"))})
    _, found = sources.of_range(story.git, f"{stack[0]}..{third}")
    importing.store(tmp_path / "theirs", build(story.git, found, stack[0]))
    with story.git.quarantine() as inner:
        mails = exporting.mails(inner, load(tmp_path / "theirs"))
    exporting.store(tmp_path / "out", exporting.Form.QUILT, mails)
    work = checkout(story, stack[0], tmp_path / "work")

    env = {**os.environ, "QUILT_PATCHES": str(tmp_path / "out")}
    subprocess.run(
        ["quilt", "push", "-a", "-q", "--fuzz=0"],
        cwd=work,
        env=env,
        check=True,
        capture_output=True,
    )

    assert (work / "src" / "a.py").read_text() == edited((3, "drei"))
