"""The nightly run and its one issue: opened once, edited while it lasts, closed when it is over."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.ci.publish import LIMIT, MARKER, Item, Verb, body_of, plan, title_of
from elsa_build.ci.standing import CiCode, Standing, load, store
from elsa_build.errors import ConfigError
from tests.test_flow import CHUNKED, POOL, elsa, root, upstream, upstream_commit

__all__ = ["root", "upstream"]

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / ".github/workflows/rebuild.yml"
PAGES = POOL.replace("return all_at_once()", "return by_pages()", 1)

CONFLICT = Standing(
    code=CiCode.CONFLICTS,
    base="a" * 40,
    onto="b" * 40,
    ref="nightly",
    fingerprint="f1",
    headline="1 of 2 patches clean",
    body="# report\n",
    broken=("one",),
)


def item(standing, number=7):
    return Item(number=number, title=title_of(standing), body=body_of(standing))


# --- what to do ---------------------------------------------------------------------------------


def test_a_first_conflict_opens_an_item():
    (action,) = plan(CONFLICT, [])

    assert action.verb is Verb.CREATE
    assert action.body.startswith(MARKER)


def test_the_same_conflict_again_does_nothing():
    assert plan(CONFLICT, [item(CONFLICT)]) == ()


def test_more_upstream_commits_with_the_same_conflict_are_a_quiet_edit():
    later = replace(CONFLICT, onto="c" * 40, body="# report\nnewer\n")

    assert [a.verb for a in plan(later, [item(CONFLICT)])] == [Verb.EDIT]


def test_another_broken_patch_and_a_recovered_one_are_told():
    later = replace(CONFLICT, fingerprint="f2", broken=("two",), body="# other\n")

    edit, comment = plan(later, [item(CONFLICT)])

    assert (edit.verb, comment.verb) == (Verb.EDIT, Verb.COMMENT)
    assert "`two`" in comment.body
    assert "Recovered: `one`" in comment.body


def test_a_clean_run_closes_the_item():
    clean = replace(CONFLICT, code=CiCode.CLEAN, broken=())

    assert [a.verb for a in plan(clean, [item(CONFLICT)])] == [Verb.CLOSE]


def test_two_items_of_ours_become_one_again():
    actions = plan(CONFLICT, [item(CONFLICT, 9), item(CONFLICT, 7)])

    assert [(a.verb, a.number) for a in actions] == [(Verb.CLOSE, 9)]


def test_a_strangers_item_is_left_alone():
    stranger = Item(number=1, title="Rebase onto nightly", body="no marker")

    assert [a.verb for a in plan(CONFLICT, [stranger])] == [Verb.CREATE]
    assert plan(replace(CONFLICT, code=CiCode.CLEAN), [stranger]) == ()


def test_nothing_new_leaves_the_item_as_it_is():
    nothing = replace(CONFLICT, code=CiCode.NOTHING_NEW, fingerprint="-")

    assert plan(nothing, [item(CONFLICT)]) == ()


def test_a_body_fits_the_forge_and_says_that_it_was_cut():
    long = replace(CONFLICT, body="# report\n" + "a line of it\n" * 10_000)

    assert len(body_of(long)) <= LIMIT
    assert "artifacts" in body_of(long)


def test_a_standing_is_read_back_as_it_was_written(tmp_path):
    store(tmp_path / "deep" / "s.json", CONFLICT)

    assert load(tmp_path / "deep" / "s.json") == CONFLICT


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "other"}', '{"schema": "elsa-build/ci-standing/1"}']
)
def test_another_document_is_refused(tmp_path, text):
    (tmp_path / "s.json").write_text(text)

    with pytest.raises(ConfigError, match=r"s\.json"):
        load(tmp_path / "s.json")


# --- the loop, with real repositories and a gh that only remembers ------------------------------

GH = """\
#!{python}
import json, sys
from pathlib import Path
state = Path({state!r})
issues = json.loads(state.read_text()) if state.exists() else []
log = Path({log!r})
args = sys.argv[1:]
log.write_text((log.read_text() if log.exists() else "") + " ".join(args[:2]) + "\\n")
option = lambda name: args[args.index(name) + 1]
if args[:2] == ["issue", "list"]:
    print(json.dumps([i for i in issues if i["state"] == "open"]))
