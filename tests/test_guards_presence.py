"""The presence guard: the patch is in the result once, not zero times and not twice."""

from pathlib import Path

from tests.guards_material import codes, gnu_patch, look, three_way

BASE = """\
def run(batch):
    state = load(batch)
    state = prepare(state)
    result = compute(state)
    store(result)
    return result


def stop(batch):
    return release(batch)
"""
FIX = "    if state.is_stale():\n        state = refresh(state)\n"
PATCHED = BASE.replace("    result =", FIX + "    result =")


def test_a_change_that_upstream_has_taken_and_a_fuzzy_tool_adds_again_is_found(
    tmp_path: Path,
) -> None:
    onto = PATCHED.replace("    state = prepare", FIX + "    check(state)\n    state = prepare")
    onto = onto.replace(FIX + "    result", "    result")

    code, landed = gnu_patch(tmp_path, BASE, PATCHED, onto, "--fuzz=3", "--forward")
    found = look(BASE, PATCHED, onto, landed)

    assert code == 0
    assert landed.count("state.is_stale()") == 2
    assert codes(found) == ["error E316"]
    assert "stands 2 times in one place: upstream has it already" in found[0].message


def test_the_same_lines_in_another_function_are_no_repetition() -> None:
    onto = BASE.replace("    return release", FIX + "    return release")
    merged = PATCHED.replace("    return release", FIX + "    return release")

    assert look(BASE, PATCHED, onto, merged) == ()


def test_one_repeated_line_is_a_warning() -> None:
    line = "    state = refresh(state)\n"
    patched = BASE.replace("    result =", line + "    result =")
    onto = BASE.replace("    state = prepare", line + "    state = prepare")
    merged = patched.replace("    state = prepare", line + "    state = prepare")

    assert codes(look(BASE, patched, onto, merged)) == ["warning E316"]


def test_what_the_patch_itself_repeats_is_meant() -> None:
    patched = BASE.replace("    result =", FIX + FIX + "    result =")

    assert look(BASE, patched, "V = 2\n" + BASE, "V = 2\n" + patched) == ()


def test_a_patch_reported_as_applied_whose_file_did_not_change_is_found() -> None:
    onto = "VERSION = 2\n" + BASE

    found = look(BASE, PATCHED, onto, onto)

    assert codes(found) == ["error E316"]
    assert (
        "hunk at line 4 of the patched file did not arrive: 2 of 2 added lines" in found[0].message
    )
    assert "`if state.is_stale():`" in found[0].message


def test_half_a_hunk_that_did_not_arrive_is_a_warning() -> None:
    onto = "VERSION = 2\n" + BASE
    merged = onto.replace("    result =", "    if state.is_stale():\n        pass\n    result =")

    found = look(BASE, PATCHED, onto, merged)

    assert codes(found) == ["warning E316"]
    assert "1 of 2 added lines" in found[0].message


def test_a_hunk_that_upstream_has_already_is_not_lost(tmp_path: Path) -> None:
    more = "    log(result)\n"
    patched = PATCHED.replace("    return result", more + "    return result")
    onto = "VERSION = 2\n" + PATCHED

    conflicts, merged = three_way(tmp_path, BASE, patched, onto)

    assert conflicts == 0
    assert look(BASE, patched, onto, merged) == ()


def test_a_line_that_a_merge_combined_with_upstream_s_is_not_lost() -> None:
    patched = BASE.replace("compute(state)", "compute(state, sparse=True)")
    onto = BASE.replace("compute(state)", "compute(state, coins)")
    merged = BASE.replace("compute(state)", "compute(state, coins, sparse=True)")

    assert look(BASE, patched, onto, merged) == ()


def test_a_patched_file_that_is_missing_from_the_result_is_an_error() -> None:
    found = look(BASE, PATCHED, None, None)

    assert codes(found) == ["error E316"]
    assert found[0].message == "the patch changes this file, but the result has none"


def test_a_deleted_file_that_is_still_there_is_an_error() -> None:
    assert codes(look(BASE, None, BASE, BASE)) == ["error E316"]
    assert look(BASE, None, BASE, None) == ()
