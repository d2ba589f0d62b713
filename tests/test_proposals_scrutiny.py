"""A joined text is held against its three sources before anyone sees it."""

from textwrap import dedent

import pytest

from elsa_build.patches.proposals.attempt import Versions
from elsa_build.patches.proposals.homes import Upstream
from elsa_build.patches.proposals.scrutiny import objections
from elsa_build.patches.proposals.settle import settle

BASE = dedent("""\
    import os


    def free(pool, index):
        pool.release(index)


    def grow(pool):
        size = pool.size
        return size + 1
    """)


def said(merged: str, *, ours: str = BASE, theirs: str = BASE, base: str = BASE) -> list[str]:
    return list(objections(base, ours, theirs, merged))


def test_an_untouched_text_has_no_objections():
    assert said(BASE) == []


def test_a_parameter_that_upstream_removed_and_the_patch_reads_is_an_objection():
    base = "def alloc(pool, req):\n    return pool.take(1)\n"
    ours = "def alloc(pool):\n    return pool.take(1)\n"
    merged = "def alloc(pool):\n    guard(req)\n    return pool.take(1)\n"
    theirs = merged.replace("(pool)", "(pool, req)")

    found = said(merged, base=base, ours=ours, theirs=theirs)

    assert "`req` in alloc is bound nowhere" in found


def test_that_trap_gives_no_proposal_at_all():
    base = "def alloc(pool, req):\n    return pool.take(1)\n"
    versions = Versions(
        path="pool.py",
        base=base,
        ours="def alloc(pool):\n    return pool.take(1)\n",
        theirs="def alloc(pool, req):\n    guard(req)\n    return pool.take(1)\n",
        marked=f"{'<' * 32} o\ndef alloc(pool):\n{'|' * 32} b\ndef alloc(pool, req):\n{'=' * 32}\n"
        f"def alloc(pool, req):\n    guard(req)\n{'>' * 32} t\n    return pool.take(1)\n",
    )

    attempt = settle(versions, lambda: Upstream(new={}, old=lambda _: None))

    assert not attempt.settled
    assert attempt.proposed == 0
    assert "`req`" in attempt.why


def test_a_value_that_nothing_reads_any_more_is_an_objection():
    ours = BASE.replace("return size + 1", "return pool.size + 1").replace("    size =", "    _ =")
    merged = BASE.replace("return size + 1", "return pool.size + 1")

    assert any("nothing reads it" in one for one in said(merged, ours=ours))


def test_a_definition_that_stands_twice_is_an_objection():
    extra = "\n\ndef free(pool, index):\n    pass\n"

    assert "`free` is defined 2 times" in said(
        BASE + extra, theirs=BASE + extra.replace("free", "f")
    )


def test_a_definition_in_each_branch_stands_once():
    branches = "if os:\n    def f():\n        pass\nelse:\n    def f():\n        pass\n"

    assert said(BASE + branches, theirs=BASE + branches) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        ("release(index)", "release(index, 1)", "release(index)"),  # the patch's word is lost
        ("drop(index)", "release(index, 1)", "release(index, 1)"),  # upstream's is
        ("release(index, 2)", "release(index, 1)", "release(index, 1, 2, 2)"),  # twice
    ],
)
def test_words_that_got_lost_or_doubled_are_objections(ours, theirs, merged):
    texts = [BASE.replace("release(index)", new) for new in (ours, theirs, merged)]

    assert said(texts[2], ours=texts[0], theirs=texts[1]) != []


def test_quotes_are_not_words():
    ours = BASE.replace("release(index)", "release(index, 'a')")
    merged = BASE.replace("release(index)", 'release(index, "a")')

    assert said(merged, ours=ours) == []


def test_an_import_that_got_lost_is_an_objection():
    theirs = BASE.replace("import os", "import os\nimport sys")

    assert "`import sys as None` is missing" in said(BASE, theirs=theirs)


def test_a_call_that_upstreams_function_would_refuse_is_an_objection():
    base = "def f(a, old=1):\n    return a\n\n\ndef g():\n    return f(1)\n"
    ours = base.replace("old=1", "new=1")
    theirs = base.replace("f(1)", "f(1, old=2)")
    merged = ours.replace("f(1)", "f(1, old=2)")

    assert "f: takes no `old`" in said(merged, base=base, ours=ours, theirs=theirs)


def test_a_call_that_lacks_what_upstream_now_requires_is_an_objection():
    base = "def f(a):\n    return a\n\n\ndef g():\n    return f(1)\n"
    ours = base.replace("def f(a)", "def f(a, req)").replace("f(1)", "f(1, None)")
    theirs = base + "\n\ndef h():\n    return f(2)\n"
    merged = ours + "\n\ndef h():\n    return f(2)\n"

    assert "f: needs `req`" in said(merged, base=base, ours=ours, theirs=theirs)


def test_text_that_does_not_parse_is_an_objection():
    assert said("def f(:\n")[0].startswith("does not parse")


def test_an_attribute_that_upstreams_class_lost_is_an_objection():
    base = "class A(B):\n    def __init__(self):\n        self.size = 1\n\n    def f(self):\n        pass\n"
    ours = base.replace("self.size = 1", "self.sizes = sizes()")
    theirs = base.replace("pass", "return self.size + self.inherited")
    merged = ours.replace("pass", "return self.size + self.inherited")

    found = said(merged, base=base, ours=ours, theirs=theirs)

    assert "`self.size` in A is set nowhere any more" in found
    assert not any("inherited` in A" in one for one in found)
