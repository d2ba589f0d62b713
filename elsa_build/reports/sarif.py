"""A review as SARIF 2.1.0, for code scanning: a result keeps its identity while lines move.

Source: the OASIS standard of 2020-03-27; GitHub's page on what it reads of it.
"""

import json
from typing import Any

from elsa_build.diagnostics import Severity
from elsa_build.patches.review import Review
from elsa_build.reports import wording
from elsa_build.reports.sidebyside import visible
from elsa_build.reports.wording import Problem

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "elsaBuild/v1"

RULES = {
    "E331": ("Conflict", "A patch and upstream changed the same lines."),
    "E332": ("Blocked", "A patch builds on one that is in conflict."),
    "E333": ("Proposed", "A conflict has a proposal that nobody has accepted yet."),
    "E334": ("HalfUpstream", "Upstream has taken over a part of a patch."),
    "E335": ("Empty", "A patch changes nothing."),
    "E311": ("Landing", "A hunk landed in another function or branch than it was written for."),
    "E312": ("Syntax", "A merged file does not parse."),
    "E313": ("MissingModule", "A patch imports a module that the tree does not have."),
    "E314": ("MissingName", "A patch imports a name that its module does not have."),
    "E315": ("DefinedTwice", "A patch defines what upstream now defines too."),
    "E316": ("Dormant", "A part of a patch is not in the tree any more."),
    "E317": ("UnknownName", "A patch uses a name that is not defined there."),
}
"""Names and short texts; a code without one gets its own code as name."""

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


def render(review: Review) -> str:
    """Return the log as a JSON document."""
    found = wording.problems(review)
    codes = sorted({problem.finding.code for problem in found})
    driver = {
        "name": "elsa-build",
        "semanticVersion": review.tool,
        "version": review.tool,
        "rules": [_rule(code) for code in codes],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"elsa-build/rebase/{visible(review.series)}/"},
        "originalUriBaseIds": {
            "UPSTREAM": {"description": {"text": f"upstream's tree at {review.onto.commit}"}}
        },
        "columnKind": "utf16CodeUnits",
        "results": [_result(problem, codes) for problem in found],
    }
    if review.project:
        run["versionControlProvenance"] = [
            {"repositoryUri": review.project, "revisionId": review.onto.commit}
        ]
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _rule(code: str) -> dict[str, Any]:
    name, text = RULES.get(code, (code, "A guard has an objection to a merged patch."))
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": "error"},
    }


def _result(problem: Problem, codes: list[str]) -> dict[str, Any]:
    finding, patch = problem.finding, problem.step.patch
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": _LEVELS[finding.severity],
        "message": {"text": visible(str(finding))},
        "locations": [_location(wording.series_file(patch), patch.line, None)],
        "partialFingerprints": {FINGERPRINT: problem.fingerprint},
        "properties": {"patch": visible(patch.id), "outcome": str(problem.step.outcome)},
    }
    if finding.path:
        result["relatedLocations"] = [
            {"id": 1, **_location(finding.path, finding.line, "UPSTREAM")}
        ]
    return result


def _location(path: str, line: int | None, base: str | None) -> dict[str, Any]:
    from urllib.parse import quote  # noqa: PLC0415 - only this format has URIs

    artifact: dict[str, Any] = {"uri": quote(path.encode("utf-8", "surrogatepass"))}
    if base:
        artifact["uriBaseId"] = base
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if line:
        physical["region"] = {"startLine": line}
    return {"physicalLocation": physical}
