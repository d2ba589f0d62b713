"""The sentences of a review, the same in every report: what upstream did, what we want.

Also what a conflict is as a `Diagnostic`, so that annotations, SARIF, JUnit and GitLab say
the same.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.model import Outcome, Patch, Step
from elsa_build.patches.causes import Cause, Deed
from elsa_build.patches.guards.linediff import hunks
from elsa_build.patches.review import Case, Review, Site

LETTERS = {
    Outcome.CLEAN: "c",
    Outcome.PROPOSED: "P",
    Outcome.CONFLICT: "X",
    Outcome.ABSORBED: "a",
    Outcome.PARTIAL: "H",
    Outcome.EMPTY: "E",
    Outcome.BLOCKED: "B",
    Outcome.SKIPPED: "s",
}
"""One letter an outcome; capitals want a person. `G` is a clean merge that a guard refuses."""

MEANINGS = {
    "c": "clean",
    "G": "a guard objects",
    "P": "conflict, with a proposal",
    "X": "conflict",
    "B": "blocked by an earlier conflict",
    "H": "half of it is upstream",
    "E": "changes nothing",
    "a": "absorbed: upstream has it",
    "s": "skipped",
}

CODES = {
    Outcome.CONFLICT: "E331",
    Outcome.BLOCKED: "E332",
    Outcome.PROPOSED: "E333",
    Outcome.PARTIAL: "E334",
    Outcome.EMPTY: "E335",
}

_REASONS = {
    "contents": "both sides changed these lines",
    "add/add": "both sides added this file",
    "rename/delete": "one side renamed the file, the other deleted it",
    "rename/rename": "both sides renamed the file, to different names",
    "rename/add": "one side renamed a file to where the other added one",
    "file location": "the patch adds a file to a folder that upstream moved",
    "directory rename suggested": "the patch adds a file to a folder that upstream moved",
    "file/directory": "a file stands where the other side has a folder",
    "directory/file": "a file stands where the other side has a folder",
    "distinct modes": "the two sides gave the file different types",
    "distinct types": "the two sides gave the file different types",
    "binary": "both sides changed this binary file",
    "submodule": "both sides moved this submodule",
}


_DID = ("added", "removed", "changed", "replaced")
_DOES = ("adds", "removes", "changes", "replaces")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that keeps the series from shipping, as a finding with a stable name.

    `fingerprint` is the sha256 of patch, path and text, never of a line number.
    """

    step: Step
    finding: Diagnostic
    fingerprint: str


# --- the whole --------------------------------------------------------------------------------


def headline(review: Review) -> str:
    """Return the verdict in one line: how many apply, and which way the others do not."""
    steps = [step for step in review.done.steps if step.outcome is not Outcome.SKIPPED]
    good = sum(not step.failed for step in steps)
    if good == len(steps):
        return f"{_many(good, 'patch', 'patches')}: clean on {review.onto.name}"
    counted = Counter(_trouble(step) for step in steps if step.failed)
    rest = ", ".join(f"{count} {words}" for words, count in counted.items())
    return f"{good} of {len(steps)} patches clean on {review.onto.name}; {rest}"


def _trouble(step: Step) -> str:
    return {
        Outcome.CONFLICT: "in conflict",
        Outcome.PROPOSED: "with a proposal to accept",
        Outcome.BLOCKED: "blocked",
        Outcome.PARTIAL: "half upstream",
        Outcome.EMPTY: "empty",
    }.get(step.outcome, "stopped by a guard")


def letter(step: Step) -> str:
    """Return the sign of a step in the strip."""
    if step.outcome is Outcome.CLEAN and step.failed:
        return "G"
    return LETTERS[step.outcome]


def state(step: Step) -> str:
    """Return the outcome in words."""
    if step.blocked_by:
        return f"blocked by {step.blocked_by}"
    return MEANINGS[letter(step)]


def blocked(step: Step) -> str:
    """Return what being blocked means for a reader of the diffs."""
    return (
        f"It touches what {step.blocked_by} left in conflict, so settle that one first; this may "
        f"then apply by itself. It was written on {step.blocked_by}, so lines of that patch look "
        "below as if upstream had taken them away."
    )


