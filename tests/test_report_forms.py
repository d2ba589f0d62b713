"""Markdown, annotations, SARIF, JUnit and GitLab: the same findings, each by its reader's rules."""

import dataclasses
import difflib
import json
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.model import Outcome, Region
from elsa_build.reports import forms, github, gitlab, junit, markdown, reading, sarif, wording
from elsa_build.reports.forms import FILES, Form
from tests.reporting import EXAMPLES, example, filled

ANY = st.text(alphabet=st.characters()) | st.text(alphabet="`|<>@#*[]()&\n\r%:,~_ ab1")
FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def repeated(count, lines=3):
    """Return the example with one conflict `count` times over, each of so many lines."""
    step, case = next(row for row in example().rows if row[0].outcome is Outcome.PROPOSED)
    region = Region(line=1, ours="ours\n" * lines, base="base\n" * lines, theirs="our\n" * lines)
    site = dataclasses.replace(case.sites[0], region=region)
    steps = tuple(
        dataclasses.replace(
            step,
            outcome=Outcome.CONFLICT,
            proposal=None,
            patch=dataclasses.replace(step.patch, id=f"p{n}"),
        )
        for n in range(count)
    )
    return dataclasses.replace(
        example(),
        done=dataclasses.replace(example().done, steps=steps),
        cases=(dataclasses.replace(case, sites=(site,), proposal=""),) * count,
    )


@pytest.mark.parametrize("form", [form for form in Form if form is not Form.HTML])
def test_the_examples_in_the_docs_are_what_is_rendered_now(form):
    known = (EXAMPLES / FILES[form]).read_text(encoding="utf-8")

    made = forms.render(reading.read(EXAMPLES), form)

    difference = difflib.unified_diff(known.split("\n"), made.split("\n"), "docs", "now", n=1)
    assert made == known, "\n".join([*difference, "run: python docs/examples/make.py"])


def test_the_story_of_the_examples_still_ends_as_they_say():
    told = [(step.patch.id, step.outcome, step.failed) for step in example().done.steps]

    known = reading.read(EXAMPLES).done.steps
    assert told == [(step.patch.id, step.outcome, step.failed) for step in known]


def test_a_folder_of_reports_has_every_form_and_the_review(tmp_path):
    paths = forms.store(tmp_path / "out", example())

    assert {path.name for path in paths} == {*FILES.values(), reading.NAME}
    assert all(path.stat().st_size for path in paths)


# --- Markdown ---------------------------------------------------------------------------------


def test_the_comment_begins_with_its_marker_its_fingerprint_and_its_verdict():
    marker, fingerprint, title = markdown.render(example()).split("\n")[:3]

    assert marker == "<!-- elsa-build:rebase -->"
    assert fingerprint == f"<!-- elsa-build:fingerprint {wording.fingerprint(example())} -->"
    assert title.startswith("## 2 of 6 patches clean on nightly;")


@pytest.mark.parametrize(("count", "lines"), [(1, 3), (60, 40), (3, 20_000), (2_000, 3)])
def test_a_comment_always_fits_and_says_what_it_leaves_out(count, lines):
    text = markdown.render(repeated(count, lines))

    assert len(text) <= markdown.LIMIT
    shown = text.count("<details>")
    assert text.count("</details>") == shown
    if shown < count:
        assert f"{count - shown} without a section" in text
        assert "`elsa-build report FILE --format html`" in text


def test_a_comment_may_be_smaller_still():
    assert len(markdown.render(repeated(30, 20), limit=10_000)) <= 10_000


def test_a_link_to_a_pull_request_leaves_no_mark_on_it():
    text = markdown.render(example())

    assert "https://redirect.github.com/example/kiln/pull/218" in text
    assert "https://github.com/" not in text


def outside_code(text):
    """Return Markdown without its fenced blocks and code spans."""
    text = re.sub(r"(?ms)^(`{3,})[a-z]*\n.*?^\1$", "", text)
    return re.sub(r"(?s)(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)", "", text)


@FEW
@given(ANY)
def test_no_text_mentions_links_or_tags(text):
    shown = outside_code(markdown.render(filled(example(), text, keep=("project",))))

    assert not re.search(r"@\w", shown)
    assert not re.search(r"(?<![\w&])#\d", shown)
    assert set(re.findall(r"<(\w+)", shown)) <= {"details", "summary", "b", "br", "sub"}


