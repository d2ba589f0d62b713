"""A review as JUnit XML, for dashboards that know tests: a patch is a test case.

A patch that does not stand is a failure, one that had nothing to do is skipped.
"""

import re
from xml.etree import ElementTree as ET

from elsa_build.model import Outcome, Step
from elsa_build.patches.review import Case, Review
from elsa_build.reports import wording
from elsa_build.reports.sidebyside import visible

_ILLEGAL = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped; ElementTree would write it all the same."""


def render(review: Review) -> str:
    """Return one test suite."""
    steps = review.done.steps
    failed = sum(step.failed for step in steps)
    skipped = sum(_idle(step) for step in steps)
    counts = {"tests": len(steps), "failures": failed, "errors": 0, "skipped": skipped}
    root = ET.Element("testsuites", {key: str(count) for key, count in counts.items()})
    suite = ET.SubElement(root, "testsuite", dict(root.attrib))
    suite.set("name", _legal(f"{review.series} on {review.onto.name}"))
    suite.set("timestamp", _legal(review.made[:19]))
    suite.set("time", "0")
    for step, case in review.rows:
        _testcase(suite, step, case)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="utf-8"?>\n', "\n")
    )


def _testcase(suite: ET.Element, step: Step, case: Case) -> None:
    patch = step.patch
    names = {"classname": _legal(patch.patchset), "name": _legal(patch.id), "time": "0"}
    test = ET.SubElement(suite, "testcase", {**names, "file": _legal(wording.series_file(patch))})
    if step.failed:
        found = wording.problems_of(step, case)
        failure = ET.SubElement(test, "failure")
        failure.set("type", "guard" if step.outcome is Outcome.CLEAN else str(step.outcome))
        failure.set("message", _legal(wording.state(step)))
        failure.text = _legal("\n".join(str(problem.finding) for problem in found))
    elif _idle(step):
        ET.SubElement(test, "skipped", {"message": _legal(wording.state(step))})


def _idle(step: Step) -> bool:
    return not step.failed and step.commit is None


def _legal(text: str) -> str:
    lines = (visible(line) for line in text.split("\n"))
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", "\n".join(lines))
