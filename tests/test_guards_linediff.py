"""The line diff: right, the same each time, and fast on long files."""

import time
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from elsa_build.patches.guards.linediff import Hunk, hunks

LINES = st.lists(st.sampled_from(["", "a", "b", "    c", "    d", "        e"]), max_size=30)


@settings(deadline=None)
@given(LINES, LINES)
def test_the_hunks_applied_to_the_old_text_give_the_new(old: list[str], new: list[str]) -> None:
    found = hunks(old, new)

    result: list[str] = []
    at = 0
    for hunk in found:
        result += old[at : hunk.old_start] + new[hunk.new_start : hunk.new_stop]
        at = hunk.old_stop
    assert result + old[at:] == new


@settings(deadline=None)
@given(LINES, LINES)
def test_between_two_hunks_there_is_a_line_that_stayed(old: list[str], new: list[str]) -> None:
    found = hunks(old, new)

    for before, after in pairwise(found):
        kept = after.old_start - before.old_stop
        assert kept == after.new_start - before.new_stop
        assert kept > 0
    assert all(hunk.old_start < hunk.old_stop or hunk.new_start < hunk.new_stop for hunk in found)


@settings(deadline=None)
@given(LINES)
def test_equal_texts_have_no_hunks(lines: list[str]) -> None:
    assert hunks(lines, lines) == ()


def test_an_inserted_call_is_one_whole_statement_whatever_its_neighbours_share() -> None:
    def call(name: str) -> list[str]:
        return ["    add(", f'        "{name}",', "    )"]

    old = ["def f():", *call("a"), *call("c")]
    new = ["def f():", *call("a"), *call("b"), *call("c")]

    assert hunks(old, new) == (Hunk(4, 4, 4, 7),)


def test_a_removed_function_is_one_whole_function() -> None:
    def function(name: str) -> list[str]:
        return [f"    def {name}(self):", "        return 1", ""]

    old = ["class A:", *function("a"), *function("b"), *function("c")]
    new = ["class A:", *function("a"), *function("c")]

    assert hunks(old, new) == (Hunk(4, 7, 4, 4),)


def test_ten_thousand_lines_without_a_unique_one_are_compared_in_no_time() -> None:
    old = [f"    line = step({number % 3000})" for number in range(10_000)]
    new = list(old)
    for at in range(9_500, 0, -500):
        new[at : at + 2] = ["    ours = 1", f"    ours = {at}"]
    start = time.process_time()

    found = hunks(old, new)

    assert len(found) == 19
    assert time.process_time() - start < 1
