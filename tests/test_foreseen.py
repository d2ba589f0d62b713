"""A forecast goes on where the last one ended, and begins anew when anything has changed."""

import dataclasses

import pytest

from elsa_build import foreseen
from elsa_build.model import Series
from elsa_build.patches.forecast import forecast
from elsa_build.patches.history import between
from tests.test_replay import text


@pytest.fixture
def line(story):
    base = story.commit(None, "base", {"pool.py": text(), "other.py": text()})
    one = story.commit(base, "Reword (#1)", {"pool.py": text(l4="upstream")})
    two = story.commit(one, "Reword (#2)", {"other.py": text(l4="upstream")})
    patches = (
        story.patch(base, "one", {"pool.py": text(l4="ours")}, base=base),
        story.patch(base, "two", {"other.py": text(l4="ours")}, base=base),
    )
    return base, one, two, Series(name="s", patches=patches)


def look(story, line, until, cache, series=None):
    base, *_, written = line
    commits = between(story.git, base, until)
    return foreseen.foresee((story.git.path,), series or written, base, commits, cache=cache)


def test_two_nights_find_what_one_long_walk_finds(story, line, tmp_path):
    base, one, two, series = line
    assert [b.patch for b in look(story, line, one, tmp_path).breaks] == ["one"]

    late = look(story, line, two, tmp_path)

    whole = forecast((story.git.path,), series, base, between(story.git, base, two))
    assert (late.breaks, late.commits) == (whole.breaks, 2)


def test_what_is_known_is_not_walked_again(story, line, tmp_path):
    base, _one, two, series = line
    look(story, line, two, tmp_path)

    seen = foreseen.load(foreseen.path_of(tmp_path, series, base), between(story.git, base, two))

    assert seen.until == two
    assert set(seen.breaks) == {"one", "two"}


def test_an_edited_patch_begins_anew(story, line, tmp_path):
    base, _one, two, series = line
    look(story, line, two, tmp_path)
    other = story.patch(base, "one", {"pool.py": text(l8="ours")}, base=base)
    edited = dataclasses.replace(series, patches=(other, series.patches[1]))

    assert [b.patch for b in look(story, line, two, tmp_path, edited).breaks] == ["two"]


def test_a_history_that_was_forced_back_begins_anew(story, line, tmp_path):
    base, _one, two, _ = line
    look(story, line, two, tmp_path)
    forced = story.commit(base, "Another (#3)", {"other.py": text(l4="another")})

    assert [b.commit.oid for b in look(story, line, forced, tmp_path).breaks] == [forced]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"until": 1}'])
def test_a_damaged_file_is_no_file(story, line, tmp_path, damage):
    base, _one, two, series = line
    place = foreseen.path_of(tmp_path, series, base)
    place.parent.mkdir(parents=True)
    place.write_text(damage)

    assert len(look(story, line, two, tmp_path).breaks) == 2
