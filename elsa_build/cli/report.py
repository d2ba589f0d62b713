"""`elsa-build report`: a saved review in the form that somebody asks for."""

from pathlib import Path
from typing import Annotated

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.reports import forms, reading, wording


@command(
    app,
    "report",
    example="elsa-build report out/review.json --format markdown\n"
    "elsa-build report out -o conflicts.html",
)
def report(
    session: Session,
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A review.json, or the folder that holds one")
    ],
    form: Annotated[forms.Form, typer.Option("--format", help="What to make of it")] = (
        forms.Form.HTML
    ),
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write here, not to stdout"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Write nothing")] = False,
) -> Result:
    """Render what `rebase --report` saved; no repository and no network is needed."""
    del session
    review = reading.read(file)
    text = forms.render(review, form)
    if output and not dry_run:
        reading.write(output, text)
    would = "would be " if dry_run else ""
    return Result(
        data={
            "format": str(form),
            "output": str(output) if output else None,
            "characters": len(text),
            "headline": wording.headline(review),
            "clean": review.done.clean,
            "fingerprint": wording.fingerprint(review),
            "text": None if output else text,
        },
        view="" if output else text,
        closing=f"{wording.headline(review)}; {would}written to {output}" if output else "",
    )
