"""A review as a file: what `rebase --report` writes and `report` reads, in one JSON document."""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError, ToolError
from elsa_build.patches.review import Review
from elsa_build.reports import plainly

SCHEMA = "elsa-build/review/1"
NAME = "review.json"
"""What a review is called in a folder of reports."""
_OURS = re.compile(r"elsa-build/([a-z-]+)/(\d+)")
_AGAIN = "elsa-build rebase --onto REF --report DIR"


def to_json(review: Review) -> str:
    """Return a review as a document; `from_json` gives an equal one back."""
    document = {"schema": SCHEMA, "review": plainly.dump(review)}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def from_json(text: str | bytes, name: str) -> Review:
    """Return the review in a document; `name` is the file, for the error.

    Raises:
        ConfigError: It is no review, another version's, or damaged (exit 5).
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{name}: is not JSON: {e}", hint=_AGAIN) from e
    found = document.get("schema") if isinstance(document, dict) else None
    if found != SCHEMA:
        raise ConfigError(f"{name}: {_foreign(found)}", hint=_AGAIN)
    try:
        review = plainly.load(Review, document.get("review"), "review")
    except plainly.MismatchError as e:
        raise ConfigError(f"{name}: {e}", hint=_AGAIN) from e
    if len(review.cases) != len(review.done.steps):
        raise ConfigError(f"{name}: review.cases: must be as many as the steps", hint=_AGAIN)
    return review


def write(path: Path, text: str) -> None:
    """Write a report beside its place and rename it there.

    Raises:
        ToolError: The disk refuses; what was there is as it was (exit 6).
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text, encoding="utf-8", newline="\n")
        fresh.replace(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise ToolError(f"cannot write {path}: {e.strerror}") from e


def read(path: Path) -> Review:
    """Return the review in a file, or in a folder of reports.

    Raises:
        ConfigError: There is no such file, or it holds no review (exit 5).
    """
    if path.is_dir():
        path = path / NAME
    try:
        text = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path}: {(e.strerror or 'cannot be read').lower()}") from e
    return from_json(text, str(path))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the document."""
    review = plainly.schema(Review)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A review of a rebase, as elsa-build writes it",
        "type": "object",
        "properties": {"schema": {"const": SCHEMA}, "review": {"$ref": review["$ref"]}},
        "required": ["schema", "review"],
        "additionalProperties": False,
        "$defs": review["$defs"],
    }


def _foreign(found: object) -> str:
    ours = _OURS.fullmatch(found) if isinstance(found, str) else None
    if ours and ours[1] == "review":
        age = "an older" if int(ours[2]) < 1 else "a newer"
        return f"schema: review {ours[2]} is of {age} elsa-build; this one reads review 1"
    if ours:
        return f"schema: is a document of 'elsa-build {ours[1]}', not a review"
    return "schema: is not a review of elsa-build"
