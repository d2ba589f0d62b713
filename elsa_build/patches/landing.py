"""Put a foreign patch into an index, exactly, and say what of it did not go where it says.

`git apply` never drops context, but it does look for it elsewhere in the file without a word: the
quiet way to land in a wrong place. What comes in that way may be right, so it is said, not refused.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, ConflictError, ToolError
from elsa_build.git.door import Git
from elsa_build.git.objects import TREE
from elsa_build.model import Oid
from elsa_build.patches.diffpath import unquoted
from elsa_build.patches.sources import Incoming

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The tree with a patch in it.

    `left_out` are paths outside the include; `moved` is `path:line` of each hunk whose old lines
    were not at its own line.
    """

    tree: Oid
    left_out: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


@contextmanager
def index(git: Git, tree: Oid) -> Iterator[Mapping[str, str]]:
    """Give the environment for an index of its own that holds this tree."""
    with tempfile.TemporaryDirectory(prefix="elsa-index-") as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", tree, env=env)
        yield env


def apply(
    git: Git,
    env: Mapping[str, str],
    tree: Oid,
    patch: Incoming,
    include: Sequence[str],
    before: int,
) -> Applied:
    """Put one patch into an index.

    Args:
        git: Where new objects go.
        env: The index, from `index`.
        tree: What the index holds.
        patch: The patch from outside.
        include: Globs of paths to keep; none keeps all.
        before: How many patches went before, for the message.

    Raises:
        ConflictError: The patch does not apply exactly (exit 3).
        ConfigError: It is corrupt (exit 5).
    """
    how = [f"-p{patch.strip}", "--whitespace=nowarn", *(["-R"] if patch.reverse else [])]
    only = [f"--include={glob}" for glob in include]
    try:
        left_out: tuple[str, ...] = ()
        if include:
            paths, kept = (_paths(git, [*how, *some], patch.diff) for some in ([], only))
            left_out = tuple(path for path in paths if path not in kept)
        if patch.diff.strip():
            git.run("apply", "--cached", *how, *only, "-", stdin=patch.diff, env=env)
    except ToolError as e:
        reason = e.message.partition(": ")[2]
        if re.search(r"ended with 128", e.message) or "corrupt" in reason:
            raise ConfigError(f"{patch.name}: {reason}") from e
        raise ConflictError(
            f"{patch.name}: does not apply exactly after {before} patches: {reason}",
            hint="--base names the commit that the series was written on",
        ) from e
    after = Oid(git.run("write-tree", env=env)[1].decode().strip())
    return Applied(tree=after, left_out=left_out, moved=_moved(git, tree, patch))


def _paths(git: Git, how: Sequence[str], diff: bytes) -> tuple[str, ...]:
    if not diff.strip():
        return ()
    _, out = git.run("apply", "--numstat", "-z", *how, "-", stdin=diff)
    records = out.decode("utf-8", "surrogateescape").split("\0")
    return tuple(record.split("\t", 2)[2] for record in records if record)


# --- offsets ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Hunk:
    path: str | None
    start: int
    lines: list[bytes]


def _moved(git: Git, tree: Oid, patch: Incoming) -> tuple[str, ...]:
    """Return `path:line` of each hunk whose old lines are not at its own line in the tree."""
    found: list[str] = []
    for hunk in _hunks(patch.diff, patch.strip, reverse=patch.reverse):
        entry = git.objects.find(tree, hunk.path) if hunk.path else None
        if entry is None or entry.mode == TREE:
            continue
        lines = git.objects.blob(entry.oid).split(b"\n")
        start = max(hunk.start - 1, 0)
        if hunk.lines and lines[start : start + len(hunk.lines)] != hunk.lines:
            found.append(f"{hunk.path}:{hunk.start}")
    return tuple(found)


def _hunks(diff: bytes, strip: int, *, reverse: bool) -> Iterator[_Hunk]:
    """Read any unified diff, git's or not, for the side that must be there already."""
    sign, name = (b"+", b"+++ ") if reverse else (b"-", b"--- ")
    path: str | None = None
    lines = iter(diff.split(b"\n"))
    for line in lines:
        if line.startswith(name):
            path = _path(line[4:], strip)
        found = _HUNK.match(line)
        if not found:
            continue
        left = [int(found[group]) if found[group] else 1 for group in (2, 4)]
        hunk = _Hunk(path=path, start=int(found[3 if reverse else 1]), lines=[])
        for inner in lines:
            left[0] -= inner[:1] in (b" ", b"-", b"")
            left[1] -= inner[:1] in (b" ", b"+", b"")
            if inner[:1] in (b" ", sign, b""):
                hunk.lines.append(inner[1:])
            if not any(left):
                break
        yield hunk


def _path(raw: bytes, strip: int) -> str | None:
    name = raw.partition(b"\t")[0]
    plain = unquoted(name) if name.startswith(b'"') else name
    if plain is None or plain == b"/dev/null":
        return None
    return "/".join(plain.decode("utf-8", "surrogateescape").split("/")[strip:])
