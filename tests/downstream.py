"""A project on a story's `main` branch, driven through the program's own entry point."""

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from elsa_build.cli import main

RECIPE = """\
version: 1
name: small
tag: "small-v1"
model: /models/m
arch: sm_120
patchsets: [local]
base:
  package_dir: /opt/packages
"""


class Ran:
    """What a run of the program left: exit code, stdout, stderr."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def document(self):
        return json.loads(self.out)

    @property
    def data(self):
        return self.document["data"]


class Downstream:
    """A project folder beside a story whose branch `main` is what is pinned and scanned."""

    def __init__(self, root, story, monkeypatch):
        self.root, self.story, self._monkeypatch = root, story, monkeypatch

    @property
    def git(self):
        return self.story.git

    @property
    def main(self):
        return self.git.resolve("refs/heads/main")

    def upstream(self, subject, files):
        """Commit on upstream's main branch."""
        old = self.git.find("refs/heads/main")
        made = self.story.commit(old, subject, files)
        self.git.move_refs({"refs/heads/main": (made, old)})
        return made

    def run(self, *args, code=0):
        out, err = io.StringIO(), io.StringIO()
        self._monkeypatch.setattr(sys, "argv", ["elsa-build", *args, "-C", str(self.root)])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main.run()
        ran = Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())
        assert ran.code == code, ran.err + ran.out
        return ran

    def json(self, *args, code=0):
        return self.run(*args, "--json", code=code).data

    def pin(self, *more):
        self.run("pin", "set", "main", "--source", "git", "--url", str(self.git.path), *more)

    def patch(self, subject, files, into="local"):
        """Add a commit on the pin to a patchset of ours and return its id."""
        made = self.story.commit(self.main, subject, files)
        where = ("--upstream", str(self.git.path), "--base", "main")
        there = (self.root / "patchsets" / into).exists()
        added = self.json("patch", "add", made, "--into", into, *(where[:2] if there else where))
        return added["patches"][0]["id"]

    def text(self, name):
        return (self.root / name).read_text()

    def files(self):
        return {p: p.read_bytes() for p in self.root.rglob("*") if p.is_file()}


def begin(tmp_path, story, monkeypatch, files, recipe=RECIPE):
    """Make a project that pins the first commit of a story."""
    root = tmp_path / "project"
    (root / "recipes").mkdir(parents=True)
    (root / "patchsets").mkdir()
    if recipe:
        (root / "recipes/small.yaml").write_text(recipe)
    made = Downstream(root, story, monkeypatch)
    made.upstream("base", files)
    made.pin()
    return made
