"""Upstream commits on our stack, or on any repository: tried in a quarantine, kept if all apply."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConflictError, UsageError
from elsa_build.git.door import Git, Quarantine
from elsa_build.model import Kind, Oid, Origin, Outcome, Patch, Replay, Series, SourceKind
from elsa_build.nightly import survey
from elsa_build.nightly.prerequisites import Ground, prerequisites
from elsa_build.nightly.trial import landed, part
from elsa_build.patches import editing, naming, seriestext, sources
from elsa_build.patches import message as words
from elsa_build.patches.guarding import guarded
from elsa_build.patches.importing import Choice, file_name, slug, unused
from elsa_build.patches.mail import write as as_mail
from elsa_build.patches.replay import replay, words_of
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
    with_prerequisites: bool = False
    accept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A commit to pick; `serves` is the one that was asked for when this only has to come first."""

    named: naming.Named
    serves: naming.Named | None = None

    @property
    def why(self) -> str:
        """Return the reason to carry it, when the person gives none."""
        if self.serves:
            return f"{self.named.subject} (prerequisite of {_name(self.serves)})"
        return f"{self.named.subject} (picked from upstream)"


def _name(one: naming.Named) -> str:
    return f"#{one.pr}" if one.pr else one.commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of it: `wanted` and the steps of `done` go in pairs."""

    wanted: tuple[Wanted, ...]
    done: Replay
    findings: tuple[Diagnostic, ...] = ()
    written: bool = False


def pick(root: Path, ask: Ask, *, write: bool, progress: Progress = SILENT) -> Tried:
    """Try upstream commits and, when `write` and all of them apply, add them to a patchset.

    With `upstream` and `onto` they are tried on that commit alone and nothing is kept; else on the
    pin with the whole stack on it. Where one conflicts, a proposal is taken with `accept` only.

    Raises:
        UsageError: Only one of `upstream` and `onto`, or both with `write`.
        ConfigError: A commit or pull request that is not there, a merge, a pick carried already.
    """
    if ask.onto:
        if write:
            raise UsageError("--onto only tries; nothing could be kept", hint="add --dry-run")
        if ask.with_prerequisites:
            raise UsageError("--onto tries single commits, without prerequisites")
        return _try_anywhere(root, ask, progress)
    lock = project.read_lock(root)
    series = project.read_series(root)
    with ExitStack() as opened:
        git, far, onto = _open(opened, lock, series, ask, progress)
        named = tuple(naming.find(git, text, onto.commit) for text in ask.commits)
        _refuse_carried(series, named)
        rebasing.picks(git, [one.commit for one in named])
        wanted = tuple(Wanted(named=one) for one in named)
        lacking: tuple[Diagnostic, ...] = ()
        if ask.with_prerequisites:
            wanted, lacking = _with_prerequisites(git, lock, series, onto, named, progress)
        fresh = _patches(git, wanted, ask, series, survey.scope(lock))
        whole = replace(series, patches=(*series.patches, *fresh))
        done = _replayed(root, git, whole, lock.pin.commit, ask, progress)
        steps = done.steps[-len(fresh) :]
        tried = replace(done, steps=steps)
        keep = write and tried.clean
        if keep and any(step.outcome is Outcome.PROPOSED for step in steps):
            editing.write(_settled(root, git, ask, fresh, lock, series))
        elif keep and far is None:
            editing.write(_references(root, ask, fresh, lock))
        elif keep:
            editing.write(_mails(root, git, ask, fresh, lock, series))
    findings = (*_warnings([one.named for one in wanted]), *lacking)
    return Tried(wanted=wanted, done=tried, findings=findings, written=keep)


def _try_anywhere(root: Path, ask: Ask, progress: Progress) -> Tried:
    lock = None if ask.upstream else project.read_lock(root)
    assert ask.onto is not None
    onto = rebasing.find_onto(ask.onto, lock=lock, upstream=ask.upstream, progress=progress)
    with Git(onto.repository) as git, git.quarantine() as inner:
        tip = inner.find(ask.source) or onto.commit
        named = tuple(naming.find(inner, text, tip) for text in ask.commits)
        series = rebasing.picks(inner, [one.commit for one in named])
        done = _replayed(root, inner, series, onto.commit, ask, progress)
    return Tried(
        wanted=tuple(Wanted(named=one) for one in named),
        done=done,
        findings=tuple(_warnings(named)),
    )


def _replayed(
    root: Path, git: Quarantine, series: Series, onto: Oid, ask: Ask, progress: Progress
) -> Replay:
    done = replay(
        git,
        series,
        onto,
        propose=rebasing.proposer(root, series),
        accept=[patch.id for patch in series.patches] if ask.accept else (),
        progress=progress,
    )
    return guarded(git, done)


def _open(
    opened: ExitStack, lock: Lock, series: Series, ask: Ask, progress: Progress
) -> tuple[Quarantine, Git | None, rebasing.Onto]:
    """Open a quarantine over the pin and over the commits' own repository (None: the same one)."""
    pinned = opened.enter_context(Git(project.pinned_repository(lock, progress, series)))
    if ask.upstream is None and lock.pin.source is not SourceKind.GIT:
        raise UsageError(
            "the lock pins a release, which has no history to pick from",
            hint="add --upstream PATH|URL of a git repository of the upstream",
        )
    onto = rebasing.find_onto(ask.source, lock=lock, upstream=ask.upstream, progress=progress)
    if onto.repository.resolve() == pinned.path.resolve():
        return opened.enter_context(pinned.quarantine()), None, onto
    far = opened.enter_context(Git(onto.repository))
    return opened.enter_context(pinned.quarantine(far)), far, onto


