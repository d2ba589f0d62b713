"""`elsa-build pin`: which upstream we stand on."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.diagnostics import Diagnostic
from elsa_build.model import Pin, SourceKind
from elsa_build.upstream import lockfile, pinning
from elsa_build.upstream.cache import cache_dir
from elsa_build.upstream.lock import FILENAME, Lock
from elsa_build.upstream.requirements import decisive
from elsa_build.upstream.source import Source, open_source

group = typer.Typer(help="Show or move the pin: which upstream we stand on.", no_args_is_help=True)
app.add_typer(group, name="pin")

Python = Annotated[
    str | None,
    typer.Option(metavar="X.Y", help="Whose release wheel is pinned (default: as now, else 3.12)"),
]
Machine = Annotated[
    str | None,
    typer.Option(
        metavar="ARCH", help="Whose release wheel is pinned (default: as now, else x86_64)"
    ),
]
Locked = Annotated[bool, typer.Option("--locked", help="Refuse to change the lock")]
DryRun = Annotated[bool, typer.Option("-n", "--dry-run", help="Say what would change")]


@command(group, "show", example="elsa-build pin show --json", schema="pin-show")
def show(session: Session) -> Result:
    """Show what is pinned, from the lock alone."""
    lock = lockfile.read(session.root / FILENAME)
    results = [f"recipe    {name}: tree {tree}" for name, tree in sorted(lock.results.items())]
    requires = [f"  {line}" for line in lock.pin.requires] if session.verbose else []
    return Result(
        data={
            "pin": asdict(lock.pin),
            "inputs": dict(lock.inputs),
            "results": dict(lock.results),
        },
        view="\n".join([*_lines(lock.pin), *results, *requires]),
    )


@command(
    group,
    "set",
    example="elsa-build pin set v0.5.23 --source release\n"
    "elsa-build pin set nightly --source git --url ../sglang",
    schema="pin-set",
)
def set_(
    session: Session,
    *,
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="Release: 0.5.23, v0.5.23, latest. Git: a tag, branch, commit, or nightly",
        ),
    ],
    source: Annotated[
        SourceKind | None,
        typer.Option(help="Where REF is looked up (default: as now, else release)"),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Git address or path; for a release the package's name")
    ] = None,
    branch: Annotated[str, typer.Option(help="The branch that nightly means")] = "main",
    python: Python = None,
    machine: Machine = None,
    locked: Locked = False,
    dry_run: DryRun = False,
) -> Result:
    """Pin a release or a commit of upstream."""
    old, findings = pinning.existing(session.root / FILENAME)
    kind, address = pinning.chosen(old, source, url)
    place = open_source(
        kind,
        address,
        cache=cache_dir(os.environ),
        progress=session.progress,
        branch=branch,
        target=pinning.target(old, python, machine),
    )
    new = place.resolve(ref)
    move = pinning.put(session.root / FILENAME, old, new, locked=locked, dry_run=dry_run)
    return _moved(move, findings, dry_run=dry_run)


@command(group, "update", example="elsa-build pin update --dry-run", schema="pin-update")
def update(
    session: Session,
    *,
    python: Python = None,
    machine: Machine = None,
    locked: Locked = False,
    dry_run: DryRun = False,
) -> Result:
    """Pin the newest release, or the tip of the pinned branch."""
    old = lockfile.read(session.root / FILENAME)
    new = _place(session, old, python, machine).update(old.pin)
    move = pinning.put(session.root / FILENAME, old, new, locked=locked, dry_run=dry_run)
    return _moved(move, (), dry_run=dry_run)


def _place(session: Session, lock: Lock, python: str | None, machine: str | None) -> Source:
    return open_source(
        lock.pin.source,
        lock.pin.url,
        cache=cache_dir(os.environ),
        progress=session.progress,
        target=pinning.target(lock, python, machine),
    )


def _moved(move: pinning.Move, findings: tuple[Diagnostic, ...], *, dry_run: bool) -> Result:
    what = "changed" if move.changed else "unchanged"
    before = f"{move.left.ref} ({move.left.commit}) -> " if move.left else ""
    lines = [f"{before}{move.new.ref} ({move.new.commit})", *_lines(move.new)]
    lines += [
        f"  {shift.name}: {shift.old or 'not required'} -> {shift.new or 'not required'}"
        for shift in move.shifts
    ]
    lines += [f"forgot    the result of recipe {name}" for name in move.forgotten]
    return Result(
        data={
            "old": asdict(move.old) if move.old else None,
            "new": asdict(move.new),
            "changed": move.changed,
            "requires": [asdict(shift) for shift in move.shifts],
            "forgotten": list(move.forgotten),
        },
        view="\n".join(lines),
        closing=f"{FILENAME} {'would be' if dry_run else 'is'} {what}; "
        "next: elsa-build apply, or elsa-build image --tag TAG",
        diagnostics=findings,
    )


def _lines(pin: Pin) -> list[str]:
    wheels = [f"wheel     {file.filename} sha256 {file.sha256}" for file in pin.artifacts]
    return [
        f"source    {pin.source} {pin.url}",
        f"ref       {pin.ref}",
        f"commit    {pin.commit}",
        f"tree      {pin.tree}",
        f"date      {pin.date}",
        *wheels,
        f"requires  {len(pin.requires)} packages, of these decide what compiled code fits:",
        *(f"  {line}" for line in decisive(pin.requires)),
    ]
