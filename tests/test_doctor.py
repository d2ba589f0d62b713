"""`doctor`: each row from doors that the test holds, and once on the real machine."""

import json
import sys

import pytest

from elsa_build import doctor
from elsa_build.cli import main
from elsa_build.doctor import Machine, State, examine
from elsa_build.errors import ToolError

GB = 10**9
ANSWERS = {
    "git --version": "git version 2.39.5\n",
    "/py -m pip --version": "pip 25.1 from /lib/pip (python 3.12)\n",
    "/py -m pip index versions sglang": "sglang (0.5.23)\nAvailable versions: 0.5.23, 0.5.22\n",
    "docker buildx version": "buildx v0.20.0 abcdef\n",
    "skopeo --version": "skopeo version 1.9.3\n",
    "umoci --version": "umoci version 0.4.7\n",
    "nvcc --version": "nvcc: NVIDIA\nCuda compilation tools, release 13.0, V13.0.88\n",
    "nvcc --list-gpu-arch": "compute_90\ncompute_120\n",
    "nvidia-smi --query-gpu=name,compute_cap,memory.total,driver_version --format=csv,noheader": (
        "NVIDIA GeForce RTX 5090, 12.0, 32607 MiB, 620.70\n"
    ),
    "hadolint --version": "Haskell Dockerfile Linter 2.15.1\n",
}


def machine(*absent, free=100 * GB, python=(3, 12, 3), daemon="27.1, API 1.46", **said) -> Machine:
    answers = {**ANSWERS, **{key.replace("__", " "): text for key, text in said.items()}}

    def run(command):
        text = answers.get(" ".join(command))
        if text is None or command[0] in absent:
            return 127, "not found"
        return 0, text

    def ask():
        if daemon is None:
            raise ToolError("no answer from the default socket")
        return daemon

    known = {key.split()[0] for key in answers}
    return Machine(
        which=lambda name: f"/bin/{name}" if name in known and name not in absent else None,
        run=run,
        daemon=ask,
        free=lambda _: free,
        python=python,
        executable="/py",
    )


def look(doors: Machine, tmp_path, *, network=False) -> dict:
    rows = examine(
        doors, git=(2, 38), cache=tmp_path / "not" / "yet", project=tmp_path, network=network
    )
    return {row.name: row for row in rows}


def test_a_machine_with_everything_has_no_failed_row(tmp_path):
    rows = look(machine(), tmp_path, network=True)

    assert {row.state for row in rows.values()} == {State.OK}
    assert rows["nvcc"].found == "release 13.0, sm_90 sm_120"
    assert rows["package index"].found == "sglang 0.5.23 is the newest"
    assert rows["GPU"].found == "NVIDIA GeForce RTX 5090, 12.0, 32607 MiB, 620.70"


def test_the_index_is_not_asked_unless_wanted(tmp_path):
    row = look(machine(), tmp_path)["package index"]

    assert row.state is State.UNASKED
    assert not row.failed


@pytest.mark.parametrize(
    "name", ["skopeo", "umoci", "hadolint", "nvcc", "nvidia-smi", "docker", "/py"]
)
def test_an_absent_tool_is_told_with_what_is_lost_and_is_no_failure(tmp_path, name):
    rows = look(machine(name), tmp_path)

    missing = [row for row in rows.values() if row.state is State.MISSING]
    assert len(missing) == 1
    assert missing[0].lost
    assert not missing[0].failed


def test_no_daemon_says_where_it_looked(tmp_path):
    row = look(machine(daemon=None), tmp_path)["docker daemon"]

    assert (row.state, row.found) == (State.MISSING, "no answer from the default socket")


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("git version 2.37.9", State.OLD),
        ("git version 2.38.0", State.OK),
        ("git version 2.39.5 (Apple Git-154)", State.OK),
        ("git version 3.0.0", State.OK),
        ("garbage", State.MISSING),
    ],
)
def test_git_is_held_against_the_oldest_that_works(tmp_path, said, state):
    row = look(machine(**{"git__--version": said}), tmp_path)["git"]

    assert row.state is state
    assert row.failed is (state is not State.OK)


def test_no_git_is_a_failure(tmp_path):
    assert look(machine("git"), tmp_path)["git"].failed


def test_an_old_python_is_a_failure(tmp_path):
    assert look(machine(python=(3, 10, 12)), tmp_path)["Python"].failed


def test_a_full_disk_is_low_and_names_the_folder(tmp_path):
    row = look(machine(free=GB // 2), tmp_path)["disk of the project"]

    assert (row.state, row.failed) == (State.LOW, False)
    assert row.found == f"0.5 GB free at {tmp_path}"


def test_an_index_that_does_not_answer_is_told_in_its_words(tmp_path):
    doors = machine(**{"/py__-m__pip__index__versions__sglang": "ERROR: No matching\n"})

    row = look(doors, tmp_path, network=True)["package index"]

    assert (row.state, row.found) == (State.MISSING, "ERROR: No matching")


def test_the_table_says_what_is_lost_only_where_something_is(tmp_path):
    text = doctor.table(tuple(look(machine("skopeo"), tmp_path).values()))

    assert "missing    skopeo" in text
    assert text.count("without it: an image cannot be pushed") == 1
    assert "every tree and merge" not in text


def test_a_program_that_cannot_be_started_is_an_answer(tmp_path):
    assert doctor.this_machine().run([str(tmp_path)])[0] == 1


@pytest.mark.parametrize(
    "host", ["unix:///nonexistent.sock", "tcp://127.0.0.1:9", "tcp://127.0.0.1:x"]
)
def test_a_daemon_that_is_not_there_is_told_with_its_address(monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)

    with pytest.raises(ToolError, match=f"no answer from {host}: "):
        doctor.this_machine().daemon()


def test_on_this_machine_git_and_python_are_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["elsa-build", "doctor", "--json", "-C", str(tmp_path)])

    with pytest.raises(SystemExit) as ended:
        main.run()

    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert document["status"] == "ok"
    required = {r["name"]: r["state"] for r in document["data"]["rows"] if r["required"]}
    assert required == {"git": "ok", "Python": "ok"}


def test_without_git_the_exit_code_is_6(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["elsa-build", "doctor", "-C", str(tmp_path)])
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SystemExit) as ended:
        main.run()

    out, err = capsys.readouterr()
    assert ended.value.code == 6
    assert "missing    git" in out
    assert "needed and not there: git" in err
