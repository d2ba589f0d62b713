"""Put a replayed series where a person can work: a folder of its own, or a branch.

Either is refused when it holds work that we did not put there, and appears all at once: a folder
by a rename, a branch by one ref transaction with a backup.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from elsa_build.errors import ConfigError, FailedError, ToolError
from elsa_build.git.door import Git, environment
from elsa_build.model import Oid, Replay

MARK = "elsa.head"
"""The git configuration key by which we know a folder as ours, and what we put there."""


def to_folder(mirror: Path, done: Replay, folder: Path, *, branch: str = "elsa") -> None:
    """Make `folder` a work tree with the series as commits on a branch.

    The folder borrows the mirror's objects (git alternates), so it costs its files only. The tag
    `elsa-base` is what the series was put on.

    Raises:
        FailedError: The folder has changes or commits of its own.
        ConfigError: The folder is not empty and not one of ours.
    """
    folder = folder.absolute()
    refuse_foreign(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _fill(mirror, done, fresh, branch)
        if folder.exists():
            doomed = fresh.with_name(fresh.name + "-old")
            folder.rename(doomed)
            fresh.rename(folder)
            shutil.rmtree(doomed)
        else:
            fresh.rename(folder)
    except OSError as e:
        raise ToolError(f"cannot write {folder}: {e.strerror}") from e
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def refuse_foreign(folder: Path) -> None:
    """Raise unless the folder is absent, empty, or ours and unchanged."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file", hint="choose a folder that does not exist")
    if not any(folder.iterdir()):
        return
    if not (folder / ".git").exists():
        raise ConfigError(
            f"{folder} is not empty and was not made by elsa-build",
            hint="choose a folder that does not exist",
        )
    ours = in_folder(folder, "config", "--get", MARK, ok=(0, 1)).strip()
    if not ours:
        raise ConfigError(
            f"{folder} is a repository that elsa-build did not make",
            hint=f"elsa-build apply --branch NAME --upstream {folder}",
        )
    changed = in_folder(folder, "status", "--porcelain").splitlines()
    if changed:
        names = ", ".join(line[3:] for line in changed[:5])
        raise FailedError(
            f"{folder} has changes of its own: {names} ({len(changed)} in all)",
            hint=f"git -C {folder} stash, or elsa-build patch refresh ID --work-tree {folder}",
        )
    if in_folder(folder, "rev-parse", "HEAD").strip() != ours:
        raise FailedError(
            f"{folder} has commits of its own since {ours}",
            hint="elsa-build patch refresh, or choose another folder",
        )


def _fill(mirror: Path, done: Replay, fresh: Path, branch: str) -> None:
    borrowing(fresh, (mirror,), branch)
    in_folder(fresh, "update-ref", f"refs/heads/{branch}", done.head)
    in_folder(fresh, "update-ref", "refs/tags/elsa-base", done.onto)
    in_folder(fresh, "reset", "--quiet", "--hard")
    in_folder(fresh, "config", MARK, done.head)


def borrowing(fresh: Path, repositories: Iterable[Path], branch: str) -> None:
    """Make an empty work tree that reads the objects of other repositories (git alternates)."""
    objects = []
    for repository in repositories:
        with Git(repository) as git:
            objects.append(git.text("rev-parse", "--path-format=absolute", "--git-path", "objects"))
    in_folder(fresh, "init", "--quiet", "--template=", f"--initial-branch={branch}")
    inside = fresh / ".git"
    for name, text in (
        ("objects/info/alternates", "".join(f"{one}\n" for one in dict.fromkeys(objects))),
        # What running the tree leaves behind, and what a wheel adds to it, is nobody's change.
        ("info/exclude", "__pycache__/\n*.so\n_version.py\n"),
    ):
        (inside / name).parent.mkdir(exist_ok=True)
        (inside / name).write_text(text)


def in_folder(folder: Path, *args: str, ok: tuple[int, ...] = (0,)) -> str:
    """Run git in a work tree; these few calls are the only ones that need one."""
    ran = subprocess.run(
        ["git", "-C", str(folder), *args],
        capture_output=True,
        env=environment(os.environ),
        check=False,
    )
    if ran.returncode not in ok:
        raise ToolError(
            f"git {args[0]} in {folder}: {ran.stderr.decode('utf-8', 'replace').strip()}"
        )
    return ran.stdout.decode("utf-8", "surrogateescape")


def to_branch(git: Git, done: Replay, name: str, *, now: int) -> Oid | None:
    """Point the branch `name` at the series and return where it was before.

    Refs under `refs/elsa/` remember what we put there (`applied/NAME`) and, when a branch moves,
    where it was (`before/<now>/NAME`; `now` in seconds since 1970).

    Raises:
        FailedError: The branch holds something that we did not put there, or is checked out.
    """
    if git.run("check-ref-format", "--branch", name, ok=(0, 1, 128))[0]:
        raise ConfigError(f"'{name}' is not a branch name that git accepts")
    ref, ours = f"refs/heads/{name}", f"refs/elsa/applied/{name}"
    before, applied = git.find(ref), git.find(ours)
    if before is not None and before != applied:
        raise FailedError(
            f"branch '{name}' holds {before}, which elsa-build did not put there",
            hint=f"git branch -m {name} {name}-mine, or choose another name",
        )
    if before is not None and name in _checked_out(git):
        raise FailedError(
            f"branch '{name}' is checked out in {git.path}",
            hint="git switch --detach, then the same command again",
        )
    moves = {ref: (done.head, before), ours: (done.head, applied)}
    if before is not None:
        moves[f"refs/elsa/before/{now}/{name}"] = (before, None)
    git.move_refs(moves)
    return before


def _checked_out(git: Git) -> set[str]:
    lines = git.text("worktree", "list", "--porcelain").splitlines()
    return {line.removeprefix("branch refs/heads/") for line in lines if line.startswith("branch ")}
