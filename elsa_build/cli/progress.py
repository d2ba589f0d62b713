"""Progress on stderr: live bars on a terminal, one line a task with its time elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elsa_build.progress import Advance, Now

if TYPE_CHECKING:
    from rich.console import Console

# A log of CI is looked at while it grows; a silent hour looks like one that hangs.
_SAY_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class LineProgress:
    """One line when a task ends, so that a log of CI stays readable; one a minute if it tells."""

    @contextmanager
    def task(
        self,
        description: str,
        total: int | None = None,
        unit: str = "",
        now: Now | None = None,
    ) -> Iterator[Advance]:
        """Time the block and print its line."""
        start = said = time.monotonic()
        count = 0

        def advance(done: int) -> None:
            nonlocal count, said
            count += done
            if now and time.monotonic() - said >= _SAY_EVERY_S:
                said = time.monotonic()
                sys.stderr.write(f"{description}: {count} of {total} {unit}; {now()}\n")

        yield advance
        sys.stderr.write(f"{description}: {time.monotonic() - start:.1f} s\n")


@dataclass(frozen=True, slots=True)
class BarProgress:
    """A spinner or a bar while a task runs; it goes away when the task ends."""

    console: "Console"

    @contextmanager
    def task(
        self,
        description: str,
        total: int | None = None,
        unit: str = "",
        now: Now | None = None,
    ) -> Iterator[Advance]:
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

            def advance(done: int) -> None:
                shown = f"{description}: {now()}" if now else description
                bars.update(task, advance=done, description=shown)

            yield advance