# --- one conflict -----------------------------------------------------------------------------


def where(site: Site) -> str:
    """Return the place of a conflict: path, line on onto, and the function."""
    place = f"{site.path}:{site.line}" if site.line else site.path
    return f"{place} in {site.scope}" if site.scope else place


def places(case: Case) -> tuple[str, ...]:
    """Return the paths of a step's conflicts, each once, with how many places it has."""
    counted = Counter(site.path for site in case.sites)
    return tuple(f"{path} ({n} places)" if n > 1 else path for path, n in counted.items())


def reasons(case: Case) -> tuple[Cause, ...]:
    """Return the upstream commits that changed the very lines in conflict, each once."""
    exact = (cause for site in case.sites if site.exact for cause in site.causes)
    return tuple({cause.oid: cause for cause in exact}.values())


def bare_subject(cause: Cause) -> str:
    """Return a commit's subject without the pull request's number, which is shown beside it."""
    return cause.subject.removesuffix(f"(#{cause.pr})").rstrip()


_SIGNED = re.compile(r"(?:Co-authored-by|Signed-off-by|Reviewed-by):.*", re.IGNORECASE)


def explanation(cause: Cause) -> str:
    """Return what a commit's message says beside its subject, without the names at its end."""
    lines = (line for line in cause.body.split("\n") if not _SIGNED.fullmatch(line.strip()))
    return "\n".join(lines).strip("\n- ")


def reason(site: Site) -> str:
    """Return git's reason in a sentence, its own word where we know no better one."""
    if site.reason == "modify/delete":
        deleter, changer = ("the patch", "upstream")
        if not site.patch_deletes:
            deleter, changer = changer, deleter
        return f"{deleter} deleted the file, {changer} changed it"
    return _REASONS.get(site.reason, site.reason)


def upstream_did(site: Site) -> str:
    """Return what upstream did there, without its commits."""
    if site.region is None:
        return _to_the_file(site)
    if not site.exact and site.stacked:
        return f"Nothing: our own patch {_listed(site.stacked)} changed these lines."
    if not site.exact:
        return "Nothing to these very lines; the patch was written on others."
    return f"Upstream {_change(site.region.base, site.region.ours, _DID)}."


def _to_the_file(site: Site) -> str:
    folder = any(cause.deed is Deed.FOLDER for cause in site.causes)
    if folder and site.home:
        return f"Upstream moved the folder; the file's place is now {site.home}."
    if site.home:
        return f"Upstream moved the file to {site.home}."
    if site.gone:
        return "Upstream deleted the file."
    if site.patch_deletes:
        return "Upstream changed the file that the patch deletes."
    return f"{reason(site).capitalize()}."


def patch_wants(site: Site) -> str:
    """Return what the patch does there."""
    if site.region:
        return f"The patch {_change(site.region.base, site.region.theirs, _DOES)}."
    if site.patch_deletes:
        return "The patch deletes the file."
    added, removed = _counted(site.patch_diff)
    return f"The patch adds {_many(added, 'line')} to the file and removes {removed}."


def _change(base: str, new: str, words: tuple[str, str, str, str]) -> str:
    """Return a change in words, the verbs given: `adds 3 lines`, `replaced 2 lines by 5`."""
    adds, removes, changes, replaces = words
    old_lines, new_lines = base.split("\n")[:-1], new.split("\n")[:-1]
    found = hunks(old_lines, new_lines)
    removed = sum(hunk.old_stop - hunk.old_start for hunk in found)
    added = sum(hunk.new_stop - hunk.new_start for hunk in found)
    if removed == added:
        return f"{changes} {_many(removed, 'line')}"
    if removed and added:
        return f"{replaces} {_many(removed, 'line')} by {added}"
    return f"{adds} {_many(added, 'line')}" if added else f"{removes} {_many(removed, 'line')}"


def _counted(diff: str) -> tuple[int, int]:
    lines = [line for line in diff.split("\n") if not line.startswith(("+++ ", "--- "))]
    return sum(line[:1] == "+" for line in lines), sum(line[:1] == "-" for line in lines)


