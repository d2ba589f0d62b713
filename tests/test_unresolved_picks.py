"""A candidate known by its pull request only: listed, passed over, counted, and never guessed."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elsa_build.cli import main
from elsa_build.diagnostics import Severity
from elsa_build.errors import ConfigError
from elsa_build.model import Kind, Origin, Outcome, Patch, Series, Status
from elsa_build.patches import exporting, lint, seriesfile
from elsa_build.patches.absorption import judge
from elsa_build.patches.replay import replay
from elsa_build.patches.walk import as_written

ROOT = Path(__file__).parent.parent

WAITING = """\
version: 1
name: wishes
patches:
  - id: slots-guard
    kind: cherry-pick
    status: candidate
    origin:
      pr: 37619
    why: |
      Do not crash when checkpoint slots run out
      Open on 2026-09-02.
"""


def waiting(**fields) -> Patch:
    known = {
        "id": "slots-guard",
        "patchset": "wishes",
        "file": None,
        "line": 4,
        "kind": Kind.CHERRY_PICK,
        "status": Status.CANDIDATE,
        "why": "Do not crash when checkpoint slots run out",
        "mail": None,
        "origin": Origin(pr=37619),
    }
    return Patch(**(known | fields))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "patchsets" / "wishes"
    made.mkdir(parents=True)
    return made


def written(folder, text=WAITING):
    (folder / "series.yaml").write_text(text, encoding="utf-8")
    return seriesfile.load(folder, root=folder.parent.parent)


def test_a_candidate_may_have_a_pull_request_instead_of_a_commit(folder):
    (patch,) = written(folder).patches

    assert patch.unresolved
    assert not seriesfile.active(patch)
    assert patch.subject == "Do not crash when checkpoint slots run out"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("status: candidate", "status: kept", "origin.commit: a cherry-pick without a file needs"),
        (
            "      pr: 37619\n",
            "      {}\n",
            "origin.commit: a cherry-pick without a file needs one",
        ),
        ("kind: cherry-pick", "kind: hand-port", "file: a hand-port needs one"),
    ],
)
def test_nothing_else_may_go_without(folder, old, new, words):
    with pytest.raises(ConfigError) as caught:
        written(folder, WAITING.replace(old, new))

    assert words in str(caught.value)


def test_it_is_resolved_by_writing_the_commit_beside_the_number(folder):
    text = WAITING.replace("pr: 37619", f'pr: 37619\n      commit: "{"a" * 40}"')

    (patch,) = written(folder, text).patches

    assert not patch.unresolved
    assert seriesfile.active(patch)


def test_a_replay_passes_it_over_with_a_note_and_goes_on(story):
    base = story.commit(None, "base", {"a.py": "one\n"})
    ours = story.patch(base, "ours", {"a.py": "two\n"})

    done = replay(story.git, Series(name="both", patches=(waiting(), ours)), base)

    assert [step.outcome for step in done.steps] == [Outcome.SKIPPED, Outcome.CLEAN]
    assert done.clean
    (note,) = done.steps[0].findings
    assert (note.code, note.severity) == ("E114", Severity.NOTE)
    assert str(note) == (
        "patchsets/wishes/series.yaml:4: unresolved: no commit is known for #37619"
    )
    assert done.steps[0].tree == story.git.commit(base).tree


def test_a_dropped_reference_without_a_commit_gets_no_note(story):
    base = story.commit(None, "base", {"a.py": "one\n"})
    dropped = waiting(status=Status.DROPPED)

    done = replay(story.git, Series(name="one", patches=(dropped,)), base)

    assert (done.steps[0].outcome, done.steps[0].findings) == (Outcome.SKIPPED, ())


def test_a_forecast_an_export_and_a_verdict_leave_it_out(story):
    base = story.commit(None, "base", {"a.py": "one\n"})
    ours = story.patch(base, "ours", {"a.py": "two\n"}, base=base)
    series = Series(name="both", patches=(waiting(), ours), base=base)

    assert [patch.id for patch in as_written(story.git, series)] == ["ours"]
    assert len(exporting.mails(story.git, series)) == 1
    assert list(judge(story.git, replay(story.git, series, base), [])) == ["ours"]


def test_check_counts_them_once_a_patchset(folder):
    written(folder)

    (found,) = lint.check(folder, folder.parent.parent)

    assert (found.code, found.severity) == ("E114", Severity.NOTE)
    assert found.message == "1 of 1 unresolved, known by their pull requests only: #37619"
    assert found.path == "patchsets/wishes/series.yaml"


def test_a_list_shows_the_number_and_how_many_wait(folder):
    written(folder)
    main.load(["patch"])
    place = ["-C", str(folder.parent.parent)]

    words = CliRunner().invoke(main.app, ["patch", "list", *place]).stdout
    document = json.loads(CliRunner().invoke(main.app, ["patch", "list", "--json", *place]).stdout)

    assert "#37619: Do not crash when checkpoint slots run out" in words
    assert "1 of them without a commit yet (unresolved)" in words
    assert document["data"]["patches"][0]["unresolved"] is True


# --- the patchset of references -----------------------------------------------------------------


def test_every_candidate_of_the_nightly_list_waits_for_its_commit():
    series = seriesfile.load(ROOT / "patchsets" / "nightly-2026-11", root=ROOT)

    numbers = [patch.origin.pr for patch in series.patches]
    candidates = [patch for patch in series.patches if patch.status is Status.CANDIDATE]
    assert len(set(numbers)) == len(numbers) == 32
    assert candidates
    assert all(patch.unresolved for patch in candidates)
    assert {patch.status for patch in series.patches} == {Status.CANDIDATE, Status.ABSORBED}
    assert {37619, 37943, 40128, 40416, 39787, 31497, 32885, 39876} <= set(numbers)


def test_every_reference_says_when_its_state_was_seen():
    series = seriesfile.load(ROOT / "patchsets" / "nightly-2026-11", root=ROOT)

    for patch in series.patches:
        assert re.search(r"2026", patch.why), patch.id
        assert "0.5.23" in patch.why, patch.id


def test_no_recipe_includes_the_list_of_references():
    for recipe in (ROOT / "recipes").glob("*.yaml"):
        assert "nightly-2026" not in recipe.read_text(), recipe.name
