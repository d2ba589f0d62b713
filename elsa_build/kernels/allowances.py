"""Why a library may lack code for a card: a list with reasons, so that the rest can be an error."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from elsa_build.kernels.target import targets
from elsa_build.strictyaml import Problems, read
from elsa_build.yamlform import Form, nearest

DEFAULT = Path(__file__).with_name("allowances.yaml")
SHORTEST = 20
"""A reason of fewer characters is none."""


class Verdict(StrEnum):
    """What a library or a family has for a target, best first.

    `partial`: some fat binaries have code that runs, others have none. `plain`: code that runs, but
    only of the plain form, where it has the fast form (`a`, `f`) for other cards. `wrong-suffix`:
    code of the same generation in a form that this card refuses. `foreign`: single cubins, all for
    other cards. `damaged`: cut short, or not what it says, so that nobody can tell.
    """

    COMPLETE = "complete"
    PARTIAL = "partial"
    FOREIGN = "foreign"
    PLAIN = "plain"
    ONLY_PTX = "only-ptx"
    WRONG_SUFFIX = "wrong-suffix"
    NOTHING = "nothing"
    DAMAGED = "damaged"


FAILING = (Verdict.ONLY_PTX, Verdict.WRONG_SUFFIX, Verdict.NOTHING, Verdict.DAMAGED)
"""Verdicts that fail an audit unless they are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """One entry: `pattern` is a glob for the end of a path; no `archs` means all."""

    pattern: str
    verdicts: tuple[Verdict, ...]
    archs: tuple[str, ...]
    why: str

    def covers(self, path: str, arch: str) -> bool:
        """Say whether it speaks of this file and target."""
        return matches(path, self.pattern) and (not self.archs or arch in self.archs)


def matches(path: str, pattern: str) -> bool:
    """Say whether a path, or its end from some folder on, fits a glob."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*/{pattern}")


def load(paths: Iterable[Path]) -> tuple[Allowance, ...]:
    """Return the allowances of some files, in order.

    Raises:
        ConfigError: A file is wrong; every problem as `file:line: field: ...` (exit 5).
    """
    return tuple(found for path in paths for found in _load(path))


def _load(path: Path) -> tuple[Allowance, ...]:
    name = path.name if path == DEFAULT else str(path)
    problems = Problems(name)
    form = Form(read(path, name), problems)
    if form.integer("version", 0) != 1:
        form.problem("version", "must be 1")
    known = [target.name for target in targets()]
    lacks = [str(verdict) for verdict in (*FAILING, Verdict.PLAIN)]
    found = []
    for entry in form.forms("allowances"):
        found.append(
            Allowance(
                pattern=entry.text("file", required=True),
                archs=entry.texts("arch", check=lambda word: _one_of(word, known)),
                verdicts=tuple(
                    Verdict(word)
                    for word in entry.texts(
                        "verdict", required=True, check=lambda word: _one_of(word, lacks)
                    )
                ),
                why=entry.text("why", required=True, check=_reason),
            )
        )
        entry.close()
    form.close()
    problems.check()
    return tuple(found)


def _one_of(word: str, known: list[str]) -> str | None:
    return (
        None if word in known else f"'{word}' is none of {', '.join(known)}{nearest(word, known)}"
    )


def _reason(text: str) -> str | None:
    short = len(text) < SHORTEST
    return f"'{text}' is no reason: write {SHORTEST} characters or more" if short else None
