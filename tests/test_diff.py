"""The strict diff reader against git's own diffs, and against every kind of damage."""

import re
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elsa_build.errors import ExitCode
from elsa_build.git.objects import EXECUTABLE, FILE, GITLINK, SYMLINK, Entry
from elsa_build.model import Oid
from elsa_build.patches.diff import DiffError, MissingBlobError, changes, parse, patched

ADA = "".join(f"line {n}\n" for n in range(1, 31))
FORM = ("diff-tree", "-p", "-r", "--full-index", "--binary", "-U1")


def tree(story, files: Mapping[str, tuple[str, bytes] | bytes]) -> Oid:
    entries = {}
    for path, content in files.items():
        mode, body = content if isinstance(content, tuple) else (FILE, content)
        oid = Oid(body.decode()) if mode == GITLINK else story.git.objects.write("blob", body)
        entries[path] = Entry(mode, oid)
    return story.git.objects.edit(None, entries)


def diff_of(story, old: Oid, new: Oid, *options: str) -> bytes:
    return story.git.run(*FORM, *(options or ("--no-renames",)), old, new)[1]


def simple(story) -> bytes:
    old, new = tree(story, {"a.py": ADA.encode()}), ADA.replace("line 7\n", "seven\n").encode()
    return diff_of(story, old, tree(story, {"a.py": new}))


# --- what git writes is understood ------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param({"a": b"1\n2\n3\n"}, {"a": b"1\ntwo\n3\n"}, id="text"),
        pytest.param({"a": b"1\n2"}, {"a": b"1\n3"}, id="no final newline"),
        pytest.param({"a": b"1\n2"}, {"a": b"1\n2\n"}, id="final newline added"),
        pytest.param({"a": b"1\n2\n"}, {"a": b"1\n2"}, id="final newline removed"),
        pytest.param({}, {"a": b""}, id="new empty file"),
        pytest.param({"a": b"", "b": b"1\n"}, {"b": b"1\n"}, id="empty file deleted"),
        pytest.param({}, {"new/deep/a": b"x\n"}, id="new file"),
        pytest.param({"a": b"x\ny\n", "b": b""}, {"b": b""}, id="deleted file"),
        pytest.param({"a": b"1\r\n2\r\n"}, {"a": b"1\r\nzwei\r\n"}, id="CRLF content"),
        pytest.param({"a": b"\xff\xfe\n1\n"}, {"a": b"\xff\xfe\n2\n"}, id="not UTF-8"),
        pytest.param({"a": b"\x0c\n1\x0b\n"}, {"a": b"\x0c\n2\x0b\n"}, id="form feeds"),
        pytest.param(
            {"a": b"\0" + b"x" * 500}, {"a": b"\0" + b"x" * 499 + b"y"}, id="binary delta"
        ),
        pytest.param({}, {"a": bytes(range(256)) * 9}, id="binary literal"),
        pytest.param({"a": b"\0\1\2", "b": b""}, {"b": b""}, id="binary deleted"),
        pytest.param({"a": b"x"}, {"a": (SYMLINK, b"target")}, id="file to symlink"),
        pytest.param({"a": (SYMLINK, b"one")}, {"a": (SYMLINK, b"two")}, id="symlink"),
        pytest.param({"a": b"1\n"}, {"a": (EXECUTABLE, b"2\n")}, id="mode and text"),
        pytest.param({"m": (GITLINK, b"1" * 40)}, {"m": (GITLINK, b"2" * 40)}, id="submodule"),
        pytest.param({}, {"m": (GITLINK, b"2" * 40)}, id="new submodule"),
        pytest.param({"with blank": b"1\n"}, {"with blank": b"2\n"}, id="blank in a name"),
        pytest.param({'t\t"q"é': b"1\n"}, {'t\t"q"é': b"2\n"}, id="quoted name"),
        pytest.param({"a b/a b": b"1\n"}, {"a b/a b": b""}, id="ambiguous name"),
        pytest.param(
            {"a": b"1\n", "a.b": b"1\n"}, {"a/x": b"1\n", "a.b": b"2\n"}, id="file to folder"
        ),
        pytest.param(
            {"a": b"diff --git\n"}, {"a": b"-- a\n++ b\n@@ -1 +1 @@\n"}, id="diff in text"
        ),
    ],
)
def test_a_diff_of_git_gives_the_trees_that_it_was_made_from(story, old, new):
    before, after = tree(story, old), tree(story, new)

    found = changes(story.git, diff_of(story, before, after))

    assert set(found) == set(story.git.objects.changes(before, after))
    assert story.git.objects.edit(before, {c.path: c.new for c in found}) == after


@pytest.mark.parametrize("options", [("-M",), ("-C", "--find-copies-harder")])
def test_renames_and_copies_are_a_deletion_and_a_new_file(story, options):
    before = tree(story, {"old": ADA.encode()})
    after = tree(story, {"new": ADA.replace("line 3\n", "3\n").encode(), "two": ADA[7:].encode()})

    diff = diff_of(story, before, after, *options)
    found = changes(story.git, diff)

    assert b"rename from" in diff
    assert story.git.objects.edit(before, {c.path: c.new for c in found}) == after


