"""Says of every library whether a card can run it, before the card is there to say no.

A library without machine code for the card fails at its first kernel, one with only PTX compiles
for minutes at the first start, and one with the wrong suffix is refused or silently slow. All here
is a pure function of what `elsa_build.kernels.census` read.
Source: CUDA's rules for `a` (this capability only), `f` (this generation) and plain code.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import PurePosixPath

from elsa_build.kernels.allowances import FAILING, Allowance, Verdict, matches
from elsa_build.kernels.census import Census, Library
from elsa_build.kernels.fatbin import Code, Kind
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a library has for a target; sizes in bytes of fat binary entries.

    `covered` of its containers have code that runs; `fits` is that code, `dead` what the card
    never loads, `total` both and PTX that would be compiled. `allowed` is the reason of the list.
    """

    library: Library
    verdict: Verdict
    covered: int
    fits: int
    dead: int
    total: int
    allowed: str | None = None

    @property
    def failing(self) -> bool:
        """Say whether it fails an audit."""
        return self.verdict in FAILING and self.allowed is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Required:
    """A name that must be there, a library or a family, and what there is of it."""

    name: str
    found: tuple[Judged, ...]
    verdict: Verdict | None

    @property
    def failing(self) -> bool:
        """Say whether it is missing, or not fit to run at full speed."""
        return self.verdict not in (Verdict.COMPLETE, Verdict.PARTIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """A census judged for one target."""

    target: Target
    census: Census
    judged: tuple[Judged, ...]
    families: tuple[tuple[str, Verdict], ...]
    required: tuple[Required, ...]
    unneeded: tuple[Allowance, ...]


def audit(
    census: Census,
    target: Target,
    *,
    allowances: Sequence[Allowance] = (),
    require: Sequence[str] = (),
) -> Audit:
    """Judge what was read for a target; `require` names libraries (`common_ops`) or families."""
    judged = tuple(_allow(judge(one, target), target, allowances) for one in census.libraries)
    families = [
        (name, overall(tuple(group)))
        for name, group in groupby(judged, key=lambda one: one.library.family)
    ]
    return Audit(
        target=target,
        census=census,
        judged=judged,
        families=tuple(families),
        required=tuple(_required(name, judged) for name in require),
        unneeded=tuple(
            one
            for one in allowances
            if (named := [j for j in judged if one.covers(j.library.path, target.name)])
            and not any(j.verdict in one.verdicts for j in named)
        ),
    )


def judge(library: Library, target: Target) -> Judged:
    """Return a library's verdict and weight for a target."""
    covered = fits = dead = total = 0
    usable = False
    for container in library.containers:
        own = [code for code in container if runs(code, target)]
        ptx = [code for code in container if compiles(code, target)]
        weight = sum(code.size for code in container)
        live = sum(code.size for code in own or ptx)
        covered += bool(own)
        usable = usable or bool(ptx)
        fits += live if own else 0
        dead += weight - live
        total += weight
    for container in library.unlinked:
        weight = sum(code.size for code in container)
        # The driver links these when nothing linked fits; else it never looks at them.
        usable = usable or any(compiles(code, target) for code in container)
        dead += weight
        total += weight
    return Judged(
        library=library,
        verdict=_verdict(library, target, covered, usable=usable),
        covered=covered,
        fits=fits,
        dead=dead,
        total=total,
    )


def runs(code: Code, target: Target) -> bool:
    """Say whether the card runs this as it is."""
    return code.kind is Kind.SASS and code.form in target.runs


def compiles(code: Code, target: Target) -> bool:
    """Say whether the driver could compile this for the card at the first start."""
    number, letter = split(code.form)
    if code.kind is not Kind.PTX:
        return False
    if letter == "a":
        return number == target.number
    same = number // 10 == target.number // 10
    return number <= target.number and (not letter or (letter == "f" and same))


def _verdict(library: Library, target: Target, covered: int, *, usable: bool) -> Verdict:
    if library.problems:
        return Verdict.DAMAGED
    if covered:
        if _only_plain(library, target):
            # What we build is asked for with the letter: without it, something went wrong.
            ours = library.family in tuple(Family)
            return Verdict.WRONG_SUFFIX if ours else Verdict.PLAIN
        return Verdict.COMPLETE if covered == len(library.containers) else Verdict.PARTIAL
    if usable:
        return Verdict.ONLY_PTX
    numbers = {
        split(code.form)[0] for c in library.containers for code in c if code.kind is Kind.SASS
    }
    if any(number // 10 == target.number // 10 for number in numbers):
        return Verdict.WRONG_SUFFIX
    return Verdict.FOREIGN if library.cubins else Verdict.NOTHING


def _only_plain(library: Library, target: Target) -> bool:
    """Say whether all that runs is plain, where other cards have code with a letter.

    A library of a few such kernels (torch: 59 of 475 fat binaries) guards them by capability; one
    where at least half have them was built for cards with a letter, and ours was forgotten.
    Source: vllm-project/vllm 41738, mostlygeek/llama-swap 1066.
    """
    own = {c.form for container in library.containers for c in container if runs(c, target)}
    if any(split(form)[1] for form in own):
        return False
    if library.family in tuple(Family):
        return bool(split(target.gencode)[1])
    others = sum(
        any(code.kind is Kind.SASS and split(code.form)[1] for code in container)
        for container in library.containers
    )
    return others * 2 >= len(library.containers) and others > 0


def overall(judged: Sequence[Judged]) -> Verdict:
    """Return the verdict of several libraries: the worst that is not allowed."""
    counted = [one.verdict for one in judged if one.allowed is None]
    if not counted:
        counted = [one.verdict for one in judged]
    order = list(Verdict)
    return max(counted, key=order.index)


def _allow(one: Judged, target: Target, allowances: Sequence[Allowance]) -> Judged:
    for allowance in allowances:
        if allowance.covers(one.library.path, target.name) and one.verdict in allowance.verdicts:
            return replace(one, allowed=allowance.why)
    return one


def _required(name: str, judged: Sequence[Judged]) -> Required:
    found = tuple(one for one in judged if _named(one.library, name))
    return Required(name=name, found=found, verdict=overall(found) if found else None)


def _named(library: Library, name: str) -> bool:
    """Say whether a name means this library: its family, its stem, or a glob for its path."""
    stem = PurePosixPath(library.path).name.partition(".")[0]
    return name in (library.family, stem, stem.removeprefix("lib")) or matches(library.path, name)


def split(form: str) -> tuple[int, str]:
    """Return the number and the letter of a form: `120a` is 120 and `a`."""
    digits = re.match(r"\d*", form)
    number = digits[0] if digits else ""
    return int(number or 0), form[len(number) :]
