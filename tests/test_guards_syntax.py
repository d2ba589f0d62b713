"""The syntax guard: every touched file still compiles, and old faults are not laid at our door."""

from pathlib import Path

import pytest

from tests.guards_material import POOL, codes, look, three_way

GOOD = "def run(batch):\n    return first(batch)\n\n\ndef stop(batch):\n    return last(batch)\n"


def test_a_merge_that_leaves_half_a_statement_is_an_error_at_its_line() -> None:
    patched = GOOD.replace("first(batch)", "first(batch, 2)")
    onto = "VERSION = 2\n" + GOOD
    merged = onto.replace("first(batch)", "first(batch,")

    found = look(GOOD, patched, onto, merged)

    broken = [one for one in found if one.code == "E312"]
    assert codes(tuple(broken)) == ["error E312"]
    assert (broken[0].path, broken[0].line) == (POOL, 3)
    assert broken[0].hint == f"python3 -m py_compile {POOL}"


def test_two_clean_deletions_that_empty_a_body_are_found(tmp_path: Path) -> None:
    body = "        a(x)\n        # why\n        # so\n        b(x)\n"
    written = f"def run(x):\n    if x:\n{body}    c(x)\n"
    patched = written.replace("        a(x)\n", "")
    onto = written.replace("        b(x)\n", "")

    conflicts, merged = three_way(tmp_path, written, patched, onto)

    assert conflicts == 0
    assert "error E312" in codes(look(written, patched, onto, merged))


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ("call(a=1, b=2, a=1)", "keyword argument repeated: a"),
        ("(lambda x, x: x)", "duplicate argument 'x' in function definition"),
    ],
)
def test_what_parses_but_does_not_compile_is_found(ours: str, said: str) -> None:
    patched = GOOD.replace("first(batch)", "call(a=1)")
    onto = "VERSION = 2\n" + GOOD

    found = look(GOOD, patched, onto, onto.replace("first(batch)", ours))

    assert any(one.code == "E312" and said in one.message for one in found)


def test_return_at_module_level_is_found() -> None:
    patched = GOOD.replace("last(batch)\n", "last(batch)\n    # end\n")
    onto = "VERSION = 2\n" + GOOD

    found = look(GOOD, patched, onto, onto + "\n\nreturn 2\n")

    assert codes(found) == ["error E312"]
    assert "'return' outside function" in found[0].message


def test_a_file_that_upstream_has_broken_is_only_a_note() -> None:
    onto = GOOD.replace("    return first(batch)", "    if:\n    return first(batch)")
    patched = GOOD.replace("first(batch)", "first(batch, 2)")

    found = look(GOOD, patched, onto, onto.replace("first(batch)", "first(batch, 2)"))

    assert codes(found) == ["note E312"]
    assert found[0].message.endswith("; upstream's own file does not either")


def test_a_patch_that_never_compiled_says_so() -> None:
    patched = GOOD.replace("first(batch)", "first(batch")

    found = look(GOOD, patched, GOOD, patched)

    assert codes(found) == ["error E312"]
    assert found[0].message.endswith("; nor does the file as the patch was written")


def test_a_string_left_open_reaches_to_the_end_of_the_file() -> None:
    written = (
        'def run():\n    """Run."""\n    return 1\n\n\ndef stop():\n    """Stop."""\n    return 2\n'
    )
    onto = "VERSION = 2\n" + written

    found = look(written, written.replace("1", "3"), onto, onto.replace('Run."""', "Run."))

    assert "error E312" in codes(found)


def test_a_new_file_must_compile() -> None:
    assert codes(look(None, "def (:\n", None, "def (:\n")) == ["error E312"]
    assert look(None, GOOD, None, GOOD) == ()


def test_bytes_that_python_cannot_decode_are_an_error() -> None:
    latin = "NAME = 'é'\n".encode("latin-1")

    found = look(b"NAME = 1\n", latin, b"NAME = 1\n", latin)

    assert codes(found) == ["error E312"]
    assert "is not UTF-8 and the file declares no encoding" in found[0].message


def test_a_declared_encoding_and_a_byte_order_mark_are_fine() -> None:
    latin = "# -*- coding: latin-1 -*-\nNAME = 'é'\n".encode("latin-1")
    marked = b"\xef\xbb\xbfNAME = 1\n"

    assert look(b"", latin, b"", latin) == ()
    assert look(b"", marked, b"", marked) == ()


def test_a_nul_byte_is_reported_not_raised() -> None:
    assert codes(look(b"A = 1\n", b"A = \0\n", b"A = 1\n", b"A = \0\n")) == ["error E312"]


def test_an_invalid_escape_of_upstream_does_not_warn_us() -> None:
    text = 'PATTERN = "\\d"\nASKED = 1 is 1\n'

    assert look(text, text + "MORE = 2\n", "A = 1\n" + text, "A = 1\n" + text + "MORE = 2\n") == ()


def test_windows_line_ends_compile() -> None:
    text = GOOD.replace("\n", "\r\n")

    assert look(text, text.replace("first", "f"), text, text.replace("first", "f")) == ()


def test_a_deeply_nested_text_is_a_finding_and_not_a_crash() -> None:
    deep = "A = " + "(" * 5000 + ")" * 5000 + "\n"

    assert codes(look("A = 1\n", deep, "A = 1\n", deep)) == ["error E312"]
