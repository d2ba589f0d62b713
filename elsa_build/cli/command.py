"""What every command shares: the common options, one result value, one way out.

A command is a function of a `Session` and its own options that returns a `Result`. `command` puts
the common options in front of Typer, and renders the result as one JSON document or as words.
"""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ConfigError, ElsaError, ExitCode
from elsa_build.progress import SILENT, Progress
from elsa_build.reports import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


class Color(StrEnum):
    """When to colour; NO_COLOR wins over FORCE_COLOR, which wins over the terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How this run was asked to behave. `root` is the project: the folder of `upstream.lock`."""

    root: Path
    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: Color = Color.AUTO
    progress: Progress = SILENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command found: `data` for scripts, `view` for people, findings for both.

    `view` is what goes to stdout (text, or a function that makes a Rich renderable, so that Rich
    is only imported when something is shown); `closing` goes to stderr: what changed and the next
    command.
    """

    data: Mapping[str, Any]
    view: str | Callable[[], "RenderableType"] = ""
    closing: str = ""
    status: str = "ok"
    code: int = ExitCode.OK
    diagnostics: tuple[Diagnostic, ...] = field(default=())


_COMMON = "Common options"
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "directory": (
        Annotated[
            Path,
            typer.Option(
                "-C", metavar="DIR", help="Run as if started in DIR", rich_help_panel=_COMMON
            ),
        ],
        Path(),
    ),
    "as_json": (
        Annotated[
            bool,
            typer.Option("--json", help="One JSON document on stdout", rich_help_panel=_COMMON),
        ],
        False,
    ),
    "quiet": (
        Annotated[bool, typer.Option("-q", "--quiet", help="Only errors", rich_help_panel=_COMMON)],
        False,
    ),
    "verbose": (
        Annotated[
            bool,
            typer.Option("-v", "--verbose", help="Show notes as well", rich_help_panel=_COMMON),
        ],
        False,
    ),
    "color": (
        Annotated[Color, typer.Option(help="When to use colour", rich_help_panel=_COMMON)],
        Color.AUTO,
    ),
    "no_progress": (
        Annotated[
            bool,
            typer.Option("--no-progress", help="No progress on stderr", rich_help_panel=_COMMON),
        ],
        False,
    ),
}


def find_root(start: Path) -> Path:
    """Return the nearest folder at or above `start` with `upstream.lock` or `patchsets/`.

    Falls back to `start` itself, so that `pin set` can begin a project.
    """
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / "upstream.lock").is_file() or (folder / "patchsets").is_dir():
            return folder
    return start


def console(color: Color = Color.AUTO, *, stderr: bool = False) -> "Console":
    """Return a Rich console for one stream that keeps to NO_COLOR and never truncates ids."""
    from rich.console import Console  # noqa: PLC0415 - keeps --help fast

    stream = sys.stderr if stderr else sys.stdout
    plain = color is Color.NEVER or (color is Color.AUTO and bool(os.environ.get("NO_COLOR")))
    return Console(
        stderr=stderr,
        no_color=plain,
        color_system=None if plain else "auto",
        force_terminal=True if color is Color.ALWAYS else None,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=not stream.isatty(),
    )


def _session(common: Mapping[str, Any]) -> Session:
    directory: Path = common["directory"]
    if not directory.is_dir():
        raise ConfigError(f"-C {directory}: no such folder")
    progress: Progress = SILENT
    if not (common["quiet"] or common["no_progress"]):
        # Imported here: LineProgress is light, but only a run of a command needs it.
        from elsa_build.cli.progress import BarProgress, LineProgress  # noqa: PLC0415

        live = sys.stderr.isatty()
        progress = BarProgress(console(common["color"], stderr=True)) if live else LineProgress()
    return Session(
        root=find_root(directory),
        json=common["as_json"],
        quiet=common["quiet"],
        verbose=common["verbose"],
        color=common["color"],
        progress=progress,
    )


def command(
    app: typer.Typer, name: str, *, example: str, schema: str | None = None
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Register a function as a command with the common options and an Example block.

    `schema` names the JSON document (default: the command's name).
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = [p for key, p in signature.parameters.items() if key != "session"]
        common = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in _OPTIONS.items()
        ]
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

        @functools.wraps(function)
        def call(**arguments: Any) -> None:  # noqa: ANN401 - Typer's values, checked by Typer
            shared = {key: arguments.pop(key) for key in _OPTIONS}
            document = schema or name
            try:
                session = _session(shared)
                result = function(session, **arguments)
            except ElsaError as e:
                if shared["as_json"]:
                    _emit_json(document, failure(e))
                raise
            if session.json:
                _emit_json(document, result)
            else:
                _emit_words(session, result)
            raise typer.Exit(int(result.code))

        # Typer reads the signature, and would follow `__wrapped__` past it to the function's own.
        joined = signature.replace(parameters=[*own, *common], return_annotation=None)
        call.__signature__ = joined  # type: ignore[attr-defined]
        del call.__wrapped__
        call.__annotations__ = {}
        doc = inspect.cleandoc(function.__doc__ or "")
        call.__doc__ = f"{doc}\n\n\b\nExample:\n  " + "\n  ".join(example.splitlines())
        app.command(name)(call)
        return call

    return decorate


def failure(e: ElsaError) -> Result:
    """Return an error as a result, for `--json`."""
    whole = Diagnostic(code="E000", severity=Severity.ERROR, message=str(e), hint=e.hint)
    return Result(data={}, status="error", code=e.code, diagnostics=e.findings or (whole,))


def _emit_json(document: str, result: Result) -> None:
    envelope = {
        "schema": f"elsa-build/{document}/1",
        "status": result.status,
        "data": result.data,
        "diagnostics": [plain.finding(found) for found in result.diagnostics],
    }
    sys.stdout.write(json.dumps(envelope, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _emit_words(session: Session, result: Result) -> None:
    if callable(result.view):
        console(session.color).print(result.view())
    elif result.view:
        sys.stdout.write(result.view.rstrip("\n") + "\n")
    for found in result.diagnostics:
        if found.severity is Severity.NOTE and not session.verbose:
            continue
        if session.quiet and found.severity is not Severity.ERROR:
            continue
        sys.stderr.write(f"{found.severity}[{found.code}]: {found}\n")
        if found.hint:
            sys.stderr.write(f"  hint: {found.hint}\n")
    if result.closing and not session.quiet:
        sys.stderr.write(result.closing.rstrip("\n") + "\n")
