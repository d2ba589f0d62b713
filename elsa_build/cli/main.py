"""The entry point: the only place that turns an error into words and an exit code."""

import importlib
import sys
import tempfile
import traceback
from pathlib import Path

from elsa_build import __version__
from elsa_build.cli.app import app
from elsa_build.errors import ElsaError, ExitCode

COMMANDS = (
    "doctor",
    "status",
    "check",
    "pin",
    "patch",
    "apply",
    "recipe",
    "dockerfile",
    "image",
    "image_diff",
    "verify",
)
"""Modules of `elsa_build.cli`, in the order of `--help`."""

for _name in COMMANDS:
    importlib.import_module(f"elsa_build.cli.{_name}")


def run() -> None:
    """Run the command line and exit."""
    try:
        app()
    except ElsaError as e:
        sys.stderr.write(f"error: {e}\n" + (f"hint: {e.hint}\n" if e.hint else ""))
        raise SystemExit(int(e.code)) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was left half done, run the same command again\n")
        raise SystemExit(int(ExitCode.INTERRUPTED)) from None
    except Exception:  # noqa: BLE001 - the last resort: say that it is a bug and keep the traceback
        report = _report()
        sys.stderr.write(f"error: this is a bug in elsa-build; details are in {report}\n")
        raise SystemExit(int(ExitCode.BUG)) from None


def _report() -> Path:
    """Write what a bug report needs to a file of its own and return its path."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="elsa-build-bug-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"elsa-build {__version__}\npython {sys.version}\nargv {sys.argv[1:]}\n\n")
        file.write(traceback.format_exc())
    return Path(file.name)
