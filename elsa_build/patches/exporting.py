"""A patchset as other tools take it: mails for `git am`, or a quilt series.

Both get three lines of context, since they may be put on a tree without our blobs, and the reason
from `series.yaml` as a trailer, so that an import elsewhere has it. The other end reads a mail
with `git am --keep-non-patch`, which keeps brackets in a subject.
"""

import os
import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import Git
from elsa_build.model import Series
from elsa_build.patches import message as words
from elsa_build.patches import standalone
from elsa_build.patches.importing import file_name
from elsa_build.patches.replay import words_of
from elsa_build.patches.seriesfile import active

CONTEXT = 3


class Form(StrEnum):
    """What the other end reads."""

    AM = "am"
    MBOX = "mbox"
    QUILT = "quilt"


def mails(git: Git, series: Series) -> tuple[tuple[str, bytes], ...]:
    """Return the file name and the mail of each patch that a replay would use, in order.

    A cherry-pick kept as a reference is written out. Objects are written to `git`.

    Raises:
        MissingBlobError: The repository lacks the base of a patch (exit 5).
    """
    found: list[tuple[str, bytes]] = []
    for number, patch in enumerate(series.patches, 1):
        if not active(patch):
            standalone.prepare(git, (patch,))
            continue
        text = words.normal(words_of(git, patch)[0])
        trailers = words.wanted(patch.id, patch.kind, patch.origin)
        text = words.with_trailers(text, {**trailers, words.WHY: patch.why})
        name = patch.file.name if patch.file else file_name(number, patch.id)
        found.append((name, standalone.mail(git, patch, text, CONTEXT)))
    return tuple(found)


def store(target: Path, form: Form, patches: Sequence[tuple[str, bytes]]) -> None:
    """Write an export to a place where nothing is yet; it appears whole or not at all.

    Raises:
        ConfigError: Something is there already (exit 5).
        ToolError: The disk refuses (exit 6).
    """
    if target.exists():
        raise ConfigError(f"{target}: exists already", hint="choose another --to")
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        if form is Form.MBOX:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(b"\n".join(text for _, text in patches))
        else:
            fresh.mkdir(parents=True)
            for number, (name, text) in enumerate(patches, 1):
                # `git am DIR/*` takes the order of the names, the series may have another.
                path = (
                    name if form is Form.QUILT else f"{number:04}-{name.partition('-')[2] or name}"
                )
                (fresh / path).write_bytes(text)
            if form is Form.QUILT:
                lines = "".join(f"{name}\n" for name, _ in patches)
                (fresh / "series").write_text(lines, encoding="utf-8")
        fresh.rename(target)
    except OSError as e:
        raise ToolError(f"cannot write {target}: {e.strerror}") from e
    finally:
        if fresh.is_dir():
            shutil.rmtree(fresh, ignore_errors=True)
        else:
            fresh.unlink(missing_ok=True)
