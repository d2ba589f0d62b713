"""Probes find what a clean merge leaves uncovered."""

from dataclasses import replace

import pytest

from elsa_build.model import Probe
from elsa_build.patches.probes import examine, required

POOLS = "python/pkg/pools/*.py"
FILES = {
    "python/pkg/pools/one.py": "class Pool:\n    size: int = 1\n\n    def __init__(self):\n"
    "        self.free = []\n\n    def copy(self):\n        bounded_copy()\n",
    "python/pkg/pools/two.py": "import os\n\ndef copy():\n    state[:, dst] = state[:, src]\n",
    "python/pkg/other.py": "state[:, dst] = state[:, src]\n",
}


@pytest.fixture
def found(story):
    tree = story.git.commit(story.commit(None, "base", FILES)).tree
    patch = story.patch(story.commit(None, "base", FILES), "one", {"x": "y\n"})

    def run(**probe):
        probes = (Probe(**probe),)
        return examine(story.git.objects, tree, [replace(patch, probes=probes)])

    return run


def test_a_pattern_that_must_be_absent_is_named_with_its_line(found):
    (finding,) = found(paths=(POOLS,), absent=r"state\[:, dst\] = ")

    assert (finding.code, finding.path, finding.line) == ("E321", "python/pkg/pools/two.py", 4)


def test_the_count_of_call_sites_is_checked(found):
    assert found(paths=(POOLS,), present=r"bounded_copy\(", count=1) == ()
    assert [f.code for f in found(paths=(POOLS,), present=r"bounded_copy\(", count=2)] == ["E323"]
    assert [f.code for f in found(paths=(POOLS,), present="gone")] == ["E322"]


@pytest.mark.parametrize("name", ["Pool", "Pool.size", "Pool.free", "Pool.copy"])
def test_an_attribute_that_exists_is_found(found, name):
    assert found(attribute=f"pkg.pools.one:{name}") == ()


@pytest.mark.parametrize("name", ["pkg.pools.one:Pool.max_top_k", "pkg.gone:Pool", "pkg.other:x"])
def test_an_attribute_that_does_not_exist_is_an_error(found, name):
    assert [f.code for f in found(attribute=name)] == ["E324"]


def test_two_stars_cross_folders_and_one_does_not(found):
    pattern = r"state\[:, dst\] = "

    assert len(found(paths=("python/**/*.py",), absent=pattern)) == 2
    assert len(found(paths=("python/pkg/*.py",), absent=pattern)) == 1


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        (r"\bcopy_layered_slots\(", "copy_layered_slots"),
        (r"def _(try_)?alloc_mamba_slot\(\s*self, req:", "alloc_mamba_slot"),
        (r"first_word|second_word", ""),
        (r"(first_word|second_word)_tail", "_tail"),
        (r"optional_word?", ""),
        (r"many_words*", ""),
        (r"[letters]{5}", ""),
        (r"(?i)any_case", ""),
        (r"(?<!def )called_here", ""),
        (r"short", "short"),
    ],
)
def test_only_a_word_that_every_match_has_may_be_looked_for_first(pattern, word):
    assert required(pattern) == word
