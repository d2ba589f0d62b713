"""The manners of the command line: help, completion, stdout and stderr, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from elsa_build.cli import main
from elsa_build.errors import ElsaError, ExitCode

CODE = "from elsa_build.cli.main import run; run()"


def elsa(*args, cwd=None, env=None):
    return subprocess.run(
        [sys.executable, "-c", CODE, *args],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def commands():
    main.load_all()
    return typer.main.get_command(main.app).commands


def every(commands):
    for name, command in commands.items():
        yield from ((f"{name} {sub}", c) for sub, c in getattr(command, "commands", {}).items())
        if not hasattr(command, "commands"):
            yield name, command


def test_the_names_in_help_are_the_commands_with_their_own_first_lines(commands):
    assert set(main.COMMANDS) == set(commands)
    for name, summary in main.COMMANDS.items():
        assert (commands[name].help or "").partition("\n")[0] == summary, name


def test_every_command_has_an_example_and_the_common_options(commands):
    for name, command in every(commands):
        options = {option for p in command.params for option in p.opts}
        assert "\nExample:\n" in command.help, name
        assert {"--json", "-C", "--quiet", "--verbose", "--color", "--no-progress"} <= options, name


def test_a_command_that_writes_has_a_dry_run(commands):
    writers = "pin set,pin update,patch import,patch add,patch edit,patch refresh,patch keep"
    writers += ",patch drop,patch export,apply,cherry-pick,rebase,image,dockerfile"
    known = dict(every(commands))
    for name in writers.split(","):
        assert "--dry-run" in {o for p in known[name].params for o in p.opts}, name


def test_the_reference_is_what_the_commands_say():
    page = Path(__file__).parent.parent / "docs/generate.py"

    ran = subprocess.run(
        [sys.executable, page, "--check"], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr


def test_an_unknown_command_is_answered_with_the_nearest():
    ran = elsa("statsu")

    assert ran.returncode == ExitCode.USAGE
    assert "status" in ran.stderr


def test_no_arguments_show_help():
    assert "cherry-pick" in elsa().stdout + elsa().stderr


def test_an_error_goes_to_stderr_with_its_hint_and_stdout_stays_empty(tmp_path):
    ran = elsa("status", cwd=tmp_path)

    assert ran.returncode == ExitCode.CONFIG
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
    assert "hint: elsa-build pin set" in ran.stderr


def test_with_json_an_error_is_one_document(tmp_path):
    ran = elsa("status", "--json", cwd=tmp_path)

    said = json.loads(ran.stdout)
    assert said["schema"] == "elsa-build/status/1"
    assert said["status"] == "error"
    assert said["diagnostics"][0]["hint"]


def test_a_folder_that_is_not_there_is_named():
    assert "no such folder" in elsa("status", "-C", "/nowhere").stderr


def test_a_bug_leaves_a_report_and_its_own_code(tmp_path):
    code = (
        "import sys; from elsa_build.cli import main, status\n"
        "sys.argv = ['elsa-build', 'status']\n"
        "def broken(*_): raise RuntimeError('planted')\n"
        "status.project.read_lock = broken\n"
        "main.run()\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ran.returncode == ExitCode.BUG
    report = Path(ran.stderr.rstrip().rpartition(" ")[2])
    assert "planted" in report.read_text()
    report.unlink()


def test_completion_knows_commands_and_their_options():
    env = os.environ | {
        "_ELSA_BUILD_COMPLETE": "complete_bash",
        "COMP_WORDS": "elsa-build ver",
        "COMP_CWORD": "1",
    }
    code = "import sys; sys.argv = ['elsa-build']; " + CODE

    ran = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )

    assert "verify" in ran.stdout


def test_every_error_class_has_its_exit_code():
    kinds = [k for k in ElsaError.__subclasses__() if k.__module__ == "elsa_build.errors"]

    assert {kind.code for kind in kinds} == set(ExitCode) - {ExitCode.OK, ExitCode.BUG}