def test_a_rename_without_an_index_line_is_refused_since_its_content_is_unknown(story):
    before, after = tree(story, {"old": ADA.encode()}), tree(story, {"new": ADA.encode()})

    with pytest.raises(DiffError, match="no index line"):
        changes(story.git, diff_of(story, before, after, "-M"))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    old=st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n", b"d"]), max_size=12),
    new=st.lists(st.sampled_from([b"a\n", b"b\n", b"\n", b"c\r\n", b"d"]), max_size=12),
)
def test_any_two_texts_come_back_from_their_diff(story, old, new):
    before, after = (tree(story, {"f": b"".join(lines), "x": b"x"}) for lines in (old, new))

    found = changes(story.git, diff_of(story, before, after))

    assert set(found) == set(story.git.objects.changes(before, after))


# --- what does not fit is refused -------------------------------------------------------------


def test_context_must_be_exactly_where_the_hunk_says(story):
    (file,) = parse(simple(story))

    with pytest.raises(DiffError, match="does not fit"):
        patched(file, b"one more\n" + ADA.encode())
    with pytest.raises(DiffError, match="does not fit"):
        patched(file, ADA.replace("line 6\n", "line six\n").encode())


def test_the_post_image_must_be_the_one_of_the_index_line(story):
    damaged = simple(story).replace(b"+seven", b"+eleven")

    with pytest.raises(DiffError, match="the hunks give blob"):
        changes(story.git, damaged)


def test_a_missing_pre_image_is_told_from_a_damaged_patch(story):
    stranger = re.sub(rb"index [0-9a-f]{40}", b"index " + b"5" * 40, simple(story))

    with pytest.raises(MissingBlobError, match=r"a\.py: its pre-image, blob 5{40}") as caught:
        changes(story.git, stranger)

    assert (caught.value.path, caught.value.oid, caught.value.line) == ("a.py", "5" * 40, 1)
    assert caught.value.code is ExitCode.CONFIG


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (lambda d: d.replace(b"\n", b"\r\n"), 1, "CRLF"),
        (lambda d: d.replace(b"a.py\nindex", b"a.py\r\nindex"), 1, "CRLF"),
        (lambda d: d[:-4], 9, "truncated"),
        (lambda d: b"".join(d.splitlines(keepends=True)[:-1]), 9, "ends early"),
        (lambda d: d.replace(b"@@ -6,3", b"@@ -6,4"), 10, "ends early"),
        (lambda d: d.replace(b"@@ -6,3", b"@@ -6,2"), 9, "corrupt hunk"),
        (lambda d: d.replace(b"@@ -6,3", b"@@ -x,3"), 5, "neither a hunk"),
        (lambda d: d.replace(b"\n line 6", b"\nline 6"), 6, "corrupt hunk"),
        (lambda d: d + b"-- \n2.39.5\n", 10, "neither a hunk"),
        (lambda d: d.replace(b"\n line 6", b"\n"), 6, "corrupt hunk"),
        (lambda d: re.sub(rb"([0-9a-f]{7})[0-9a-f]{33}", rb"\1", d), 2, "full ids"),
        (lambda d: d.replace(b"100644", b"100640"), 2, "unknown file mode"),
        (lambda d: d.replace(b"+++ b/a.py\n", b""), 4, "without"),
        (lambda d: d.replace(b"--- a/a.py", b"--- a/b.py"), 3, "do not fit"),
        (lambda d: b"garbage\n" + d, 1, "not a diff"),
    ],
)
def test_damage_is_named_with_its_line(story, change, line, words):
    damaged = change(simple(story))

    with pytest.raises(DiffError, match=words) as caught:
        changes(story.git, damaged)

    assert caught.value.line == line


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        ".git/config",
        "sub/.GIT/hooks/x",
        ".git",
        ".git./x",
        "git~1/x",
        ".g\u200cit/x",
        "C:/x",
        "a//b",
        "./a",
        "a\\b",
    ],
)
def test_a_path_that_no_patch_may_write_is_refused(path):
    diff = (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
        f"index {'0' * 40}..587be6b4c3f93f93c489c0111bba5596147a26cb\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    ).encode()

    with pytest.raises(DiffError, match="path"):
        parse(diff)


def test_a_quoted_path_cannot_hide_where_it_goes():
    name = rb'"b/\056\056/x"'
    diff = b'diff --git "a/\\056\\056/x" ' + name + b"\nnew file mode 100644\n"

    with pytest.raises(DiffError, match="outside the tree"):
        parse(diff)


def test_a_file_twice_in_one_diff_is_refused(story):
    with pytest.raises(DiffError, match="changed twice"):
        changes(story.git, simple(story) * 2)


def test_a_binary_file_without_its_content_is_refused(story):
    before, after = tree(story, {"a": b"\0"}), tree(story, {"a": b"\0\1"})
    diff = story.git.run("diff-tree", "-p", "--full-index", before, after)[1]

    with pytest.raises(DiffError, match="without its content"):
        changes(story.git, diff)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.replace(b"\nz", b"\n?"),
        lambda d: re.sub(rb"literal \d+", b"literal 99999", d, count=1),
        lambda d: re.sub(rb"literal \d+", b"literal 999999999999", d, count=1),
        lambda d: d[: d.index(b"\nz") + 30] + b"\n",
    ],
)
def test_a_damaged_binary_hunk_is_refused(story, change):
    before, after = tree(story, {"b": b""}), tree(story, {"a": bytes(range(256)) * 9, "b": b""})

    with pytest.raises(DiffError):
        changes(story.git, change(diff_of(story, before, after)))


def test_an_empty_diff_changes_nothing(story):
    assert parse(b"") == ()
    assert changes(story.git, b"") == ()
