"""The landing guard: a hunk lies where it was written, or somebody hears of it."""

import subprocess
from pathlib import Path
from textwrap import dedent, indent
from zipfile import ZipFile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import release
from tests.guards_material import POOL, codes, gnu_patch, look, three_way


def verify_module(*, coins: str = "", sparse: str = "", extra: int = 0) -> str:
    """A function with a greedy branch and, 300 lines below, a sampling branch that looks alike.

    `coins` is what upstream adds to the sampling branch's call, `sparse` what the patch adds.
    """
    greedy = "\n".join(f"        greedy_{number} = step(batch, {number})" for number in range(300))
    above = "\n".join(f"LIMIT_{number} = {number}" for number in range(extra))
    return f'''\
"""Accept the longest right prefix of a drafted tree."""
{above}

def accept(batch, logits, draft):
    scores = logits.float()
    if uses_greedy(batch.sampling, draft.width):
        candidates = draft.tokens
        target = rank(scores)
        predict = walk(candidates, target)
        accepted = predict.lengths
{greedy}
    else:
        coins = toss(batch.sampling)
        candidates = draft.tokens
        target = rank(scores)
        predict = walk(candidates, target{coins}{sparse})
        accepted = predict.lengths
        release(draft)
    return predict, accepted
'''


def test_the_guard_names_what_gnu_patch_puts_into_the_wrong_branch(tmp_path: Path) -> None:
    written = verify_module()
    patched = verify_module(sparse=", sparse=True")
    onto = verify_module(coins=", coins")

    code, landed = gnu_patch(tmp_path, written, patched, onto)
    found = look(written, patched, onto, landed)

    assert code == 0
    compile(landed, POOL, "exec")
    assert codes(found) == ["error E311"]
    assert found[0].path == POOL
    assert found[0].line == 9
    assert found[0].message == (
        "the hunk at line 315 of the patched file was written in `accept`, "
        "else of `if uses_greedy(batch.sampling, draft.width)`, but landed in `accept`, "
        "`if uses_greedy(batch.sampling, draft.width)` (line 9)"
    )
    assert found[0].hint == (
        "move it to where it was written, in `accept`, "
        f"else of `if uses_greedy(batch.sampling, draft.width)`: {POOL}:311"
    )


def test_a_right_landing_400_lines_further_down_gives_no_finding(tmp_path: Path) -> None:
    def version(*, sparse: str = "", extra: int = 0) -> str:
        text = verify_module(sparse=sparse, extra=extra)
        return text.replace("predict = walk", "predict = greedy_walk", 1)

    written = version()
    patched = version(sparse=", sparse=True")
    onto = version(extra=400).replace("release(draft)", "release(draft, batch)")

    code, landed = gnu_patch(tmp_path, written, patched, onto)

    assert code == 0
    assert landed.count("sparse=True") == 1
    assert look(written, patched, onto, landed) == ()


def test_one_reworded_line_beside_the_hunk_is_enough_and_the_guard_sees_it(
    tmp_path: Path,
) -> None:
    written = verify_module()
    patched = verify_module(sparse=", sparse=True")
    onto = verify_module(extra=400).replace("release(draft)", "release(draft, batch)")

    code, landed = gnu_patch(tmp_path, written, patched, onto)
    found = look(written, patched, onto, landed)

    assert code == 0
    assert codes(found) == ["error E311"]
    assert "else of `if uses_greedy" in found[0].message


@pytest.mark.wheel
def test_on_upstream_s_own_text_the_guard_names_the_wrong_branch(tmp_path: Path) -> None:
    """One reworded argument in the greedy call sends the hunk into the next branch's equal call."""
    _, wheel, _ = release.fetch(tmp_path)
    with ZipFile(wheel) as archive:
        written = archive.read("sglang/srt/speculative/eagle_utils.py").decode()
    last = "            topk=verify_input.tree_topk,\n"
    patched = written.replace(last, last + "            deterministic=True,\n", 1)
    argument = "            target_predict=target_predict,\n" + last
    onto = written.replace(
        argument, argument.replace("=target_predict", "=target_predict.int()"), 1
    )
    assert written.count(argument) == 2

    code, landed = gnu_patch(tmp_path, written, patched, onto)
    found = look(written, patched, onto, landed)

    assert code == 0
    compile(landed, POOL, "exec")
    assert codes(found) == ["error E311"]
    assert "written in `eagle_sample`, `if _verify_uses_greedy(" in found[0].message
    assert "landed in `eagle_sample`, `if _can_use_sparse_uno_tree_target_samp" in found[0].message