def _with_prerequisites(
    git: Quarantine,
    lock: Lock,
    series: Series,
    onto: rebasing.Onto,
    named: Sequence[naming.Named],
    progress: Progress,
) -> tuple[tuple[Wanted, ...], tuple[Diagnostic, ...]]:
    """Return the picks, each behind the earlier commits that it conflicts without."""
    history = survey.fetched(git, lock, onto, survey.start(git, lock, None), progress)
    by_oid = {one.oid: one for one in history}
    scope = survey.scope(lock)
    tree = replay(git, series, lock.pin.commit).tree
    wanted: dict[Oid, Wanted] = {}
    findings = []
    for one in named:
        if one.commit in wanted:
            continue
        ground = Ground(git=git, onto=tree, history=history, scope=scope)
        found = prerequisites(ground, one.commit, guarded=True)
        if found.reason:
            findings.append(_lacking(one, found.reason))
        for commit in found.commits:
            before = naming.find(git, commit.oid, onto.commit)
            wanted.setdefault(commit.oid, Wanted(named=before, serves=one))
        wanted[one.commit] = Wanted(named=one)
        for oid in (*(commit.oid for commit in found.commits), one.commit):
            if oid in by_oid:
                tree = landed(git, by_oid[oid], tree, scope).tree
    return tuple(wanted.values()), tuple(findings)


def _lacking(one: naming.Named, reason: str) -> Diagnostic:
    return Diagnostic(
        code="W302",
        severity=Severity.WARNING,
        message=f"{one.asked}: no prerequisites were found: {reason}",
        hint=f"elsa-build nightly scan --grep '{_name(one)}'",
    )


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
    git: Quarantine, wanted: Sequence[Wanted], ask: Ask, series: Series, scope: str
) -> tuple[Patch, ...]:
    """Return the picks as patches of ours, each a reference to its commit.

    Where the pinned tree has only a part of upstream's (`scope`), the reference is to that part of
    the commit, made anew in the quarantine.
    """
    taken = {patch.id for patch in series.patches}
    drafts = rebasing.picks(git, [one.named.commit for one in wanted], ask.into).patches
    made: list[Patch] = []
    for one, draft in zip(wanted, drafts, strict=True):
        name = unused(slug(one.named.subject), taken)
        taken.add(name)
        needed = [
            patch.id
            for patch, other in zip(made, wanted, strict=False)
            if other.serves is one.named
        ]
        commit = part(git, one.named.commit, scope) if scope else one.named.commit
        made.append(
            replace(
                draft,
                id=name,
                why=one.why if one.serves else ask.why or one.why,
                origin=Origin(commit=commit, pr=one.named.pr),
                requires=tuple(needed),
            )
        )
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


