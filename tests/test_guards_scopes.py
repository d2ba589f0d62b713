"""The map behind the guards: pieces mean what the whole means, and every line has its place."""

import ast
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elsa_build.patches.guards.scopes import Block, blocks
from elsa_build.patches.guards.source import ModuleIndex, Source, keys

STDLIB = Path(sysconfig.get_paths()["stdlib"])
MODULES = ["argparse.py", "ast.py", "dataclasses.py", "enum.py", "inspect.py", "pydoc.py"]


def source(text: str) -> Source:
    return ModuleIndex().source(text.encode())


def places(text: str, line: int) -> list[str]:
    path = source(text).path(line)
    assert path is not None
    return [f"{frame.kind.value} {frame.block.words}" for frame in path]


def whole_path(outermost: tuple[Block, ...], line: int) -> list[tuple[str, str, int]]:
    path, inside = [], outermost
    while found := next((it for it in inside if it.first <= line <= it.last), None):
        path.append((found.kind.value, found.key, found.head))
        inside = found.children
    return path


@pytest.mark.parametrize("name", MODULES)
def test_a_text_in_pieces_has_the_places_of_the_whole_text(name: str) -> None:
    text = (STDLIB / name).read_text()
    whole = blocks(ast.parse(text), text.split("\n"))
    cut = source(text)

    for line, words in enumerate(cut.lines, start=1):
        if words.strip() and not words.strip().startswith("#"):
            path = cut.path(line)
            assert path is not None, line
            mine = [(frame.kind.value, frame.key, frame.head) for frame in path]
            assert mine == whole_path(whole, line), line


@pytest.mark.parametrize("name", [name for name in MODULES if name != "pydoc.py"])
def test_the_pieces_of_a_text_are_the_text_and_each_compiles(name: str) -> None:
    text = (STDLIB / name).read_text()
    index = ModuleIndex()
    cut = index.source(text.encode())

    assert "".join(piece.text for piece in cut.pieces) == text
    assert len(cut.pieces) > 10
    assert [index.compile(piece.code) for piece in cut.pieces] == [None] * len(cut.pieces)


PARTS = st.sampled_from(
    [
        "import os\n",
        "@one\n@two(\n    3,\n)\ndef f(a, b):\n    return a\n",
        'TEXT = """\ndef not_a_function():\n@nor_this\n"""\n',
        "TEXT = '''\nclass NotAClass:\n    def nor_this(self): ...\n'''\n",
        "if X:\n    def g(): ...\nelif Y:\n    pass\nelse:\n    h = 1\n",
        "try:\n    import a\nexcept ImportError:\n    a = None\nfinally:\n    b = 1\n",
        "class A(B):\n    x: int = 1\n\n    @p\n    def m(self):\n        if x:\n            y\n",
        "async def k():\n    async with a as b:\n        await c\n",
        "# def comment():\n",
        "(a, b) = 1, 2\n",
        "\n\n",
        "match x:\n    case 1:\n        a\n    case _:\n        b\n",
    ]
)


@settings(deadline=None)
@given(st.lists(PARTS, max_size=8))
def test_any_sum_of_statements_has_the_places_of_the_whole(parts: list[str]) -> None:
    text = "".join(parts)
    whole = blocks(ast.parse(text), text.split("\n"))
    cut = source(text)

    assert "".join(piece.text for piece in cut.pieces) == text
    for line, words in enumerate(cut.lines, start=1):
        if words.strip() and not words.strip().startswith("#"):
            path = cut.path(line)
            assert path is not None
            mine = [(frame.kind.value, frame.key, frame.head) for frame in path]
            assert mine == whole_path(whole, line)


def test_the_branches_of_a_chain_are_siblings_and_the_else_is_named_by_the_first() -> None:
    text = "def f(a):\n    if a > 1:\n        x\n    elif a > 0:\n        y\n    else:\n        z\n"

    assert places(text, 3) == ["def `f`", "if `if a > 1`"]
    assert places(text, 5) == ["def `f`", "if `if a > 0`"]
    assert places(text, 7) == ["def `f`", "else else of `if a > 1`"]


def test_a_condition_is_the_same_however_it_is_laid_out() -> None:
    flat = 'if ready(a, "b"):\n    run()\n'
    tall = "if ready(\n    a,  # why\n    'b',\n):\n    run()\n"

    ours, theirs = source(flat).path(2), source(tall).path(5)

    assert ours is not None
    assert theirs is not None
    assert keys(ours) == keys(theirs)


def test_columns_count_bytes_but_words_are_text() -> None:
    assert places('def f():\n    if é == "ü":\n        x\n', 3)[-1] == 'if `if é == "ü"`'


def test_a_broken_text_is_mapped_by_its_indentation() -> None:
    text = (
        "class A:\n    def f(self):\n        if x:\n            y(\n\n"
        "class B:\n    async def g(self):\n        z\n"
    )
    broken = source(text)

    assert broken.path(4) is None
    assert [frame.key for frame in broken.rough_path(4)] == ["A", "f"]
    assert [frame.key for frame in broken.rough_path(8)] == ["B", "g"]


def test_quotes_inside_of_a_string_do_not_mislead_for_long() -> None:
    text = (
        'QUOTES = \'"""\'\n\n\n'
        'def f():\n    """Say\n\ndef like_this():\n\n    again.\n    """\n    return 1\n\n\n'
        "def g():\n    if QUOTES:\n        return 2\n"
    )

    assert places(text, 11) == ["def `f`"]
    assert places(text, 16) == ["def `g`", "if `if QUOTES`"]


def test_an_empty_text_has_no_places() -> None:
    assert source("").path(1) == ()
