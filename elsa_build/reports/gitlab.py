"""A review as GitLab's code quality report: the same findings in its own five fields."""

import json

from elsa_build.diagnostics import Severity
from elsa_build.patches.review import Review
from elsa_build.reports import wording
from elsa_build.reports.sidebyside import visible

_SEVERITY = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.NOTE: "info"}


def render(review: Review) -> str:
    """Return the report as a JSON list; `[]` where nothing is wrong."""
    found = [
        {
            "description": visible(str(problem.finding)),
            "check_name": problem.finding.code,
            "fingerprint": problem.fingerprint,
            "severity": _SEVERITY[problem.finding.severity],
            "location": {
                "path": visible(wording.series_file(problem.step.patch)),
                "lines": {"begin": problem.step.patch.line},
            },
        }
        for problem in wording.problems(review)
    ]
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"
