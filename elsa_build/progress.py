"""How a room tells that it is still working, without knowing of terminals.

A room takes `progress: Progress = SILENT` and wraps long work in `with progress.task(...)`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]
"""Call with the units done since the last call."""

Now = Callable[[], str]
"""Tells what is being done at the moment; asked whenever the work advances, even by 0."""


class Progress(Protocol):
    """Where long work announces itself."""

    def task(
        self,
        description: str,
        total: int | None = None,
        unit: str = "",
        now: Now | None = None,
    ) -> AbstractContextManager[Advance]:
        """Show a task while the block runs; `unit` is `B` for bytes, else a noun or nothing."""


class _Silent:
    @contextmanager
    def task(
        self,
        description: str,
        total: int | None = None,
        unit: str = "",
        now: Now | None = None,
    ) -> Iterator[Advance]:
        del description, total, unit, now
        yield lambda _: None


SILENT: Progress = _Silent()
