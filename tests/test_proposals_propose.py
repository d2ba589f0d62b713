"""A proposal from trees: every conflict settled, guards asked, or nothing."""

from dataclasses import dataclass

import pytest

from elsa_build.git.objects import FILE, SYMLINK, Entry
from elsa_build.model import Oid
from elsa_build.patches.proposals.memory import Memory, remember
from elsa_build.patches.proposals.propose import attempts, propose
from elsa_build.patches.threeway import put

FUNCTION = "def {}(x):\n    return x + {}\n"


@dataclass
class Case:
    story: object
    before: Oid
    after: Oid
    onto: Oid

    def merged(self):
        return put(self.story.git, self.before, self.after, self.onto)

    def propose(self, memory: Memory | None = None):
        extra = {"memory": memory} if memory else {}
        return propose(self.story.git, **self.trees(), **extra)

    def attempts(self):
        return attempts(self.story.git, **self.trees())

    def trees(self):
        return {
            "before": self.before,
            "after": self.after,
            "onto": self.onto,
            "merged": self.merged(),
        }

    def text(self, tree: Oid, path: str) -> str | None:
        entry = self.story.git.objects.find(tree, path)
        return self.story.git.objects.blob(entry.oid).decode() if entry else None


@pytest.fixture
def case(story):
    def make(base: dict, ours: dict, theirs: dict) -> Case:
        root = story.commit(None, "base", base)
        trees = [story.git.commit(story.commit(root, "side", side)).tree for side in (ours, theirs)]
        return Case(story=story, before=story.git.commit(root).tree, after=trees[1], onto=trees[0])

    return make


def both(name: str = "python/m.py") -> tuple[dict, dict, dict]:
    base = FUNCTION.format("a", 1)
    return (
        {name: base, "other.py": "x = 1\n"},
        {name: FUNCTION.format("up", 2) + "\n\n" + base},
        {name: FUNCTION.format("mine", 3) + "\n\n" + base},
    )


def test_a_proposal_has_both_sides_and_says_how(case):
    found = case(*both())

    proposal = found.propose()

    assert found.text(proposal.tree, "python/m.py") == "\n\n".join(
        [FUNCTION.format("up", 2), FUNCTION.format("mine", 3), FUNCTION.format("a", 1)]
    )
    assert proposal.paths == ("python/m.py",)
    assert proposal.how == ("python/m.py: both sides' statements were joined, upstream's first",)
    assert proposal.findings == ()


def test_the_same_conflict_gives_the_same_proposal(case):
    found = case(*both())

    assert found.propose() == found.propose()


def test_a_conflict_that_is_left_means_no_proposal_but_part_solutions_are_shown(case):
    base, ours, theirs = both()
    base["n.py"], ours["n.py"], theirs["n.py"] = "x = 1\n", "x = 2\n", "x = 3\n"
    found = case(base, ours, theirs)

    tried = found.attempts()

    assert found.propose() is None
    assert [(one.path, one.settled, one.proposed, len(one.hunks)) for one in tried] == [
        ("n.py", False, 0, 1),
        ("python/m.py", True, 1, 1),
    ]
    assert tried[0].why == "both sides rewrote `1`"


def test_one_hunk_of_a_file_can_be_settled_while_another_is_not(case):
    middle = "".join(f"line{i} = {i}\n" for i in range(9))
    base = "import os\n" + middle + "x = 1\n"
    ours = "import os\nimport up\n" + middle + "x = 2\n"
    theirs = "import os\nimport mine\n" + middle + "x = 3\n"
    found = case({"m.py": base}, {"m.py": ours}, {"m.py": theirs})

    (attempt,) = found.attempts()

    assert not attempt.settled
    assert [hunk.lines for hunk in attempt.hunks] == [("import up", "import mine"), None]


def test_the_guards_findings_are_on_the_proposal(case):
    base = {"python/p/__init__.py": "", "python/p/m.py": "import os\n"}
    ours = {"python/p/m.py": "import os\nfrom p import n\n", "python/p/n.py": ""}
    theirs = {"python/p/m.py": "import os\nfrom p.gone import n2\n"}
    found = case(base, ours, theirs)

    proposal = found.propose()

    assert [(one.code, one.path) for one in proposal.findings] == [("E313", "python/p/m.py")]


def test_an_edit_follows_a_function_into_a_new_module(case):
    kernel = (
        "def cap(x, limit):\n    part = x / limit\n    part = tanh(part)\n    return part * limit\n"
    )
    base = {"m.py": f"from t import tanh\n\n\n{kernel}\n\ny = 1\n"}
    ours = {
        "m.py": "from ops import cap\n\n\ny = 1\n",
        "ops.py": f"from t import tanh\n\n\n{kernel}",
    }
    theirs = {"m.py": base["m.py"].replace("x / limit", "x.float() / limit")}
    found = case(base, ours, theirs)

    proposal = found.propose()

    assert proposal.paths == ("ops.py",)
    assert "x.float() / limit" in found.text(proposal.tree, "ops.py")
    assert found.text(proposal.tree, "m.py") == ours["m.py"]
    assert proposal.findings == ()


