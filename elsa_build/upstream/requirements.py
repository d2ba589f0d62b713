"""What an upstream needs, from its own metadata, so that an image can be checked against it.

Requirements stay the PEP 508 lines that upstream wrote, environment markers included, since a
marker is only decided for the image's machine. Those of an extra are not part of the base install
and are left out.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import BytesHeaderParser

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from elsa_build.errors import ConfigError

_DECISIVE = re.compile(r"torch|triton|flashinfer|sglang-kernel|sgl-kernel|transformers|cuda-python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How one requirement differs between two upstreams; None means absent there."""

    name: str
    old: str | None
    new: str | None


def from_metadata(metadata: bytes) -> tuple[str, ...]:
    """Return the requirements in a wheel's METADATA, in its order, without those of extras."""
    lines = BytesHeaderParser().parsebytes(metadata).get_all("Requires-Dist") or []
    return tuple(str(line) for line in lines if not _of_an_extra(str(line)))


def from_pyproject(text: bytes, name: str) -> tuple[str, ...]:
    """Return `project.dependencies` of a pyproject.toml; `name` is the file for messages.

    Raises:
        ConfigError: It is not TOML, or the dependencies are not a list of strings.
    """
    try:
        project = tomllib.loads(text.decode()).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{name}: not a readable pyproject.toml: {e}") from e
    lines = project.get("dependencies", []) if isinstance(project, dict) else None
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ConfigError(f"{name}: project.dependencies: must be a list of strings")
    return tuple(lines)


def decisive(requires: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements whose version decides what compiled code an image can hold."""
    return tuple(line for line in requires if _DECISIVE.match(_name(line)))


def compare(old: Iterable[str], new: Iterable[str]) -> tuple[Shift, ...]:
    """Return what differs between two lists of requirements, by name in alphabetical order."""
    before, after = _by_name(old), _by_name(new)
    return tuple(
        Shift(name=name, old=before.get(name), new=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def _by_name(requires: Iterable[str]) -> dict[str, str]:
    """Return the lines by package; a package may have several, each with a marker of its own."""
    found: dict[str, str] = {}
    for line in requires:
        name = _name(line)
        found[name] = f"{found[name]}, {line}" if name in found else line
    return found


def _name(line: str) -> str:
    try:
        return canonicalize_name(Requirement(line).name)
    except InvalidRequirement:
        return line.strip()


def _of_an_extra(line: str) -> bool:
    """Say whether a line only counts when an extra is asked for.

    A marker such as `sys_platform == "win32" and extra == "x"` is false for every machine without
    the extra, so the text of the marker is enough.
    """
    try:
        marker = Requirement(line).marker
    except InvalidRequirement:
        return False
    return marker is not None and re.search(r"\bextra\s*==", str(marker)) is not None
