"""Why a run can end, as exit codes and one exception tree.

Errors are raised low, close to the cause, and turned into words and an exit code once, in
`elsa_build.cli.main.run`. The numbers are public: scripts branch on them.
"""

from enum import IntEnum
from typing import ClassVar

from elsa_build.diagnostics import Diagnostic


class ExitCode(IntEnum):
    """The process exit codes; documented in `docs/reference/exit-codes.md`."""

    OK = 0
    BUG = 1
    USAGE = 2
    CONFLICT = 3
    STALE = 4
    CONFIG = 5
    TOOL = 6
    FAILED = 7
    INTERRUPTED = 130


class ElsaError(Exception):
    """An expected failure: what and where in `message`, one command to type in `hint`.

    `findings` has the parts of a failure that has several.
    """

    code: ClassVar[ExitCode] = ExitCode.BUG
    findings: tuple[Diagnostic, ...] = ()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ElsaError):
    """The command line asks for something that does not fit together."""

    code = ExitCode.USAGE


class ConflictError(ElsaError):
    """A patch does not apply."""

    code = ExitCode.CONFLICT


class StaleError(ElsaError):
    """A lock, a kernel bundle or an image no longer matches its inputs."""

    code = ExitCode.STALE


class ConfigError(ElsaError):
    """A file of ours, or a name that a person typed, is wrong."""

    code = ExitCode.CONFIG


class ToolError(ElsaError):
    """An outside program (git, pip, docker, nvcc, a server) or the disk failed us."""

    code = ExitCode.TOOL


class FailedError(ElsaError):
    """A check ran and said no."""

    code = ExitCode.FAILED


class InterruptedRunError(ElsaError):
    """The person pressed ^C; clean-up ran."""

    code = ExitCode.INTERRUPTED
