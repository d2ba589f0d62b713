"""The lock: written and read back equal, strict about what it reads, stale when inputs move."""

import os
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elsa_build.errors import ConfigError, StaleError, ToolError
from elsa_build.model import Artifact, Oid, Pin, SourceKind
from elsa_build.upstream.lock import (
    FILENAME,
    Lock,
    digest_inputs,
    record,
    repin,
    require_fresh,
    save,
    stale,
    write,
)
from elsa_build.upstream.lockfile import parse, read

COMMIT = Oid("1" * 40)
TREE = Oid("2" * 40)
PIN = Pin(
    source=SourceKind.RELEASE,
    url="sglang",
    ref="v0.5.23",
    commit=COMMIT,
    tree=TREE,
    date="1980-01-01T00:00:00+00:00",
    artifacts=(Artifact(filename="sglang-0.5.23-cp312-cp312-any.whl", sha256="a" * 64),),
    requires=("torch==2.14.1", 'av; sys_platform == "linux"'),
)
LOCK = record(Lock(pin=PIN), "elsa-1.7", {"recipes/elsa-1.7.yaml": "b" * 64}, TREE)

oids = st.text("0123456789abcdef", min_size=40, max_size=40).map(Oid)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
words = st.text(min_size=1)
locks = st.builds(
    Lock,
    pin=st.builds(
        Pin,
        source=st.sampled_from(SourceKind),
        url=words,
        ref=words,
        commit=oids,
        tree=oids,
        date=words,
        artifacts=st.lists(st.builds(Artifact, filename=words, sha256=digests)).map(tuple),
        requires=st.lists(st.text()).map(tuple),
    ),
    inputs=st.dictionaries(st.text(), st.dictionaries(st.text(), digests)),
    results=st.dictionaries(st.text(), oids),
    version=st.just(1),
)


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse(text, "upstream.lock")
    return caught.value


# --- as text ----------------------------------------------------------------------------------


@given(locks)
def test_a_lock_that_is_written_and_read_is_equal(lock):
    assert parse(write(lock), "upstream.lock") == lock


@given(locks)
def test_the_same_lock_gives_the_same_text_whatever_the_order_of_its_entries(lock):
    turned = Lock(
        pin=lock.pin,
        inputs=dict(reversed([(k, dict(reversed(v.items()))) for k, v in lock.inputs.items()])),
        results=dict(reversed(lock.results.items())),
    )

    assert write(turned) == write(lock)


def test_the_text_is_toml_with_one_value_a_line():
    text = write(LOCK)

    assert text.startswith("# made by elsa-build; do not edit\n")
    assert text.endswith("\n")
    assert "\r" not in text
    assert tomllib.loads(text)["upstream"]["requires"] == list(PIN.requires)
    assert '    "torch==2.14.1",\n' in text


def test_a_lock_file_with_crlf_is_read(tmp_path):
    path = tmp_path / FILENAME
    path.write_bytes(write(LOCK).replace("\n", "\r\n").encode())

    assert read(path) == LOCK


# --- bad input --------------------------------------------------------------------------------


def test_a_hand_edited_value_is_told_with_the_command_that_mends_it():
    error = refused(write(LOCK).replace("torch==2.14.1", "torch==2.15.0"))

    assert str(error).startswith("upstream.lock:3: seal: this lock was edited by hand")
    assert error.hint == "elsa-build pin set v0.5.23"


def test_a_removed_line_is_a_hand_edit_too():
    text = write(LOCK)

    error = refused(text.replace('    "torch==2.14.1",\n', ""))

    assert "edited by hand" in str(error)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (f'commit = "{COMMIT}"', 'commit = "1111111"', "upstream.commit: '1111111' is not 40"),
        (f'commit = "{COMMIT}"', "commit = 1111111", "upstream.commit: 1111111 is not a string"),
        (f'commit = "{COMMIT}"', f'commit = "{"A" * 40}"', "lower-case hex digits"),
        (f'commit = "{COMMIT}"\n', "", "upstream.commit: is missing"),
        ('source = "release"', 'source = "svn"', "upstream.source: 'svn' is neither"),
        ('ref = "v0.5.23"', 'ref = "v0.5.23"\nreff = "x"', "upstream.reff: unknown key"),
        ('    "torch==2.14.1",', "    2.14,", "upstream.requires: must be a list of strings"),
        ("a" * 64, "a" * 63, "upstream.artifact[0].sha256: "),
        ("b" * 64, "B" * 64, 'recipe."elsa-1.7".inputs."recipes/elsa-1.7.yaml": '),
        ("version = 1", "version = 2", "version: 2 is not a format that we read (made by a newer"),
        ("version = 1", 'version = "1"', "version: '1' is not a format"),
        ("version = 1", "version = true", "version: True is not a format"),
        ("[upstream]", "[downstream]", "downstream: unknown key"),
        ('seal = "', 'zeal = "', "zeal: unknown key"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(old, new, expected):
    text = write(LOCK)
    assert old in text

    error = refused(text.replace(old, new, 1))

    assert expected in str(error)
    assert str(error).startswith("upstream.lock:")


def test_the_line_is_the_one_that_a_person_would_go_to():
    text = write(LOCK)
    line = text.split("\n").index(f'tree = "{TREE}"') + 1

    error = refused(text.replace(f'tree = "{TREE}"', 'tree = "abc"', 1))

    assert f"upstream.lock:{line}: upstream.tree: 'abc'" in str(error)


def test_all_faults_are_told_in_one_run():
    text = write(LOCK).replace(COMMIT, "x").replace(TREE, "y")

    assert len(str(refused(text)).splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        "<<<<<<< ours\n" + write(LOCK),
        write(LOCK)[:200],
        'version = 1\nversion = 1\nref = "a"\n',
        "commit = 0001234\n",
        "\0",
    ],
    ids=["merge markers", "truncated", "duplicate key", "a number", "binary"],
)
def test_what_is_not_toml_is_told_with_a_line(text):
    error = refused(text)

    assert str(error).startswith("upstream.lock:")
    assert error.hint == "elsa-build pin set REF"


