"""Edits that follow what upstream moved, renamed or reworded."""

from textwrap import dedent

import pytest

from elsa_build.patches.proposals.homes import Upstream, followed, successor
from elsa_build.patches.proposals.layout import Source
from elsa_build.patches.proposals.rewording import reworded, rewordings
from elsa_build.patches.proposals.sequences import Stuck

KERNEL = dedent("""\
    def softcap(logits, cap, block):
        rows, columns = logits.shape
        for row in range(rows):
            part = logits[row, :columns]
            part = part / cap
            part = tanh(part)
            logits[row, :columns] = part * cap
        return logits
    """)
REST = "def keep():\n    return 1\n"
BASE = f"from m import tanh\n\n\n{KERNEL}\n\n{REST}"
OURS = f"from ops import softcap\n\n\n{REST}"
THEIRS = BASE.replace("part = part / cap", "part = part.float() / cap")


def upstream(new: dict[str, str], old: dict[str, str] | None = None) -> Upstream:
    return Upstream(new=new, old=(old or {}).get)


def follow(tree: Upstream, *, base: str = BASE, ours: str = OURS, theirs: str = THEIRS):
    return followed(Source(base), Source(ours), Source(theirs), tree, "a.py")


def test_an_edit_follows_a_function_into_another_module():
    home = f"from m import tanh\n\n\n{KERNEL}"

    moves = follow(upstream({"ops.py": home, "here.py": OURS}))

    assert moves.files == {"ops.py": home.replace("part / cap", "part.float() / cap")}
    assert moves.theirs == BASE
    assert moves.how == [
        "`def softcap(logits, cap, block)` now lives in ops.py; the patch's edit was made there"
    ]


def test_an_edit_follows_a_function_that_was_renamed_as_well():
    home = f"from m import tanh\n\n\n{KERNEL}".replace("softcap", "softcap_inplace")

    moves = follow(upstream({"ops.py": home}))

    assert "part.float() / cap" in moves.files["ops.py"]
    assert "as `def softcap_inplace(" in moves.how[0]


def test_an_edit_follows_a_method_into_another_class():
    def indented(text: str) -> str:
        return "".join(f"    {line}\n" for line in text.splitlines())

    base = f"class A:\n{indented(KERNEL)}\n    def other(self):\n        pass\n"
    ours = "class A:\n    def other(self):\n        pass\n\n\nclass B:\n" + indented(KERNEL)
    theirs = base.replace("part / cap", "part.float() / cap")

    moves = follow(upstream({"a.py": ours}, {"a.py": base}), base=base, ours=ours, theirs=theirs)

    assert moves.files["a.py"] == ours.replace("part / cap", "part.float() / cap")


def test_an_edit_follows_a_block_into_a_new_function():
    base = dedent("""\
        def handle(self, arch):
            self.uses = True
            if self.strategy == "auto":
                overlap = not self.disable_overlap
                paging = self.page_size is not None and self.page_size > 1
                if overlap and self.supports_buffer(arch):
                    self.strategy = "buffer"
                else:
                    self.strategy = "plain"
            return self.check(arch)
        """)
    ours = "def handle(self, arch):\n    view = resolved(self)\n    return self.check(view, arch)\n"
    theirs = base.replace(
        "(arch):\n            self.s", "(arch) and is_cuda():\n            self.s"
    )
    home = dedent("""\
        from u import is_cuda


        def resolve(view, arch):
            if view.strategy == "auto":
                overlap = not view.disable_overlap
                paging = view.page_size is not None and view.page_size > 1
                if overlap and supports_buffer(view, arch):
                    return {"strategy": "buffer"}
                return {"strategy": "plain"}
            return {}
        """)

    moves = follow(upstream({"overrides.py": home}), base=base, ours=ours, theirs=theirs)

    assert (
        "if overlap and supports_buffer(view, arch) and is_cuda():" in moves.files["overrides.py"]
    )


def test_an_edit_brings_the_import_that_it_needs():
    theirs = THEIRS.replace("part.float()", "upcast(part)").replace("tanh\n", "tanh, upcast\n", 1)
    home = f"from m import tanh\n\n\n{KERNEL}"

    moves = follow(upstream({"ops.py": home}), theirs=theirs)

    assert moves.files["ops.py"].startswith("from m import tanh, upcast\n")


def test_an_edit_does_not_go_where_its_names_are_unknown():
    theirs = THEIRS.replace("part.float()", "local(part)") + "\n\ndef local(x):\n    return x\n"

    with pytest.raises(Stuck, match="does not know `local`"):
        follow(upstream({"ops.py": f"from m import tanh\n\n\n{KERNEL}"}), theirs=theirs)


def test_a_namesake_that_was_there_before_is_not_the_new_home():
    home = f"from m import tanh\n\n\n{KERNEL}"

    with pytest.raises(Stuck, match="nothing like it"):
        follow(upstream({"ops.py": home + "\nX = 1\n"}, {"ops.py": home}))


def test_two_possible_homes_are_no_home():
    home = f"from m import tanh\n\n\n{KERNEL}"

    with pytest.raises(Stuck, match=r"may have moved to a\.py or b\.py"):
        follow(upstream({"a.py": home, "b.py": home}))


def test_what_upstream_deleted_for_good_has_no_home():
    with pytest.raises(Stuck, match="nothing like it"):
        follow(upstream({"ops.py": REST}))


def test_a_removed_file_is_found_again_under_another_name():
    moved = BASE.replace("(logits, cap,", "(logits, limit,").replace("cap\n", "limit\n")

    assert successor("here.py", Source(BASE), upstream({"new/there.py": moved})) == "new/there.py"
    with pytest.raises(Stuck):
        successor("here.py", Source(BASE), upstream({"there.py": moved}, {"there.py": "x = 1\n"}))


# --- rewording ----------------------------------------------------------------------------------

OLD = "from d import rank\n\n\ndef f():\n    a = rank()\n    b = rank() + 1\n    return a + b\n"
NEW = OLD.replace("rank()", "layout().rank").replace("import rank", "import layout")


def test_an_expression_that_upstream_replaced_throughout_is_replaced_in_the_patch():
    theirs = OLD.replace("    return", "    c = rank() // 2\n    return")

    found = rewordings(OLD, NEW, theirs)

    assert [(one.old, one.new) for one in found] == [("rank()", "layout().rank")]
    assert "c = layout().rank // 2" in reworded(theirs, found)


def test_an_expression_that_upstream_still_uses_is_left_alone():
    ours = NEW + "\n\ndef g():\n    return rank()\n"

    assert rewordings(OLD, ours, OLD + "c = rank()\n") == ()


def test_a_single_replacement_of_a_living_name_is_no_rule():
    base = "def f(c):\n    return c.text.size\n"
    ours = "def f(c):\n    return c.size\n"

    assert rewordings(base, ours, base.replace("c.text.size", "c.text.size + 1")) == ()


def test_replacements_that_disagree_are_no_rule():
    ours = OLD.replace("a = rank()", "a = x().y").replace("b = rank()", "b = z()")

    assert rewordings(OLD, ours, OLD + "c = rank()\n") == ()