def _settled(
    root: Path, git: Quarantine, ask: Ask, fresh: Sequence[Patch], lock: Lock, series: Series
) -> editing.Edit:
    """Return the edit that adds picks as patch files, as their accepted proposals have them.

    A reference could not hold what was settled, so each is written as it stands in its patchset.
    """
    own = tuple(patch for patch in series.patches if patch.patchset == ask.into)
    alone = replace(series, patches=(*own, *fresh))
    done = _replayed(root, git, alone, lock.pin.commit, ask, SILENT)
    files: dict[str, bytes] = {}
    patches = []
    for number, step in enumerate(done.steps[len(own) :], editing.last_number(alone) + 1):
        if step.commit is None:
            raise ConflictError(f"{step.patch.id}: {step.outcome} in {ask.into} alone")
        message, author = words_of(git, step.patch)
        parents = git.commit(step.commit).parents
        message = editing.rightly(step.patch, message)
        commit = git.commit_tree(step.tree, parents, message, author)
        name = file_name(number, step.patch.id)
        files[name] = as_mail(git, commit)
        patches.append(replace(step.patch, file=Path(name)))
    edit = _references(root, ask, patches, lock)
    return replace(edit, files={**files, **edit.files})


def _mails(
    root: Path, git: Quarantine, ask: Ask, fresh: Sequence[Patch], lock: Lock, series: Series
) -> editing.Edit:
    """Return the edit that adds picks as patch files: the lock's source lacks the commits."""
    folder = root / project.PATCHSETS / ask.into
    incoming = [_incoming(git, patch) for patch in fresh]
    edit = editing.add(
        git,
        folder,
        root,
        editing.Addition(
            incoming=tuple(incoming),
            choice=Choice(kind=Kind.CHERRY_PICK),
            base=None if (folder / NAME).is_file() else lock.pin.commit,
        ),
        [patch.id for patch in series.patches if patch.patchset != ask.into],
    )
    ids = {draft.id: patch.id for draft, patch in zip(fresh, edit.patches, strict=True)}
    shown = f"{project.PATCHSETS}/{ask.into}/{NAME}"
    text = edit.files[NAME].decode()
    for draft in fresh:
        text = seriestext.with_field(text, shown, ids[draft.id], "why", draft.why)
        if draft.requires:
            needed = [ids[one] for one in draft.requires]
            text = seriestext.with_field(text, shown, ids[draft.id], "requires", needed)
    return replace(edit, files={**edit.files, NAME: text.encode()})


def _incoming(git: Quarantine, patch: Patch) -> sources.Incoming:
    """Return a pick as it is imported, with the line by which its origin is known."""
    assert patch.origin.commit is not None
    found = sources.of_commit(git, patch.origin.commit)
    message = found.message
    if "(cherry picked from commit " not in message:
        message = f"{message.rstrip()}\n\n(cherry picked from commit {patch.origin.commit})\n"
    if patch.origin.pr:
        message = words.with_trailers(message, {"Upstream-PR": str(patch.origin.pr)})
    return replace(found, message=message)


def _warnings(named: Sequence[naming.Named]) -> Iterator[Diagnostic]:
    for one in named:
        if one.reverted_by:
            yield Diagnostic(
                code="W301",
                severity=Severity.WARNING,
                message=f"{one.asked}: upstream took it back in {one.reverted_by}",
                hint=f"git show {one.reverted_by}",
            )
