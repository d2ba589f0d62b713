"""`elsa-build doctor`: what this machine can do."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from elsa_build import doctor as room
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import ExitCode
from elsa_build.git.door import MINIMUM
from elsa_build.upstream.cache import cache_dir


@command(app, "doctor", example="elsa-build doctor\nelsa-build doctor --network --json")
def doctor(
    session: Session,
    *,
    network: Annotated[
        bool, typer.Option("--network", help="Also ask the package index whether it answers")
    ] = False,
) -> Result:
    """Say what this machine can do, and what is lost without the rest."""
    rows = room.examine(
        room.this_machine(),
        git=MINIMUM,
        cache=cache_dir(os.environ),
        project=session.root,
        network=network,
    )
    failed = [row.name for row in rows if row.failed]
    return Result(
        data={"rows": [asdict(row) for row in rows]},
        view=room.table(rows),
        closing=f"needed and not there: {', '.join(failed)}" if failed else "",
        status="missing" if failed else "ok",
        code=ExitCode.TOOL if failed else ExitCode.OK,
    )
