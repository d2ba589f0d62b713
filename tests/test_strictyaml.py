"""YAML as typed: no guessed types, no key twice, every complaint with its line."""

import pytest

from elsa_build.errors import ConfigError
from elsa_build.strictyaml import Items, Problems, Scalar, Table, load, read
from elsa_build.yamlform import Form


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("typed", "taken_for"),
    [
        ("1.10", "a number"),
        ("1234567", "a number"),
        ("0001234", "a number"),
        ("12e4567", "a number"),
        ("0o17", "a number"),
        ("1:30", "a number"),
        ("2026-11-29", "a date"),
        ("on", "a truth value"),
        ("No", "a truth value"),
        ("~", "nothing"),
        ("", "nothing"),
        ("v1.10", None),
        ("sm_120", None),
    ],
)
def test_a_scalar_keeps_its_text_and_says_what_yaml_would_take_it_for(typed, taken_for):
    table = load(f"first: x\nkey: {typed}\n", "x.yaml")

    assert table.get("key").value == Scalar(text=typed, line=2, quoted=False, implicit=taken_for)


def test_a_quoted_scalar_is_text_and_nothing_else():
    table = load("a: '1.10'\nb: \"on\"\nc: |\n  12\n", "x.yaml")

    assert [(e.value.text, e.value.quoted, e.value.implicit) for e in table.entries] == [
        ("1.10", True, None),
        ("on", True, None),
        ("12\n", True, None),
    ]


def test_lists_and_mappings_know_their_lines():
    table = load("a:\n  - x\n  - y: 1\n", "x.yaml")

    items = table.get("a").value
    assert isinstance(items, Items)
    assert [node.line for node in items.nodes] == [2, 3]
    assert isinstance(items.nodes[1], Table)


def test_duplicates_anchors_aliases_and_tags_are_all_told_at_once():
    found = complaint("a: 1\nb: {c: 1, c: 2}\na: 2\nd: &x 3\ne: *x\nf: !!str 5\n")

    assert found.splitlines() == [
        "x.yaml:2: c: key twice, first on line 2",
        "x.yaml:3: a: key twice, first on line 1",
        "x.yaml:4: anchor '&x': write the value out",
        "x.yaml:5: alias '*x': write the value out",
        "x.yaml:6: tag 'tag:yaml.org,2002:str': values are text, quote them instead",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "x.yaml:1: the file is empty"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2: a second document"),
        ("? [a]\n: 1\n", "x.yaml:1: a key must be a word"),
        ("a: [1\nb: 2\n", "x.yaml:2: not YAML"),
        ("a:\n\tb: 1\n", "x.yaml:2: not YAML"),
        ("a: 1\nb: \x07\n", "x.yaml:2: not YAML: character U+0007 is not allowed"),
        ("[" * 99 + "]" * 99, "x.yaml:1: nested deeper than 20 levels"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(text, expected):
    assert complaint(text).startswith(expected)


def test_a_file_that_is_not_utf8_names_the_line_and_the_byte(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"a: 1\nb: caf\xe9\n")

    with pytest.raises(ConfigError, match=r"^x\.yaml:2: not UTF-8 \(byte 0xe9\)$"):
        read(path, "x.yaml")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"^gone\.yaml: cannot read: No such file"):
        read(tmp_path / "gone.yaml", "gone.yaml")


def test_a_form_collects_every_complaint_and_offers_the_nearest_field():
    problems = Problems("x.yaml")
    form = Form(
        load("tag: 1.10\nnumber: '3'\nswitch: yes\nmodle: x\nlist: a\n", "x.yaml"), problems
    )

    form.text("tag")
    form.integer("number", 0)
    form.boolean("switch")
    form.text("model", required=True)
    form.texts("list")
    form.close()

    with pytest.raises(ConfigError) as caught:
        problems.check()
    assert str(caught.value).splitlines() == [
        "x.yaml:1: tag: 1.10 is a number to YAML; quote it",
        "x.yaml:1: model: is missing",
        "x.yaml:2: number: must be a whole number, unquoted",
        "x.yaml:3: switch: must be true or false, unquoted",
        "x.yaml:4: modle: unknown field (did you mean 'model'?)",
        "x.yaml:5: list: must be a list",
    ]


def test_a_field_inside_a_list_of_mappings_is_named_with_its_place():
    problems = Problems("x.yaml")
    form = Form(load("patches:\n  - id: a\n  - id: 7\n", "x.yaml"), problems)

    for entry in form.forms("patches"):
        entry.text("id")

    assert problems.found == [(3, "patches[1].id: 7 is a number to YAML; quote it")]
