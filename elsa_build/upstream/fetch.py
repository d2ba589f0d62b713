"""`git fetch` with progress: git is run through our door, GitPython reads what it says meanwhile.

GitPython's own `fetch` would inherit `GIT_DIR` and the like from a hook; the door does not.
"""

import os
import re
import shlex
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from elsa_build.errors import ToolError
from elsa_build.git.door import Git, environment
from elsa_build.progress import Advance, Progress
from elsa_build.upstream.cache import ELSEWHERE
from elsa_build.upstream.child import lines, running

if TYPE_CHECKING:
    from git.remote import RemoteProgress

ALLOWED = ("https", "ssh", "file")
"""Protocols that git may use; `ext::` runs any command, `git://` and `http://` prove nothing."""

_PROGRESS = re.compile(r"(remote: )?[A-Z][a-z]+ \w+: +\d+")


def fetch(git: Git, address: str, *args: str, progress: Progress, wants: bytes = b"") -> None:
    """Run `git fetch ARGS` on a mirror and show its progress.

    Args:
        git: The mirror.
        address: What is fetched from, as a person may see it (no password).
        args: Options and refspecs.
        progress: Where each phase (counting, receiving, resolving) is a task.
        wants: Refspecs, one a line, for the option `--stdin`.

    Raises:
        ToolError: git failed; the message has the last lines of what it said.
    """
    env = environment(os.environ)
    env.setdefault("GIT_ALLOW_PROTOCOL", ":".join(ALLOWED))
    # A repack in the background would go on after we let go of the mirror's lock.
    settings = ["-c", "gc.autoDetach=false", "-c", "maintenance.autoDetach=false"]
    if wants:
        settings += ["-c", "fetch.negotiationAlgorithm=noop"]
    command = git.command(*settings, "fetch", "--progress", *args)
    said: deque[str] = deque(maxlen=8)
    with ExitStack() as shown:
        shown.enter_context(progress.task(f"connect to {address}"))
        read = _reader(progress, shown).new_message_handler()
        with running(command, env, wants) as (process, output):
            for line in lines(output):
                read(line)
                if not _PROGRESS.match(line):
                    said.append(line)
            code = process.wait()
    if code:
        raise _explain("\n".join(said), address)


def _reader(progress: Progress, shown: ExitStack) -> "RemoteProgress":
    """Return GitPython's parser of progress lines, each phase of which becomes a task."""
    from git.remote import RemoteProgress  # noqa: PLC0415 - 245 ms, only when fetching

    names = {
        RemoteProgress.COUNTING: "count objects",
        RemoteProgress.COMPRESSING: "compress objects",
        RemoteProgress.RECEIVING: "receive objects",
        RemoteProgress.RESOLVING: "resolve deltas",
    }

    class Reader(RemoteProgress):
        """Opens a task when a phase begins, which ends the one before."""

        def __init__(self) -> None:
            super().__init__()
            self.phase = 0
            self.done = 0
            self.advance: Advance = lambda _: None

        def update(
            self,
            op_code: int,
            cur_count: str | float,
            max_count: str | float | None = None,
            message: str = "",
        ) -> None:
            del message
            phase = op_code & self.OP_MASK
            if phase not in names:
                return
            if phase != self.phase:
                shown.close()  # a terminal shows one task at a time
                task = progress.task(
                    names[phase], total=int(max_count or 0) or None, unit="objects"
                )
                self.phase, self.done, self.advance = phase, 0, shown.enter_context(task)
            self.advance(max(0, int(cur_count or 0) - self.done))
            self.done = max(self.done, int(cur_count or 0))

    return Reader()


def _explain(said: str, address: str) -> ToolError:
    if "No space left on device" in said:
        return ToolError(f"cannot fetch from {address}: no space left on device", hint=ELSEWHERE)
    faults = [line for line in said.splitlines() if re.match(r"(fatal|error|ssh|remote): ?", line)]
    return ToolError(
        f"cannot fetch from {address}: " + "\n".join(faults[-3:] or said.splitlines()[-3:]),
        hint=shlex.join(["git", "ls-remote", "--heads", address]),
    )
