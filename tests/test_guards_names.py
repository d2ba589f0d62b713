"""The name guard: a merge does not leave a function with a name that nothing defines."""

from pathlib import Path

from tests.guards_material import POOL, Tree, codes, look, three_way

BASE = """\
from engine.ops import place, release

LIMIT = 12


def allocate(pool, request):
    slot = pool.take(LIMIT)
    check(slot)
    pool.mark(slot)
    log(slot)
    return slot


def check(slot):
    return slot


def log(slot):
    return slot


class Pool:
    inner = 1

    def take(self, size):
        return [size for size in range(size)]
"""


def test_a_parameter_that_upstream_dropped_and_the_patch_uses_is_found(tmp_path: Path) -> None:
    patched = BASE.replace("    log(slot)\n", "    log(slot)\n    request.slot = slot\n")
    onto = BASE.replace("allocate(pool, request)", "allocate(pool)")

    conflicts, merged = three_way(tmp_path, BASE, patched, onto)
    found = look(BASE, patched, onto, merged)

    assert conflicts == 0
    compile(merged, POOL, "exec")
    assert codes(found) == ["error E317"]
    assert (found[0].path, found[0].line) == (POOL, 11)
    assert found[0].message.startswith("uses `request`, which nothing defines here")
    assert found[0].hint == f"git log --oneline -G '\\brequest\\b' -- {POOL}"


def test_an_import_that_upstream_dropped_and_the_patch_uses_is_found(tmp_path: Path) -> None:
    patched = BASE.replace("    log(slot)\n", "    log(place(slot))\n")
    onto = BASE.replace("import place, release", "import release")

    conflicts, merged = three_way(tmp_path, BASE, patched, onto)

    assert conflicts == 0
    assert codes(look(BASE, patched, onto, merged)) == ["error E317"]


def test_an_import_that_the_patch_drops_and_upstream_now_uses_is_found(tmp_path: Path) -> None:
    patched = BASE.replace("import place, release", "import release")
    onto = BASE.replace("    log(slot)\n", "    log(place(slot))\n")

    conflicts, merged = three_way(tmp_path, BASE, patched, onto)

    assert conflicts == 0
    assert codes(look(BASE, patched, onto, merged)) == ["error E317"]


def test_what_one_side_leaves_undefined_by_itself_is_not_the_merge_s() -> None:
    patched = BASE.replace("    log(slot)\n", "    log(slot, odd)\n")
    onto = BASE.replace("check(slot)\n", "check(slot, strange)\n", 1)
    merged = patched.replace("check(slot)\n", "check(slot, strange)\n", 1)

    assert look(BASE, patched, onto, merged) == ()


def test_names_from_everywhere_are_known() -> None:
    used = "len, LIMIT, place, check, Pool, __name__, made, slot"
    maker = "\n\ndef make():\n    global made\n    made = 1\n"
    patched = BASE.replace("    log(slot)\n", f"    log({used})\n") + maker
    onto = BASE.replace("check(slot)\n", "check(slot, 2)\n", 1)
    merged = patched.replace("check(slot)\n", "check(slot, 2)\n", 1)

    assert look(BASE, patched, onto, merged) == ()


def test_a_star_import_of_the_tree_is_read_and_a_foreign_one_ends_the_question() -> None:
    tree = Tree({"python/engine/__init__.py": "", "python/engine/ops.py": "def spread(): ...\n"})
    for star, expected in (("engine.ops", ["error E317"]), ("torch", [])):
        base = f"from {star} import *\n" + BASE
        patched = base.replace("    log(slot)\n", "    log(spread, request)\n")
        onto = base.replace("allocate(pool, request)", "allocate(pool)")
        merged = patched.replace("allocate(pool, request)", "allocate(pool)")

        assert codes(look(base, patched, onto, merged, tree=tree)) == expected


def test_a_name_of_the_class_is_not_a_name_of_its_methods() -> None:
    patched = BASE.replace("range(size)", "range(size + inner)").replace("    inner = 1\n", "")
    patched = patched.replace("LIMIT = 12\n", "LIMIT = 12\ninner = 1\n")
    onto = BASE.replace("def take(self, size)", "def take(self, size=2)")
    merged = onto.replace("range(size)", "range(size + inner)")

    found = look(BASE, patched, onto, merged)

    assert "error E317" in codes(found)
