"""The root of the command tree; each command's module hangs itself below it."""

import sys
from typing import Annotated

import typer

from elsa_build import __version__

app = typer.Typer(
    name="elsa-build",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"elsa-build {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version")
    ] = False,
) -> None:
    """Carry a patch series on SGLang: pin, replay, rebase, precompile, ship, prove."""
    del version
