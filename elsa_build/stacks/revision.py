"""The project as it was at a commit of its own history: its lock and patchsets, read again.

The files are written to a folder of their own first, so that they are read, and complained of, as
those of today are.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elsa_build import project
from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.git.objects import SYMLINK, TREE
from elsa_build.model import Oid
from elsa_build.patches.checkout import in_folder
from elsa_build.upstream.lock import FILENAME

READ = (FILENAME, project.PATCHSETS)
"""What of a project is read at an old revision."""


@contextmanager
def at(root: Path, revision: str) -> Iterator[Path]:
    """Yield a folder with the lock and the patchsets of a revision of the project's own history.

    Raises:
        ConfigError: The project is not in a git repository, or there is no such revision (exit 5).
    """
    with history(root) as (git, prefix):
        commit = git.resolve(revision)
        with tempfile.TemporaryDirectory(prefix="elsa-revision-") as folder:
            extract(git, commit, prefix, Path(folder))
            yield Path(folder)


@contextmanager
def history(root: Path) -> Iterator[tuple[Git, str]]:
    """Open the repository that the project lies in, and say where in it, `` or `folder/`.

    Raises:
        ConfigError: The project is not in a git repository (exit 5).
    """
    try:
        git = Git(root)
    except ConfigError as e:
        raise ConfigError(
            f"{root} is in no git repository, so it has no older state", hint="git init"
        ) from e
    with git:
        yield git, place(root)


def place(root: Path) -> str:
    """Return where a project lies in its repository, `` or `folder/`."""
    return in_folder(root, "rev-parse", "--show-prefix").strip()


def extract(git: Git, commit: Oid, prefix: str, folder: Path) -> None:
    """Write the lock and the patchsets of a commit into a folder."""
    tree = git.commit(commit).tree
    for name in READ:
        entry = git.objects.find(tree, prefix + name)
        if entry is None:
            continue
        if entry.mode != TREE:
            (folder / name).write_bytes(git.objects.blob(entry.oid))
            continue
        for path, file in git.objects.files(entry.oid):
            # Tests may be large and are not read; a link could lead out of the folder.
            if "/tests/" in f"/{path}" or file.mode == SYMLINK:
                continue
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(git.objects.blob(file.oid))
