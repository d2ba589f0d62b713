"""What an audit of GPU code has to complain of, as diagnostics; the words of each verdict.

Codes: E410 nothing, E411 only PTX, E412 wrong suffix, E413 plain, E414 damaged, E415 required,
E416 not looked at, E417 an allowance that nothing needs, E418 no GPU code anywhere.
"""

from collections.abc import Sequence

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.kernels.allowances import Verdict
from elsa_build.kernels.census import Library
from elsa_build.kernels.coverage import Audit, Judged, Required, split
from elsa_build.kernels.fatbin import Kind
from elsa_build.kernels.target import Target


def findings(done: Audit) -> tuple[Diagnostic, ...]:
    """Return what is wrong, and what is worth a look, library by library."""
    said = [*(found for one in done.judged for found in _of_library(one, done.target))]
    said += [found for one in done.required for found in _of_required(one, done.target)]
    if not done.judged:
        # An audit of the wrong place must not look like a good one.
        message = f"no GPU code in {done.census.files} files"
        said.append(Diagnostic(code="E418", severity=Severity.WARNING, message=message))
    for unread in done.census.unread:
        said.append(
            Diagnostic(
                code="E416",
                severity=Severity.WARNING,
                message=f"was not looked at: {unread.why}",
                path=unread.name,
            )
        )
    for allowance in done.unneeded:
        said.append(
            Diagnostic(
                code="E417",
                severity=Severity.NOTE,
                message=f"{allowance.pattern} is allowed to lack {done.target.name} and does not",
            )
        )
    return tuple(said)


_CODES = {
    Verdict.NOTHING: "E410",
    Verdict.ONLY_PTX: "E411",
    Verdict.WRONG_SUFFIX: "E412",
    Verdict.PLAIN: "E413",
    Verdict.DAMAGED: "E414",
}


def _of_library(one: Judged, target: Target) -> Sequence[Diagnostic]:
    if one.verdict not in _CODES or one.allowed is not None:
        return ()
    texts = one.library.problems if one.verdict is Verdict.DAMAGED else (words(one, target),)
    hint = "elsa-build kernels coverage --allow FILE: allow it there, with the reason"
    return [
        Diagnostic(
            code=_CODES[one.verdict],
            severity=Severity.ERROR if one.failing else Severity.WARNING,
            message=text,
            path=one.library.name,
            hint=hint if one.failing and one.verdict is not Verdict.DAMAGED else None,
        )
        for text in texts
    ]


def words(one: Judged, target: Target) -> str:
    """Return a verdict as a clause: what is there, and what that means on the card."""
    there = ", ".join(f"sm_{form}" for form in sorted(forms(one.library), key=split))
    accepted = ", ".join(f"sm_{form}" for form in target.runs if split(form)[1])
    count, name = len(one.library.containers), target.name
    return {
        Verdict.COMPLETE: f"complete for {name}",
        Verdict.PARTIAL: f"{one.covered} of {count} fat binaries have code for {name}",
        Verdict.FOREIGN: f"cubins of other cards: {there}",
        Verdict.PLAIN: f"only plain sm_{target.number}, and others with a letter: {there}",
        Verdict.ONLY_PTX: f"only PTX for {name}: the driver compiles it at the first start",
        Verdict.WRONG_SUFFIX: f"wrong suffix for {name}: {there}; needs {accepted}",
        Verdict.NOTHING: f"nothing for {name}: {there or 'no machine code at all'}",
        Verdict.DAMAGED: "; ".join(one.library.problems),
    }[one.verdict]


def forms(library: Library) -> dict[str, int]:
    """Return how many entries of machine code there are of each form."""
    counted: dict[str, int] = {}
    for container in library.containers:
        for code in container:
            if code.kind is Kind.SASS:
                counted[code.form] = counted.get(code.form, 0) + 1
    return counted


def _of_required(one: Required, target: Target) -> Sequence[Diagnostic]:
    if one.verdict is None:
        message = f"'{one.name}' is required, and no library or family of that name has GPU code"
    elif one.failing:
        message = f"'{one.name}' is required for {target.name} and is {one.verdict}"
    elif one.verdict is Verdict.PARTIAL:
        message = f"'{one.name}' is required, and only a part of it has code for {target.name}"
    else:
        return ()
    severity = Severity.ERROR if one.failing else Severity.WARNING
    paths = [j.library.name for j in one.found if j.verdict is one.verdict]
    return [
        Diagnostic(code="E415", severity=severity, message=message, path=", ".join(paths) or None)
    ]
