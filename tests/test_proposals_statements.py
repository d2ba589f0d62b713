"""Statements and bodies joined of three versions, and what is refused."""

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elsa_build.patches.proposals.blocks import Blocks
from elsa_build.patches.proposals.joining import Notes, join_statement
from elsa_build.patches.proposals.layout import Source
from elsa_build.patches.proposals.sequences import Stuck


def joined(base: str, ours: str, theirs: str) -> str:
    sides = [Source(dedent(text)).block for text in (base, ours, theirs)]
    return "\n".join(Blocks().join(*sides))


def statement(base: str, ours: str, theirs: str, *, header: bool = False) -> str:
    return join_statement(base, ours, theirs, Notes(), header=header)


# --- one statement ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result"),
    [
        ("f(a)", "f(a, x=1)", "f(a, y=2)", "f(a, x=1, y=2)"),
        ("f(a, b)", "f(c, b)", "f(a, d)", "f(c, d)"),
        ("f(a, k=1)", "g(a, k=1)", "f(a, k=2)", "g(a, k=2)"),
        (
            "t = rank()",
            "t = layout().rank",
            "t = o if o else rank()",
            "t = o if o else layout().rank",
        ),
        ("x = a.b", "x = a.d or c", "x = not a.b", "x = not (a.d or c)"),
        ("x = a and b", "x = a and b and c", "x = a and b and d", "x = a and b and c and d"),
        ("x = f()", "x = f() and c", "x = f() and d", "x = f() and c and d"),
        ("x = {'a', 'b'}", "x = {'a', 'b', 'o'}", "x = {'a', 't'}", "x = {'a', 't', 'o'}"),
        ("x = {'a': 1}", "x = {'a': 1, 'o': 2}", "x = {'a': 3}", "x = {'a': 3, 'o': 2}"),
        ("x = 1", "x = 1  # why", "x = 2", "x = 2  # why"),
        ("x: int = f(a)", "x: int | None = f(a)", "x: int = f(b)", "x: int | None = f(b)"),
        ("return a.b(c)[0]", "return a.e(c)[0]", "return a.b(d)[0]", "return a.e(d)[0]"),
    ],
)
def test_edits_of_different_parts_of_a_statement_are_joined(base, ours, theirs, result):
    assert statement(base, ours, theirs) == result


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result"),
    [
        ("def f(a):", "def f(a, b=1):", "def f(a, c=2):", "def f(a, b=1, c=2):"),
        ("def f(a) -> int:", "def f(a: str) -> int:", "def f(a) -> str:", "def f(a: str) -> str:"),
        ("def f(a, *, b=1):", "def f(a, *, b=2):", "def f(z, a, *, b=1):", "def f(z, a, *, b=2):"),
        ("if a(x):", "if a(y):", "if a(x) and b:", "if a(y) and b:"),
        ("elif a:", "elif a:  # note", "elif a or b:", "elif a or b:  # note"),
        ("for x in f(a):", "for x in f(b):", "for x, y in f(a):", "for x, y in f(b):"),
        (
            "except A as e:",
            "except A as e:  # o",
            "except (A, B) as e:",
            "except (A, B) as e:  # o",
        ),
        ("class C(A):", "class C(A, m=M):", "class C(B):", "class C(B, m=M):"),
    ],
)
def test_edits_of_different_parts_of_a_header_are_joined(base, ours, theirs, result):
    assert statement(base, ours, theirs, header=True) == result


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        ("x = 1", "x = 2", "x = 3"),
        ("f(a)", "f(a, b)", "f(a, c)"),  # by position: which is second?
        ("f(a)", "f(a, k=1)", "f(a, k=2)"),
        ("f(a, b)", "f(b)", "f(x, b)"),
        ("x = a", "x = b", "x = c(d)"),
        ("return a, b", "return a, b, c", "return a, b, d"),
        ("x = 'a'", "x = 'b'", "x = 'c'"),
        ("x = a.b", "x = a.b or c", "x = not a.b"),  # which is inside?
        ("x = 1  # a", "x = 1  # b", "x = 1  # c"),
    ],
)
def test_edits_of_the_same_part_are_refused(base, ours, theirs):
    with pytest.raises(Stuck):
        statement(base, ours, theirs)


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        ("def f(a):", "def f(a, b):", "def f(a, c):"),  # the callers know only one order
        ("def f(a, b):", "def f(b, a):", "def f(a, b, c=1):"),
        ("with a():", "with a(), b():", "with a(), c():"),
    ],
)
def test_headers_with_two_meanings_are_refused(base, ours, theirs):
    with pytest.raises(Stuck):
        statement(base, ours, theirs, header=True)