@pytest.mark.parametrize("text", ["", "[upstream]\n", 'upstream = 3\nversion = 1\nseal = "a"\n'])
def test_a_lock_with_nothing_in_it_is_refused(text):
    assert "upstream.lock:" in str(refused(text))


def test_no_lock_is_told_with_the_command_that_makes_one(tmp_path):
    with pytest.raises(ConfigError, match="there is no lock") as caught:
        read(tmp_path / FILENAME)

    assert caught.value.hint == "elsa-build pin set latest --source release"


def test_a_lock_that_is_not_text_is_refused(tmp_path):
    (tmp_path / FILENAME).write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match="cannot read the lock"):
        read(tmp_path / FILENAME)


# --- stale ------------------------------------------------------------------------------------


def test_unchanged_inputs_are_not_stale():
    assert stale(LOCK, "elsa-1.7", {"recipes/elsa-1.7.yaml": "b" * 64}) == ()
    require_fresh(LOCK, "elsa-1.7", {"recipes/elsa-1.7.yaml": "b" * 64})


def test_each_changed_new_and_missing_input_is_named():
    lock = record(LOCK, "r", {"changed": "a" * 64, "gone": "b" * 64, "same": "c" * 64}, TREE)

    found = stale(lock, "r", {"changed": "f" * 64, "new": "e" * 64, "same": "c" * 64})

    assert [(d.code, d.path) for d in found] == [
        ("E201", "changed"),
        ("E203", "gone"),
        ("E202", "new"),
    ]


def test_a_recipe_that_was_never_built_is_stale():
    assert [d.code for d in stale(LOCK, "other", {})] == ["E204"]


def test_locked_refuses_stale_inputs_and_names_the_file():
    with pytest.raises(StaleError, match=r"recipes/elsa-1\.7\.yaml: changed"):
        require_fresh(LOCK, "elsa-1.7", {"recipes/elsa-1.7.yaml": "c" * 64})


def test_another_pin_forgets_what_was_built_on_the_old_tree():
    other = Pin(
        source=SourceKind.RELEASE,
        url="sglang",
        ref="v0.5.24",
        commit=Oid("3" * 40),
        tree=TREE,
        date="x",
    )

    assert repin(LOCK, other) == Lock(pin=other)
    assert repin(LOCK, PIN) == LOCK
    assert repin(None, PIN) == Lock(pin=PIN)


def test_another_wheel_of_the_same_release_is_added_and_results_stay():
    other = Artifact(filename="sglang-0.5.23-cp311-cp311-any.whl", sha256="b" * 64)

    lock = repin(LOCK, replace(PIN, artifacts=(other,)))

    assert lock.pin.artifacts == (*PIN.artifacts, other)
    assert lock.results == LOCK.results


# --- inputs -----------------------------------------------------------------------------------


def test_inputs_are_named_relative_to_the_project(tmp_path):
    (tmp_path / "recipes").mkdir()
    file = tmp_path / "recipes" / "a.yaml"
    file.write_bytes(b"x")

    found = digest_inputs(tmp_path, [file])

    assert list(found) == ["recipes/a.yaml"]
    assert found["recipes/a.yaml"].startswith("2d711642b726b044")


def test_an_input_outside_the_project_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must lie inside the project"):
        digest_inputs(tmp_path / "project", [tmp_path / "outside"])


def test_a_missing_input_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read this input: No such file"):
        digest_inputs(tmp_path, [tmp_path / "gone"])


def test_an_input_whose_name_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.patch")
    path.write_bytes(b"")

    with pytest.raises(ConfigError, match="not UTF-8"):
        digest_inputs(tmp_path, [path])


# --- on disk ----------------------------------------------------------------------------------


def test_saving_the_same_lock_again_touches_nothing(tmp_path):
    path = tmp_path / FILENAME

    assert save(path, LOCK)
    before = path.stat()
    assert not save(path, LOCK, locked=True)

    assert path.stat() == before
    assert [p.name for p in tmp_path.iterdir()] == [FILENAME]


def test_locked_refuses_to_change_the_file(tmp_path):
    path = tmp_path / FILENAME
    save(path, Lock(pin=PIN))

    with pytest.raises(StaleError, match="--locked"):
        save(path, LOCK, locked=True)

    assert read(path) == Lock(pin=PIN)


def test_a_dry_run_says_that_it_would_change_and_writes_nothing(tmp_path):
    assert save(tmp_path / FILENAME, LOCK, dry_run=True)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_a_tool_error(tmp_path):
    with pytest.raises(ToolError, match="cannot write the lock: No such file"):
        save(tmp_path / "gone" / FILENAME, LOCK)
