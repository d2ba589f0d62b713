"""Puts an image where people find it: layout, tar, record and the tag's lock, all of them or none.

Everything is written to a folder of its own beside the results and renamed into place at the end. A
run that ends early, by an error, by ^C or by a full disk, leaves the previous image as it was; what
a killed run left is swept away by the next.
"""

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ToolError
from elsa_build.images import tags
from elsa_build.images.oci.archive import write_archive
from elsa_build.images.oci.layout import Assembled, write_layout
from elsa_build.images.oci.store import disk_trouble, locked, sweep, write_whole
from elsa_build.images.record import Stamped, read, render
from elsa_build.model import ImageRecord
from elsa_build.progress import Progress

_BUILDING = ".building-"
_SPARE_BYTES = 16 << 20
"""What may be left on the disk after a build: the documents, and the file system's own needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where an image goes: `output` gets `TAG/`, `TAG.tar` and `TAG.json`; `lock` is `tags.lock`.

    `archive` False leaves the tar out. `replace_local` moves a tag that was built here before.
    """

    output: Path
    lock: Path
    archive: bool = True
    replace_local: bool = False


def free_bytes(folder: Path) -> int:
    """Return what a person may still write to the disk of a folder."""
    return shutil.disk_usage(folder).free


def publish(
    image: Assembled,
    stamped: Stamped,
    destination: Destination,
    epoch: int,
    progress: Progress,
    free: Callable[[Path], int],
) -> None:
    """Write layout, tar, record and lock: all, or none."""
    output = destination.output
    record = stamped.record
    with disk_trouble(output):
        output.mkdir(parents=True, exist_ok=True)
        _settled(destination, record)  # refuse early, before anything large is written
        _require_space(image, destination, free)
        with _staging(output, record.tag) as stage:
            with progress.task("OCI layout"):
                write_layout(stage / record.tag, image)
            names = [record.tag]
            if destination.archive:
                with (
                    progress.task("archive"),
                    (stage / f"{record.tag}.tar").open("wb") as out,
                ):
                    write_archive(out, image, mtime=epoch)
                names.append(f"{record.tag}.tar")
            (stage / f"{record.tag}.json").write_text(render(stamped), encoding="utf-8")
            names.append(f"{record.tag}.json")
            with progress.task("publish"), ExitStack() as held:
                for folder in sorted({output.resolve(), destination.lock.parent.resolve()}):
                    held.enter_context(locked(folder))
                claims = tags.render(_settled(destination, record))
                _swap(
                    [(stage / name, output / name) for name in names],
                    stage / "old",
                    lambda: write_whole(destination.lock, claims),
                )


def _settled(destination: Destination, record: ImageRecord) -> dict[str, tags.Claim]:
    beside = destination.output / f"{record.tag}.json"
    here = tags.claim_of(read(beside).record) if beside.is_file() else None
    return tags.settle(
        tags.read(destination.lock),
        record.tag,
        tags.claim_of(record),
        here=here,
        replace_local=destination.replace_local,
    )


def _require_space(image: Assembled, destination: Destination, free: Callable[[Path], int]) -> None:
    """Refuse before writing when the results cannot fit.

    Raises:
        ToolError: The disk of the output has too few bytes left.
    """
    output = destination.output
    sizes = {path: path.stat() for path in image.blobs.values()}
    copied = sum(s.st_size for s in sizes.values() if s.st_dev != output.stat().st_dev)
    needed = copied + _SPARE_BYTES
    if destination.archive:
        needed += sum(status.st_size for status in sizes.values())
    left = free(output)
    if left < needed:
        raise ToolError(
            f"{output}: {left / 2**20:.0f} MiB free, the image needs {needed / 2**20:.0f} MiB",
            hint="free some space, or --output DIR on another disk",
        )


@contextmanager
def _staging(output: Path, tag: str) -> Iterator[Path]:
    """Make a folder beside the results that goes away at the end, whatever happens."""
    with locked(output):
        sweep(output, _BUILDING)
        stage = Path(tempfile.mkdtemp(prefix=f"{_BUILDING}{tag}-", dir=output))
        handle = os.open(stage, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        os.close(handle)


def _swap(moves: Sequence[tuple[Path, Path]], old: Path, last: Callable[[], None]) -> None:
    """Rename new over old, pair by pair, and run the last step; undo all of it when one fails.

    ^C waits for these few renames: between two of them the results would not fit together.
    """
    old.mkdir()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    done: list[tuple[Path, Path]] = []
    try:
        for new, target in moves:
            if target.exists():
                target.rename(old / target.name)
                done.append((old / target.name, target))
            new.rename(target)
            done.append((target, new))
        last()
    except OSError:
        for now, before in reversed(done):
            now.rename(before)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