def test_a_plain_switch_of_the_patch_stands_for_what_upstream_computes():
    notes = Notes()

    text = join_statement(
        "compiled(dynamic=True)",
        "compiled(dynamic=True, disable=is_npu())",
        "compiled(dynamic=True, disable=True)  # stalls",
        notes,
    )

    assert text == "compiled(dynamic=True, disable=True)  # stalls"
    assert notes.idle == ["is_npu()"]
    assert notes.said == [
        "the patch's `True` stands for upstream's `is_npu()`, which it makes idle"
    ]


def test_a_number_of_the_patch_does_not_stand_for_another_one():
    with pytest.raises(Stuck):
        statement("f(a)", "f(a, block=128)", "f(a, block=64)")


def test_an_item_joins_a_list_with_its_comment_and_in_its_layout():
    base = 'x = [\n    "a",\n    "b",\n]'
    ours = 'x = [\n    "a",\n    "b",\n    "upstream",\n]'
    theirs = 'x = [\n    "a",\n    "b",\n    # why we need it\n    "patch",  # twice\n]'

    text = statement(base, ours, theirs)

    assert text == (
        'x = [\n    "a",\n    "b",\n    "upstream",\n    # why we need it\n    "patch",  # twice\n]'
    )


def test_a_list_without_a_last_comma_gets_one_where_it_is_needed():
    text = statement(
        'x = [\n    "a"\n]', 'x = [\n    "a",\n    "o"\n]', 'x = [\n    "a",\n    "t"\n]'
    )

    assert text == 'x = [\n    "a",\n    "o",\n    "t"\n]'


def test_an_item_that_one_side_removed_goes_with_the_comment_above_it():
    base = "x = [\n    # about a\n    a,\n    # about b\n    b,\n    c,\n]"
    ours = "x = [\n    # about b\n    b,\n    c,\n]"
    theirs = "x = [\n    # about a\n    a,\n    # about b\n    b,\n    c,\n    d,\n]"

    assert statement(base, ours, theirs) == "x = [\n    # about b\n    b,\n    c,\n    d,\n]"


def test_a_condition_over_several_lines_keeps_its_brackets_and_comments():
    base = "if (\n    overlap or paging\n) and self.supports(arch):"
    ours = "if (overlap or paging) and supports(\n    view, arch\n):"
    theirs = (
        "if (\n    (overlap or paging)\n    and self.supports(arch)\n"
        "    # the kernel is absent elsewhere\n    and (is_cuda() or is_npu())\n):"
    )

    assert statement(base, ours, theirs, header=True) == (
        "if (\n    (overlap or paging)\n    and supports(\n        view, arch\n    )\n"
        "    # the kernel is absent elsewhere\n    and (is_cuda() or is_npu())\n):"
    )


# --- bodies -------------------------------------------------------------------------------------


def test_two_new_functions_at_one_place_both_stay_upstreams_first():
    base = "import a\n\n\ndef last():\n    pass\n"
    ours = "import a\n\n\ndef upstream():\n    return 1\n\n\ndef last():\n    pass\n"
    theirs = "import a\n\n\ndef patch():\n    return 2\n\n\ndef last():\n    pass\n"

    assert joined(base, ours, theirs) == (
        "import a\n\n\ndef upstream():\n    return 1\n\n\ndef patch():\n    return 2\n\n\n"
        "def last():\n    pass\n"
    )


def test_two_new_branches_both_stand_before_the_else():
    base = "if a:\n    x = 1\nelse:\n    x = 2\n"
    ours = "if a:\n    x = 1\nelif o:\n    x = 3\nelse:\n    x = 2\n"
    theirs = "if a:\n    x = 1\nelif t:\n    x = 4\nelse:\n    x = 2\n"

    assert joined(base, ours, theirs) == (
        "if a:\n    x = 1\nelif o:\n    x = 3\nelif t:\n    x = 4\nelse:\n    x = 2\n"
    )


