"""The plan as files: `kernels/NAME.lock` and a folder with one JSON-lines file a family.

Both are written by the tool only. The lock is small and says what the plan stands on; the families'
files are one kernel a line, so that a review shows which kernels came and went.
"""

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError, ToolError
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.plan import Plan, ordered, planned, tunings

FOLDER = "kernels"
_CHOICES = "autotune"
_AGAIN = "elsa-build kernels plan"


def lock_path(root: Path, recipe: str) -> Path:
    """Return where the lock of a recipe's plan is."""
    return root / FOLDER / f"{recipe}.lock"


def texts(plan: Plan) -> dict[str, str]:
    """Return the files of a plan, by path below `kernels/`; the lock is the last."""
    files = {
        f"{plan.recipe}/{family.value}.jsonl": _lines(one.document() for one in plan.of(family))
        for family in Family
    }
    files[f"{plan.recipe}/{_CHOICES}.jsonl"] = _lines(one.document() for one in plan.tunings)
    return {**files, f"{plan.recipe}.lock": _lock(plan, files)}


def _lines(documents: Iterable[Mapping[str, Any]]) -> str:
    # Not sorted: a specialisation's signature has the order of the function's arguments.
    return "".join(json.dumps(one) + "\n" for one in documents)


def _lock(plan: Plan, files: Mapping[str, str]) -> str:
    lines = [
        "# Made by elsa-build kernels plan; do not edit.",
        "version = 1",
        f"recipe = {_quoted(plan.recipe)}",
        f"target = {_quoted(plan.target)}",
        f"package = {_quoted(plan.package)}",
        f"inputs = {_quoted(plan.inputs)}",
        "",
        "[versions]",
        *(f"{name} = {_quoted(value)}" for name, value in sorted(plan.versions.items())),
        "",
        "[counts]",
        *(f"{name} = {count}" for name, count in plan.counts().items()),
        "",
        "[failures]",
        *(f"{_quoted(name)} = {_quoted(why)}" for name, why in sorted(plan.failures.items())),
        "",
        "[files]",
        *(f'"{path}" = "{_digest(text)}"' for path, text in files.items()),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def save(root: Path, plan: Plan) -> tuple[Path, ...]:
    """Write a plan's files, each beside its place and renamed, the lock last; return what changed.

    Raises:
        ToolError: A file cannot be written (exit 6).
    """
    changed = []
    for name, text in texts(plan).items():
        path = root / FOLDER / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and path.read_text(encoding="utf-8") == text:
                continue
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, prefix=f".{path.name}-", delete=False, encoding="utf-8"
            ) as file:
                file.write(text)
            Path(file.name).chmod(0o644)
            os.replace(file.name, path)  # noqa: PTH105 - both are names in one folder
        except OSError as e:
            raise ToolError(f"{path}: cannot be written: {e.strerror}") from e
        changed.append(path)
    return tuple(changed)


def load(root: Path, recipe: str) -> Plan | None:
    """Return the plan of a recipe as it was written; None when there is none.

    Raises:
        ConfigError: A file is damaged, was edited, or is missing (exit 5).
    """
    path = lock_path(root, recipe)
    shown = path.relative_to(root)
    if not path.is_file():
        return None
    try:
        lock = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{shown}: {e}", hint=_AGAIN) from e
    if lock.get("version") != 1:
        raise ConfigError(f"{shown}: version: {lock.get('version')!r} is not 1", hint=_AGAIN)
    try:
        bodies = {name: _body(root, name, digest) for name, digest in lock["files"].items()}
        kernels = [
            one
            for family in Family
            for one in planned(bodies[f"{recipe}/{family.value}.jsonl"], family)
        ]
        return Plan(
            recipe=lock["recipe"],
            target=lock["target"],
            package=lock["package"],
            inputs=lock["inputs"],
            versions=lock["versions"],
            kernels=tuple(ordered(kernels)),
            tunings=tuple(tunings(bodies[f"{recipe}/{_CHOICES}.jsonl"])),
            failures=lock["failures"],
        )
    except KeyError as e:
        raise ConfigError(f"{shown}: {e.args[0]} is missing", hint=_AGAIN) from e
    except (AttributeError, TypeError, ValueError) as e:
        raise ConfigError(f"{shown}: is not of the form of a plan: {e}", hint=_AGAIN) from e


def _body(root: Path, name: str, digest: str) -> list[dict[str, Any]]:
    path = root / FOLDER / name
    shown = path.relative_to(root)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{shown}: cannot be read: {e}", hint=_AGAIN) from e
    if _digest(text) != digest:
        raise ConfigError(f"{shown}: is not the file that the lock names", hint=_AGAIN)
    return [json.loads(line) for line in text.splitlines()]
