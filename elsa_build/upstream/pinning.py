"""Move the pin: from what a person typed to a lock on disk, and what that changes for the image."""

from dataclasses import dataclass
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError
from elsa_build.model import Pin, SourceKind
from elsa_build.upstream import lock as locks
from elsa_build.upstream import lockfile
from elsa_build.upstream.lock import Lock
from elsa_build.upstream.pip import Target
from elsa_build.upstream.release_source import target_of
from elsa_build.upstream.requirements import Shift, compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A pin that was set: `old` is absent for a first one, `changed` says whether the lock did.

    `shifts` are the requirements that differ; `forgotten` the recipes whose recorded result was on
    the old tree.
    """

    old: Pin | None
    new: Pin
    changed: bool
    shifts: tuple[Shift, ...]
    forgotten: tuple[str, ...]

    @property
    def left(self) -> Pin | None:
        """Return the pin that was left for another commit, if one was."""
        return self.old if self.old and self.old.commit != self.new.commit else None


def existing(path: Path) -> tuple[Lock | None, tuple[Diagnostic, ...]]:
    """Return the lock that is about to be replaced; a broken one is none, with a finding (E205)."""
    if not path.exists():
        return None, ()
    try:
        return lockfile.read(path), ()
    except ConfigError as e:
        found = Diagnostic(
            code="E205",
            severity=Severity.WARNING,
            message=f"the lock was not usable and is replaced: {e}",
        )
        return None, (found,)


def chosen(
    lock: Lock | None, kind: SourceKind | None, url: str | None
) -> tuple[SourceKind, str | None]:
    """Return which source is meant: what was typed, else the lock's, else SGLang's releases."""
    if lock is None:
        return kind or SourceKind.RELEASE, url
    if kind in (None, lock.pin.source):
        return lock.pin.source, url or lock.pin.url
    return kind, url


def target(lock: Lock | None, python: str | None, machine: str | None) -> Target:
    """Return whose wheel is wanted: what was typed, else the lock's, else the default's."""
    known = Target()
    if lock is not None and lock.pin.artifacts:
        known = target_of(lock.pin.artifacts[0].filename, known)
    return Target(python=python or known.python, machine=machine or known.machine)


def put(path: Path, old: Lock | None, pin: Pin, *, locked: bool, dry_run: bool) -> Move:
    """Write a pin into the lock and return what that changed.

    Args:
        path: The lock.
        old: What it says now, if it is usable.
        pin: What it must say.
        locked: Refuse to change it.
        dry_run: Only say what would change.

    Raises:
        StaleError: `locked`, and the lock would change.
        ToolError: The lock cannot be written.
    """
    new = locks.repin(old, pin)
    changed = locks.save(path, new, locked=locked, dry_run=dry_run)
    return Move(
        old=old.pin if old else None,
        new=new.pin,
        changed=changed,
        shifts=compare(old.pin.requires, pin.requires) if old else (),
        forgotten=tuple(sorted(old.results.keys() - new.results.keys())) if old else (),
    )