def landed(case: Case) -> str:
    """Return how far the hunks of a patch that applied moved, '' when none did."""
    moves = case.drift.moves
    offsets = [move.offset for move in moves if move.offset]
    parts = []
    if offsets:
        low, high = min(offsets), max(offsets)
        span = f"{low:+d}" if low == high else f"{low:+d} to {high:+d}"
        parts.append(f"{_many(len(offsets), 'hunk')} landed {span} lines from where written")
    parts += [
        f"{move.path}:{move.landed}: now under `{move.landed_scope}`, "
        f"was written under `{move.written_scope}`"
        for move in moves
        if move.written_scope != move.landed_scope
    ]
    return "; ".join(parts)


def worrying(step: Step) -> bool:
    """Say whether a guard has more than a note on a step."""
    return any(found.severity is not Severity.NOTE for found in step.findings)


def rescoped(case: Case) -> bool:
    """Say whether a hunk landed under another function line than it was written under."""
    return any(move.written_scope != move.landed_scope for move in case.drift.moves)


# --- findings ---------------------------------------------------------------------------------


def problems(review: Review) -> tuple[Problem, ...]:
    """Return all that keeps the series from shipping, worst first, then in series order."""
    rank = {Outcome.CONFLICT: 0, Outcome.PROPOSED: 1, Outcome.CLEAN: 2, Outcome.BLOCKED: 4}
    rows = sorted(review.rows, key=lambda row: rank.get(row[0].outcome, 3))
    return tuple(problem for step, case in rows for problem in problems_of(step, case))


def problems_of(step: Step, case: Case) -> Iterator[Problem]:
    """Yield what is wrong with one step; notes are not."""
    if step.failed and step.outcome is not Outcome.CLEAN:
        for site in case.sites:
            yield _of_site(step, site)
        if not case.sites:
            yield _problem(step, f"{step.patch.id}: {state(step)}", None, None, "")
    for finding in step.findings:
        if finding.severity is not Severity.NOTE:
            mark = f"{finding.code} {finding.path} {_lineless(finding.message)}"
            yield Problem(step=step, finding=finding, fingerprint=_sha(step.patch.id, mark))


def _of_site(step: Step, site: Site) -> Problem:
    text = (
        ""
        if site.region is None
        else f"{site.region.base}\0{site.region.ours}\0{site.region.theirs}"
    )
    named = ", ".join(_named(cause.pr, cause.subject) for cause in site.causes if site.exact)
    message = f"{step.patch.id}: {upstream_did(site)} {patch_wants(site)}"
    if named:
        message += f" Upstream's reason: {named}"
    return _problem(step, message, site.path, site.line, text)


def _problem(step: Step, message: str, path: str | None, line: int | None, text: str) -> Problem:
    return Problem(
        step=step,
        finding=Diagnostic(
            code=CODES.get(step.outcome, "E331"),
            severity=Severity.ERROR,
            message=message,
            path=path,
            line=line,
            hint=f"elsa-build resolve {step.patch.id}",
        ),
        fingerprint=_sha(step.patch.id, path or "", text),
    )


def series_file(patch: Patch) -> str:
    """Return the file of ours that lists a patch, as seen from the project's folder."""
    return f"patchsets/{patch.patchset}/series.yaml"


def fingerprint(review: Review) -> str:
    """Return a digest of what is wrong, not of when or where: the same trouble is the same one."""
    found = sorted(problem.fingerprint for problem in problems(review))
    outcomes = [[step.patch.id, str(step.outcome)] for step in review.done.steps]
    return f"sha256:{_sha(json.dumps([review.series, outcomes, found]))}"


def _named(pr: int | None, subject: str) -> str:
    return subject if pr is None or f"#{pr}" in subject else f"{subject} (#{pr})"


def _lineless(message: str) -> str:
    """Return a message without the numbers that a mere offset changes."""
    return re.sub(r"\b(?:line )?\d+\b", "N", message)


def _sha(*parts: str) -> str:
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()


def _many(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
