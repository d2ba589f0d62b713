"""A saved review: nothing lost on the way, and nothing foreign taken for one."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from elsa_build.errors import ConfigError, ExitCode, ToolError
from elsa_build.model import Mail, Signature, Verdict
from elsa_build.reports import plainly, reading
from tests.reporting import EXAMPLES, example, filled

SCHEMA = EXAMPLES.parent / "schema" / "review-1.json"


def document():
    return json.loads(reading.to_json(example()))


def test_a_review_comes_back_as_it_was():
    assert reading.from_json(reading.to_json(example()), "x") == example()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.text())
def test_a_review_of_any_text_comes_back_as_it_was(text):
    review = filled(example(), text)

    assert reading.from_json(reading.to_json(review), "x") == review


@given(st.binary(max_size=40))
def test_bytes_and_paths_that_utf_8_cannot_hold_come_back(raw):
    mail = Mail(
        author=Signature(name=raw.decode("utf-8", "surrogateescape"), email="e", date="0 +0000"),
        message="m",
        diff=raw,
    )

    written = json.dumps(plainly.dump(mail), ensure_ascii=False).encode()

    assert plainly.load(Mail, json.loads(written)) == mail


def test_text_of_utf_8_is_text_in_the_document():
    step = document()["review"]["done"]["steps"][0]

    assert step["patch"]["mail"]["diff"].startswith("diff --git a/python/kiln/pool.py")


def test_the_document_is_one_line_end_and_sorted():
    text = reading.to_json(example())

    assert text.endswith("}\n")
    assert list(json.loads(text)) == ["review", "schema"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "x.json: is not JSON"),
        ("[]", "x.json: schema: is not a review of elsa-build"),
        ("{}", "x.json: schema: is not a review of elsa-build"),
        ('{"schema": 7}', "x.json: schema: is not a review of elsa-build"),
        ('{"schema": "sarif"}', "x.json: schema: is not a review of elsa-build"),
        (
            '{"schema": "elsa-build/rebase/1"}',
            "x.json: schema: is a document of 'elsa-build rebase', not a review",
        ),
        (
            '{"schema": "elsa-build/review/0"}',
            "x.json: schema: review 0 is of an older elsa-build; this one reads review 1",
        ),
        (
            '{"schema": "elsa-build/review/2"}',
            "x.json: schema: review 2 is of a newer elsa-build; this one reads review 1",
        ),
        ('{"schema": "elsa-build/review/1"}', "x.json: review: must be an object"),
        ("[" * 100_000, "x.json: is not JSON"),
    ],
)
def test_what_is_no_review_of_this_version_is_refused_with_a_reason(text, said):
    with pytest.raises(ConfigError) as caught:
        reading.from_json(text, "x.json")

    assert caught.value.message.startswith(said)
    assert caught.value.code is ExitCode.CONFIG
    assert "rebase" in caught.value.hint


def wrong(change):
    found = document()
    change(found["review"])
    with pytest.raises(ConfigError) as caught:
        reading.from_json(json.dumps(found), "x")
    return caught.value.message


def test_a_damaged_field_is_named_by_its_place():
    step = "x: review.done.steps[0]"

    assert wrong(lambda r: r.pop("made")) == "x: review.made: missing"
    assert wrong(lambda r: r.update(colour=1)) == "x: review.colour: unknown field"
    assert wrong(lambda r: r.update(made=1)) == "x: review.made: must be text"
    assert wrong(lambda r: r.update(cases={})) == "x: review.cases: must be a list"
    assert wrong(lambda r: r["cases"].pop()) == "x: review.cases: must be as many as the steps"
    assert wrong(lambda r: r.update(digests=[["a"]])) == "x: review.digests[0]: must have 2 items"
    assert (
        wrong(lambda r: r["done"]["steps"][0].update(outcome="fine"))
        == f"{step}.outcome: unknown word 'fine'"
    )
    assert (
        wrong(lambda r: r["done"]["steps"][0]["patch"].update(line=True))
        == f"{step}.patch.line: must be a whole number"
    )
    assert (
        wrong(lambda r: r["done"]["steps"][0]["patch"].update(hot_path=0))
        == f"{step}.patch.hot_path: must be true or false"
    )
    assert (
        wrong(lambda r: r["done"]["steps"][0]["patch"].update(why={"base64": "%"}))
        == f"{step}.patch.why: is not base64"
    )
    assert (
        wrong(lambda r: r["done"]["steps"][0]["patch"].update(why="\ud800"))
        == f"{step}.patch.why: holds half a character"
    )


def test_a_value_without_a_json_form_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="no JSON form for float"):
        plainly.dump(1.5)


def test_a_folder_of_reports_is_read_by_its_review(tmp_path):
    reading.write(tmp_path / "out" / reading.NAME, reading.to_json(example()))

    assert reading.read(tmp_path / "out") == example()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [reading.NAME]


def test_a_missing_file_is_named():
    with pytest.raises(ConfigError, match=r"nowhere\.json: no such file or directory"):
        reading.read(Path("nowhere.json"))


def test_a_disk_that_refuses_is_told_and_leaves_what_was_there(tmp_path):
    (tmp_path / "taken").write_text("mine")

    with pytest.raises(ToolError, match="cannot write"):
        reading.write(tmp_path / "taken" / "report.html", "x")

    assert (tmp_path / "taken").read_text() == "mine"


# --- the schema -------------------------------------------------------------------------------


def complaints(found):
    """Return the places that break the schema in the docs."""
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    return sorted(error.json_path for error in Draft202012Validator(schema).iter_errors(found))


def test_the_example_keeps_to_the_schema():
    assert complaints(document()) == []


def test_the_schema_refuses_what_a_review_has_not():
    found = document()
    found["review"]["colour"] = 1
    found["review"]["done"]["steps"][0]["outcome"] = "fine"

    assert complaints(found) == ["$.review", "$.review.done.steps[0].outcome"]


def test_every_word_of_a_closed_set_is_in_the_schema():
    defs = reading.schema()["$defs"]

    assert defs["Absorption"]["properties"]["verdict"]["enum"] == [str(v) for v in Verdict]


def undescribed(value):
    if isinstance(value, dict):
        return {k: undescribed(v) for k, v in value.items() if k != "description"}
    return [undescribed(item) for item in value] if isinstance(value, list) else value


def test_the_schema_in_the_docs_is_what_a_review_holds():
    # Else run: python docs/examples/make.py
    assert undescribed(json.loads(SCHEMA.read_text())) == undescribed(reading.schema())
