"""A conflict as git itself leaves one: markers in the files, unmerged entries in the index.

So a person's own editor and merge tool work on it. The folder is a repository of its own that reads
the objects of others and writes none there: when it is removed, nothing is left.
"""

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, ConflictError, FailedError, ToolError
from elsa_build.git.door import COMMITTER, Git
from elsa_build.git.objects import TREE
from elsa_build.model import Oid
from elsa_build.patches import editing
from elsa_build.patches.checkout import MARK, in_folder, refuse_foreign

_STATE = "elsa-resolve.json"
_VERSION = 1
_MARKER = re.compile(rb"(<{7,}|>{7,}|\|{7,}) ")
_SETTINGS = (
    ("merge.conflictStyle", "zdiff3"),
    ("merge.renames", "true"),
    ("merge.directoryRenames", "conflict"),
    # A merge tool's backups would be taken for new files of the patch.
    ("mergetool.keepBackup", "false"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a folder holds: the patch, and where it was put.

    `ref` is what a person called the target, `commit` what it was, `upstream` the repository that
    was named for it; `head` is the commit of the stack before the patch, where the folder stands.
    """

    patch: str
    ref: str | None
    commit: Oid
    upstream: str | None
    head: Oid


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A change to be merged: the trees before and after it, and its message."""

    before: Oid
    after: Oid
    message: str


def lay(fresh: Path, state: State, side: Side) -> None:
    """Put the stack and a conflicting change into a folder made by `checkout.borrowing`.

    Raises:
        ToolError: git failed for another reason than a conflict (exit 6).
    """
    for key, value in _SETTINGS:
        in_folder(fresh, "config", key, value)
    with Git(fresh) as git:
        author = git.commit(state.head).author
        parent = git.commit_tree(side.before, (), "before", author)
        change = git.commit_tree(side.after, (parent,), side.message, author)
    in_folder(fresh, "update-ref", "HEAD", state.head)
    in_folder(fresh, "reset", "--quiet", "--hard")
    who = (f"user.name={COMMITTER[0]}", f"user.email={COMMITTER[1]}", "commit.gpgSign=false")
    settings = [word for one in who for word in ("-c", one)]
    in_folder(fresh, *settings, "cherry-pick", "--no-commit", change, ok=(0, 1))
    in_folder(fresh, "config", MARK, state.head)
    write_state(fresh, state)


def write_state(folder: Path, state: State) -> None:
    """Write what a folder holds into its git directory."""
    text = json.dumps({"version": _VERSION, **asdict(state)}, indent=2) + "\n"
    (folder / ".git" / _STATE).write_text(text, encoding="utf-8")


def read_state(folder: Path) -> State:
    """Return what a folder of ours holds.

    Raises:
        ConfigError: It is not one, or another version of this tool made it (exit 5).
    """
    path = folder / ".git" / _STATE
    if not path.is_file():
        raise ConfigError(
            f"{folder} holds no conflict that elsa-build laid out",
            hint="elsa-build resolve ID",
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        version = found.pop("version")
        state = State(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ConfigError(f"{path}: damaged", hint="elsa-build resolve ID --abort") from e
    if version != _VERSION:
        raise ConfigError(f"{path}: made by another elsa-build", hint="rm -r the folder")
    return state


def refuse_taken(folder: Path) -> None:
    """Raise unless a conflict can be laid out in a folder: it is absent or empty.

    Raises:
        FailedError: A conflict is laid out there already (exit 7).
        ConfigError: It is not ours (exit 5).
    """
    if (folder / ".git" / _STATE).is_file():
        found = read_state(folder)
        raise FailedError(
            f"{folder} holds the conflict of {found.patch} already",
            hint=f"elsa-build resolve {found.patch} --continue, or --abort",
        )
    refuse_foreign(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is another work tree", hint="choose another --to")


def remove(folder: Path) -> None:
    """Remove a folder that holds a conflict of ours.

    Raises:
        ToolError: The disk refuses (exit 6).
    """
    try:
        # Out of the way first, so that a run that is stopped leaves no half of it under its name.
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as e:
        raise ToolError(f"cannot remove {folder}: {e.strerror}") from e


def resolved(git: Git, folder: Path, conflicts: Sequence[tuple[str, bool]]) -> Oid:
    """Return the tree that a person made of a conflict; their index stays as it is.

    Args:
        git: The folder's repository.
        folder: The work tree.
        conflicts: The conflicted paths, and whether markers were in them.

    Raises:
        ConflictError: A marker is left, or a conflict without markers was not decided (exit 3).
    """
    _, tree = editing.work_tree(git, folder)
    open_ = {line.split("\t", 1)[1] for line in _unmerged(folder)}
    left = []
    for path, marked in conflicts:
        entry = git.objects.find(tree, path)
        text = git.objects.blob(entry.oid) if entry and entry.mode != TREE else b""
        lines = [n for n, line in enumerate(text.split(b"\n"), 1) if _MARKER.match(line)]
        left += [f"{path}:{number}: a conflict marker" for number in lines[:1]]
        if path in open_ and not marked:
            left.append(f"{path}: not decided: git add it, or git rm it")
    if left:
        raise ConflictError("\n".join(left), hint=f"git -C {folder} mergetool")
    return tree


def _unmerged(folder: Path) -> list[str]:
    found = in_folder(folder, "ls-files", "--unmerged", "-z")
    return [entry for entry in found.split("\0") if entry]
