"""`elsa-build patch edit|refresh|keep|drop`: what changes a patch that we carry already."""

from pathlib import Path
from typing import Annotated, Any

import typer

from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.patch import (
    DryRun,
    Id,
    Upstream,
    Why,
    edited,
    find,
    folder_of,
    group,
    repository,
)
from elsa_build.errors import UsageError
from elsa_build.model import Kind
from elsa_build.patches import editing, seriesfile


@command(
    group,
    "edit",
    example="elsa-build patch edit mamba-copy --drop-when 'upstream merges #30841' --hot-path",
    schema="patch-edit",
)
def edit(
    session: Session,
    *,
    patch_id: Id,
    why: Annotated[str | None, typer.Option(metavar="TEXT", help="Why we carry it")] = None,
    drop_when: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What makes it needless; '' removes it")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="How it relates to upstream")] = None,
    commit: Annotated[
        str | None, typer.Option(metavar="HEX", help="Upstream's commit it comes from")
    ] = None,
    pr: Annotated[int | None, typer.Option(metavar="N", help="Upstream's pull request")] = None,
    requires: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Patches it needs; replaces the list")
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Its tests; replaces the list")
    ] = None,
    evidence: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Its evidence; replaces the list")
    ] = None,
    hot_path: Annotated[
        bool | None, typer.Option("--hot-path/--no-hot-path", help="Measure again after a change")
    ] = None,
    upstream: Upstream = None,
    dry_run: DryRun = False,
) -> Result:
    """Change what `series.yaml` says of a patch; comments and order stay."""
    patch, _ = find(session, patch_id)
    given: dict[str, Any] = {
        "why": why,
        "drop_when": drop_when,
        "kind": kind,
        "origin": editing.origin(commit, pr, patch.origin) if commit or pr else None,
        "requires": requires,
        "tests": test,
        "evidence": evidence,
        "hot_path": hot_path,
    }
    fields = {key: value or None for key, value in given.items() if value is not None}
    if not fields:
        raise UsageError("nothing to change", hint=f"elsa-build patch edit {patch_id} --why TEXT")
    folder = folder_of(session, patch.patchset)
    if {"kind", "origin"} & fields.keys() and patch.mail is not None:
        with repository(session, upstream) as git:
            made = editing.edit(git, folder, session.root, patch, fields)
    else:
        made = editing.edit(None, folder, session.root, patch, fields)
    return edited(made, dry_run=dry_run, following=f"elsa-build patch show {patch_id}")


@command(
    group,
    "refresh",
    example="elsa-build patch refresh mamba-copy --work-tree ../patched\n"
    "elsa-build patch refresh mamba-copy --commit HEAD~2 --upstream ../patched",
    schema="patch-refresh",
)
def refresh(
    session: Session,
    *,
    patch_id: Id,
    commit: Annotated[
        str | None, typer.Option(metavar="REV", help="The commit that the patch becomes")
    ] = None,
    work_tree: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Fold the uncommitted changes of a work tree into it"),
    ] = None,
    upstream: Upstream = None,
    dry_run: DryRun = False,
) -> Result:
    """Write a patch anew from a commit or a work tree; later patches are merged onto it.

    Without --commit and --work-tree the change stays and only the file's form is put right.
    """
    if commit and work_tree:
        raise UsageError("--commit and --work-tree exclude each other")
    patch, _ = find(session, patch_id)
    folder = folder_of(session, patch.patchset)
    series = seriesfile.load(folder, root=session.root)
    with repository(session, work_tree or upstream) as git:
        if commit:
            files = editing.refreshed_from(git, series, patch, git.resolve(commit))
        elif work_tree:
            sides = editing.folded(git, series, patch, *editing.work_tree(git, work_tree))
            files = editing.refresh(git, series, patch, sides)
        else:
            files = editing.rewritten(git, series, patch)
    made = editing.Edit(folder=folder, files=files, patches=(patch,) if files else ())
    return edited(made, dry_run=dry_run, following="elsa-build check")


@command(group, "keep", example="elsa-build patch keep mamba-copy", schema="patch-keep")
def keep(session: Session, *, patch_id: Id, why: Why = None, dry_run: DryRun = False) -> Result:
    """Say that a patch has earned its place."""
    patch, _ = find(session, patch_id)
    made = editing.keep(folder_of(session, patch.patchset), session.root, patch, why)
    return edited(made, dry_run=dry_run, following="elsa-build apply")


@command(
    group,
    "drop",
    example="elsa-build patch drop mamba-copy --why 'no gain in two boots of the same image'",
    schema="patch-drop",
)
def drop(
    session: Session,
    *,
    patch_id: Id,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Why it goes; 20 characters or more")],
    dry_run: DryRun = False,
) -> Result:
    """Take a patch out of every replay; its id, its file and the reason stay."""
    patch, _ = find(session, patch_id)
    made = editing.drop(folder_of(session, patch.patchset), session.root, patch, why)
    return edited(made, dry_run=dry_run, following="elsa-build apply")
