"""Stored resolutions: exact texts, exact context, readable files."""

from dataclasses import replace

import pytest

from elsa_build.errors import ConfigError
from elsa_build.model import Oid
from elsa_build.patches.proposals.memory import EMPTY, Memory, load, remember, render, save
from elsa_build.patches.proposals.views import Marked

BASE = Oid("1" * 40)


def marked(ours: str = "o\n", around: str = "a\nb\nc\n") -> str:
    return f"{around}{'<' * 32} x\n{ours}{'|' * 32} y\nb\n{'=' * 32}\n\tt \n{'>' * 32} z\nend\n"


def stored(text: str = "a\nb\nc\no\n\tt \nend\n"):
    return remember(
        "my-patch",
        "p/a.py",
        marked(),
        text,
        author="Ada",
        reason="both are needed",
        base=BASE,
        date="2026-01-02",
    )


def test_a_resolution_serves_the_same_conflict_again():
    memory = Memory(resolutions=stored()).of("my-patch")

    found, expired = memory.recall("p/a.py", Marked(marked()), 0)

    assert found is not None
    assert found.lines == ("o", "\tt ")
    assert not expired


@pytest.mark.parametrize(
    ("patch", "path", "text"),
    [
        ("other", "p/a.py", marked()),
        ("my-patch", "p/b.py", marked()),
        ("my-patch", "p/a.py", marked(ours="o \n")),
    ],
)
def test_a_resolution_does_not_serve_another_patch_path_or_text(patch, path, text):
    found, expired = Memory(resolutions=stored()).of(patch).recall(path, Marked(text), 0)

    assert found is None
    assert not expired


def test_a_resolution_expires_when_the_lines_around_change():
    found, expired = Memory(resolutions=stored()).recall(
        "p/a.py", Marked(marked(around="a\nB\nc\n")), 0
    )

    assert found is None
    assert expired


def test_a_text_that_also_changes_clean_lines_cannot_be_stored_hunk_by_hunk():
    assert stored("a\nB\nc\no\nend\n") == ()


def test_what_is_saved_is_loaded(tmp_path):
    paths = save(tmp_path, stored())

    assert [path.name for path in paths] == [stored()[0].name]
    assert load(tmp_path).resolutions == stored()
    assert not list(tmp_path.rglob("*.new"))


@pytest.mark.parametrize(
    "lines", [(), ("",), ('"', "\\n", "# no", "- ' : {", "\u2028\x85\x7f", "日")]
)
def test_any_lines_survive_the_file(tmp_path, lines):
    one = replace(stored()[0], lines=lines)

    save(tmp_path, [one])

    assert load(tmp_path).resolutions == (one,)


def test_a_patchset_without_the_folder_remembers_nothing(tmp_path):
    assert load(tmp_path) == EMPTY


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("version: 1", "version: 2", "version: must be 1"),
        ('author: "Ada"', 'author: " "', "author: must not be empty"),
        ('date: "2026-01-02"', "date: 2026-01-02", "date: 2026-01-02 is a date to YAML; quote it"),
        ("reason:", "raison:", "raison: unknown field (did you mean 'reason'?)"),
        ('  - "o"', "  - o", "lines: each line must be one quoted text"),
        (f'base: "{BASE}"', 'base: "abc"', "base: must be a full commit id"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, old, new, complaint):
    one = stored()[0]
    (tmp_path / "resolutions").mkdir()
    path = tmp_path / "resolutions" / one.name
    path.write_text(render(one).replace(old, new))

    with pytest.raises(ConfigError) as e:
        load(tmp_path, root=tmp_path)

    assert complaint in str(e.value)
    assert str(e.value).startswith(f"resolutions/{one.name}:")


def test_a_file_under_another_name_is_refused(tmp_path):
    (tmp_path / "resolutions").mkdir()
    (tmp_path / "resolutions" / "x.yaml").write_text(render(stored()[0]))

    with pytest.raises(ConfigError, match="must be called my-patch"):
        load(tmp_path)
