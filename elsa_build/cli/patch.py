"""`elsa-build patch`: the patches that we carry, how they come in and how they go out."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

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
    patch, series = find(session, patch_id)
    stored = patch.mail is not None and context is None and upstream is None
    if stored and patch.mail:
        diff = patch.mail.diff
    else:
        with repository(session, upstream) as git:
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
    folder = folder_of(session, into)
    if folder.exists():
        raise ConfigError(
            f"{into}: the patchset exists already", hint=f"elsa-build patch add ... --into {into}"
        )
    with repository(session, upstream) as git:
        start, found = sources.named(git, source, strip=strip)
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
        closing=f"{len(made.files)} files {would(dry_run)}written to patchsets/{into}{ignored}\n"
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
    with repository(session, upstream) as git:
        mails = exporting.mails(git, series)
    if not dry_run:
        exporting.store(to, form, mails)
    place = shlex.quote(str(to.resolve()))
    how = {
        exporting.Form.AM: f"git am --keep-non-patch {place}/*.patch",
        exporting.Form.MBOX: f"git am --keep-non-patch {place}",
        exporting.Form.QUILT: f"QUILT_PATCHES={place} quilt push -a --fuzz=0",
    }
    return Result(
        data={"to": str(to), "form": str(form), "files": [name for name, _ in mails]},
        view="\n".join(name for name, _ in mails),
        closing=f"{len(mails)} patches {would(dry_run)}written to {to}; next: {how[form]}",
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
    folder = folder_of(session, into)
    with repository(session, upstream) as git:
        incoming = [
            patch for word in source for patch in sources.named(git, word, strip=strip)[1].patches
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
    return edited(edit, dry_run=dry_run, following="elsa-build check")


# --- shared -----------------------------------------------------------------------------------


@contextmanager
def repository(session: Session, upstream: Path | None) -> Iterator[Quarantine]:
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


def folder_of(session: Session, name: str) -> Path:
    """Return the folder of a patchset, which need not be there yet."""
    wrong = seriesfile.slug_problem(name)
    if wrong:
        raise ConfigError(f"patchset {wrong}")
    return session.root / project.PATCHSETS / name


def _ids(session: Session) -> tuple[str, ...]:
    return tuple(patch.id for patch in project.read_series(session.root).patches)


def find(session: Session, patch_id: str) -> tuple[Patch, Series]:
    """Return a patch by its id, and the series of all patchsets."""
    series = project.read_series(session.root)
    return seriesfile.patch_of(series, patch_id), series


def edited(edit: editing.Edit, *, dry_run: bool, following: str) -> Result:
    """Write an edit, unless this is a dry run, and say which files it has."""
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
        closing=f"{len(names)} files {would(dry_run)}written; next: {following}"
        if names
        else "nothing to change",
        diagnostics=edit.findings,
    )


def would(dry_run: bool) -> str:
    """Return the words that a dry run has in front of what it did not do."""
    return "would be " if dry_run else ""
