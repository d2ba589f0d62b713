"""What upstream took back and landed again, read from titles, bodies and changes."""

import pytest

from elsa_build.git.objects import Change, Entry
from elsa_build.model import Oid
from elsa_build.patches.history import UpstreamCommit
from elsa_build.patches.reverts import standing, told, turns


def commits(*messages, changes=None):
    """Return commits with ids that say their place: 000...1, 000...2."""
    return tuple(
        UpstreamCommit(
            oid=Oid(f"{number:040x}"),
            author="Ada",
            date="2026-07-01T00:00:00+00:00",
            message=message,
            changes=(changes or {}).get(number, ()),
        )
        for number, message in enumerate(messages, 1)
    )


def happened(*messages):
    """Return what happened to the first commit: True for landed again, False for taken back."""
    history = commits(*messages)
    return [turn.again for turn in turns(history).get(history[0].oid, ())]


@pytest.mark.parametrize(
    "later",
    [
        'Revert "Chunk the copy (#1)" (#2)',
        'Revert "Chunk the copy" (#2)',
        'revert "chunk the copy" (#2)',
        '[Mamba] Revert "[Mamba] Chunk the copy (#1)" (#2)',
        "Revert Chunk the copy (#2)",
        "[Revert] Chunk the copy (#2)",
        'Revert "Chunk the c… (#2)',
        'Revert "Chunk the copy #1" (#2)',
        "Revert #1 (#2)",
        "Revert PR 1: it breaks prefill (#2)",
        "Revert the copy and the pool (#1, #9) (#2)",
        "Undo the copy (#2)\n\nThis reverts commit 0000000000000000000000000000000000000001.",
        "Undo the copy (#2)\n\nReverts sgl-project/sglang#1",
    ],
)
def test_a_revert_is_known_by_its_title_or_its_body(later):
    assert happened("[Mamba] Chunk the copy (#1)", later) == [False]


@pytest.mark.parametrize(
    "later",
    [
        "Bump FlashInfer and revert regressions (#2)",
        "Skip the revert of the copy (#2)",
        'Revert "Another copy" (#2)',
        "Revert broken patterns in the filter (#2)",
        "Reverse the copy (#2)",
        "Fix Chunk the copy (#1) (#2)",
    ],
)
def test_a_title_that_only_mentions_a_revert_is_none(later):
    assert happened("Chunk the copy (#1)", later) == []


@pytest.mark.parametrize(
    "again",
    [
        'Revert "Revert "Chunk the copy"" (#3)',
        'Reland "Chunk the copy (#1)" (#3)',
        "Re-land Chunk the copy (#3)",
        "[Reland] Chunk the copy (#3)",
        'Reapply "Chunk the copy" (#3)',
        "Re-land #1: with a fix (#3)",
    ],
)
def test_a_commit_that_lands_again_stands(again):
    history = commits("Chunk the copy (#1)", 'Revert "Chunk the copy (#1)" (#2)', again)

    found = turns(history)[history[0].oid]

    assert [turn.again for turn in found] == [False, True]
    assert standing(found) is None


def test_taken_back_landed_again_and_taken_back_is_taken_back():
    history = commits(
        "Copy (#1)",
        'Revert "Copy (#1)" (#2)',
        'Revert "Revert "Copy (#1)" (#2)" (#3)',
        'Revert "Reland Copy" (#4)',
        'Revert "Revert "Revert "Copy (#1)" (#2)" (#3)" (#5)',
    )

    found = turns(history)[history[0].oid]

    assert [turn.again for turn in found] == [False, True, False]
    assert standing(found) == history[4]


def test_of_two_commits_with_one_title_the_newest_before_the_revert_is_meant():
    history = commits("Bump (#1)", "Bump (#2)", 'Revert "Bump" (#3)', "Bump (#4)")

    assert list(turns(history)) == [history[1].oid]


def test_a_commit_that_undoes_another_file_by_file_is_a_revert_whatever_its_title():
    old, new = Entry("100644", Oid("a" * 40)), Entry("100644", Oid("b" * 40))
    changes = {1: (Change("pool.py", old, new),), 2: (Change("pool.py", new, old),)}
    history = commits("Copy (#1)", "Go back to what worked (#2)", changes=changes)

    assert standing(turns(history)[history[0].oid]) == history[1]


def test_messages_are_read_whole_and_in_order(story):
    first = story.commit(None, "one (#1)\n\nbody\nlines", {"a": "1"})
    second = story.commit(first, "two", {"a": "2"})

    read = told(story.git, second)

    assert [(c.oid, c.message) for c in read] == [
        (first, "one (#1)\n\nbody\nlines"),
        (second, "two"),
    ]
    assert told(story.git, second, first) == read[1:]
    assert told(story.git, first, second) == ()