elif args[:2] == ["issue", "create"]:
    issues.append(dict(number=len(issues) + 1, title=option("--title"), body=sys.stdin.read(), state="open"))
    print("https://example.org/issues/" + str(len(issues)))
elif args[:2] == ["issue", "edit"]:
    issues[int(args[2]) - 1].update(title=option("--title"), body=sys.stdin.read())
elif args[:2] == ["issue", "close"]:
    issues[int(args[2]) - 1]["state"] = "closed"
state.write_text(json.dumps(issues))
"""


@pytest.fixture
def forge(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    state, log = tmp_path / "issues.json", tmp_path / "gh.log"
    program = folder / "gh"
    program.write_text(GH.format(python=sys.executable, state=str(state), log=str(log)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return lambda: json.loads(state.read_text()) if state.exists() else []


def test_two_runs_on_a_conflict_give_one_issue_and_a_clean_run_closes_it(root, upstream, forge):
    upstream_commit(upstream, "Pages (#3)", {"python/sglang/pool.py": PAGES})
    for _ in range(2):
        elsa(root, "ci", "rebase", "--onto", "main", code=10)
        elsa(root, "ci", "publish")

    (issue,) = forge()

    assert issue["state"] == "open"
    assert "copy-in-chunks" in issue["body"]
    upstream_commit(upstream, 'Revert "Pages (#3)" (#4)', {"python/sglang/pool.py": "# x\n" + POOL})
    elsa(root, "ci", "rebase", "--onto", "main")
    elsa(root, "ci", "publish")
    assert [i["state"] for i in forge()] == ["closed"]


def test_a_clean_run_moves_a_copy_builds_its_images_and_leaves_the_project(root, upstream):
    tip = upstream_commit(upstream, "Grow (#1)", {"python/sglang/pool.py": "# more\n" + POOL})
    before = (root / "upstream.lock").read_bytes()

    elsa(
        root,
        "ci",
        "rebase",
        "--onto",
        "main",
        "--test",
        "grep -q in_chunks .cache/patched/python/sglang/pool.py",
    )

    assert (root / "upstream.lock").read_bytes() == before
    assert tip in (root / "out/moved/upstream.lock").read_text()
    assert (root / "out/moved/dist/small-v1.tar").is_file()
    assert (root / "out/report.html").is_file()


def test_a_failing_test_of_a_clean_rebase_is_its_own_code(root, upstream):
    upstream_commit(upstream, "Grow (#1)", {"python/sglang/pool.py": "# more\n" + POOL})

    ran = elsa(root, "ci", "rebase", "--onto", "main", "--test", "false", code=11)

    assert "`false` ended with 1" in ran.stdout


def test_the_same_upstream_is_nothing_new(root):
    elsa(root, "ci", "rebase", "--onto", "main", code=12)


def test_a_summary_is_appended(root, upstream, tmp_path):
    upstream_commit(upstream, "Take it (#2)", {"python/sglang/pool.py": CHUNKED})
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")

    elsa(root, "ci", "rebase", "--onto", "main", "--summary", str(summary))

    assert summary.read_text().startswith("before\n")
    assert "copy-in-chunks" in summary.read_text()


# --- the workflow -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows"),
        ("check-jsonschema", "--builtin-schema", "custom.github-workflows-require-timeout"),
        ("actionlint",),
        ("zizmor", "--offline", "--no-progress"),
    ],
    ids=lambda c: " ".join(c[:1] + c[2:3]),
)
def test_the_workflow_is_well_formed_and_safe(check):
    program = Path(sys.executable).parent / check[0]

    ran = subprocess.run(
        [program, *check[1:], WORKFLOW], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_workflow_only_calls_commands_that_exist():
    text = WORKFLOW.read_text()

    assert "elsa-build ci rebase --onto" in text
    assert "elsa-build ci publish" in text
    assert "${{ inputs" not in text.partition("run: |")[2].partition("- name")[0]