def test_imports_from_one_module_become_one_sorted_import():
    base = "import os\n"
    ours = "import os\nfrom u import is_cuda, is_gfx, is_hip\n"
    theirs = (
        "import os\nfrom u import (\n    cpu_has_amx,\n    is_cpu,\n    is_cuda,\n"
        "    is_hip_and_more_words,\n    is_xpu_too,\n)\n"
    )

    assert joined(base, ours, theirs) == (
        "import os\nfrom u import (\n    cpu_has_amx,\n    is_cpu,\n    is_cuda,\n    is_gfx,\n"
        "    is_hip,\n    is_hip_and_more_words,\n    is_xpu_too,\n)\n"
    )


def test_imports_stay_one_name_a_line_where_a_file_writes_them_so():
    base = "from m import a\nfrom m import z\n"
    ours = "from m import a\nfrom m import o\nfrom m import z\n"
    theirs = "from m import a\nfrom m import t\nfrom m import z\n"

    assert joined(base, ours, theirs) == (
        "from m import a\nfrom m import o\nfrom m import t\nfrom m import z\n"
    )


def test_a_removed_neighbour_does_not_keep_an_import_from_going_into_a_try():
    base = "from a import A\nfrom gone import G\nfrom z import Z\n"
    ours = "from a import A\nfrom z import Z\n"
    theirs = (
        "try:\n    from a import A\nexcept ImportError:\n    A = None\n"
        "from gone import G\nfrom z import Z\n"
    )

    assert joined(base, ours, theirs) == (
        "try:\n    from a import A\nexcept ImportError:\n    A = None\nfrom z import Z\n"
    )


def test_an_edit_follows_statements_that_upstream_put_into_a_branch():
    base = """\
        def f(self):
            self.a = Tower(size=size, quant=quant)
            self.b = Tower(size=size, quant=quant)
            return self
        """
    ours = """\
        def f(self):
            if self.first:
                self.a = Tower(size=size, quant=quant)
                self.b = Tower(size=size, quant=quant)
            else:
                self.a = self.b = Missing()
            return self
        """
    theirs = """\
        def f(self):
            # The towers stay in full precision.
            self.a = Tower(size=size, quant=None)
            self.b = Tower(size=size, quant=None)
            return self
        """

    assert joined(base, ours, theirs) == dedent("""\
        def f(self):
            if self.first:
                # The towers stay in full precision.
                self.a = Tower(size=size, quant=None)
                self.b = Tower(size=size, quant=None)
            else:
                self.a = self.b = Missing()
            return self
        """)


def test_two_wrappers_around_one_call_are_put_into_each_other():
    base = "def f(x):\n    run(x, 1, 2)\n    return x\n"
    ours = (
        "def f(x):\n    if fast:\n        run_fast(x)\n    else:\n        run(x, 1, 2)\n"
        "    return x\n"
    )
    theirs = (
        "def f(x):\n    if run is not None:\n        run(x, 1, 2)\n    else:\n"
        "        slow(x)\n    return x\n"
    )

    assert joined(base, ours, theirs) == (
        "def f(x):\n    if fast:\n        run_fast(x)\n    elif run is not None:\n"
        "        run(x, 1, 2)\n    else:\n        slow(x)\n    return x\n"
    )


def test_a_wrapper_whose_branches_are_alike_is_not_guessed_at():
    base = "def f(x):\n    run(x, 1, 2, 3)\n"
    ours = "def f(x):\n    if fast:\n        run(x, 1, 2, 4)\n    else:\n        run(x, 1, 2, 5)\n"
    theirs = "def f(x):\n    run(x, 1, 2, 3, limit=9)\n"

    with pytest.raises(Stuck):
        joined(base, ours, theirs)


def test_the_same_wrapper_of_both_sides_is_refused():
    base = "def f(x):\n    go(x)\n"
    ours = "def f(x):\n    try:\n        go(x)\n    except A:\n        one()\n"
    theirs = "def f(x):\n    try:\n        go(x)\n    except A:\n        two()\n"

    with pytest.raises(Stuck, match="both sides"):
        joined(base, ours, theirs)


