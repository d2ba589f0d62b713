"""The import guard: what an added line imports is in the merged tree."""

from elsa_build.patches.guards.change import FileChange
from elsa_build.patches.guards.run import ModuleIndex, examine
from tests.guards_material import POOL, Tree, codes, look

TREE = Tree(
    {
        "python/engine/__init__.py": "",
        "python/engine/ops.py": """\
import os
from engine.base import *

try:
    from fast import kernel
except ImportError:
    kernel = None

if os.name == "posix":
    def place(x): return x
else:
    place = None

LIMIT: int = 2
A, (B, *C) = load()
with open("x") as handle:
    for number in handle:
        pass
while (line := read()):
    pass
match LIMIT:
    case {"a": first, **others}:
        pass


async def gather(): ...


class Pool:
    inner = 1


def make():
    global made
    made = 1
    hidden = 2
""",
        "python/engine/base.py": """\
__all__ = ["listed"]
from engine.ops import *

def based(): ...
""",
        "python/engine/late.py": "def __getattr__(name): return name\n",
        "python/engine/filled.py": "globals().update(load())\n",
        "python/engine/outside.py": "from torch import *\n",
        "python/engine/proto/service.proto": "",
        "python/engine/fast.pyx": "",
        "python/engine/spaces/a/one.py": "",
        "python/engine/broken.py": "def (:\n",
        "tools/run.py": "",
    }
)


def added(*lines: str, path: str = POOL, tree: Tree = TREE) -> list[str]:
    """Return the findings on lines that a patch adds to the end of a file."""
    written = "import os\n"
    text = written + "\n".join(lines) + "\n"
    return [
        f"{one.severity} {one.code} line {one.line}: {one.message}"
        for one in look(written, text, written, text, path=path, tree=tree)
    ]


def test_a_module_that_upstream_moved_is_an_error_with_the_command_that_finds_it() -> None:
    text = "import os\nfrom engine.quant.fp8_kernel import scale\n"

    found = look("import os\n", text, "import os\n", text, tree=TREE)

    assert codes(found) == ["error E313"]
    assert (found[0].path, found[0].line) == (POOL, 2)
    assert found[0].message == "imports module `engine.quant.fp8_kernel`, which is not in the tree"
    assert found[0].hint == (
        "git log --oneline --diff-filter=DR -- python/engine/quant/fp8_kernel.py"
    )


def test_a_name_that_the_module_lacks_is_an_error_with_the_command_that_finds_it() -> None:
    text = "import os\nfrom engine.ops import Pool, gone\n"

    found = look("import os\n", text, "import os\n", text, tree=TREE)

    assert codes(found) == ["error E314"]
    assert found[0].message == "imports `gone` from `engine.ops`, which has no such name"
    assert found[0].hint == "git log --oneline -G '\\bgone\\b' -- python/engine/ops.py"


def test_every_way_to_bind_a_name_counts() -> None:
    names = (
        "kernel place LIMIT A B C handle number line first others gather Pool made os based listed"
    )

    assert added(*(f"from engine.ops import {name}" for name in names.split())) == []


def test_what_only_looks_bound_does_not_count() -> None:
    for name in ("hidden", "inner", "x", "fast", "load"):
        assert added(f"from engine.ops import {name}") == [
            f"error E314 line 2: imports `{name}` from `engine.ops`, which has no such name"
        ]


def test_star_imports_lists_and_cycles_are_followed() -> None:
    assert added("from engine.ops import based, listed", "from engine.base import Pool") == []
    assert added("from engine.base import nothing") != []


def test_modules_that_make_their_names_at_run_time_are_taken_at_their_word() -> None:
    assert added("from engine.late import a", "from engine.filled import b") == []
    assert added("from engine.outside import Tensor", "from engine.broken import c") == []


def test_modules_that_a_build_makes_are_taken_at_their_word() -> None:
    assert added("from engine.fast import a", "from engine.proto.service_pb2 import B") == []
    assert added("from engine.proto import service_pb2_grpc") == []


def test_packages_and_namespaces_hold_submodules_only() -> None:
    assert added("import engine.spaces.a.one", "from engine.spaces import a") == []
    assert added("from engine import ops", "from engine.spaces.a import one") == []
    assert added("from engine.spaces import b") != []
    assert added("import engine.spaces.b") == [
        "error E313 line 2: imports module `engine.spaces.b`, which is not in the tree"
    ]


