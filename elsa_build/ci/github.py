"""The door to GitHub: the `gh` program, which has the token and the repository already."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from elsa_build.ci.publish import Item
from elsa_build.errors import ToolError


@dataclass(frozen=True, slots=True)
class Gh:
    """Issues of the repository that `gh` is in; bodies go through stdin, never the command line."""

    program: str = "gh"

    def open_items(self, label: str) -> Sequence[Item]:
        """Return the open issues with a label."""
        fields = ("--json", "number,title,body", "--limit", "100")
        found = json.loads(self._run("issue", "list", "--state", "open", "--label", label, *fields))
        return [Item(number=i["number"], title=i["title"], body=i["body"]) for i in found]

    def create(self, title: str, body: str, label: str) -> int:
        """Open an issue and return its number; the label is made when it is not there."""
        self._run("label", "create", label, "--force", "--description", "Made by elsa-build")
        address = self._run(
            "issue", "create", "--title", title, "--label", label, "--body-file", "-", stdin=body
        )
        return int(address.strip().rpartition("/")[2])

    def edit(self, number: int, title: str, body: str) -> None:
        """Replace an issue's title and body."""
        self._run("issue", "edit", str(number), "--title", title, "--body-file", "-", stdin=body)

    def comment(self, number: int, body: str) -> None:
        """Write a comment."""
        self._run("issue", "comment", str(number), "--body-file", "-", stdin=body)

    def close(self, number: int, comment: str) -> None:
        """Close an issue with a last word."""
        self._run("issue", "close", str(number), "--comment", comment)

    def _run(self, *args: str, stdin: str = "") -> str:
        if shutil.which(self.program) is None:
            raise ToolError(f"'{self.program}' is not on PATH", hint="install GitHub's gh")
        ran = subprocess.run(
            [self.program, *args], input=stdin, capture_output=True, text=True, check=False
        )
        if ran.returncode:
            tail = "\n".join(ran.stderr.strip().splitlines()[-5:])
            raise ToolError(f"gh {args[0]} {args[1]} ended with {ran.returncode}: {tail}")
        return ran.stdout
