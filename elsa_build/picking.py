"""Upstream commits on our stack, or on any repository: tried in a quarantine, kept if all apply."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import UsageError
from elsa_build.git.door import Git, Quarantine
from elsa_build.model import Kind, Oid, Patch, Replay, Series, SourceKind
from elsa_build.patches import editing, naming, seriestext, sources
from elsa_build.patches.guarding import guarded
from elsa_build.patches.importing import Choice, slug, unused
from elsa_build.patches.replay import replay
from elsa_build.patches.seriesfile import NAME
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream.lock import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a person asked for. `source` is the history where pull requests are looked for."""

    commits: tuple[str, ...]
    source: str = "nightly"
    upstream: str | None = None
    onto: str | None = None
    into: str = "picks"
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of it: `named` and the steps of `done` go in pairs."""

    named: tuple[naming.Named, ...]
    done: Replay
    findings: tuple[Diagnostic, ...] = ()
    written: bool = False


def pick(root: Path, ask: Ask, *, write: bool, progress: Progress = SILENT) -> Tried:
    """Try upstream commits and, when `write` and all of them apply, add them to a patchset.

    With `upstream` and `onto` they are tried on that commit alone and nothing is kept; else on the
    pin with the whole stack on it.

    Raises:
        UsageError: Only one of `upstream` and `onto`, or both with `write`.
        ConfigError: A commit or pull request that is not there, a merge, a pick carried already.
    """
    if ask.onto:
        if write:
            raise UsageError("--onto only tries; nothing could be kept", hint="add --dry-run")
        return _try_anywhere(root, ask, progress)
    lock = project.read_lock(root)
    series = project.read_series(root)
    with ExitStack() as opened:
        git, far, tip = _open(opened, lock, ask, progress)
        named = tuple(naming.find(git, text, tip) for text in ask.commits)
        _refuse_carried(series, named)
        fresh = _patches(git, named, ask, series)
        whole = replace(series, patches=(*series.patches, *fresh))
        done = guarded(git, replay(git, whole, lock.pin.commit, progress=progress))
        steps = done.steps[-len(fresh) :]
        tried = replace(done, steps=steps)
        keep = write and tried.clean
        if keep and far is None:
            editing.write(_references(root, ask, fresh, lock))
        elif keep:
            editing.write(_mails(root, git, ask, named, lock, series))
    return Tried(named=named, done=tried, findings=tuple(_warnings(named)), written=keep)


def _try_anywhere(root: Path, ask: Ask, progress: Progress) -> Tried:
    lock = None if ask.upstream else project.read_lock(root)
    assert ask.onto is not None
    onto = rebasing.find_onto(ask.onto, lock=lock, upstream=ask.upstream, progress=progress)
    with Git(onto.repository) as git, git.quarantine() as inner:
        tip = inner.find(ask.source) or onto.commit
        named = tuple(naming.find(inner, text, tip) for text in ask.commits)
        series = rebasing.picks(inner, [one.commit for one in named])
        done = guarded(inner, replay(inner, series, onto.commit, progress=progress))
    return Tried(named=named, done=done, findings=tuple(_warnings(named)))


def _open(
    opened: ExitStack, lock: Lock, ask: Ask, progress: Progress
) -> tuple[Quarantine, Git | None, Oid]:
    """Open a quarantine over the pin and over the commits' own repository (None: the same one)."""
    pinned = opened.enter_context(Git(project.pinned_repository(lock, progress)))
    if ask.upstream is None and lock.pin.source is not SourceKind.GIT:
        raise UsageError(
            "the lock pins a release, which has no history to pick from",
            hint="add --upstream PATH|URL of a git repository of the upstream",
        )
    onto = rebasing.find_onto(ask.source, lock=lock, upstream=ask.upstream, progress=progress)
    if onto.repository.resolve() == pinned.path.resolve():
        return opened.enter_context(pinned.quarantine()), None, onto.commit
    far = opened.enter_context(Git(onto.repository))
    return opened.enter_context(pinned.quarantine(far)), far, onto.commit


def _refuse_carried(series: Series, named: Sequence[naming.Named]) -> None:
    carried = {patch.origin.commit: patch for patch in series.patches if patch.origin.commit}
    for one in named:
        if one.commit in carried:
            patch = carried[one.commit]
            raise UsageError(
                f"{one.asked} is carried already: {patch.id} in {patch.patchset} ({patch.status})",
                hint=f"elsa-build patch show {patch.id}",
            )


def _patches(
    git: Git, named: Sequence[naming.Named], ask: Ask, series: Series
) -> tuple[Patch, ...]:
    """Return the picks as patches of ours, each a reference to its commit."""
    taken = {patch.id for patch in series.patches}
    drafts = rebasing.picks(git, [one.commit for one in named], ask.into).patches
    made = []
    for one, draft in zip(named, drafts, strict=True):
        name = unused(slug(one.subject), taken)
        taken.add(name)
        why = ask.why or f"{one.subject} (picked from upstream)"
        origin = replace(draft.origin, pr=one.pr)
        made.append(replace(draft, id=name, why=why, origin=origin))
    return tuple(made)


def _references(root: Path, ask: Ask, fresh: Sequence[Patch], lock: Lock) -> editing.Edit:
    """Return the edit that adds picks as references: the commits are in the lock's own source."""
    folder = root / project.PATCHSETS / ask.into
    shown = f"{project.PATCHSETS}/{ask.into}/{NAME}"
    text = seriestext.header(ask.into, lock.pin.commit, lock.pin.ref)
    if (folder / NAME).is_file():
        text = (folder / NAME).read_text(encoding="utf-8")
    files = {NAME: seriestext.appended(text, shown, fresh).encode()}
    return editing.Edit(folder=folder, files=files, patches=tuple(fresh))


def _mails(
    root: Path, git: Git, ask: Ask, named: Sequence[naming.Named], lock: Lock, series: Series
) -> editing.Edit:
    """Return the edit that adds picks as patch files: the lock's source lacks the commits."""
    folder = root / project.PATCHSETS / ask.into
    incoming = [patch for one in named for patch in sources.named(git, one.commit)[1].patches]
    return editing.add(
        git,
        folder,
        root,
        editing.Addition(
            incoming=tuple(incoming),
            choice=Choice(kind=Kind.CHERRY_PICK, why=ask.why),
            base=None if (folder / NAME).is_file() else lock.pin.commit,
        ),
        [patch.id for patch in series.patches if patch.patchset != ask.into],
    )


def _warnings(named: Sequence[naming.Named]) -> Iterator[Diagnostic]:
    for one in named:
        if one.reverted_by:
            yield Diagnostic(
                code="W301",
                severity=Severity.WARNING,
                message=f"{one.asked}: upstream took it back in {one.reverted_by}",
                hint=f"git show {one.reverted_by}",
            )
