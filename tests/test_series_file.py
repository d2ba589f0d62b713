"""`series.yaml`: every mistake is named with its line, and edits keep what a person wrote."""

from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ExitCode
from elsa_build.model import Kind, Oid, Origin, Patch, Probe, Series, Status
from elsa_build.patches import seriestext
from elsa_build.patches.seriesfile import SeriesError, combine, load, patch_of

HEX = "f63458b5beaceabbd9d749b9fc956370e1b649e6"
MAIL = (
    b"From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
    b"From: Ada <ada@example.org>\nDate: Tue, 14 Nov 2023 23:13:20 +0100\n"
    b"Subject: [PATCH] copy less\n\n"
    b"diff --git a/f b/f\nold mode 100644\nnew mode 100755\n"
)
TEXT = f"""\
# What we carry on top of upstream.
version: 1
name: elsa
base: "{HEX}"
ref: "v0.5.15"
patches:
  - id: copy   # the first one
    file: 0001-copy.patch
    kind: hand-port
    status: kept   # since two boots agreed
    origin:
      commit: "{HEX}"
      pr: 30841
    # A comment above the reason.
    why: >-
      Copies in chunks, so that 240 MiB
      stay free.
    drop_when: upstream merges it
    hot_path: true
    tests: [tests/test_copy.py]

  - id: guard
    file: 0002-guard.patch
    kind: local
    why: the checkpoint must not be lost
    requires: [copy]
    probes:
      - paths: ["python/sglang/srt/*.py"]
        absent: "copy_all\\\\("
        why: the caller was replaced

  # Kept as a reference.
  - id: pick
    kind: cherry-pick
    status: candidate
    origin: {{commit: "{HEX}"}}
    why: the fix that upstream merged after the release
  - id: old
    kind: local
    status: dropped
    why: it lost in two boots of one image
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "patchsets" / "elsa"
    path.mkdir(parents=True)
    (path / "series.yaml").write_text(TEXT)
    (path / "0001-copy.patch").write_bytes(MAIL)
    (path / "0002-guard.patch").write_bytes(MAIL)
    return path


def test_a_patchset_is_read_whole(folder):
    series = load(folder)

    assert (series.name, series.base) == ("elsa", HEX)
    assert [patch.id for patch in series.patches] == ["copy", "guard", "pick", "old"]
    copy, guard, pick, old = series.patches
    assert copy.origin == Origin(commit=Oid(HEX), pr=30841)
    assert (copy.kind, copy.status, copy.hot_path) == (Kind.HAND_PORT, Status.KEPT, True)
    assert copy.why == "Copies in chunks, so that 240 MiB stay free."
    assert (copy.line, copy.subject, copy.tests) == (7, "copy less", ("tests/test_copy.py",))
    assert guard.status is Status.CANDIDATE
    assert guard.probes == (
        Probe(
            paths=("python/sglang/srt/*.py",), absent=r"copy_all\(", why="the caller was replaced"
        ),
    )
    assert (pick.file, pick.mail, old.mail) == (None, None, None)
    assert {patch.base for patch in series.patches} == {HEX}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("version: 1", "version: 2", 2, "version: must be 1"),
        ("version: 1", 'version: "1"', 2, "version: must be"),
        ("name: elsa", "name: else", 3, "name: must be 'elsa'"),
        (f'base: "{HEX}"', "base: 1234567", 4, "base: 1234567 is a number to YAML; quote it"),
        (f'base: "{HEX}"', f'base: "{HEX[:9]}"', 4, "base: 'f63458b5b' must be a full commit id"),
        (f'base: "{HEX}"', f"base: {'1' * 40}", 4, "is a number to YAML; quote it"),
        ('"v0.5.15"', "1.10", 5, "ref: 1.10 is a number to YAML; quote it"),
        ("patches:", "patchs:", 6, r"patchs: unknown field \(did you mean 'patches'\?\)"),
        ("id: copy ", "id: Copy_It ", 7, r"patches\[0\].id: 'Copy_It' must be"),
        ("id: copy ", "id: on ", 7, r"patches\[0\].id: on is a truth value to YAML; quote it"),
        ("kind: hand-port", "kind: handport", 9, r"did you mean 'hand-port'"),
        ("status: kept ", "status: keep ", 10, r"did you mean 'kept'"),
        (f'  commit: "{HEX}"', "  commit: 12e4567", 12, "12e4567 is a number to YAML; quote it"),
        (f'  commit: "{HEX}"', "  commit: 0001234", 12, "0001234 is a number to YAML; quote it"),
        (f'  commit: "{HEX}"', "  comit: x", 12, r"patches\[0\].origin.comit: unknown field"),
        ("pr: 30841", 'pr: "30841"', 13, r"patches\[0\].origin.pr: must be a whole number"),
        ("pr: 30841", "pr: 0123", 13, "must be a whole number"),
        ("pr: 30841", "pr: 0", 13, "less than 1"),
        ("hot_path: true", "hot_path: yes", 19, "must be true or false"),
        ("hot_path: true", "hot_pth: true", 19, "did you mean 'hot_path'"),
        ("tests: [tests/test_copy.py]", "tests: tests/x.py", 20, "tests: must be a list"),
        ("hot_path: true", "status: kept", 19, "status: key twice, first on line 10"),
        ("id: guard", "id: copy", 22, "'copy' is taken since line 7; ids are for life"),
        ("id: guard", "id: old", 38, "'old' is taken since line 22"),
        ("0002-guard.patch", "0001-copy.patch", 23, "is the file of 'copy' already"),
        ("0002-guard.patch", "0009-gone.patch", 23, "cannot read .*0009-gone.patch"),
        ("0002-guard.patch", "../0002-guard.patch", 23, "must be the name of a .patch file"),
        (
            "why: the checkpoint must not be lost",
            "why: because",
            25,
            "20 or more characters, has 7",
        ),
        ("requires: [copy]", "requires: [copi]", 26, "unknown patch 'copi' .did you mean 'copy'"),
        ("requires: [copy]", "requires: [pick]", 26, "'pick' comes later in the series"),
        ("requires: [copy]", "conflicts_with: [copy]", 26, "'copy' is active too"),
        ("requires: [copy]", "requires: [copy, copy]", 26, "'copy' twice"),
        ('absent: "copy_all\\\\("', 'absent: "copy_all("', 29, "not a regular expression"),
        ('absent: "copy_all\\\\("', 'present: "x"\n        absent: "y"', 28, "exactly one of"),
        (
            "        why: the caller",
            "        count: 2\n        why: the caller",
            30,
            "only 'present'",
        ),
        (f'origin: {{commit: "{HEX}"}}', "origin: {}", 36, "cherry-pick without a file"),
        ("status: dropped", "status: kept", 38, "file: a local needs one"),
        ("status: kept ", "status: &a kept ", 10, "anchor"),
        ("status: kept ", "status: !x kept ", 10, "tag"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_field(folder, old, new, line, words):
    assert old in TEXT
    (folder / "series.yaml").write_text(TEXT.replace(old, new, 1))

    with pytest.raises(ConfigError, match=words) as caught:
        load(folder, root=folder.parent.parent)

    assert f"patchsets/elsa/series.yaml:{line}: " in str(caught.value)
    assert caught.value.code is ExitCode.CONFIG


def test_all_mistakes_are_shown_at_once(folder):
    text = TEXT.replace("kind: hand-port", "kind: x").replace("pr: 30841", "pr: x")
    (folder / "series.yaml").write_text(text.replace("hot_path: true", "hot: true"))
    (folder / "0002-guard.patch").write_bytes(b"not a mail\n")
    (folder / "0003-stray.patch").write_bytes(MAIL)

    with pytest.raises(SeriesError) as caught:
        load(folder)

    found = [(d.code, d.line) for d in caught.value.findings]
    assert found == [("E101", 9), ("E101", 13), ("E101", 19), ("E103", 1), ("E102", None)]
    assert str(caught.value).count("\n") == 4


def test_a_required_patch_that_was_dropped_is_missed(folder):
    text = TEXT.replace("status: kept ", "status: dropped ")
    (folder / "series.yaml").write_text(text)

    with pytest.raises(SeriesError, match="'copy' is dropped"):
        load(folder)


def test_a_patchset_that_is_not_there_is_no_traceback(tmp_path):
    with pytest.raises(ConfigError, match="no such patchset"):
        load(tmp_path / "patchsets" / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty/series\.yaml: cannot read"):
        load(tmp_path / "empty", root=tmp_path)


def test_an_unknown_id_names_the_nearest(folder):
    with pytest.raises(ConfigError, match=r"no patch 'gaurd' \(did you mean 'guard'\?\)"):
        patch_of(load(folder), "gaurd")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("E318: loud", "must be one of"),
        ("E201: note", "no code of a guard"),
    ],
)
def test_a_severity_of_a_guard_is_checked(folder, line, said):
    text = TEXT.replace("    requires: [copy]", f"    guards:\n      {line}\n    requires: [copy]")
    (folder / "series.yaml").write_text(text)

    with pytest.raises(SeriesError) as caught:
        load(folder)

    assert said in str(caught.value)
    assert "series.yaml:" in str(caught.value)


def test_a_severity_of_a_guard_is_read(folder):
    text = TEXT.replace("    requires: [copy]", "    guards: {E318: note}\n    requires: [copy]")
    (folder / "series.yaml").write_text(text)

    assert load(folder).patches[1].guards == (("E318", "note"),)


# --- several patchsets ------------------------------------------------------------------------


def test_patchsets_add_up_in_order(folder):
    series = load(folder)
    other = Series(name="more", base=series.base, patches=(_fresh("extra"),))

    both = combine(series, other)

    assert [patch.id for patch in both.patches] == ["copy", "guard", "pick", "old", "extra"]
    assert (both.name, both.base) == ("elsa + more", HEX)
    assert combine(series, replace(other, base=None)).base is None


def test_two_patchsets_cannot_share_an_id_even_a_dropped_one(folder):
    other = Series(name="more", patches=(_fresh("old"),))

    with pytest.raises(
        SeriesError, match=r"more/series.yaml:3: id: 'old' is taken by .*elsa/.*:38"
    ):
        combine(load(folder), other)


def test_patches_that_exclude_each_other_cannot_both_be_active(folder):
    rival = replace(_fresh("rival"), conflicts_with=("guard",))

    with pytest.raises(SeriesError, match="conflicts_with: 'guard'"):
        combine(load(folder), Series(name="more", patches=(rival,)))
    combine(load(folder), Series(name="more", patches=(replace(rival, status=Status.DROPPED),)))


def _fresh(identity: str) -> Patch:
    return Patch(
        id=identity,
        patchset="more",
        file=Path(f"0007-{identity}.patch"),
        line=3,
        kind=Kind.LOCAL,
        status=Status.CANDIDATE,
        why="a reason that is: long enough # really " * 4,
        mail=None,
        origin=Origin(commit=Oid("1" * 40), pr=7),
        requires=("on", "x"),
        tests=("a b.py",),
    )


# --- edits by line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("status", "dropped", "status: kept   # since", "status: dropped   # since"),
        ("kind", "local", "kind: hand-port\n", "kind: local\n"),
        (
            "why",
            "short: but #fine",
            "why: >-\n      Copies in chunks, so that 240 MiB\n      stay free.\n",
            "why: >-\n      short: but #fine\n",
        ),
        ("hot_path", None, "    hot_path: true\n", ""),
        (
            "tests",
            ("a.py", "on"),
            "tests: [tests/test_copy.py]",
            'tests:\n      - a.py\n      - "on"',
        ),
        ("evidence", ("e1",), "copy.py]\n", "copy.py]\n    evidence:\n      - e1\n"),
        (
            "origin",
            {"pr": 1},
            f'origin:\n      commit: "{HEX}"\n      pr: 30841',
            "origin:\n      pr: 1",
        ),
        ("requires", ("x",), "it\n    hot", "it\n    requires:\n      - x\n    hot"),
    ],
)
def test_an_edit_changes_the_lines_of_its_field_and_no_other(key, value, old, new):
    assert TEXT.count(old) == 1

    assert seriestext.with_field(TEXT, "s", "copy", key, value) == TEXT.replace(old, new)


def test_an_edit_reaches_the_right_patch_and_the_first_key_keeps_its_dash():
    renamed = seriestext.with_field(TEXT, "s", "guard", "requires", None)
    assert renamed == TEXT.replace("    requires: [copy]\n", "")

    dashed = "version: 1\npatches:\n- kind: local\n  id: a\n  tests:\n  - x\n  - y\n- id: b\n"
    assert seriestext.with_field(dashed, "s", "a", "kind", "hand-port") == dashed.replace(
        "- kind: local", "- kind: hand-port"
    )
    assert seriestext.with_field(dashed, "s", "a", "tests", None) == dashed.replace(
        "  tests:\n  - x\n  - y\n", ""
    )


def test_patches_are_appended_in_the_style_of_the_list(folder):
    longer = seriestext.appended(TEXT, "s", [_fresh("extra"), replace(_fresh("two"), file=None)])

    assert longer.startswith(TEXT)
    (folder / "series.yaml").write_text(longer)
    (folder / "0007-extra.patch").write_bytes(MAIL)
    with pytest.raises(SeriesError) as caught:
        load(folder)
    assert {d.message.partition(":")[0] for d in caught.value.findings} == {
        "patches[4].requires",
        "patches[5].requires",
        "patches[5].file",
    }
    unindented = "version: 1\npatches:\n- id: a\n  kind: local\nname: x\n"
    assert seriestext.appended(unindented, "s", [_fresh("b")]).startswith(
        "version: 1\npatches:\n- id: a\n  kind: local\n\n- id: b\n  file: 0007-b.patch\n"
    )


def test_a_new_file_reads_back_as_it_was_meant(tmp_path):
    folder = tmp_path / "patchsets" / "more"
    folder.mkdir(parents=True)
    (folder / "0007-extra.patch").write_bytes(MAIL)
    meant = replace(_fresh("extra"), requires=(), file=folder / "0007-extra.patch")
    text = seriestext.header("more", Oid("2" * 40), "1.10")

    (folder / "series.yaml").write_text(seriestext.appended(text, "s", [meant]))

    (read,) = load(folder).patches
    assert read.why == meant.why.strip()
    assert replace(read, mail=None, line=3, base=None, why=meant.why) == meant


def test_what_cannot_be_edited_by_line_is_left_alone():
    flow = "version: 1\npatches:\n  - {id: a, kind: local}\n"

    with pytest.raises(ConfigError, match="cannot be edited by line"):
        seriestext.with_field(flow, "s", "a", "kind", "hand-port")
    with pytest.raises(ConfigError, match=r"cannot|not YAML"):
        seriestext.appended("version: 1\npatches: [{id: a}]\n", "s", [_fresh("b")])
    with pytest.raises(ConfigError, match="no patch 'b'"):
        seriestext.with_field(flow, "s", "b", "kind", "local")
