"""The entry point: the only place that turns an error into words and an exit code."""

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from elsa_build import __version__
from elsa_build.cli.app import app
from elsa_build.errors import ElsaError, ExitCode

COMMANDS = {
    "doctor": "Say what this machine can do, and what is lost without the rest.",
    "status": "Say where things stand: the pin, the patchsets, the recipes, the tags.",
    "check": "Check every file of ours: lock, patchsets, recipes; replay and guard each recipe.",
    "pin": "Show or move the pin: which upstream we stand on.",
    "patch": "Show and edit the patches that we carry.",
    "apply": "Replay the series on the pin; write it to a folder or a branch.",
    "cherry-pick": "Pick upstream commits onto our stack and keep those that apply as patches.",
    "nightly": "See what upstream did since the pin, and what it took back of ours.",
    "rebase": "Replay the series on another upstream and report every patch.",
    "forecast": "Name the first upstream commit that breaks each patch, and what it did.",
    "bisect": "Find the first patch with which a command fails, by halves of the series.",
    "range-diff": "Compare two states of the stack, each replayed on its own pin.",
    "stats": "Count what we carry: lines, files, ages, and the conflicts of each rebase so far.",
    "resolve": "Lay out a patch's conflict in a work tree; --continue stores how it was settled.",
    "report": "Render what `rebase --report` saved; no repository and no network is needed.",
    "kernels": "Plan, build and prove the kernels that the patched tree will look up.",
    "recipe": "Show what a recipe resolves to, and where the memory of its card goes.",
    "dockerfile": "Render the Dockerfile that puts the overlay image on a base.",
    "image": "Build a tagged image from the pin, the series and a recipe.",
    "image-diff": "Show what a host that has A must pull to get B, and which input is the reason.",
    "verify": "Compare the files inside an image with what its record and its labels say.",
    "ci": "Rebuild on the newest upstream, and tell of it once.",
}
"""Every command, in the order of `--help`, with the first line of its own help.

A command is imported when it is used: all of them together cost more than `--help` may.
"""

_MODULES = {
    "kernels": (
        "kernels",
        "kernels_plan",
        "kernels_record",
        "kernels_build",
        "kernels_coverage",
        "kernels_verify",
        "kernels_gate",
    ),
    "patch": ("patch", "patch_edit", "patch_vendor"),
}


def load(argv: Sequence[str]) -> None:
    """Register the command that a command line names; for any other, the names of all."""
    name = next((word for word in argv if not word.startswith("-")), "")
    if name in COMMANDS:
        for module in _MODULES.get(name, (name.replace("-", "_"),)):
            importlib.import_module(f"elsa_build.cli.{module}")
        return
    for command, summary in COMMANDS.items():
        app.command(command, help=summary)(lambda: None)


def load_all() -> None:
    """Register every command; for the reference and the tests."""
    for name in COMMANDS:
        load([name])


def run() -> None:
    """Run the command line and exit."""
    words = os.environ.get("COMP_WORDS")
    load(words.split()[1:] if words else sys.argv[1:])
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
