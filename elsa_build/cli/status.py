"""`elsa-build status`: where things stand."""

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command


@command(app, "status", example="elsa-build status --json")
def status(session: Session) -> Result:
    """Say where things stand."""
    return Result(data={"root": str(session.root)}, view=str(session.root))
