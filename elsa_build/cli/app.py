"""The root of the command tree; each command's module hangs itself below it."""

import typer

app = typer.Typer(
    name="elsa-build",
    help="Carry a patch series on SGLang: pin, replay, rebase, precompile, ship, prove.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
