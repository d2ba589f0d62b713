"""Patch files against git itself: what we write, git reads, and the other way round."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.git.objects import EXECUTABLE, Entry
from elsa_build.model import Kind, Oid, Origin, Signature
from elsa_build.patches import mail, message
from tests.conftest import AUTHOR

EVERYTHING = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORDS = st.sampled_from(
    [
        "fix", "[x]", "[PATCH]", "[PATCH v2 1/3]", "Re:", "é", "日本語", " ", ":", "=?UTF-8?q?x?=",
        "long " * 14, "a" * 90, "\t", "\f", "\u00a0", "From: a <b@c>", "Subject: x", "---",
        "--- a/x", "--- \fx", "diff --git a/x b/x", "diff -", "Index: x", ">From x", "-- ", "+x",
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001", "@@ -1 @@", "🎉",
        "Key: value", "(cherry picked from commit 1234)", "Signed-off-by: A <a@b>", "_", '"q\\"',
    ]
)  # fmt: skip
LINES = st.lists(WORDS, max_size=3).map(" ".join)
MESSAGES = st.builds(
    lambda head, gap, body: "\n".join([head, *([""] if gap else []), *body]),
    st.lists(WORDS, min_size=1, max_size=5).map(" ".join),
    st.booleans(),
    st.lists(LINES, max_size=7),
)
AUTHORS = st.builds(
    Signature,
    name=st.sampled_from(
        [
            "Ada",
            "Ärne Müller",
            "O'Neil, Jr",
            'Q "q" R',
            "x (y)",
            "名前",
            "a\\b",
            "=?x?= y",
            "é" * 20,
        ]
    ),
    email=st.just("ada@example.org"),
    date=st.builds(
        lambda seconds, zone: f"{seconds} {zone}",
        st.integers(10**8, 3 * 10**9),
        st.sampled_from(["+0000", "-0730", "+0545", "+1400"]),
    ),
)


@pytest.fixture
def two(story) -> tuple[Oid, Oid]:
    """A commit, and the tree of the next one."""
    base = story.commit(None, "base", {"f": "1\n2\n3\n"})
    return base, story.git.commit(story.commit(base, "next", {"f": "1\n2\nthree\n"})).tree


# --- round trips ------------------------------------------------------------------------------


@EVERYTHING
@given(raw=MESSAGES, author=AUTHORS)
def test_a_commit_comes_back_from_its_mail(story, two, raw, author):
    base, tree = two
    text = message.normal(raw)
    assume(text.partition("\n")[0])
    commit = story.git.commit_tree(tree, (base,), text, author)

    written = mail.write(story.git, commit)
    read = mail.parse("x.patch", written)

    assert (read.message, read.author) == (text, author)
    assert story.git.commit_tree(tree, (base,), read.message, read.author) == commit
    assert written.endswith(read.diff)


@given(raw=MESSAGES)
def test_the_normal_form_is_one(raw):
    once = message.normal(raw)

    assert message.normal(once) == once
    assert message.cuts(once) == ()


@pytest.fixture
def am(story, two, tmp_path) -> Path:
    """A work tree at the base, where `git am` can run."""
    folder = tmp_path / "am"
    for args in (
        ["init", "-q", str(folder)],
        ["-C", str(folder), "fetch", "-q", str(story.git.path), two[0]],
        ["-C", str(folder), "checkout", "-q", "--detach", two[0]],
    ):
        subprocess.run(["git", *args], check=True)
    return folder


@pytest.mark.parametrize(
    "raw",
    [
        "[Cherry-pick to release/v1] [AMD] Fix it (#30374)\n\nBody\n\nCo-authored-by: B <b@c>",
        "Sübject that is so long that it must be folded over more than one line of the header\n\né",
        "plain subject that is so long that it must be folded over more than one line, surely\n\nx",
        "two\nlines of subject\n\nbody",
        "cut\n\ndiff --git a/x b/x\n---\nIndex: y\n--- a/x\nFrom me at 10:00:00 2001",
        "in-body header\n\nFrom: Eve <eve@example.org>\nSubject: other\n\nrest",
        "Re: [PATCH v3] tidy\n\n\n\nbody with trailing blanks   \n\n\n\nend",
    ],
)
def test_git_am_reads_what_we_read(story, two, am, raw):
    base, tree = two
    text = message.normal(raw)
    author = Signature(name="Ö, von", email="o@example.org", date="1600000000 -0330")
    written = mail.write(story.git, story.git.commit_tree(tree, (base,), text, author))

    who = ["-c", "user.name=c", "-c", "user.email=c@example.org"]
    command = ["git", *who, "-C", str(am), "am", "-q", "--keep-non-patch"]
    subprocess.run(command, input=written, check=True)

    with Git(am) as git:
        made = git.commit(git.resolve("HEAD"))
    assert (made.message.rstrip("\n"), made.author, made.tree) == (text, author, tree)
    assert mail.parse("x", written).message == text


def test_the_persons_configuration_does_not_show(story, two, tmp_path, monkeypatch):
    base, tree = two
    commit = story.git.commit_tree(tree, (base,), "é subject", AUTHOR)
    plain = mail.write(story.git, commit)
    config = tmp_path / "config"
    config.write_text(
        "[format]\nsignOff=true\nfrom=Me <me@x>\nattach=x\nsubjectPrefix=XX\nheaders=X: y\nto=a@b\n"
        "coverLetter=true\nthread=true\nuseAutoBase=true\nnotes=true\nsuffix=.txt\nnumbered=true\n"
        "signature=me\nencodeEmailHeaders=false\n"
        "[diff]\nnoprefix=true\nmnemonicPrefix=true\nrenames=copies\ncontext=9\nalgorithm=patience\n"
        "interHunkContext=5\nsubmodule=log\norderFile=/nowhere\nexternal=false\n"
        "[core]\nquotePath=true\nabbrev=9\n[color]\nui=always\n[i18n]\nlogOutputEncoding=latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))

    with Git(story.git.path) as other:
        assert mail.write(other, commit) == plain


def test_a_pure_change_of_mode_names_its_blob(story, two, am):
    base, _ = two
    entry = story.git.objects.find(story.git.commit(base).tree, "f")
    tree = story.git.objects.edit(story.git.commit(base).tree, {"f": Entry(EXECUTABLE, entry.oid)})

    written = mail.write(story.git, story.git.commit_tree(tree, (base,), "mode", AUTHOR))

    assert written.endswith(
        b"old mode 100644\nnew mode 100755\n" + f"index {entry.oid}..{entry.oid}\n".encode()
    )
    subprocess.run(["git", "-C", str(am), "apply", "--index", "-"], input=written, check=True)
    with Git(am) as git:
        assert git.text("write-tree") == tree


def test_many_mails_come_in_order_and_a_merge_is_refused(story):
    base = story.commit(None, "base", {"f": "1\n"})
    commits = [base]
    for number in range(12):
        commits.append(story.commit(commits[-1], f"number {number}", {"f": f"{number}\n"}))
    merge = story.git.commit_tree(
        story.git.commit(base).tree, (commits[-1], commits[3]), "merge", AUTHOR
    )

    mails = mail.write_all(story.git, base, commits[-1])

    subjects = [mail.parse("x", text).message for text in mails]
    assert subjects == [f"number {number}" for number in range(12)]
    assert mails[4] == mail.write(story.git, commits[5])
    with pytest.raises(ConfigError, match="merge"):
        mail.write_all(story.git, base, merge)


# --- reading ----------------------------------------------------------------------------------


GOOD = (
    b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
    b"From: Ada <ada@example.org>\nDate: Tue, 14 Nov 2023 23:13:20 +0100\n"
    b"Subject: [PATCH] [x] one\n two\n\nbody\n\n"
    b"diff --git a/f b/f\nold mode 100644\nnew mode 100755\n"
)


def test_only_one_patch_prefix_goes_and_other_brackets_stay():
    read = mail.parse("x", GOOD.replace(b"[PATCH] [x]", b"[PATCH] [PATCH] [x]"))

    assert read.message == "[PATCH] [x] one two\n\nbody"
    assert read.author == Signature(name="Ada", email="ada@example.org", date="1700000000 +0100")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (b"\n", b"\r\n", 1, "CRLF"),
        (b"From 0", b"from 0", 1, "not a git format-patch mail"),
        (b"Date: Tue", b"Date: yesterday", 3, "not a date"),
        (b"Date: ", b"X-Date: ", 1, "no 'Date:'"),
        (b"Ada <ada@example.org>", b"Ada", 2, "not an author"),
        (b"Subject: [PATCH]", b"Subject [PATCH]", 4, "not a mail header"),
        (b"body", b"b\xffdy", 7, "not UTF-8"),
        (b"Subject:", b"Content-Transfer-Encoding: base64\nSubject:", 4, "encoded mail"),
    ],
)
def test_a_file_that_is_no_mail_of_ours_is_named_with_its_line(old, new, line, words):
    with pytest.raises(mail.MailError, match=words) as caught:
        mail.parse("patchsets/x/0001-y.patch", GOOD.replace(old, new))

    assert str(caught.value).startswith(f"patchsets/x/0001-y.patch:{line}: ")


def test_a_line_of_the_message_is_found_in_the_file():
    assert GOOD.split(b"\n")[mail.message_line(GOOD, 3) - 1] == b"body"


# --- messages ---------------------------------------------------------------------------------


def test_a_line_that_a_mail_reader_would_cut_at_is_named():
    text = "subject\n\nFrom: x\nfine\n---\ndiff -u a b\n--- not: a cut\n---- nor this\nIndex: z"

    assert [line for line, _ in message.cuts(text)] == [3, 5, 6, 7, 9]


TRAILER_LINES = st.sampled_from(
    ["Key: value", "(cherry picked from commit 12)", "Signed-off-by: A <a@b>", " folded", "prose",
     "a b: c", "X:y", "", "Bug #1"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(TRAILER_LINES, max_size=7))
def test_trailers_are_those_that_git_finds(lines):
    text = message.normal("\n".join(["subject", "", *lines]))

    out = subprocess.run(
        ["git", "interpret-trailers", "--parse", "--no-divider"],
        input=text + "\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    expected = [line for line in out.splitlines() if not line.startswith("(cherry")]
    assert [f"{key}: {value}" for key, value in message.trailers(text)] == expected


def test_our_trailers_are_replaced_and_others_stay():
    text = (
        "subject\n\nbody\n\nSigned-off-by: A <a@b>\nelsa-kind: local\n"
        "(cherry picked from commit 12)\nUpstream-PR: 1\n  2\nCc: B <b@c>"
    )
    wanted = message.wanted("an-id", Kind.CHERRY_PICK, Origin(commit=Oid("4" * 40)))

    once = message.with_trailers(text, wanted)

    assert once == (
        "subject\n\nbody\n\nSigned-off-by: A <a@b>\n(cherry picked from commit 12)\nCc: B <b@c>\n"
        f"Elsa-Patch-Id: an-id\nElsa-Kind: cherry-pick\nUpstream-Commit: {'4' * 40}"
    )
    assert message.with_trailers(once, wanted) == once
    assert message.with_trailers("only: a subject", {"Key": "v"}) == "only: a subject\n\nKey: v"
