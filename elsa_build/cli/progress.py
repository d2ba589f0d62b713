"""Progress on stderr: live bars on a terminal, one line a task with its time elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elsa_build.progress import Advance

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class LineProgress:
    """One line when a task ends, so that a log of CI stays readable."""

    @contextmanager
    def task(self, description: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """Time the block and print its line."""
        del total, unit
        start = time.monotonic()
        yield lambda _: None
        sys.stderr.write(f"{description}: {time.monotonic() - start:.1f} s\n")


@dataclass(frozen=True, slots=True)
class BarProgress:
    """A spinner or a bar while a task runs; it goes away when the task ends."""

    console: "Console"

    @contextmanager
    def task(self, description: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """Show the task while the block runs."""
        from rich.progress import (  # noqa: PLC0415 - 147 ms, only when shown
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        amount = DownloadColumn() if unit == "B" else MofNCompleteColumn()
        counted = (BarColumn(), amount) if total else ()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), *counted, TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as bars:
            task = bars.add_task(description, total=total)
            yield lambda done: bars.advance(task, done)
