"""The group `elsa-build kernels`: what the GPU needs, compiled before it is needed."""

import typer

from elsa_build.cli.app import app

kernels = typer.Typer(
    help="Plan, build and prove the kernels that the patched tree will look up.",
    no_args_is_help=True,
)
app.add_typer(kernels, name="kernels")
