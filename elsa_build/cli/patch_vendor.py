"""`elsa-build patch vendor`: picks as files, for who builds without the git source."""

from pathlib import Path
from typing import Annotated, Any

import typer

from elsa_build import project
from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.patch import DryRun, find, folder_of, group, would
from elsa_build.git.door import Git
from elsa_build.patches import editing, vendoring


@command(
    group,
    "vendor",
    example="elsa-build patch vendor\nelsa-build patch vendor mamba-fix-31369 --upstream ../sglang",
    schema="patch-vendor",
)
def vendor(
    session: Session,
    *,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID...]", help="Which picks (default: all)")
    ] = None,
    upstream: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="A repository that has the commits too"),
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Write picks that are references to upstream commits as patch files.

    A build then needs the pinned tree only, not the history that the picks came from.
    """
    lock = project.read_lock(session.root)
    series = project.read_series(session.root)
    named = [find(session, one)[0] for one in ids or ()]
    names = dict.fromkeys(patch.patchset for patch in (named or series.patches))
    pinned = project.pinned_repository(lock, session.progress, None if upstream else series)
    edits = []
    with Git(pinned) as git, Git(upstream or pinned) as far, git.quarantine(far) as inner:
        for name in names:
            own = [patch.id for patch in named if patch.patchset == name]
            edits.append(vendoring.vendor(inner, folder_of(session, name), session.root, own))
    written = [edit for edit in edits if edit.files]
    if not dry_run:
        for edit in written:
            editing.write(edit)
    return Result(
        data={"patchsets": [_document(edit) for edit in written]},
        view="\n".join(
            f"{project.PATCHSETS}/{edit.folder.name}/{name}"
            for edit in written
            for name in sorted(edit.files)
        ),
        closing=f"{sum(len(edit.patches) for edit in written)} picks {would(dry_run)}written"
        "; next: elsa-build check"
        if written
        else "no picks without a file",
    )


def _document(edit: editing.Edit) -> dict[str, Any]:
    return {
        "patchset": edit.folder.name,
        "files": sorted(edit.files),
        "patches": [patch.id for patch in edit.patches],
    }
