"""The definition guard: a patch does not define again what upstream now defines."""

from pathlib import Path

import pytest

from tests.guards_material import POOL, codes, look, three_way

BASE = """\
class Pool:
    size: int = 0

    def first(self):
        return 1

    def last(self):
        return 2


def make(size):
    return Pool(size)


def stop(pool):
    return pool.last()
"""


def test_a_function_that_both_sides_added_is_defined_twice(tmp_path: Path) -> None:
    ours = "def clear(pool):\n    pool.size = 0\n\n\n"
    theirs = "def clear(pool, *, hard=False):\n    pool.reset(hard)\n\n\n"
    patched = BASE.replace("def stop", ours + "def stop")
    onto = BASE.replace("def make", theirs + "def make")

    conflicts, merged = three_way(tmp_path, BASE, patched, onto)
    found = look(BASE, patched, onto, merged)

    assert conflicts == 0
    assert codes(found) == ["error E315"]
    assert (found[0].path, found[0].line) == (POOL, 19)
    assert found[0].message == "`clear` is defined 2 times, at lines 11, 19; the last one wins"


def test_a_method_is_named_with_its_class() -> None:
    method = "    def clear(self):\n        self.size = 0\n\n"
    patched = BASE.replace("    def last", method + "    def last")
    onto = BASE.replace("    def first", method.replace("0", "1") + "    def first")
    merged = patched.replace("    def first", method.replace("0", "1") + "    def first")

    found = look(BASE, patched, onto, merged)

    assert codes(found) == ["error E315"]
    assert found[0].message.startswith("`Pool.clear` is defined 2 times, at lines 4, 10")


def test_a_field_of_a_class_counts_as_a_definition() -> None:
    patched = BASE.replace("size: int = 0\n", "size: int = 0\n    slots: int = 12\n")
    onto = BASE.replace("    size: int = 0\n", "    slots: int = 8\n    size: int = 0\n")
    merged = onto.replace("size: int = 0\n", "size: int = 0\n    slots: int = 12\n")

    found = look(BASE, patched, onto, merged)

    assert codes(found) == ["error E315"]
    assert "`Pool.slots`" in found[0].message


def test_a_method_of_a_large_class_is_found_as_well() -> None:
    many = "".join(
        f"    def m{number}(self):\n        return {number}\n\n" for number in range(200)
    )
    base = f"class Large:\n{many}"
    patched = base.replace("    def m50(", "    def ours(self):\n        return 1\n\n    def m50(")
    onto = base.replace("    def m9(", "    def ours(self):\n        return 2\n\n    def m9(")
    merged = patched.replace("    def m9(", "    def ours(self):\n        return 2\n\n    def m9(")

    assert codes(look(base, patched, onto, merged)) == ["error E315"]


MEANT = """\
    @property
    def width(self):
        return 1

    @width.setter
    def width(self, it):
        pass
====
    @overload
    def width(self, it: int): ...

    @typing.overload
    def width(self, it: str): ...

    def width(self, it):
        pass
====
    @scale.register
    def _(self, it: int): ...

    @scale.register(str)
    def _(self, it): ...
====
    if FAST:
        def width(self): return 1
    else:
        def width(self): return 2
====
    try:
        def width(self): return 1
    except ValueError:
        def width(self): return 2
====
    def width(self): return 1

    if FAST:
        def width(self): return 2
"""


@pytest.mark.parametrize("pair", MEANT.split("====\n"))
def test_a_second_definition_that_is_meant_is_none(pair: str) -> None:
    patched = BASE.replace("    def last", pair + "\n    def last")
    onto = "VERSION = 2\n" + BASE

    assert look(BASE, patched, onto, "VERSION = 2\n" + patched) == ()


def test_what_was_twice_before_is_not_the_merge_s_doing() -> None:
    twice = "def clear(pool):\n    return 1\n\n\n"
    patched = BASE.replace("def make", twice + twice.replace("1", "2") + "def make")
    onto = "VERSION = 2\n" + BASE

    assert look(BASE, patched, onto, "VERSION = 2\n" + patched) == ()


def test_the_same_name_in_two_scopes_is_no_second_definition() -> None:
    patched = BASE.replace("def stop", "def first(pool):\n    return pool.first()\n\n\ndef stop")
    onto = "VERSION = 2\n" + BASE

    assert look(BASE, patched, onto, "VERSION = 2\n" + patched) == ()


def test_a_definition_that_the_patch_replaces_stays_one() -> None:
    patched = BASE.replace("def make(size):", "def make(size, slots):")
    onto = "VERSION = 2\n" + BASE

    assert look(BASE, patched, onto, "VERSION = 2\n" + patched) == ()