def test_decorators_are_joined_like_calls():
    base = "@compiled(dynamic=True)\ndef f():\n    pass\n"
    ours = "@compiled(dynamic=True, disable=is_npu())\ndef f():\n    pass\n"
    theirs = "@compiled(dynamic=True, disable=True)  # stalls\n@timed\ndef f():\n    pass\n"

    assert joined(base, ours, theirs) == (
        "@compiled(dynamic=True, disable=True)  # stalls\n@timed\ndef f():\n    pass\n"
    )


def test_a_comment_of_the_patch_is_kept_and_one_it_found_is_not_repeated():
    base = "def f():\n    # type: () -> int\n    # old\n    if a:\n        raise A\n"
    ours = "def f():\n    # type: () -> int\n    c = gather()\n    use(c)\n"
    theirs = (
        "def f():\n    # type: () -> int\n    # Once only.\n    assert not state\n"
        "    # old\n    if a:\n        raise A\n"
    )

    assert joined(base, ours, theirs) == (
        "def f():\n    # Once only.\n    assert not state\n    # type: () -> int\n"
        "    c = gather()\n    use(c)\n"
    )


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        # Upstream removed what the patch changes.
        ("a = 1\nb = f(2)\n", "a = 1\n", "a = 1\nb = f(3)\n"),
        # Both rewrote one statement into others.
        ("go(1)\n", "first(2)\n", "second(3)\n"),
        # Both define one name.
        ("a = 1\n", "a = 1\ndef f():\n    return 1\n", "a = 1\ndef f():\n    return 2\n"),
        # What one adds reads what the other adds.
        (
            "def f(x):\n    a(x)\n",
            "def f(x):\n    x = g(x)\n    a(x)\n",
            "def f(x):\n    y = h(x)\n    a(x)\n",
        ),
        # The patch's lines would never run.
        (
            "def f():\n    a()\n",
            "def f():\n    a()\n    return 1\n",
            "def f():\n    a()\n    b()\n",
        ),
        # Two ways to say else.
        (
            "if a:\n    b()\n",
            "if a:\n    b()\nelse:\n    c()\n",
            "if a:\n    b()\nelse:\n    d()\n",
        ),
        # The patch reads a name that upstream no longer sets.
        (
            "def f():\n    t = 1\n    go()\n",
            "def f():\n    go()\n",
            "def f():\n    t = 1\n    use(t)\n    go()\n",
        ),
    ],
)
def test_what_only_a_person_can_decide_is_refused(base, ours, theirs):
    with pytest.raises(Stuck):
        joined(base, ours, theirs)


def test_a_string_over_several_lines_keeps_its_inside_when_its_statement_moves():
    base = "def f():\n    a = '''x\n  y'''\n    b = f(1)\n"
    ours = "def f():\n    if o:\n        a = '''x\n  y'''\n        b = f(1)\n"
    theirs = "def f():\n    a = '''x\n  z'''\n    b = f(1)\n"

    assert "a = '''x\n  z'''" in joined(base, ours, theirs)


NAMES = st.sampled_from(["a", "b", "c", "d"])
LINES = st.one_of(
    st.builds("{} = {}({})".format, NAMES, NAMES, NAMES),
    st.builds("if {}:\n    {}()".format, NAMES, NAMES),
    st.builds("def {}({}):\n    return {}".format, NAMES, NAMES, NAMES),
)
TEXTS = st.lists(LINES, min_size=1, max_size=6).map(lambda lines: "\n".join(lines) + "\n")


@given(TEXTS, TEXTS)
def test_the_side_that_changed_nothing_changes_nothing(base, other):
    assert joined(base, other, base) == other
    assert joined(base, base, other) == other


@given(TEXTS, TEXTS)
def test_what_both_sides_did_alike_is_done_once(base, other):
    assert joined(base, other, other) == other


@given(TEXTS, TEXTS, TEXTS)
def test_whatever_is_joined_still_parses(base, ours, theirs):
    try:
        text = joined(base, ours, theirs)
    except Stuck:
        return

    Source(text)
