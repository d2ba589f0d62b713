"""`elsa-build patch`: the patches that we carry, and every edit of a patchset."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import ConfigError, UsageError
from elsa_build.git.door import Git, Quarantine
from elsa_build.model import Kind, Oid, Patch, Series, Status
from elsa_build.patches import editing, exporting, importing, seriesfile, sources, standalone
from elsa_build.reports import patchlist

group = typer.Typer(help="Show and edit the patches that we carry.", no_args_is_help=True)
app.add_typer(group, name="patch")

Id = Annotated[str, typer.Argument(metavar="ID", help="The patch")]
Upstream = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="The repository that holds the base (default: the pinned)"),
]
Into = Annotated[str, typer.Option(metavar="PATCHSET", help="The patchset to write")]
Base = Annotated[
    str | None,
    typer.Option(metavar="REV", help="The commit the patches are written on (default: the pin)"),
]
Include = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Keep only hunks in these paths of the tree; repeatable"),
]
Why = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Why we carry it (default: from its subject)")
]
KindOption = Annotated[Kind, typer.Option(help="How it relates to upstream")]
Strip = Annotated[int, typer.Option("-p", metavar="N", help="Strip N leading path components")]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Say what would change")]


# --- looking ----------------------------------------------------------------------------------


@command(group, "list", example="elsa-build patch list --json", schema="patch-list")
def list_(
    session: Session,
    *,
    patchset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these patchsets; repeatable")
    ] = None,
    status: Annotated[
        list[Status] | None, typer.Option(help="Only patches that stand so; repeatable")
    ] = None,
) -> Result:
    """List the patches in order: sign, id, kind, status, subject."""
    series = project.read_series(session.root, tuple(patchset) if patchset else None)
    chosen = tuple(p for p in series.patches if not status or p.status in status)
    shown = Series(name=series.name, patches=chosen)
    return Result(
        data={"patches": [patchlist.document(patch) for patch in chosen]},
        view=(lambda: patchlist.table(shown)) if chosen else "",
        closing="" if chosen else "no patches; next: elsa-build patch import PATH --into NAME",
    )


@command(
    group, "show", example="elsa-build patch show mamba-copy --context 10", schema="patch-show"
)
def show(
    session: Session,
    *,
    patch_id: Id,
    context: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Lines of context, from upstream's own files"),
    ] = None,
    upstream: Upstream = None,
) -> Result:
    """Show what the series says of a patch, its message and its diff.

    A patch file stores one line of context; --context renders it anew from the repository.
    """
    patch, series = _find(session, patch_id)
    stored = patch.mail is not None and context is None and upstream is None
    if stored and patch.mail:
        diff = patch.mail.diff
    else:
        with _repository(session, upstream) as git:
            standalone.prepare(git, series.patches)
            diff = standalone.diff(git, patch, 3 if context is None else context)
    text = diff.decode("utf-8", "replace")
    message = patch.mail.message if patch.mail else None
    return Result(
        data={**patchlist.document(patch), "message": message, "diff": text},
        view=patchlist.page(patch, text),
    )


# --- coming and going -------------------------------------------------------------------------


@command(
    group,
    "import",
    example="elsa-build patch import ../their/patches --into rdna4 --base v0.5.15\n"
    "elsa-build patch import v0.5.15..work --into work --upstream ../sglang",
    schema="patch-import",
)
def import_(
    session: Session,
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A folder of patches, a quilt series, an mbox, or commits A..B"
        ),
    ],
    into: Into,
    base: Base = None,
    include: Include = None,
    kind: KindOption = Kind.LOCAL,
    why: Why = None,
    strip: Strip = 1,
    upstream: Upstream = None,
    dry_run: DryRun = False,
) -> Result:
    """Make a patchset from other people's patches, all of them or nothing."""
    folder = _folder(session, into)
    if folder.exists():
        raise ConfigError(
            f"{into}: the patchset exists already", hint=f"elsa-build patch add ... --into {into}"
        )
    with _repository(session, upstream) as git:
        start, found = sources.find(git, source, strip=strip)
        made = importing.build(
            git,
            found.patches,
            _base(session, git, upstream, base, start),
            into,
            importing.Choice(include=tuple(include or ()), kind=kind, why=why),
            taken=_ids(session),
            progress=session.progress,
        )
    if not dry_run:
        importing.store(folder, made, base)
    ignored = f"; not taken: {', '.join(found.ignored)}" if found.ignored else ""
    return Result(
        data={
            "patchset": into,
            "base": made.base,
            "tree": made.tree,
            "ignored": list(found.ignored),
            "patches": [patchlist.document(patch) for patch in made.patches],
        },
        view=lambda: patchlist.table(Series(name=into, patches=made.patches)),
        closing=f"{len(made.files)} files {_would(dry_run)}written to patchsets/{into}{ignored}\n"
        "next: elsa-build check, or elsa-build apply",
        diagnostics=made.findings,
    )


@command(
    group,
    "export",
    example="elsa-build patch export --to ../out --form quilt --patchset rdna4",
    schema="patch-export",
)
def export(
    session: Session,
    *,
    to: Annotated[Path, typer.Option(metavar="PATH", help="Where; nothing may be there yet")],
    form: Annotated[
        exporting.Form, typer.Option(help="am: a folder of mails, mbox: one file, quilt: a series")
    ] = exporting.Form.AM,
    patchset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only these patchsets; repeatable")
    ] = None,
    upstream: Upstream = None,
    dry_run: DryRun = False,
) -> Result:
    """Write the patches for `git am --keep-non-patch` or for quilt."""
    series = project.read_series(session.root, tuple(patchset) if patchset else None)
    with _repository(session, upstream) as git:
        mails = exporting.mails(git, series)
    if not dry_run:
        exporting.store(to, form, mails)
    how = {
        exporting.Form.AM: f"git am --keep-non-patch {to}/*.patch",
        exporting.Form.MBOX: f"git am --keep-non-patch {to}",
        exporting.Form.QUILT: f"QUILT_PATCHES={to} quilt push -a --fuzz=0",
    }
    return Result(
        data={"to": str(to), "form": str(form), "files": [name for name, _ in mails]},
        view="\n".join(name for name, _ in mails),
        closing=f"{len(mails)} patches {_would(dry_run)}written to {to}; next: {how[form]}",
    )


