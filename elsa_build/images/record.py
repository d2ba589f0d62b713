"""The record of a built image, `TAG.json`: the ids that prove what was built, for scripts and CI.

The config digest and the diff ids are the image's identity on every machine. The manifest digest
says what a registry would hold; it follows the compressor, which is therefore named.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.model import Digest, ImageRecord, Layer

SCHEMA = "elsa-build/image-record/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """An image's record with what is said only outside the image: its name and its compressor."""

    record: ImageRecord
    name: str
    compressor: str


def render(stamped: Stamped) -> str:
    """Return the text of a record file: sorted JSON, a final newline."""
    fields = {"schema": SCHEMA, "name": stamped.name, "compressor": stamped.compressor}
    fields |= asdict(stamped.record) | {"labels": dict(stamped.record.labels)}
    return json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def read(path: Path) -> Stamped:
    """Return the record in a file.

    Raises:
        ConfigError: It is missing, or not a record that the tool wrote.
    """
    try:
        fields: dict[str, Any] = json.loads(path.read_bytes())
        if fields["schema"] != SCHEMA:
            raise ConfigError(f"{path}: schema: '{fields['schema']}' is not '{SCHEMA}'")
        return Stamped(
            name=fields["name"],
            compressor=fields["compressor"],
            record=ImageRecord(
                tag=fields["tag"],
                manifest=Digest(fields["manifest"]),
                config=Digest(fields["config"]),
                layers=tuple(Layer(**layer) for layer in fields["layers"]),
                labels=tuple(sorted(fields["labels"].items())),
            ),
        )
    except OSError as e:
        raise ConfigError(f"{path}: cannot read: {e.strerror}") from e
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{path}: is not the record of an image: {e!r}") from e
