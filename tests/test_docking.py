"""Where docker is required, a machine without it is a failure and not a list of skips."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ONE = "tests/test_image_docker.py::test_a_name_that_the_daemon_does_not_know_is_told"


@pytest.mark.parametrize(("required", "code", "word"), [("1", 1, "1 error"), ("", 0, "1 skipped")])
def test_a_missing_daemon_is_a_failure_only_where_docker_is_required(required, code, word):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ONE],
        cwd=ROOT,
        env={
            **os.environ,
            "DOCKER_HOST": "unix:///nowhere.sock",
            "ELSA_BUILD_REQUIRE_DOCKER": required,
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, word in ran.stdout) == (code, True)
    assert "docker daemon not reachable at unix:///nowhere.sock" in ran.stdout
