"""What one nightly run found, as a file that one job writes and another one reads.

The rebase runs where nothing may be written to the forge; what it found travels as this document.
"""

import json
import os
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path

from elsa_build.errors import ConfigError, ToolError

SCHEMA = "elsa-build/ci-standing/1"


class CiCode(IntEnum):
    """What `ci rebase` exits with; a workflow branches on it."""

    CLEAN = 0
    CONFLICTS = 10
    FAILED = 11
    NOTHING_NEW = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of the series on the newest upstream.

    `broken` are the ids of the patches that do not apply, `failed` says what else went wrong (a
    guard, a test, the image) in one line each. `body` is the Markdown report. `fingerprint`
    changes when what is broken changes, not with every upstream commit.
    """

    code: CiCode
    base: str
    onto: str
    ref: str
    fingerprint: str
    headline: str
    body: str
    broken: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def store(path: Path, standing: Standing) -> None:
    """Write a standing beside its place and rename it there.

    Raises:
        ToolError: The disk refuses.
    """
    document = {"schema": SCHEMA, **asdict(standing), "code": int(standing.code)}
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as e:
        raise ToolError(f"cannot write {path}: {e.strerror}") from e
    finally:
        fresh.unlink(missing_ok=True)


def load(path: Path) -> Standing:
    """Return a stored standing.

    Raises:
        ConfigError: There is no such file, or it is another document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.pop("schema", None) != SCHEMA:
            raise ConfigError(f"{path}: not a document of {SCHEMA}", hint="elsa-build ci rebase")
        return Standing(
            **{
                **document,
                "code": CiCode(document["code"]),
                "broken": tuple(document["broken"]),
                "failed": tuple(document["failed"]),
            }
        )
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror}", hint="elsa-build ci rebase --report DIR") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{path}: damaged: {e}", hint="elsa-build ci rebase") from e