@pytest.mark.parametrize("text", ["```\n</details>", "`````", "a ``` b\n```\n"])
def test_a_fence_in_a_diff_does_not_end_the_fence(text):
    found = repeated(1)
    region = Region(line=1, ours=f"{text}\n", base="x\n", theirs="y\n")
    site = dataclasses.replace(found.cases[0].sites[0], region=region)
    case = dataclasses.replace(found.cases[0], sites=(site,))

    shown = outside_code(markdown.render(dataclasses.replace(found, cases=(case,))))

    assert shown.count("</details>") == 1


def test_a_bar_in_a_name_does_not_end_a_cell():
    lines = markdown.render(filled(example(), "a|b")).split("\n")

    row = next(line for line in lines if line.startswith("| `a"))

    assert len(re.findall(r"(?<!\\)\|", row)) == 5


# --- annotations ------------------------------------------------------------------------------


def test_an_annotation_stands_at_the_patchs_entry_and_names_upstreams_line():
    first = github.render(example()).split("\n")[1]

    assert first.startswith(
        "::error file=patchsets/kiln-1.4/series.yaml,line=12,title=E333 reserve-a-slot"
        "::python/kiln/pool.py:17: reserve-a-slot: Upstream changed 2 lines. The patch changes 1"
    )


def test_what_would_end_or_split_an_annotation_is_escaped():
    line = github.annotation("error", "50%\r\n::x", file="a,b:c.yaml", line=3, title="t,%:\n")

    assert line == ("::error file=a%2Cb%3Ac.yaml,line=3,title=t%2C%25%3A%0A::50%25%0D%0A::x")


@pytest.mark.parametrize(("count", "lines"), [(0, 0), (1, 1), (10, 10), (11, 10), (300, 10)])
def test_at_most_ten_of_a_kind_and_the_tenth_counts_the_rest(count, lines):
    found = github.render(repeated(count)).splitlines()

    assert len(found) == lines
    if count > 10:
        assert found[-1] == (
            f"::error title={count - 9} more of this kind::"
            f"{count - 9} more: the whole list is in the report"
        )


def test_warnings_have_ten_of_their_own():
    warning = Diagnostic(code="E311", severity=Severity.WARNING, message="m", path="a", line=1)
    review = repeated(12)
    steps = tuple(dataclasses.replace(s, findings=(warning,)) for s in review.done.steps)
    review = dataclasses.replace(review, done=dataclasses.replace(review.done, steps=steps))

    kinds = [line.partition(" ")[0] for line in github.render(review).splitlines()]

    assert kinds == ["::error"] * 10 + ["::warning"] * 10


@FEW
@given(ANY)
def test_any_text_stays_in_its_line(text):
    benign, any_text = (github.render(filled(example(), words)) for words in ("x", text))

    assert len(any_text.split("\n")) == len(benign.split("\n"))
    assert all(line.startswith("::error ") for line in any_text.split("\n")[:-1])


def test_the_worst_come_first():
    outcomes = [problem.step.outcome for problem in wording.problems(example())]

    assert outcomes == [Outcome.CONFLICT, Outcome.PROPOSED, Outcome.CLEAN, Outcome.BLOCKED]


# --- SARIF ------------------------------------------------------------------------------------


def assert_sarif(log):
    """Hold a log to what SARIF 2.1.0 requires of the parts that we write."""
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "elsa-build"
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert re.fullmatch(r"[A-Za-z0-9]+", rule["name"])
    for result in run["results"]:
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (digest,) = result["partialFingerprints"].values()
        assert re.fullmatch("[0-9a-f]{64}", digest)
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            physical = location["physicalLocation"]
            assert re.fullmatch(r"[A-Za-z0-9._~%/-]+", physical["artifactLocation"]["uri"])
            assert physical.get("region", {"startLine": 1})["startLine"] >= 1
            base = physical["artifactLocation"].get("uriBaseId")
            assert base is None or base in run["originalUriBaseIds"]


def test_the_log_keeps_to_the_standard():
    assert_sarif(json.loads(sarif.render(example())))
    assert_sarif(json.loads(sarif.render(repeated(40))))


@FEW
@given(ANY.filter(lambda text: text != ""))
def test_the_log_keeps_to_the_standard_with_any_text(text):
    assert_sarif(json.loads(sarif.render(filled(example(), text, keep=("code",)))))


def digests(review):
    results = json.loads(sarif.render(review))["runs"][0]["results"]
    return [tuple(result["partialFingerprints"].values()) for result in results]


