"""Records what a command looks up over several boots, and keeps it beside the plan.

A run that broke still saw something; that is written under another name, so that it never replaces
what a whole run recorded.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ToolError
from elsa_build.kernels import boots, gate, harvest, recording
from elsa_build.kernels.booting import Watch
from elsa_build.kernels.boots import Booted
from elsa_build.kernels.harvest import Harvest
from elsa_build.kernels.recording import Recorded, Recording
from elsa_build.progress import SILENT, Progress

WHOLE, PART = "recorded.jsonl", "recorded.part.jsonl"
HARVEST = "harvest"
TIMINGS = "timings.jsonl"
"""What tuners chose on the card, with milliseconds by configuration; a plan's `autotune.jsonl` has
the same choices without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a run recorded; `written` are the files, `harvest` is None when the run broke."""

    booted: tuple[Booted, ...]
    recording: Recording
    written: tuple[Path, ...]
    harvest: Harvest | None


def record(
    command: Sequence[str],
    environ: Mapping[str, str],
    watch: Watch,
    to: Path,
    logs: Path,
    *,
    times: int = 2,
    progress: Progress = SILENT,
) -> Record:
    """Boot a command so many times and write what it looked up.

    Args:
        command: The program and its arguments.
        environ: Its environment; where it names no caches, they lie beside `logs` and stay.
        watch: What marks the phases, and when the command is ended.
        to: The folder of the plan, `kernels/NAME`.
        logs: Ours, for events and output (`boots.held`).
        times: How many boots.
        progress: Where the boots are announced.

    Raises:
        ConfigError: There is no such command (exit 5).
        ToolError: A folder cannot be written (exit 6).
    """
    variables = harvest.caches(environ, logs.with_name(f"{logs.name}-caches"))
    booted = boots.run(
        command, {**environ, **variables}, watch, logs, boots=times, progress=progress
    )
    found = recording.merge([Recorded(events=one.heard.events, marks=one.phases) for one in booted])
    broke = booted[-1].broke
    events = [event for one in booted for event in one.heard.events]
    texts = {PART if broke else WHOLE: recording.lines(found.kernels)}
    if found.choices and not broke:
        texts[TIMINGS] = recording.lines(found.choices)
    written = [_write(to / name, text) for name, text in texts.items() if text or not broke]
    if not broke:
        (to / PART).unlink(missing_ok=True)
    return Record(
        booted=booted,
        recording=found,
        written=tuple(written),
        harvest=None
        if broke
        else harvest.harvest(
            variables,
            to / HARVEST,
            unplanned=recording.unplanned(events),
            seen=recording.folders(events),
        ),
    )


def _write(path: Path, text: str) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}-", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        Path(file.name).chmod(0o644)
        os.replace(file.name, path)  # noqa: PTH105 - both are names in one folder
    except OSError as e:
        raise ToolError(f"{path}: cannot be written: {e.strerror}") from e
    return path


def findings(done: Record) -> tuple[Diagnostic, ...]:
    """Return what a person should know of a recording before planning with it."""
    return tuple(_findings(done))


def _findings(done: Record) -> Iterator[Diagnostic]:
    def said(code: str, message: str) -> Diagnostic:
        return Diagnostic(code=code, severity=Severity.WARNING, message=message)

    if not done.recording.entries:
        yield said("E463", "no kernel was looked up: nothing is recorded")
    yield from _marked(done.recording)
    for number, booted in enumerate(done.booted[1:], start=2):
        for name in sorted({f"{e.family} {e.name}" for e in booted.heard.of("compiled")}):
            text = f"{name} was compiled again in boot {number}: no cache keeps it"
            yield said("E469", text)
    for path, why in (done.harvest.unread if done.harvest else {}).items():
        yield said("E471", f"{path}: not harvested: {why}")
    for booted in done.booted:
        yield from gate.unsure(booted, Severity.WARNING)


def _marked(recording: Recording) -> Iterator[Diagnostic]:
    """Yield what a recording has marked."""
    for one in recording.once:
        text = f"{one.family} {one.name}: {one.document()['why']}"
        yield Diagnostic(code="E467", severity=Severity.NOTE, message=text)
    for name, grows in {one.name: one.grows for one in recording.growing}.items():
        yield Diagnostic(
            code="E468",
            severity=Severity.WARNING,
            message=f"{name}: {grows}: no plan can have them all",
            hint="make it an argument instead of a constant",
        )
    for name, why in recording.unrecorded.items():
        text = f"{name} cannot be planned from a recording: {why}"
        yield Diagnostic(code="E470", severity=Severity.WARNING, message=text)