def test_foreign_packages_are_not_looked_at() -> None:
    assert added("import torch.nope", "from numpy import nope", "from tools import nope") == []


def test_relative_imports_count_from_the_file() -> None:
    inner = "python/engine/spaces/a/two.py"

    assert added("from . import one", "from ...ops import Pool", path=inner) == []
    assert added("from .one import x", path=inner) != []
    assert added("from .gone import x", path=inner) == [
        "error E313 line 2: imports module `.gone`, which is not in the tree"
    ]
    assert added("from .ops import Pool", path="python/engine/__init__.py") == []
    assert added("from ..... import x", path=inner) != []


def test_a_file_outside_the_roots_may_import_from_them() -> None:
    assert added("from engine.ops import Pool", path="tools/run.py") == []
    assert added("from engine.gone import Pool", path="tools/run.py") != []


def test_only_added_lines_are_asked() -> None:
    text = "from engine.gone import a\n\n\ndef run():\n    return 1\n"
    patched = text.replace("1", "2")

    assert look(text, patched, text, patched, tree=TREE) == ()


def test_of_a_long_import_only_the_added_names_are_asked() -> None:
    text = "from engine.ops import (\n    Pool,\n    old_fault,\n)\n"
    patched = text.replace("    Pool,\n", "    Pool,\n    gone,\n    LIMIT as limit,\n")

    found = look(text, patched, text, patched, tree=TREE)

    assert [(one.code, one.line) for one in found] == [("E314", 3)]


def test_imports_inside_functions_and_methods_of_large_classes_are_found() -> None:
    methods = "".join(
        f"    def m{number}(self):\n        return {number}\n\n" for number in range(200)
    )
    written = f"class Large:\n{methods}"
    ours = "    def m150(self):\n        from engine.gone import a\n\n"
    text = written.replace("    def m150(self):\n", ours)

    found = look(written, text, written, text, tree=TREE)

    assert [(one.code, one.line) for one in found] == [("E313", 453)]


def test_a_guarded_import_is_a_note_since_its_fallback_is_silent() -> None:
    for catch in ("ImportError", "ModuleNotFoundError", "(OSError, ImportError)", "Exception"):
        found = added("try:", "    import engine.gone", f"except {catch}:", "    gone = None")
        assert [one[:18] for one in found] == ["note E313 line 3: "]
        assert "its fallback will be taken, in silence" in found[0]
    assert added("try:", "    import engine.gone", "except:", "    pass")[0].startswith("note")
    assert added("try:", "    import engine.gone", "except OSError:", "    pass")[0].startswith(
        "error"
    )
    assert added(
        "from contextlib import suppress", "with suppress(ImportError):", "    import engine.gone"
    )[0].startswith("note")


def test_an_import_for_type_checkers_is_a_warning() -> None:
    gone = "    from engine.ops import gone"
    lines = ("from typing import TYPE_CHECKING", "if TYPE_CHECKING:", gone)

    assert added(*lines)[0].startswith("warning E314 line 4")
    assert added(*lines, "else:", gone)[1].startswith("error")


def test_what_upstream_imports_itself_is_at_most_a_warning() -> None:
    written = "from engine._version import version\n"
    text = written + "\n\ndef run():\n    from engine._version import version_tuple\n"

    assert codes(look(written, text, written, text, tree=TREE)) == ["warning E313"]


def test_the_module_may_come_with_the_patch_itself() -> None:
    user = "import os\nfrom engine.fresh import start\n"
    tree = Tree({**TREE.files, "python/engine/fresh.py": "def start(): ...\n", POOL: user})

    assert look("import os\n", user, "import os\n", user, tree=tree) == ()


def test_a_shared_index_gives_the_same_findings_as_a_fresh_one() -> None:
    text = b"import os\nfrom engine.ops import gone\n"
    change = FileChange(
        path=POOL, written=b"import os\n", patched=text, onto=b"import os\n", merged=text
    )
    index = ModuleIndex()
    later = Tree({**TREE.files, "python/engine/ops.py": "def gone(): ...\n"})

    fresh = [examine([change], tree) for tree in (TREE, later)]
    shared = [examine([change], tree, index=index) for tree in (TREE, later)]

    assert shared == fresh
    assert [len(found) for found in fresh] == [1, 0]
