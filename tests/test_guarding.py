"""Guards on a replay: a clean merge is not a right merge, and a new caller is said."""

import dataclasses

import pytest

from elsa_build.diagnostics import Severity
from elsa_build.model import Outcome, Series
from elsa_build.patches.guarding import guarded
from elsa_build.patches.replay import replay

ALLOCATOR = """\
class Slots:
    def take_slot(self):
        slot = self.free.pop()
        assert slot is not None
        return slot

    def checkpoint(self):
        return self.take_slot()
"""
OPTIONAL = ALLOCATOR.replace("        assert slot is not None\n", "")
LINKER = "\n    def load_from_linker(self):\n        return self.take_slot() + 1\n"


@pytest.fixture
def base(story):
    files = {"python/pkg/__init__.py": "", "python/pkg/slots.py": ALLOCATOR}
    return story.commit(None, "base", files)


def guard(story, base, onto, patch):
    series = Series(name="s", patches=(dataclasses.replace(patch, base=base),))
    (step,) = guarded(story.git, replay(story.git, series, onto)).steps
    return step


def test_a_caller_that_upstream_added_is_named(story, base):
    onto = story.commit(base, "linker (#9)", {"python/pkg/slots.py": ALLOCATOR + LINKER})
    patch = story.patch(base, "optional-slots", {"python/pkg/slots.py": OPTIONAL})

    step = guard(story, base, onto, patch)

    (found,) = step.findings
    assert (found.code, found.path, found.line) == ("E318", "python/pkg/slots.py", 11)
    assert "`take_slot` in `Slots.load_from_linker`" in found.message
    assert not step.failed


@pytest.mark.parametrize(
    "files",
    [
        {"python/pkg/other.py": "x = 1\n"},
        {"test/test_slots.py": "Slots().take_slot()\n"},
        {"python/pkg/slots.py": None, "python/pkg/places.py": ALLOCATOR},
    ],
    ids=["nothing", "a test", "moved"],
)
def test_no_new_caller_no_word(story, base, files):
    onto = story.commit(base, "upstream", files)
    patch = story.patch(base, "optional-slots", {"python/pkg/slots.py": OPTIONAL})

    step = guard(story, base, onto, patch)

    assert [f.code for f in step.findings] == []


def test_a_name_that_many_classes_define_is_left_alone(story, base):
    many = "".join(f"class C{i}:\n    def take_slot(self):\n        pass\n\n\n" for i in range(3))
    onto = story.commit(
        base, "more", {"python/pkg/many.py": many, "python/pkg/slots.py": ALLOCATOR + LINKER}
    )
    patch = story.patch(base, "optional-slots", {"python/pkg/slots.py": OPTIONAL})

    assert guard(story, base, onto, patch).findings == ()


def test_a_dangling_import_fails_the_step_but_not_the_outcome(story, base):
    old = story.commit(base, "old", {"python/pkg/tool.py": "def helper():\n    pass\n"})
    patch = story.patch(
        old, "uses-tool", {"python/pkg/new.py": "from pkg.tool import helper\n\nhelper()\n"}
    )
    onto = story.commit(old, "gone", {"python/pkg/tool.py": None})

    step = guard(story, old, onto, patch)

    assert step.outcome is Outcome.CLEAN
    assert [f.code for f in step.findings] == ["E313"]
    assert step.failed


def test_hints_name_the_patch(story, base):
    onto = story.commit(base, "linker", {"python/pkg/slots.py": ALLOCATOR + LINKER})
    patch = story.patch(base, "optional-slots", {"python/pkg/slots.py": OPTIONAL})

    hints = [f.hint for f in guard(story, base, onto, patch).findings]

    assert hints == ["elsa-build patch show optional-slots --context 10"]


def test_a_patch_can_give_a_finding_another_severity(story, base):
    old = story.commit(base, "old", {"python/pkg/tool.py": "def helper():\n    pass\n"})
    text = "from pkg.tool import helper\n\nhelper()\n"
    patch = story.patch(old, "uses-tool", {"python/pkg/new.py": text})
    patch = dataclasses.replace(patch, guards=(("E313", Severity.NOTE),))
    onto = story.commit(old, "gone", {"python/pkg/tool.py": None})

    step = guard(story, old, onto, patch)

    assert [(f.code, f.severity) for f in step.findings] == [("E313", Severity.NOTE)]
    assert not step.failed
