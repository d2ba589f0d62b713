"""What upstream already has of a patch, and what that verdict rests on."""

import dataclasses

import pytest

from elsa_build.model import Oid, Origin, Series, Verdict
from elsa_build.patches.absorption import judge
from elsa_build.patches.history import between
from elsa_build.patches.replay import replay

PLAIN = """\
def alpha(size):
    return size_of_the_pool(size)


def beta(size):
    return size_of_the_ring(size)


def gamma(size):
    return size_of_the_rest(size)
"""
FIX_ALPHA = (
    "    return size_of_the_pool(size)\n",
    "    checked = check_the_size(size)\n    if checked is None:\n        return skip_this_one(size)\n    return size_of_the_pool(checked)\n",
)
FIX_GAMMA = (
    "    return size_of_the_rest(size)\n",
    "    rounded = round_to_pages(size)\n    if rounded > largest_page():\n        return largest_page_of(size)\n    return size_of_the_rest(rounded)\n",
)


def fixed(text, *fixes):
    for old, new in fixes:
        text = text.replace(old, new)
    return text


@pytest.fixture
def base(story):
    return story.commit(None, "base", {"python/a.py": PLAIN})


def verdict(story, base, patch, tip, arch="sm_120"):
    patch = dataclasses.replace(patch, base=base)
    done = replay(story.git, Series(name="s", patches=(patch,)), tip)
    return judge(story.git, done, between(story.git, base, tip), arch=arch)[patch.id]


def ours(story, base, *fixes, **origin):
    patch = story.patch(base, "ours", {"python/a.py": fixed(PLAIN, *fixes)})
    return dataclasses.replace(patch, origin=Origin(**origin))


def test_a_patch_that_upstream_lacks_is_carried(story, base):
    tip = story.commit(base, "Other (#1)", {"python/b.py": "x = 1\n"})

    assert verdict(story, base, ours(story, base, FIX_ALPHA), tip).verdict is Verdict.CARRIED


def test_the_same_change_is_absorbed_by_its_result_and_its_patch_id(story, base):
    taken = story.commit(base, "Fix (#1)", {"python/a.py": fixed(PLAIN, FIX_ALPHA)})
    tip = story.commit(taken, "Later (#2)", {"python/b.py": "x = 1\n"})

    found = verdict(story, base, ours(story, base, FIX_ALPHA), tip)

    assert found.verdict is Verdict.ABSORBED
    assert found.commits == (taken,)
    assert any("changes nothing" in line for line in found.evidence)
    assert any(taken in line for line in found.evidence)


def test_a_patch_id_is_enough_where_upstream_went_on(story, base):
    taken = story.commit(base, "Fix (#1)", {"python/a.py": fixed(PLAIN, FIX_ALPHA)})
    text = fixed(PLAIN, FIX_ALPHA).replace("check_the_size", "check_it")
    tip = story.commit(taken, "Reword (#2)", {"python/a.py": text})

    assert verdict(story, base, ours(story, base, FIX_ALPHA), tip).verdict is Verdict.ABSORBED


def test_half_a_patch_upstream_is_partial_and_names_the_hunk(story, base):
    tip = story.commit(base, "Half (#1)", {"python/a.py": fixed(PLAIN, FIX_ALPHA)})

    found = verdict(story, base, ours(story, base, FIX_ALPHA, FIX_GAMMA), tip)

    assert found.verdict is Verdict.PARTIAL
    assert len([line for line in found.evidence if "python/a.py: hunk" in line]) == 1


def test_a_known_pull_request_with_other_text_is_a_duplicate_risk(story, base):
    tip = story.commit(base, "Their way (#77)", {"python/b.py": "theirs = 1\n"})

    found = verdict(story, base, ours(story, base, FIX_ALPHA, pr=77), tip)

    assert found.verdict is Verdict.DUPLICATE_RISK
    assert any("#77" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("test", "arch", "expected"),
    [
        ("_is_hip", "sm_120", Verdict.GATED_OFF),
        ("is_gfx95_supported()", "sm_120", Verdict.GATED_OFF),
        ("not _is_hip", "sm_120", Verdict.DUPLICATE_RISK),
        ("_is_npu and enough", "sm_120", Verdict.GATED_OFF),
        ("gfx95 in name", "sm_120", Verdict.GATED_OFF),
        ("is_sm120_supported()", "sm_120", Verdict.DUPLICATE_RISK),
        ("sm90", "sm_120", Verdict.GATED_OFF),
        ("sm90", "sm_90", Verdict.DUPLICATE_RISK),
        ("enough", "sm_120", Verdict.DUPLICATE_RISK),
    ],
)
def test_what_upstream_has_for_another_gpu_only_is_gated_off(story, base, test, arch, expected):
    body = FIX_ALPHA[1].replace("    ", "        ", 1).replace("\n    ", "\n        ")
    gated = PLAIN.replace(FIX_ALPHA[0], f"    if {test}:\n{body}{FIX_ALPHA[0]}")
    tip = story.commit(base, "Gated (#1)", {"python/a.py": gated})

    found = verdict(story, base, ours(story, base, FIX_ALPHA), tip, arch)

    assert found.verdict is expected, found


def test_what_upstream_took_back_is_said(story, base):
    taken = story.commit(base, "Fix (#1)", {"python/a.py": fixed(PLAIN, FIX_ALPHA)})
    back = story.commit(
        taken, f'Revert "Fix (#1)" (#2)\n\nThis reverts commit {taken}.', {"python/a.py": PLAIN}
    )

    found = verdict(story, base, ours(story, base, FIX_ALPHA, pr=1), back)

    assert found.verdict is Verdict.REVERTED
    assert any(back in line for line in found.evidence)


def test_what_came_again_after_a_revert_is_absorbed(story, base):
    taken = story.commit(base, "Fix (#1)", {"python/a.py": fixed(PLAIN, FIX_ALPHA)})
    back = story.commit(taken, 'Revert "Fix (#1)" (#2)', {"python/a.py": PLAIN})
    again = story.commit(back, 'Reapply "Fix (#1)" (#3)', {"python/a.py": fixed(PLAIN, FIX_ALPHA)})

    found = verdict(story, base, ours(story, base, FIX_ALPHA, pr=1), again)

    assert found.verdict is Verdict.ABSORBED


def test_an_origin_commit_counts_like_its_pull_request(story, base):
    taken = story.commit(base, "Fix", {"python/a.py": fixed(PLAIN, FIX_ALPHA)})

    found = verdict(story, base, ours(story, base, FIX_ALPHA, commit=Oid(taken)), taken)

    assert (found.verdict, found.commits) == (Verdict.ABSORBED, (taken,))
