"""`upstream.lock`: what upstream is and which inputs gave which tree, so that a rebuild proves it.

A lock is written by the tool only. A person who edits it by hand, or a text merge that mixes two of
them, would give a state that no run ever had; the seal line finds both.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, StaleError, ToolError
from elsa_build.model import Oid, Pin

FILENAME = "upstream.lock"
VERSION = 1
HEADER = "# made by elsa-build; do not edit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The pin, and per recipe what went in and what came out.

    `inputs` maps a recipe's name to its input files, each a path relative to the project (`/`) with
    the sha256 of its bytes; `results` maps a recipe's name to the tree after its last patch.
    """

    pin: Pin
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    results: Mapping[str, Oid] = field(default_factory=dict)
    version: int = VERSION


# --- what a lock says -------------------------------------------------------------------------


def record(lock: Lock, recipe: str, inputs: Mapping[str, str], tree: Oid) -> Lock:
    """Return the lock with one recipe's inputs and resulting tree set."""
    return replace(
        lock,
        inputs={**lock.inputs, recipe: dict(inputs)},
        results={**lock.results, recipe: tree},
    )


def repin(lock: Lock | None, pin: Pin) -> Lock:
    """Return a lock with another pin; what was built on another tree is forgotten.

    The same commit again only adds wheels: a lock may hold those of several Pythons.
    """
    if lock is None or (lock.pin.commit, lock.pin.tree) != (pin.commit, pin.tree):
        return Lock(pin=pin)
    named = {artifact.filename: artifact for artifact in (*lock.pin.artifacts, *pin.artifacts)}
    return replace(lock, pin=replace(pin, artifacts=tuple(named.values())))


def stale(lock: Lock, recipe: str, inputs: Mapping[str, str]) -> tuple[Diagnostic, ...]:
    """Return one finding for each input that is not what the lock recorded, in path order.

    Codes: E201 changed, E202 new, E203 gone, E204 the recipe was never recorded.
    """
    known = lock.inputs.get(recipe)
    if known is None or recipe not in lock.results:
        return (_finding("E204", f"recipe '{recipe}' is not in the lock", FILENAME, recipe),)
    found = []
    for path in sorted(known.keys() | inputs.keys()):
        if path not in inputs:
            found.append(_finding("E203", "is in the lock, but no longer an input", path, recipe))
        elif path not in known:
            found.append(_finding("E202", "is an input, but not in the lock", path, recipe))
        elif known[path] != inputs[path]:
            found.append(_finding("E201", "changed since the lock was written", path, recipe))
    return tuple(found)


def require_fresh(lock: Lock, recipe: str, inputs: Mapping[str, str]) -> None:
    """Return when the recipe's inputs are what the lock recorded; for `--locked`.

    Raises:
        StaleError: They are not; the message names each file.
    """
    found = stale(lock, recipe, inputs)
    if found:
        raise StaleError(
            f"{FILENAME} is stale for recipe '{recipe}': " + "; ".join(map(str, found)),
            hint=found[0].hint,
        )


def _finding(code: str, message: str, path: str, recipe: str) -> Diagnostic:
    return Diagnostic(
        code=code,
        severity=Severity.ERROR,
        message=message,
        path=path,
        hint=f"elsa-build apply --recipe {recipe}",
    )


def digest_inputs(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of each file by its path relative to the project, in path order.

    Raises:
        ConfigError: A file is missing, lies outside the project or has a name that is not UTF-8.
    """
    digests = {}
    for path in paths:
        try:
            name = path.resolve().relative_to(root.resolve()).as_posix()
            name.encode()
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except UnicodeEncodeError as e:
            raise ConfigError(f"{os.fsencode(path)!r}: the name of an input is not UTF-8") from e
        except ValueError as e:
            raise ConfigError(f"{path}: an input must lie inside the project {root}") from e
        except OSError as e:
            raise ConfigError(f"{path}: cannot read this input: {e.strerror}") from e
    return dict(sorted(digests.items()))


# --- as text ----------------------------------------------------------------------------------


def write(lock: Lock) -> str:
    """Return the lock as TOML: fixed order, one value a line, sealed."""
    lines = list(_body(lock))
    return "\n".join([HEADER, f"version = {lock.version}", f'seal = "{seal(lines)}"', *lines, ""])


def seal(lines: Iterable[str]) -> str:
    """Return the sha256 over the lines of a lock after its seal."""
    return hashlib.sha256("\n".join(lines).rstrip("\n").encode()).hexdigest()


def _body(lock: Lock) -> Iterator[str]:
    pin = lock.pin
    yield from ("", "[upstream]")
    yield f"source = {quote(pin.source)}"
    for key in ("url", "ref", "commit", "tree", "date"):
        yield f"{key} = {quote(getattr(pin, key))}"
    yield "requires = ["
    yield from (f"    {quote(line)}," for line in pin.requires)
    yield "]"
    for artifact in pin.artifacts:
        yield from ("", "[[upstream.artifact]]")
        yield f"filename = {quote(artifact.filename)}"
        yield f"sha256 = {quote(artifact.sha256)}"
    for recipe in sorted(lock.inputs.keys() | lock.results.keys()):
        yield from ("", f"[recipe.{quote(recipe)}]")
        if recipe in lock.results:
            yield f"tree = {quote(lock.results[recipe])}"
        if recipe in lock.inputs:
            yield f"[recipe.{quote(recipe)}.inputs]"
            yield from (
                f"{quote(path)} = {quote(digest)}"
                for path, digest in sorted(lock.inputs[recipe].items())
            )


def quote(text: str) -> str:
    """Return a TOML basic string; JSON's escapes are TOML's but for DEL, which TOML refuses."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def save(path: Path, lock: Lock, *, locked: bool = False, dry_run: bool = False) -> bool:
    """Write a lock beside its place and rename it; return whether the file changed.

    Args:
        path: Where the lock is kept.
        lock: What it must say.
        locked: Refuse to change the file (`--locked`).
        dry_run: Only find out whether it would change.

    Raises:
        StaleError: The file would change, and `locked` forbids it.
        ToolError: The folder cannot be written, or the disk is full; the old lock is intact.
    """
    text = write(lock).encode()
    try:
        old = path.read_bytes() if path.exists() else None
        if old == text:
            return False
        if locked:
            raise StaleError(
                f"{path}: the lock would change, and --locked forbids it",
                hint="the same command without --locked",
            )
        if dry_run:
            return True
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(text)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as e:
        raise ToolError(f"{path}: cannot write the lock: {e.strerror}") from e
    return True