def test_a_result_keeps_its_identity_when_lines_move():
    moved = []
    for case in example().cases:
        sites = tuple(
            dataclasses.replace(
                site,
                line=site.line and site.line + 100,
                region=site.region
                and dataclasses.replace(site.region, line=site.region.line + 100),
            )
            for site in case.sites
        )
        moved.append(dataclasses.replace(case, sites=sites))
    steps = tuple(
        dataclasses.replace(
            step,
            findings=tuple(dataclasses.replace(f, line=(f.line or 0) + 100) for f in step.findings),
        )
        for step in example().done.steps
    )
    done = dataclasses.replace(example().done, steps=steps)

    assert digests(dataclasses.replace(example(), done=done, cases=tuple(moved))) == digests(
        example()
    )


def test_another_text_is_another_result():
    one, other = repeated(1), repeated(1, lines=4)

    assert digests(one) != digests(other)


# --- JUnit and GitLab -------------------------------------------------------------------------


def test_a_patch_is_a_test_case_that_passes_fails_or_is_skipped():
    suite = ET.fromstring(junit.render(example())).find("testsuite")

    told = {
        case.get("name"): next((part.tag for part in case), "passed")
        for case in suite.iter("testcase")
    }
    assert told == {
        "note-copies": "passed",
        "reserve-a-slot": "failure",
        "count-refusals": "failure",
        "no-empty-batch": "skipped",
        "age-of-batch": "failure",
        "colour-by-model": "failure",
        "old-shortcut": "skipped",
    }
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "7",
        "failures": "4",
        "errors": "0",
        "skipped": "2",
    }


def test_an_accepted_proposal_is_no_failure():
    steps = tuple(
        dataclasses.replace(step, commit=example().done.head)
        if step.outcome is Outcome.PROPOSED
        else step
        for step in example().done.steps
    )
    review = dataclasses.replace(example(), done=dataclasses.replace(example().done, steps=steps))

    suite = ET.fromstring(junit.render(review))

    assert suite.get("failures") == "3"


@FEW
@given(ANY)
def test_any_text_is_xml_that_can_be_read(text):
    rendered = junit.render(filled(example(), text))

    root = ET.fromstring(rendered.encode())
    assert len(list(root.iter("testcase"))) == 7


def test_gitlab_gets_its_five_fields():
    found = json.loads(gitlab.render(example()))

    assert len(found) == 4
    assert all(
        set(item) == {"description", "check_name", "fingerprint", "severity", "location"}
        for item in found
    )
    assert found[0]["location"] == {
        "path": "patchsets/kiln-1.4/series.yaml",
        "lines": {"begin": 36},
    }
    assert json.loads(gitlab.render(repeated(0))) == []


# --- the command ------------------------------------------------------------------------------


def elsa(*args, cwd):
    code = "from elsa_build.cli.main import run; run()"
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_report_writes_the_form_that_was_asked_for(tmp_path):
    ran = elsa("report", str(EXAMPLES), "--format", "markdown", "-o", "out/c.md", cwd=tmp_path)

    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith("2 of 6 patches clean on nightly; ")
    assert (tmp_path / "out/c.md").read_text() == (EXAMPLES / "report.md").read_text()


def test_report_prints_to_stdout_and_nothing_else(tmp_path):
    ran = elsa("report", str(EXAMPLES / "review.json"), "--format", "junit", cwd=tmp_path)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (EXAMPLES / "junit.xml").read_text()


def test_report_as_json_says_what_it_made(tmp_path):
    ran = elsa("report", str(EXAMPLES), "-o", "x.html", "--json", "-n", cwd=tmp_path)

    told = json.loads(ran.stdout)
    assert told["schema"] == "elsa-build/report/1"
    assert told["data"]["output"] == "x.html"
    assert not told["data"]["clean"]
    assert not (tmp_path / "x.html").exists()


def test_report_refuses_what_is_no_review(tmp_path):
    (tmp_path / "old.json").write_text('{"schema": "elsa-build/review/0"}')

    ran = elsa("report", "old.json", cwd=tmp_path)

    assert ran.returncode == 5
    assert ran.stderr == (
        "error: old.json: schema: review 0 is of an older elsa-build; this one reads review 1\n"
        "hint: elsa-build rebase --onto REF --report DIR\n"
    )


def test_report_knows_its_forms(tmp_path):
    ran = elsa("report", str(EXAMPLES), "--format", "pdf", cwd=tmp_path)

    assert ran.returncode == 2
