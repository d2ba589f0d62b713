"""What the tests of the guards share: a tree in memory, and the real tools that apply a change."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from elsa_build.diagnostics import Diagnostic
from elsa_build.patches.guards.change import FileChange
from elsa_build.patches.guards.run import examine

POOL = "python/engine/pool.py"


@dataclass
class Tree:
    """A merged tree by path; a directory is what a path of a file goes through."""

    files: dict[str, str] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        text = self.files.get(path)
        return None if text is None else text.encode()

    def is_dir(self, path: str) -> bool:
        return any(name.startswith(f"{path}/") for name in self.files)


def look(
    written: str | bytes | None,
    patched: str | bytes | None,
    onto: str | bytes | None,
    merged: str | bytes | None,
    *,
    path: str = POOL,
    tree: Tree | None = None,
) -> tuple[Diagnostic, ...]:
    """Return what the guards say of one file in its four versions."""
    versions = [
        it.encode() if isinstance(it, str) else it for it in (written, patched, onto, merged)
    ]
    change = FileChange(
        path=path, written=versions[0], patched=versions[1], onto=versions[2], merged=versions[3]
    )
    return examine([change], tree or Tree())


def codes(found: tuple[Diagnostic, ...]) -> list[str]:
    return [f"{one.severity} {one.code}" for one in found]


def gnu_patch(
    folder: Path, written: str, patched: str, onto: str, *options: str
) -> tuple[int, str]:
    """Apply a change as people do, with `diff -u` and `patch -p1`; return code and text."""
    for name, text in (("a", written), ("b", patched), ("tree", onto)):
        (folder / name).mkdir()
        (folder / name / "pool.py").write_text(text)
    diff = subprocess.run(
        ["diff", "-u", "a/pool.py", "b/pool.py"], cwd=folder, capture_output=True, check=False
    )
    assert diff.returncode == 1
    done = subprocess.run(
        ["patch", "-p1", *options],
        cwd=folder / "tree",
        input=diff.stdout,
        capture_output=True,
        check=False,
    )
    return done.returncode, (folder / "tree" / "pool.py").read_text()


def three_way(folder: Path, written: str, patched: str, onto: str) -> tuple[int, str]:
    """Merge a change with git; return the number of conflicts and the text."""
    for name, text in (("ours", onto), ("base", written), ("theirs", patched)):
        (folder / name).write_text(text)
    done = subprocess.run(
        ["git", "merge-file", "-p", "ours", "base", "theirs"],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout
