"""`elsa-build resolve`: one conflict in a work tree, and back into the patchset."""

import getpass
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import UsageError
from elsa_build.patches.checkout import in_folder
from elsa_build.patches.review import Site
from elsa_build.reports import plain, terminal
from elsa_build.resolving import cases, settling

if TYPE_CHECKING:
    from rich.console import RenderableType


@command(
    app,
    "resolve",
    example="elsa-build resolve mamba-copy --onto nightly\n"
    "git -C dist/resolve/mamba-copy mergetool\n"
    "elsa-build resolve mamba-copy --continue --why 'upstream renamed the pool'",
)
def resolve(
    session: Session,
    *,
    patch_id: Annotated[str, typer.Argument(metavar="ID", help="The patch in conflict")],
    onto: Annotated[
        str | None, typer.Option(metavar="REF", help="Where it conflicts (default: the pin)")
    ] = None,
    upstream: Annotated[
        str | None,
        typer.Option(metavar="PATH|URL", help="Where REF is (default: the lock's source)"),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="The work tree (default: dist/resolve/ID)"),
    ] = None,
    proceed: Annotated[
        bool, typer.Option("--continue", help="Guard and store what the work tree holds")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Remove the work tree")] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Take the proposal; with --continue: take it although a guard objects",
        ),
    ] = False,
    why: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What a reviewer should know of it")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Say what would be written")
    ] = False,
) -> Result:
    """Lay out a patch's conflict in a work tree; --continue stores how it was settled.

    The files have zdiff3 markers and the index unmerged entries, so that any editor and
    `git mergetool` work there. A settled conflict is kept in the patchset's `resolutions/`.
    """
    if proceed and abort:
        raise UsageError("--continue and --abort exclude each other")
    if (proceed or abort) and (onto or upstream):
        raise UsageError("--onto and --upstream are for the start; the work tree knows them")
    folder = (to or session.root / cases.FOLDER / patch_id).absolute()
    if abort:
        return _aborted(folder, patch_id, dry_run=dry_run)
    word = settling.Word(
        author=_author(session.root),
        reason=why or ("settled by hand" if proceed else "the proposal, as it was made"),
        date=datetime.now(UTC).date().isoformat(),
    )
    if proceed:
        done = settling.proceed(
            session.root,
            folder,
            word,
            patch_id=patch_id,
            accept=accept,
            dry_run=dry_run,
            progress=session.progress,
        )
        return _settled(done, (), dry_run=dry_run)
    if accept:
        done, proposal = settling.take(
            session.root,
            patch_id,
            word,
            ref=onto,
            upstream=upstream,
            dry_run=dry_run,
            progress=session.progress,
        )
        return _settled(done, proposal.how, dry_run=dry_run)
    laid = cases.start(
        session.root,
        patch_id,
        folder=folder,
        ref=onto,
        upstream=upstream,
        dry_run=dry_run,
        progress=session.progress,
    )
    return Result(
        data={
            "folder": str(laid.folder),
            "onto": laid.ref,
            **plain.step(laid.step),
            "sites": [_site(one) for one in laid.sites],
        },
        view=lambda: _view(laid),
        closing="nothing was written" if dry_run else _commands(laid),
        status="conflict",
    )


def _aborted(folder: Path, patch_id: str, *, dry_run: bool) -> Result:
    state = settling.held(folder, patch_id) if dry_run else settling.abort(folder, patch_id)
    return Result(
        data={"folder": str(folder), "patch": state.patch, "removed": not dry_run},
        closing=f"{folder} {'would be' if dry_run else 'is'} removed; nothing else was written",
        status="aborted",
    )


def _settled(done: settling.Settled, how: tuple[str, ...], *, dry_run: bool) -> Result:
    place = f"{project.PATCHSETS}/{done.patch.patchset}"
    files = [f"{place}/{name}" for name in (*done.stored, *done.rewritten)]
    return Result(
        data={
            "patch": done.patch.id,
            "onto": done.ref,
            "tree": done.tree,
            "paths": list(done.paths),
            "how": list(how),
            "stored": list(done.stored),
            "rewritten": list(done.rewritten),
            "left": list(done.left),
            "findings": [plain.finding(found) for found in done.findings],
        },
        view="\n".join((*how, *files)),
        closing="\n".join(_next(done, dry_run=dry_run)),
        diagnostics=done.findings,
    )


def _next(done: settling.Settled, *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        yield "nothing was written"
    if not done.stored and not done.rewritten:
        yield "not remembered: it changes more than the conflicts, or a file without text"
    if done.left:
        others = ", ".join(done.left)
        yield f"the patchset is not written anew yet: {others} conflict too"
        yield f"next: elsa-build resolve {done.left[0]}"
    elif done.rewritten:
        yield "next: elsa-build check, then git diff"
    else:
        yield f"next: elsa-build rebase --onto {done.ref}"


def _commands(laid: cases.Laid) -> str:
    there, name = shlex.quote(str(laid.folder)), shlex.quote(laid.patch.id)
    return (
        f"{laid.folder} holds the conflict; edit it there, or\n"
        f"  git -C {there} mergetool\n"
        f"next: elsa-build resolve {name} --continue, or --abort"
    )


def _author(root: Path) -> str:
    """Return who a person is to git, else to the system."""
    name = in_folder(root, "config", "user.name", ok=(0, 1, 128)).strip()
    return name or getpass.getuser()


def _site(one: Site) -> dict[str, Any]:
    return {
        "path": one.path,
        "reason": one.reason,
        "line": one.line,
        "scope": one.scope,
        "home": one.home,
        "stacked": list(one.stacked),
        "causes": [
            {
                "commit": cause.oid,
                "pr": cause.pr,
                "author": cause.author,
                "date": cause.date,
                "subject": cause.subject,
                "deed": str(cause.deed),
            }
            for cause in one.causes
        ],
    }


def _view(laid: cases.Laid) -> "RenderableType":
    from rich.console import Group  # noqa: PLC0415 - only when something is shown
    from rich.text import Text  # noqa: PLC0415 - same

    lines = [Text("\nwho changed it", style="bold")]
    for one in laid.sites:
        place = f"{one.path}:{one.line}" if one.line else one.path
        lines.append(Text(f"{place}  {one.scope}".rstrip()))
        lines += [
            Text(f"  {cause.oid}  {cause.date[:10]} {cause.author}: {cause.subject} ({cause.deed})")
            for cause in one.causes
        ]
        lines += [Text(f"  our patch {name}") for name in one.stacked]
    return Group(*terminal.details(laid.step), *lines)