POOLS = """
class Pool:
    def __init__(self, size):
        self.size = size

    def store(self, layer, keys, values):
        index = self.index[layer]
        self.keys[index] = keys
        self.values[index] = values


class PoolFP4(Pool):
    def store(self, layer, keys, values):
        index = self.index[layer]
        self.keys[index] = keys
        self.values[index] = values
        self.scales[index] = keys.scale
"""


def test_a_method_of_the_same_name_in_another_class_is_the_wrong_place() -> None:
    line = "        index = self.index[layer]\n"
    patched = POOLS.replace(line, line + "        check(index)\n", 1)
    onto = POOLS + "\nVERSION = 2\n"
    before, after = onto.split("class PoolFP4")
    merged = before + "class PoolFP4" + after.replace(line, line + "        check(index)\n")

    found = look(POOLS, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "written in `Pool.store`, but landed in `PoolFP4.store` (line 15)" in found[0].message


def test_a_whole_method_in_the_wrong_class_is_found_though_its_own_text_is_equal() -> None:
    method = "\n    def clear(self):\n        self.keys.zero_()\n"
    large = "".join(
        f"\n    def step_{number}(self):\n        return {number} * self.size\n"
        for number in range(100)
    )
    written = f"class A:\n    size = 1\n{large}\n\nclass B:\n    size = 2\n{large}"
    patched = written.replace("\n\n\nclass B", f"\n{method}\n\nclass B")
    onto = "VERSION = 2\n\n\n" + written
    merged = onto + method

    found = look(written, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "written in `A`, but landed in `B`" in found[0].message


def test_a_class_that_upstream_renamed_gives_a_warning_not_an_error(tmp_path: Path) -> None:
    patched = POOLS.replace("self.size = size", "self.size = max(size, 1)")
    onto = POOLS.replace("class Pool:", "class TokenPool:").replace("(Pool)", "(TokenPool)")

    conflicts, merged = three_way(tmp_path, POOLS, patched, onto)
    found = look(POOLS, patched, onto, merged)

    assert conflicts == 0
    assert codes(found) == ["warning E311"]
    assert "upstream seems to have moved or reworded that block" in found[0].message


def test_a_condition_that_upstream_reworded_gives_a_warning(tmp_path: Path) -> None:
    written = dedent("""
        def plan(batch):
            if batch.hybrid is not None:
                first = batch.first
                second = batch.second
                third = batch.third
                fourth = batch.fourth
            return batch
        """)
    patched = written.replace("batch.third", "batch.third + 1")
    onto = written.replace("batch.hybrid is not None", "hybrid(batch)")

    conflicts, merged = three_way(tmp_path, written, patched, onto)

    assert conflicts == 0
    assert codes(look(written, patched, onto, merged)) == ["warning E311"]


def test_a_reworded_condition_is_an_error_when_the_hit_branch_was_there_before() -> None:
    written = dedent("""
        def plan(batch):
            if batch.kind == "dense":
                first(batch)
                second(batch)
            elif batch.kind == "sparse":
                first(batch)
                second(batch)
        """)
    patched = "    first(batch)\n        gather(batch)\n        second".join(
        written.rsplit("    first(batch)\n        second", 1)
    )
    onto = written.replace('"sparse"', '"block-sparse"')
    merged = onto.replace("first(batch)\n", "first(batch)\n        gather(batch)\n", 1)

    found = look(written, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert 'written in `plan`, `if batch.kind == "sparse"`' in found[0].message


TWINS = """
def run(batch):
    if batch.fast:
        load(batch)
        compute_keys(batch)
        check(batch)
    prepare(batch)
    if batch.fast:
        load(batch)
        compute_values(batch)
        check(batch)
"""


def test_the_second_of_two_equal_conditions_is_told_from_the_first() -> None:
    first, second = TWINS.split("    prepare(batch)")
    added = "        check(batch)\n        log(batch)\n"
    patched = first + "    prepare(batch)" + second.replace("        check(batch)\n", added)
    onto = "VERSION = 2\n" + TWINS
    merged = (
        "VERSION = 2\n"
        + first.replace("        check(batch)\n", added)
        + "    prepare(batch)"
        + second
    )

    found = look(TWINS, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "`if batch.fast` of line 8, but landed" in found[0].message
    assert "`if batch.fast` of line 4" in found[0].message


def test_equal_conditions_stay_apart_when_upstream_adds_a_third_in_front() -> None:
    first, second = TWINS.split("    prepare(batch)")
    patched = first + "    prepare(batch)" + second.replace("check(batch)", "check(batch, 2)")
    third = "def run(batch):\n    if batch.fast:\n        warm(batch)\n        wait(batch)\n"
    onto = TWINS.replace("def run(batch):\n", third)
    merged = patched.replace("def run(batch):\n", third)

    assert look(TWINS, patched, onto, merged) == ()


CALLS = """
def add_arguments(parser):
    parser.add_argument(
        "--context",
        type=int,
        default=None,
    )
    parser.add_argument(
        "--slots",
        type=int,
        default=None,
    )
"""


def test_an_argument_in_another_call_of_the_same_function_is_found() -> None:
    head, tail = CALLS.split('        "--slots"')
    patched = head + '        "--slots"' + tail.replace("None", "12")
    onto = "VERSION = 2\n" + CALLS
    merged = onto.replace("default=None", "default=12", 1)

    found = look(CALLS, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "`parser.add_argument(` of line 8" in found[0].message


def test_a_new_call_before_the_right_one_changes_nothing() -> None:
    head, tail = CALLS.split('        "--slots"')
    patched = head + '        "--slots"' + tail.replace("None", "12")
    new = '    parser.add_argument(\n        "--host",\n        type=str,\n    )\n'
    onto = CALLS.replace("(parser):\n", "(parser):\n" + new)
    merged = patched.replace("(parser):\n", "(parser):\n" + new)

    assert look(CALLS, patched, onto, merged) == ()


def test_a_hunk_that_upstream_now_runs_under_a_condition_is_worth_a_warning() -> None:
    written = "def run(batch):\n    for it in batch:\n        load(it)\n        check(it)\n"
    patched = written.replace("check(it)", "check(it, 2)")
    onto = written.replace("def run(batch):\n    for", "async def run(batch):\n    async for")
    assert look(written, patched, onto, onto.replace("check(it)", "check(it, 2)")) == ()

    onto = dedent("""\
        def run(batch):
            if gfx95:
              for it in batch:
                load(it)
                check(it)
        """)
    found = look(written, patched, onto, onto.replace("check(it)", "check(it, 2)"))

    assert codes(found) == ["warning E311"]
    assert "`if gfx95`" in found[0].message


def test_lines_that_leave_a_branch_which_is_still_there_are_an_error() -> None:
    written = "def run(it):\n    if it.fast:\n        a(it)\n        b(it)\n    c(it)\n"
    patched = written.replace("        b(it)\n", "        b(it)\n        ours(it)\n")
    onto = "VERSION = 2\n" + written
    merged = onto.replace("    c(it)\n", "    ours(it)\n    c(it)\n")

    found = look(written, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "written in `run`, `if it.fast`, but landed in `run` (line 6)" in found[0].message


@pytest.mark.parametrize(
    ("opening", "other"),
    [
        ("try:", "except ValueError:"),
        ("try:", "finally:"),
        ("for it in batch:", "else:"),
        ("while batch.more():", "else:"),
        ("if batch.fast:", "elif batch.slow:"),
    ],
)
def test_each_half_of_a_compound_statement_is_a_place_of_its_own(opening: str, other: str) -> None:
    body = "        first(batch)\n        second(batch)\n"
    written = f"def run(batch):\n    {opening}\n{body}    {other}\n{body}"
    ours = "        first(batch)\n        ours(batch)\n        second(batch)\n"
    patched = f"def run(batch):\n    {opening}\n{body}    {other}\n{ours}"
    onto = "VERSION = 2\n" + written
    merged = f"VERSION = 2\ndef run(batch):\n    {opening}\n{ours}    {other}\n{body}"

    assert codes(look(written, patched, onto, merged)) == ["error E311"]


def test_the_cases_of_a_match_are_places_of_their_own() -> None:
    written = dedent("""
        def run(batch):
            match batch.kind:
                case "dense":
                    load(batch)
                    step(batch)
                case "sparse" if batch.wide:
                    load(batch)
                    step(batch)
        """)
    added = "load(batch)\n            ours(batch)\n"
    patched = added.join(written.rsplit("load(batch)\n", 1))
    onto = "VERSION = 2\n" + written
    merged = onto.replace("load(batch)\n", added, 1)

    found = look(written, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert '`match batch.kind: case "sparse" if batch.wide`' in found[0].message


def test_removed_lines_are_looked_at_too() -> None:
    patched = POOLS.replace("        self.values[index] = values\n", "", 1)
    onto = "VERSION = 2\n" + POOLS
    before, after = onto.split("class PoolFP4")
    merged = before + "class PoolFP4" + after.replace("        self.values[index] = values\n", "")

    found = look(POOLS, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "the removal of line 9 of the unpatched file was written in" in found[0].message
    assert "`Pool.store`, but landed in `PoolFP4.store`" in found[0].message


def test_a_decorator_above_the_wrong_function_is_found() -> None:
    written = "def a(x):\n    return x\n\n\ndef b(x):\n    return x + 1\n"
    patched = written.replace("def b", "@compiled\ndef b")
    onto = "VERSION = 2\n\n\n" + written
    merged = onto.replace("def a", "@compiled\ndef a")

    found = look(written, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "written in `b`, but landed in `a` (line 4)" in found[0].message


def test_a_function_added_at_the_end_of_another_is_at_module_level() -> None:
    written = "def a(x):\n    return x\n"
    patched = written + "\n\ndef ours(x):\n    return a(x)\n"
    onto = written.replace("return x", "y = x\n    return y") + "\n\ndef theirs(x):\n    return x\n"

    assert look(written, patched, onto, onto + patched.removeprefix(written)) == ()


def test_an_orphan_of_a_list_is_found_though_the_file_compiles() -> None:
    written = 'MODELS = [\n    "A",\n    "C",\n]\n\n\ndef known(name):\n    return name in MODELS\n'
    patched = written.replace('    "C"', '    "B",\n    "C"')
    onto = written.replace("MODELS = [", "NAMES = MODELS = [")
    merged = onto + '    "B",\n'

    found = look(written, patched, onto, merged)

    assert codes(found) == ["error E311"]
    assert "written at module level" in found[0].message
    assert "landed in `known`" in found[0].message


def test_a_broken_file_is_still_judged_by_its_indentation() -> None:
    line = "        index = self.index[layer]\n"
    patched = POOLS.replace(line, line + "        check(index)\n", 1)
    onto = "VERSION = 2\n" + POOLS
    before, after = onto.split("class PoolFP4")
    broken = after.replace(line, line + "        check(index)\n").replace("keys.scale", "(keys.")
    merged = before + "class PoolFP4" + broken

    found = look(POOLS, patched, onto, merged)

    assert codes(found) == ["error E311", "error E312"]
    assert "written in `Pool.store`, but landed in `PoolFP4.store`" in found[0].message


def test_files_that_are_not_python_are_none_of_the_guards_business() -> None:
    assert look("a\nb\n", "a\nx\nb\n", "b\na\n", "b\na\nx\n", path="csrc/pool.cu") == ()


def test_a_patch_that_met_its_own_base_is_not_compared() -> None:
    assert look(POOLS, POOLS.replace("size", "length"), POOLS, POOLS.replace("size", "n")) == ()


@settings(deadline=None)
@given(
    shift=st.integers(0, 30),
    count=st.integers(1, 12),
    at=st.data(),
)
def test_a_clean_merge_of_far_changes_never_has_a_finding(
    shift: int, count: int, at: st.DataObject
) -> None:
    functions = [
        f"def f{number}(x):\n"
        + indent("\n".join(f"x = step(x, {number}, {line})" for line in range(8)), "    ")
        + "\n    return x\n"
        for number in range(count)
    ]
    ours = at.draw(st.integers(0, count - 1))
    line = at.draw(st.integers(0, 7))
    above = "".join(f"LIMIT_{number} = {number}\n" for number in range(shift))

    def text(*, patched: bool, upstream: bool) -> str:
        parts = list(functions)
        if patched:
            old = f"    x = step(x, {ours}, {line})\n"
            parts[ours] = parts[ours].replace(old, old + "    x = ours(x)\n")
        if upstream:
            parts = [part.replace("return x", "return finish(x)") for part in parts]
        return (above if upstream else "") + "\n\n".join(parts)

    found = look(
        text(patched=False, upstream=False),
        text(patched=True, upstream=False),
        text(patched=False, upstream=True),
        text(patched=True, upstream=True),
    )

    assert found == ()


@settings(deadline=None)
@given(st.data())
def test_a_change_moved_to_another_function_always_has_a_finding(at: st.DataObject) -> None:
    count = at.draw(st.integers(2, 8))
    right, wrong = at.draw(st.permutations(range(count)))[:2]

    def text(place: int | None, *, upstream: bool) -> str:
        parts = [
            f"def f{number}(x):\n    x = first(x)\n    x = own(x, {number})\n"
            + ("    x = ours(x)\n" if number == place else "")
            + "    return x\n"
            for number in range(count)
        ]
        return ("VERSION = 2\n\n\n" if upstream else "") + "\n\n".join(parts)

    found = look(
        text(None, upstream=False),
        text(right, upstream=False),
        text(None, upstream=True),
        text(wrong, upstream=True),
    )

    assert codes(found) == ["error E311"]
    assert f"written in `f{right}`, but landed in `f{wrong}`" in found[0].message


def test_gnu_patch_is_there_to_be_tested_against() -> None:
    version = subprocess.run(["patch", "--version"], capture_output=True, text=True, check=True)

    assert version.stdout.startswith("GNU patch")


def test_a_method_that_falls_into_another_one_takes_over_its_end() -> None:
    ours = "    def ours(self):\n        return 1\n\n"
    patched = POOLS.replace("    def store", ours + "    def store", 1)
    onto = "VERSION = 2\n" + POOLS
    line = "        self.keys[index] = keys\n"
    merged = onto.replace(line, line + "\n" + ours, 1)

    found = look(POOLS, patched, onto, merged)

    assert codes(found) == ["error E311", "error E317", "error E317"]
    assert found[0].message == (
        "the hunk at line 10 fell into the middle of `Pool.store`: "
        "from line 14 on its lines now belong to `Pool.ours`"
    )
    assert [one.message.split(",")[0] for one in found[1:]] == ["uses `index`", "uses `values`"]


def test_a_function_that_the_patch_itself_divides_is_meant() -> None:
    line = "        self.keys[index] = keys\n"
    patched = POOLS.replace(line, line + "\n    def ours(self, index, values):\n", 1)
    onto = "VERSION = 2\n" + POOLS

    assert look(POOLS, patched, onto, "VERSION = 2\n" + patched) == ()


def test_code_that_upstream_moved_into_a_helper_takes_its_hunk_along(tmp_path: Path) -> None:
    steps = "".join(f"    batch = step_{number}(batch)\n" for number in range(20))
    written = f"def run(batch):\n    open(batch)\n{steps}    return close(batch)\n"
    patched = written.replace("step_9(batch)\n", "step_9(batch)\n    batch = ours(batch)\n")
    onto = (
        f"def steps(batch):\n    mark(batch)\n{steps}    return batch\n\n\n"
        "def run(batch):\n    open(batch)\n    batch = steps(batch)\n    return close(batch)\n"
    )

    code, landed = gnu_patch(tmp_path, written, patched, onto)

    assert code == 0
    assert codes(look(written, patched, onto, landed)) == ["warning E311"]
