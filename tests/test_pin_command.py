"""`pin` as a person types it: what stdout, stderr, the exit code and the lock say."""

import json
import os
import sys
from pathlib import Path

import pytest

from elsa_build.cli import main
from elsa_build.model import Artifact, Oid, Pin, SourceKind
from elsa_build.upstream.lock import FILENAME, Lock, record, save
from elsa_build.upstream.lockfile import read
from tests.test_upstream_release import fill, make_wheel

GIT_FILES = {
    "python/pyproject.toml": '[project]\ndependencies = ["torch==2.14.1"]\n',
    "python/sglang/a.py": "1\n",
}


@pytest.fixture
def cli(tmp_path, capsys, monkeypatch):
    """Run a command in a project of its own; gives the exit code, stdout and stderr."""
    root = tmp_path / "project"
    root.mkdir()

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["elsa-build", *args, "-C", str(root)])
        with pytest.raises(SystemExit) as ended:
            main.run()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    run.root = root
    run.lock = root / FILENAME
    return run


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two releases on an index and in the cache, so that only `latest` has to ask pip."""
    folder = tmp_path / "index"
    for version in ("0.5.22", "0.5.23"):
        fill(Path(os.environ["ELSA_BUILD_CACHE"]), make_wheel(folder, version))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def repository(story):
    first = story.commit(None, "first", GIT_FILES)
    second = story.commit(first, "second", {"python/sglang/a.py": "2\n"})
    story.git.move_refs({"refs/heads/main": (second, None), "refs/tags/v1": (first, None)})
    return story.git.path


PIN = Pin(
    source=SourceKind.RELEASE,
    url="sglang",
    ref="v0.5.23",
    commit=Oid("1" * 40),
    tree=Oid("2" * 40),
    date="1980-01-01T00:00:00+00:00",
    artifacts=(Artifact(filename="sglang-0.5.23-cp312-cp312-any.whl", sha256="a" * 64),),
    requires=("torch==2.14.1", "numpy"),
)
LOCK = record(Lock(pin=PIN), "elsa-1.7", {"recipes/elsa-1.7.yaml": "b" * 64}, Oid("3" * 40))


# --- show -------------------------------------------------------------------------------------


def test_show_needs_neither_cache_nor_network(cli, monkeypatch):
    save(cli.lock, LOCK)
    monkeypatch.setenv("ELSA_BUILD_CACHE", "/nonexistent/cache")

    code, out, _ = cli("pin", "show")

    assert code == 0
    assert f"commit    {'1' * 40}" in out
    assert f"recipe    elsa-1.7: tree {'3' * 40}" in out
    assert "  torch==2.14.1" in out
    assert "numpy" not in out


def test_show_lists_every_requirement_when_asked(cli):
    save(cli.lock, LOCK)

    assert "  numpy" in cli("pin", "show", "-v")[1]


def test_show_as_json_is_one_document(cli):
    save(cli.lock, LOCK)

    code, out, _ = cli("pin", "show", "--json")

    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "elsa-build/pin-show/1"
    assert document["data"]["pin"]["commit"] == "1" * 40
    assert document["data"]["pin"]["artifacts"][0]["sha256"] == "a" * 64
    assert document["data"]["inputs"] == {"elsa-1.7": {"recipes/elsa-1.7.yaml": "b" * 64}}


def test_show_without_a_lock_says_what_to_type(cli):
    code, out, err = cli("pin", "show")

    assert (code, out) == (5, "")
    assert "hint: elsa-build pin set latest --source release" in err


def test_show_of_a_hand_edited_lock_says_what_to_type(cli):
    save(cli.lock, LOCK)
    cli.lock.write_text(cli.lock.read_text().replace("numpy", "pandas"))

    code, _, err = cli("pin", "show")

    assert code == 5
    assert "edited by hand" in err
    assert "hint: elsa-build pin set v0.5.23" in err


# --- set --------------------------------------------------------------------------------------


def test_set_on_a_release_writes_the_lock_and_says_what_is_next(cli, index):
    code, out, err = cli("pin", "set", "v0.5.23", "--source", "release")

    lock = read(cli.lock)
    assert code == 0
    assert lock.pin.ref == "v0.5.23"
    assert lock.pin.artifacts[0].filename.startswith("sglang-0.5.23-cp312-")
    assert lock.pin.commit in out
    assert "elsa-build apply" in err
    assert str(index) not in cli.lock.read_text()


def test_set_prints_old_and_new_and_forgets_results_on_the_old_tree(cli, index):
    save(cli.lock, LOCK)

    code, out, _ = cli("pin", "set", "0.5.22")

    assert code == 0
    assert f"v0.5.23 ({'1' * 40}) -> v0.5.22 (" in out
    assert "numpy: numpy -> not required" in out
    assert "forgot    the result of recipe elsa-1.7" in out
    assert read(cli.lock).results == {}


def test_set_again_changes_nothing_and_keeps_results(cli, index):
    cli("pin", "set", "0.5.23")
    built = record(read(cli.lock), "elsa-1.7", {}, Oid("3" * 40))
    save(cli.lock, built)

    code, _, err = cli("pin", "set", "v0.5.23", "--locked")

    assert code == 0
    assert "upstream.lock is unchanged" in err
    assert read(cli.lock) == built


def test_a_dry_run_writes_nothing(cli, index):
    code, _, err = cli("pin", "set", "0.5.23", "-n")

    assert code == 0
    assert "upstream.lock would be changed" in err
    assert not cli.lock.exists()


def test_locked_refuses_another_pin_with_exit_4(cli, index):
    save(cli.lock, LOCK)

    code, _, err = cli("pin", "set", "0.5.22", "--locked")

    assert code == 4
    assert "--locked" in err
    assert read(cli.lock) == LOCK


def test_set_mends_a_lock_that_was_edited_by_hand(cli, index):
    save(cli.lock, LOCK)
    cli.lock.write_text(cli.lock.read_text().replace("numpy", "pandas"))

    code, _, err = cli("pin", "set", "0.5.23")

    assert code == 0
    assert "warning[E205]" in err
    assert read(cli.lock).pin.ref == "v0.5.23"


def test_set_on_a_git_repository(cli, repository):
    code, _, _ = cli("pin", "set", "nightly", "--source", "git", "--url", str(repository))

    pin = read(cli.lock).pin
    assert code == 0
    assert (pin.source, pin.url, pin.ref) == (SourceKind.GIT, str(repository), "nightly")
    assert pin.requires == ("torch==2.14.1",)


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("0.5.99",), 5, "has no sglang==0.5.99"),
        (("nonsense",), 5, "'nonsense' is not a release"),
        (("x", "--source", "git", "--url", "/nonexistent"), 5, "no such folder or repository"),
        (("x", "--source", "git", "--url", "ext::sh"), 5, "protocol 'ext' is not allowed"),
        (("0.5.23", "--url", "../x"), 5, "is not the name of a package"),
        (("0.5.23", "--python", "3.11"), 5, "for Python 3.11 on x86_64"),
        (("x", "--source", "svn"), 2, "svn"),
        ((), 2, "REF"),
    ],
)
def test_bad_input_is_an_error_with_its_code_and_no_lock(cli, index, args, code, words):
    found, out, err = cli("pin", "set", *args)

    assert (found, out) == (code, "")
    assert words in err
    assert not cli.lock.exists()


def test_an_error_as_json_is_one_document_too(cli, index):
    code, out, _ = cli("pin", "set", "nonsense", "--json")

    document = json.loads(out)
    assert code == 5
    assert document["status"] == "error"
    assert "is not a release" in document["diagnostics"][0]["message"]


# --- update -----------------------------------------------------------------------------------


def test_update_takes_the_newest_release(cli, index):
    cli("pin", "set", "0.5.22")

    code, out, _ = cli("pin", "update")

    assert code == 0
    assert "v0.5.22 (" in out
    assert "-> v0.5.23 (" in out
    assert read(cli.lock).pin.ref == "v0.5.23"


def test_update_keeps_a_wheel_for_each_python_that_is_pinned(cli, index):
    for version in ("0.5.22", "0.5.23"):
        made = make_wheel(index, version, tags="cp311-cp311-manylinux_2_34_x86_64")
        fill(Path(os.environ["ELSA_BUILD_CACHE"]), made)
    for python in ("3.11", "3.12"):
        cli("pin", "set", "0.5.22", "--python", python)

    cli("pin", "update")

    assert [file.filename[:19] for file in read(cli.lock).pin.artifacts] == [
        "sglang-0.5.23-cp311",
        "sglang-0.5.23-cp312",
    ]


def test_update_follows_a_branch(cli, repository, story):
    cli("pin", "set", "nightly", "--source", "git", "--url", str(repository))
    before = read(cli.lock).pin.commit
    third = story.commit(before, "third", {"python/sglang/a.py": "3\n"})
    story.git.move_refs({"refs/heads/main": (third, before)})

    code, out, _ = cli("pin", "update", "--json")

    data = json.loads(out)["data"]
    assert code == 0
    assert (data["old"]["commit"], data["new"]["commit"]) == (before, third)


def test_update_of_a_single_commit_is_refused(cli, repository, story):
    cli("pin", "set", story.git.resolve("main"), "--source", "git", "--url", str(repository))

    code, _, err = cli("pin", "update")

    assert code == 5
    assert "hint: elsa-build pin set nightly --source git" in err


# --- help -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["show", "set", "update"])
def test_every_command_of_the_group_has_an_example(cli, name):
    code, out, _ = cli("pin", name, "--help")

    assert code == 0
    assert f"elsa-build pin {name}" in out
    assert "--json" in out
