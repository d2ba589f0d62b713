"""The seal around every test, and `story`: commits in a bare repository without a work tree."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from elsa_build.errors import ToolError
from elsa_build.git.door import Git
from elsa_build.git.objects import FILE, Entry
from elsa_build.images import dockerd
from elsa_build.model import Kind, Mail, Oid, Patch, Signature, Status
from tests import docking
from tests.kerneling import planned  # noqa: F401 - a fixture of the tests marked `kernels`

_KEPT = {"ELSA_BUILD_TEST_CACHE", "ELSA_KERNELS_PYTHON"}
AUTHOR = Signature(name="Ada", email="ada@example.org", date="1700000000 +0100")


@pytest.fixture(autouse=True)
def _seal(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the person's git, colours, cache and editor out of the tests."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "ELSA_")) and name not in _KEPT:
            monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("ELSA_BUILD_CACHE", str(home / "cache"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
    monkeypatch.setenv("GIT_EDITOR", "false")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")


class Story:
    """Write commits as a story: `story.commit(parent, "what happened", {"pool.py": text})`."""

    def __init__(self, git: Git) -> None:
        self.git = git

    def commit(self, parent: Oid | None, message: str, files: dict[str, str | bytes | None]) -> Oid:
        """Commit these files on top of a parent's; None deletes."""
        objects = self.git.objects
        entries = {
            path: None
            if text is None
            else Entry(
                FILE, objects.write("blob", text.encode() if isinstance(text, str) else text)
            )
            for path, text in files.items()
        }
        tree = objects.edit(self.git.commit(parent).tree if parent else None, entries)
        return self.git.commit_tree(tree, [parent] if parent else [], message, AUTHOR)

    def patch(
        self,
        parent: Oid,
        name: str,
        files: dict[str, str | bytes | None],
        *,
        status: Status = Status.KEPT,
        base: Oid | None = None,
    ) -> Patch:
        """Write a patch against `parent` in the form that patch files have: one line of context."""
        commit = self.commit(parent, name, files)
        form = ("--full-index", "--binary", "-U1", "--no-renames")
        diff = self.git.run("diff-tree", "-p", *form, parent, commit)[1]
        return Patch(
            id=name,
            patchset="story",
            file=None,
            line=1,
            kind=Kind.LOCAL,
            status=status,
            why=f"the story needs {name}",
            base=base,
            mail=Mail(author=AUTHOR, message=name, diff=diff),
        )


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """A bare repository of one's own."""
    with Git.init(tmp_path / "story.git") as git:
        yield Story(git)


@pytest.fixture
def daemon() -> Iterator[dockerd.Daemon]:
    """A connection to a real docker daemon, for tests marked `docker`."""
    try:
        connected = dockerd.connect()
    except ToolError as e:
        docking.lacking(str(e))
    with connected:
        yield connected
