"""`elsa-build kernels record`: what a real boot looks up, collected over several boots."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.kernels import kernels
from elsa_build.errors import ConfigError
from elsa_build.kernels import boots, recorder
from elsa_build.kernels.booting import PHASES, Watch
from elsa_build.kernels.planlock import FOLDER
from elsa_build.reports import kernels_ledger as words

if TYPE_CHECKING:
    from rich.console import RenderableType

LOGS = Path(".cache", "kernels")
"""Where events and output of boots are kept, below the project."""

Command = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="What to boot, with its arguments")
]
ReadyUrl = Annotated[
    str | None, typer.Option("--ready", metavar="URL", help="It is ready when this answers")
]
ReadyLine = Annotated[
    str | None, typer.Option(metavar="REGEX", help="It is ready when it prints such a line")
]
Phases = Annotated[
    list[str] | None,
    typer.Option(
        "--phase",
        metavar="NAME=REGEX",
        help="A phase that begins with such a line; repeatable (weights and capture are known)",
    ),
]
RequestUrl = Annotated[
    str | None,
    typer.Option("--request", metavar="URL", help="Post --body here once it is ready"),
]
Body = Annotated[Path | None, typer.Option(metavar="FILE", help="What is posted: JSON")]
Requests = Annotated[int, typer.Option(metavar="N", min=1, help="How often it is posted")]
Within = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0.1, help="The longest it may take to be ready"),
]
Stay = Annotated[bool, typer.Option(help="Let the command end by itself")]
Logs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where events and output are kept (default: .cache/kernels)"),
]


def watch_of(
    *,
    ready: str | None,
    ready_line: str | None,
    phase: list[str] | None,
    request: str | None,
    body: Path | None,
    requests: int,
    within: float | None,
    stay: bool,
) -> Watch:
    """Return what marks the phases of a boot, from options."""
    pairs = [(one, *one.partition("=")) for one in phase or ()]
    for text, name, _, pattern in pairs:
        if not (name and pattern):
            raise ConfigError(f"--phase {text}: not NAME=REGEX")
    try:
        content = body.read_bytes() if body else b"{}"
    except OSError as e:
        raise ConfigError(f"--body {body}: cannot be read: {e.strerror}") from e
    return Watch(
        ready_url=ready,
        ready_line=ready_line,
        phases={**PHASES, **{name: pattern for _, name, _, pattern in pairs}},
        request_url=request,
        body=content,
        requests=requests,
        within_s=within,
        stay=stay,
    )


@command(
    kernels,
    "record",
    example="elsa-build kernels record --into elsa-1.7 --ready http://127.0.0.1:30000/health"
    " -- python -m sglang.launch_server --model-path /models/qwen\n"
    "elsa-build kernels record --into elsa-1.7 --boots 1 -- python prompts.py",
    schema="kernels-record",
)
def record(
    session: Session,
    *,
    argv: Command,
    into: Annotated[str, typer.Option(metavar="NAME", help="The recipe whose plan it is for")],
    times: Annotated[int, typer.Option("--boots", metavar="N", min=1, help="How many boots")] = 2,
    ready: ReadyUrl = None,
    ready_line: ReadyLine = None,
    phase: Phases = None,
    request: RequestUrl = None,
    body: Body = None,
    requests: Requests = 2,
    within: Within = None,
    stay: Stay = False,
    logs: Logs = None,
) -> Result:
    """Boot a command on the card and write down every kernel that its processes look up.

    Writes kernels/NAME/recorded.jsonl, which `kernels plan` takes over, what tuners chose, and
    kernels/NAME/harvest: what only a boot on the card can make. With --ready the command is ended
    once it is ready and has answered the requests.
    """
    watch = watch_of(
        ready=ready,
        ready_line=ready_line,
        phase=phase,
        request=request,
        body=body,
        requests=requests,
        within=within,
        stay=stay,
    )
    if "/" in into or into.startswith("."):
        raise ConfigError(f"--into {into}: not the name of a recipe")
    place = session.root / FOLDER / into
    with boots.held((logs or session.root / LOGS) / f"record-{into}") as folder:
        done = recorder.record(
            argv, os.environ, watch, place, folder, times=times, progress=session.progress
        )
    names = [str(path.relative_to(session.root)) for path in done.written]
    kept = f"wrote {', '.join(names)}" if names else "nothing was recorded"
    boots.check(done.booted, argv, kept)

    def view() -> "RenderableType":
        return words.table(done.booted)

    harvested = done.harvest.files if done.harvest else ()
    return Result(
        data={
            "boots": [words.boot(one) for one in done.booted],
            "recorded": words.recorded(done.recording),
            "written": names,
            "harvest": [
                {"path": one.path, "family": one.family, "bytes": one.size} for one in harvested
            ],
        },
        view=view,
        closing=f"{words.recorded_words(done.recording)}; {len(harvested)} files harvested;"
        f" {kept}\nnext: elsa-build kernels plan",
        diagnostics=recorder.findings(done),
    )