def test_an_edit_follows_a_file_that_upstream_replaced(case):
    names = ["one", "two", "three", "four"]
    text = "\n\n".join(FUNCTION.format(name, number) for number, name in enumerate(names))
    changed = text.replace("x +", "self_check(x) or x +").replace("(x)", "(x, y)")
    moved = "import self_check\n\n\n" + changed
    found = case(
        {"old.py": text},
        {"old.py": None, "new/place.py": moved},
        {"old.py": text.replace("return x + 3", "return x + 33")},
    )

    proposal = found.propose()

    assert found.text(proposal.tree, "old.py") is None
    assert found.text(proposal.tree, "new/place.py") == moved.replace("or x + 3", "or x + 33")


def test_a_file_that_upstream_removed_for_good_has_no_proposal(case):
    text = FUNCTION.format("a", 1)
    found = case({"m.py": text}, {"m.py": None}, {"m.py": text.replace("1", "2")})

    assert found.propose() is None
    assert "nothing like it" in found.attempts()[0].why


def test_a_patch_that_removes_what_upstream_changed_has_no_proposal(case):
    text = FUNCTION.format("a", 1)
    found = case({"m.py": text}, {"m.py": text.replace("1", "2")}, {"m.py": None})

    assert found.propose() is None


def test_other_words_in_one_line_of_any_file_are_joined(case):
    found = case(
        {"a.md": "size 1, name x\n"}, {"a.md": "size 2, name x\n"}, {"a.md": "size 1, name y\n"}
    )

    assert found.text(found.propose().tree, "a.md") == "size 2, name y\n"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("size 2, name x\n", "size 3, name x\n"), ("a\nsize 1, name x\n", "b\nsize 1, name x\n")],
)
def test_a_text_without_a_grammar_is_left_when_lines_do_not_pair(case, ours, theirs):
    found = case({"a.md": "size 1, name x\n"}, {"a.md": ours}, {"a.md": theirs})

    assert found.propose() is None


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.encode() + b"\xff\n",
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.encode() + b"\0",
        lambda text: f"def broken(:\n{text}".encode(),
    ],
)
def test_a_file_that_is_not_plain_python_is_left(case, edit):
    base, ours, theirs = both()
    found = case(
        *({path: edit(text) for path, text in side.items()} for side in (base, ours, theirs))
    )

    assert found.merged().conflicts
    assert found.propose() is None


def test_a_link_is_left(story):
    objects = story.git.objects

    def tree(target: str) -> Oid:
        return objects.edit(None, {"m.py": Entry(SYMLINK, objects.write("blob", target.encode()))})

    found = Case(story=story, before=tree("a"), after=tree("b"), onto=tree("c"))

    assert found.propose() is None


def test_two_files_of_one_name_are_joined_whole(case):
    found = case(
        {"x.py": "x = 1\n"},
        {"new.py": "import os\n\na = 1\n"},
        {"new.py": "import os\n\nb = 2\n"},
    )

    proposal = found.propose()

    assert found.text(proposal.tree, "new.py") == "import os\n\na = 1\n\nb = 2\n"


def test_a_stored_resolution_comes_first_and_is_named(case):
    found = case({"n.py": "x = 1\n"}, {"n.py": "x = 2\n"}, {"n.py": "x = 3\n"})
    marked = found.text(found.merged().marked, "n.py")
    stored = remember(
        "p",
        "n.py",
        marked,
        "x = 5\n",
        author="Ada",
        reason="2 + 3",
        base=Oid("0" * 40),
        date="2026-01-02",
    )

    proposal = found.propose(Memory(resolutions=stored).of("p"))

    assert found.text(proposal.tree, "n.py") == "x = 5\n"
    assert proposal.how == ("n.py: Ada resolved this on 2026-01-02: 2 + 3",)


def test_the_mode_of_a_file_is_kept(story):
    objects = story.git.objects

    def tree(text: str, mode: str) -> Oid:
        return objects.edit(None, {"m.py": Entry(mode, objects.write("blob", text.encode()))})

    base, ours, theirs = (side["python/m.py"] for side in both())
    found = Case(
        story=story,
        before=tree(base, FILE),
        after=tree(theirs, FILE),
        onto=tree(ours, "100755"),
    )

    assert objects.find(found.propose().tree, "m.py").mode == "100755"


def test_a_new_file_goes_along_with_the_directory_that_upstream_renamed(case):
    names = ("a", "b", "c")
    texts = {name: "\n\n".join(FUNCTION.format(name, i) for i in range(5)) for name in names}
    base = {f"old/{name}.py": text for name, text in texts.items()}
    ours = dict.fromkeys(base) | {f"new/{name}.py": text for name, text in texts.items()}
    found = case(base, ours, {"old/mine.py": "x = 1\n"})

    proposal = found.propose()

    assert found.text(proposal.tree, "new/mine.py") == "x = 1\n"
    assert found.text(proposal.tree, "old/mine.py") is None
    assert "renamed the directory to new" in proposal.how[0]
