"""`elsa-build kernels gate`: boot strictly, and say what was compiled, when, and why."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elsa_build.cli.command import Result, Session, command
from elsa_build.cli.kernels import kernels
from elsa_build.cli.kernels_record import (
    LOGS,
    Body,
    Command,
    Logs,
    Phases,
    ReadyLine,
    ReadyUrl,
    Requests,
    RequestUrl,
    Stay,
    Within,
    watch_of,
)
from elsa_build.diagnostics import errors
from elsa_build.errors import ExitCode
from elsa_build.kernels import boots, unpacking
from elsa_build.kernels import gate as gates
from elsa_build.reports import kernels_ledger as words

if TYPE_CHECKING:
    from rich.console import RenderableType


@command(
    kernels,
    "gate",
    example="elsa-build kernels gate --bundle dist/kernels --ready http://127.0.0.1:30000/health"
    " -- python -m sglang.launch_server --model-path /models/qwen\n"
    "elsa-build kernels gate --within 120 --ready-line 'ready to roll' -- ./boot-image.sh",
    schema="kernels-gate",
)
def gate(
    session: Session,
    *,
    argv: Command,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE",
            help="The bundle (default: the caches of the environment, as in an image)",
        ),
    ] = None,
    times: Annotated[int, typer.Option("--boots", metavar="N", min=1, help="How many boots")] = 1,
    keep_going: Annotated[
        bool, typer.Option(help="Compile what is missing, in a copy, so that one run finds it all")
    ] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY", help="Only warn of this family (inductor, driver, ...); repeatable"
        ),
    ] = None,
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
    """Boot a command so that nothing can be compiled unnoticed; exit 7 when something would be.

    Prints the boot phase by phase: what was found, compiled, refused and timed. Each kernel that
    was missed comes with the field of its key that differs from the bundle's. Without --keep-going
    the first miss is an error in the command, as in the image's strict mode.
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
    with ExitStack() as held:
        opened = held.enter_context(unpacking.opened(bundle)) if bundle else None
        folder = held.enter_context(boots.held((logs or session.root / LOGS) / "gate"))
        found = gates.gate(
            argv,
            opened,
            os.environ,
            watch,
            folder,
            specs=gates.specs(session.root, opened),
            times=times,
            keep_going=keep_going,
            progress=session.progress,
        )
    said = tuple(one for gated in found for one in gates.findings(gated, allowed=allow or ()))
    wrong = errors(said)
    booted = [gated.booted for gated in found]
    if not any(gated.blamed for gated in found):
        boots.check(booted, argv, f"its events are in {booted[-1].boot.log.parent}")

    def view() -> "RenderableType":
        return words.table(booted)

    return Result(
        data={"boots": [words.gated(one) for one in found]},
        view=view,
        closing=words.verdict(found, len(wrong)),
        status="failed" if wrong else "ok",
        code=ExitCode.FAILED if wrong else ExitCode.OK,
        diagnostics=said,
    )
