"""`elsa-build check`: are our files right, does every patch round-trip, does a recipe replay."""

from elsa_build import checking
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode


@command(app, "check", example="elsa-build check")
def check(session: Session) -> Result:
    """Check every file of ours: lock, patchsets, recipes; replay and guard each recipe."""
    found = checking.check(session.root, progress=session.progress)
    wrong = errors(found)
    stale = bool(wrong) and all(f.code.startswith("E20") for f in wrong)
    if not wrong:
        code, status = ExitCode.OK, "ok"
    else:
        code, status = (ExitCode.STALE, "stale") if stale else (ExitCode.FAILED, "failed")
    words = f"{len(wrong)} errors, {len(found) - len(wrong)} warnings and notes"
    return Result(
        data={"errors": len(wrong), "findings": len(found)},
        view=words if found else "everything is right",
        diagnostics=found,
        status=status,
        code=code,
    )