@command(
    group,
    "add",
    example="elsa-build patch add fix.patch --into local\n"
    "elsa-build patch add 4f2a91c --into picks --kind cherry-pick --upstream ../sglang",
    schema="patch-add",
)
def add(
    session: Session,
    *,
    source: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Commits, ranges A..B, diffs or mails")
    ],
    into: Into,
    base: Base = None,
    include: Include = None,
    kind: KindOption = Kind.LOCAL,
    why: Why = None,
    strip: Strip = 1,
    upstream: Upstream = None,
    dry_run: DryRun = False,
) -> Result:
    """Append patches to a patchset, written on its last one; a new patchset starts on the pin."""
    folder = _folder(session, into)
    with _repository(session, upstream) as git:
        incoming = [
            patch for word in source for patch in sources.find(git, word, strip=strip)[1].patches
        ]
        new = not (folder / seriesfile.NAME).is_file()
        edit = editing.add(
            git,
            folder,
            session.root,
            editing.Addition(
                incoming=tuple(incoming),
                choice=importing.Choice(include=tuple(include or ()), kind=kind, why=why),
                base=_base(session, git, upstream, base, None) if new else None,
            ),
            _ids(session),
        )
    return _edited(edit, dry_run=dry_run, following="elsa-build check")


# --- edits ------------------------------------------------------------------------------------


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
    patch, _ = _find(session, patch_id)
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
    folder = _folder(session, patch.patchset)
    if {"kind", "origin"} & fields.keys() and patch.mail is not None:
        with _repository(session, upstream) as git:
            made = editing.edit(git, folder, session.root, patch, fields)
    else:
        made = editing.edit(None, folder, session.root, patch, fields)
    return _edited(made, dry_run=dry_run, following=f"elsa-build patch show {patch_id}")


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
    patch, _ = _find(session, patch_id)
    folder = _folder(session, patch.patchset)
    series = seriesfile.load(folder, root=session.root)
    with _repository(session, work_tree or upstream) as git:
        if commit:
            files = editing.refreshed_from(git, series, patch, git.resolve(commit))
        elif work_tree:
            sides = editing.folded(git, series, patch, *editing.work_tree(git, work_tree))
            files = editing.refresh(git, series, patch, sides)
        else:
            files = editing.rewritten(git, series, patch)
    made = editing.Edit(folder=folder, files=files, patches=(patch,) if files else ())
    return _edited(made, dry_run=dry_run, following="elsa-build check")


@command(group, "keep", example="elsa-build patch keep mamba-copy", schema="patch-keep")
def keep(session: Session, *, patch_id: Id, why: Why = None, dry_run: DryRun = False) -> Result:
    """Say that a patch has earned its place."""
    patch, _ = _find(session, patch_id)
    made = editing.keep(_folder(session, patch.patchset), session.root, patch, why)
    return _edited(made, dry_run=dry_run, following="elsa-build apply")


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
    patch, _ = _find(session, patch_id)
    made = editing.drop(_folder(session, patch.patchset), session.root, patch, why)
    return _edited(made, dry_run=dry_run, following="elsa-build apply")


# --- shared -----------------------------------------------------------------------------------


@contextmanager
def _repository(session: Session, upstream: Path | None) -> Iterator[Quarantine]:
    """Open the repository that holds the bases; what is written to it does not stay."""
    path = upstream or project.pinned_repository(project.read_lock(session.root), session.progress)
    with Git(path) as git, git.quarantine() as inner:
        yield inner


def _base(
    session: Session, git: Git, upstream: Path | None, base: str | None, start: Oid | None
) -> Oid:
    if base:
        return git.resolve(base)
    if start:
        return start
    if upstream:
        raise UsageError("--upstream needs --base", hint="add --base REV")
    return project.read_lock(session.root).pin.commit


def _folder(session: Session, name: str) -> Path:
    wrong = seriesfile.slug_problem(name)
    if wrong:
        raise ConfigError(f"patchset {wrong}")
    return session.root / project.PATCHSETS / name


def _ids(session: Session) -> tuple[str, ...]:
    return tuple(patch.id for patch in project.read_series(session.root).patches)


def _find(session: Session, patch_id: str) -> tuple[Patch, Series]:
    series = project.read_series(session.root)
    return seriesfile.patch_of(series, patch_id), series


def _edited(edit: editing.Edit, *, dry_run: bool, following: str) -> Result:
    if not dry_run:
        editing.write(edit)
    names = sorted(edit.files)
    place = f"{project.PATCHSETS}/{edit.folder.name}"
    return Result(
        data={
            "patchset": edit.folder.name,
            "files": names,
            "patches": [patchlist.document(patch) for patch in edit.patches],
        },
        view="\n".join(f"{place}/{name}" for name in names),
        closing=f"{len(names)} files {_would(dry_run)}written; next: {following}"
        if names
        else "nothing to change",
        diagnostics=edit.findings,
    )


def _would(dry_run: bool) -> str:
    return "would be " if dry_run else ""
