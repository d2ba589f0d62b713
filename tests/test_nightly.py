"""Upstream since the pin, seen through a recipe's interest and tried on our stack."""

import pytest

from elsa_build.git.objects import Change, Entry
from elsa_build.model import Interest, Oid
from elsa_build.nightly.interest import DEFAULT, filled, reasons
from tests.downstream import RECIPE, begin
from tests.test_replay import text
from tests.test_reverts import commits

POOL = "python/sglang/srt/mem_cache/memory_pool.py"
MODEL = "python/sglang/srt/models/qwen3_5.py"


@pytest.fixture
def project(tmp_path, story, monkeypatch):
    files = {
        POOL: text(),
        MODEL: text(),
        "python/sglang/srt/other.py": text(),
        "test/test_pool.py": text(),
        "python/pyproject.toml": '[project]\nname = "sglang"\n',
    }
    project = begin(tmp_path, story, monkeypatch, files)
    project.patch("Keep our pool", {POOL: text(l9="ours")})
    return project


def scan(project, *args):
    return project.json("nightly", "scan", "-j", "1", *args)["candidates"]


def subjects(project, *args):
    return [one["subject"] for one in scan(project, *args)]


# --- what matters ----------------------------------------------------------------------------


def matter(subject, *paths, interest=DEFAULT, hot=()):
    entry = Entry("100644", Oid("a" * 40))
    changes = {1: tuple(Change(path, None, entry) for path in paths or ("python/sglang/x.py",))}
    (commit,) = commits(subject, changes=changes)
    return reasons(commit, interest, dict.fromkeys(hot, ("our-patch",)))


@pytest.mark.parametrize(
    ("subject", "word"),
    [
        ("Fix Mamba state", "title: mamba"),
        ("Support Qwen3.5 MoE", "title: qwen3_5"),
        ("CUDA graph for prefill", "title: cuda_graph"),
        ("[SM120] faster FP4", "title: sm120"),
    ],
)
def test_a_title_matters_in_whatever_spelling(subject, word):
    assert word in matter(subject)


@pytest.mark.parametrize(
    "subject",
    ["[AMD] Fix mamba", "[NPU] radix", "[Diffusion] cuda graph", "docs: mamba", "[CPU] gdn"],
)
def test_other_hardware_and_words_do_not_matter(subject):
    assert matter(subject) == ()


def test_cpu_in_a_sentence_is_not_the_tag():
    assert matter("Let the CPU run ahead of the mamba kernel")


def test_a_file_matters_by_its_name_unless_it_does_not_ship():
    assert matter("Tidy", MODEL) == (f"file: qwen3_5 ({MODEL})", f"path: {MODEL}")
    assert matter("Tidy", "test/srt/test_mamba.py") == ()


def test_a_title_of_a_commit_that_ships_nothing_does_not_matter():
    assert matter("Mamba", "docs/mamba.md") == ()


def test_a_file_of_our_patch_matters_by_itself():
    assert matter("Tidy", "python/sglang/x.py", hot=("python/sglang/x.py",)) == (
        "ours: python/sglang/x.py (our-patch)",
    )


def test_a_recipe_replaces_one_list_and_keeps_the_others():
    found = filled(Interest(keywords=("kimi",)))

    assert found.keywords == ("kimi",)
    assert found.without == DEFAULT.without
    assert matter("Kimi", interest=found) == ("title: kimi",)
    assert matter("Mamba", interest=found) == ()


# --- scan ------------------------------------------------------------------------------------


def test_a_candidate_says_what_becomes_of_it_alone_and_in_order(project):
    first = project.upstream("Mamba one (#1)", {POOL: text(l2="one")})
    project.upstream("Mamba two (#2)", {POOL: text(l2="one two"), "test/test_pool.py": "new\n"})
    project.upstream("Weather (#3)", {"python/sglang/srt/other.py": text(l1="rain")})

    one, two = scan(project)

    assert (one["alone"], one["stacked"]) == ("clean", "clean")
    assert (two["alone"], two["stacked"]) == ("conflict", "clean")
    assert (two["pr"], two["conflicts"]) == (2, [POOL])
    assert [p["commit"] for p in two["prerequisites"]] == [first]
    assert (two["files"], two["added"], two["removed"]) == (2, 2, 11)
    assert one["hot"] == [{"path": POOL, "patches": ["keep-our-pool"]}]


def test_a_conflict_with_our_patch_names_the_file_and_the_patch(project):
    project.upstream("Mamba nine (#1)", {POOL: text(l9="theirs")})

    (one,) = scan(project)

    assert (one["alone"], one["stacked"]) == ("conflict", "conflict")
    assert "our patches" in one["no_prerequisites"]
    assert one["hot"][0]["patches"] == ["keep-our-pool"]


def test_a_clean_candidate_that_needs_what_the_pin_lacks_is_said(project):
    project.upstream(
        "Add a module (#1)", {"python/sglang/srt/fresh.py": "def f():\n    return 1\n"}
    )
    used = "from sglang.srt.fresh import f\n"
    project.upstream("Mamba uses it (#2)", {"python/sglang/srt/mamba_use.py": used})

    (one,) = scan(project)

    assert (one["alone"], [o["code"] for o in one["objections"]]) == ("clean", ["E313"])
    assert "0 apply alone" in project.run("nightly", "scan").err


def test_reverted_carried_and_absorbed_candidates_are_marked(project):
    gone = project.upstream("Mamba gone (#1)", {MODEL: text(l1="gone")})
    back = project.upstream('Revert "Mamba gone (#1)" (#2)', {MODEL: text()})
    kept = project.upstream("Mamba kept (#3)", {MODEL: text(l5="kept")})
    project.upstream("Mamba ours too (#4)", {POOL: text(l9="ours")})
    project.run("cherry-pick", kept, "--from", "main")

    found = {one["subject"]: one for one in scan(project, "--grep", "mamba")}

    assert found["Mamba gone (#1)"]["reverted_by"] == back
    assert found["Mamba gone (#1)"]["commit"] == gone
    assert found["Mamba ours too (#4)"]["alone"] == "absorbed"
    assert found["Mamba kept (#3)"]["carried"] is None  # the recipe leaves `picks` out
    recipe = project.root / "recipes/small.yaml"
    recipe.write_text(recipe.read_text().replace("[local]", "[local, picks]"))
    again = {one["subject"]: one for one in scan(project, "--grep", "mamba")}
    assert again["Mamba kept (#3)"]["carried"] == "mamba-kept-3"


def test_grep_path_all_and_limit_stand_in_for_the_interest(project):
    project.upstream("Mamba (#1)", {POOL: text(l1="a")})
    project.upstream("Weather (#2)", {"python/sglang/srt/other.py": text(l1="rain")})
    project.upstream("Tests (#3)", {"test/test_pool.py": text(l1="b")})

    assert subjects(project) == ["Mamba (#1)"]
    assert subjects(project, "--grep", "weather|tests") == ["Weather (#2)", "Tests (#3)"]
    assert subjects(project, "--path", "test/*") == ["Tests (#3)"]
    assert subjects(project, "--all") == ["Mamba (#1)", "Weather (#2)", "Tests (#3)"]
    assert subjects(project, "--all", "--limit", "1") == ["Tests (#3)"]


def test_a_recipes_own_interest_counts(project):
    project.upstream("Weather (#2)", {"python/sglang/srt/other.py": text(l1="rain")})
    (project.root / "recipes/small.yaml").write_text(
        RECIPE + "nightly:\n  keywords: [weather]\n  without: [snow]\n"
    )

    assert subjects(project) == ["Weather (#2)"]


def test_an_unknown_field_of_the_interest_is_refused(project):
    (project.root / "recipes/small.yaml").write_text(RECIPE + "nightly:\n  keyword: [weather]\n")

    assert "keywords" in project.run("nightly", "scan", code=5).err


def test_processes_change_nothing(project):
    for number in range(20):
        body = text(**{f"l{number % 8}": f"mamba {number}"})
        project.upstream(f"Mamba {number} (#{number + 1})", {POOL: body})

    alone = project.json("nightly", "scan", "-j", "1")
    together = project.json("nightly", "scan", "-j", "2")

    assert together == alone
    assert {one["alone"] for one in alone["candidates"]} == {"clean", "conflict"}


def test_a_pin_on_a_release_branch_knows_what_the_branch_took(project):
    common = project.main
    fix = project.upstream("Mamba fix (#7)", {MODEL: text(l1="fix")})
    branch = project.story.commit(
        common, "[Cherry-pick] Mamba fix (#7) (#8)", {MODEL: text(l1="fix")}
    )
    project.git.move_refs({"refs/heads/release": (branch, None)})
    project.run("pin", "set", "release")

    (one,) = scan(project, "--until", "main")

    assert (one["commit"], one["in_pin"], one["alone"]) == (fix, True, "absorbed")


def test_nothing_new_is_nothing_to_see(project):
    assert scan(project) == []
    assert "0 of 0 commits" in project.run("nightly", "scan").err


def test_people_see_the_same_as_scripts(project):
    project.upstream("Mamba one (#1)", {POOL: text(l2="one")})
    second = project.upstream("Mamba two (#2)", {POOL: text(l2="one two")})

    ran = project.run("nightly", "scan")

    assert second in ran.out
    assert "needs #1" in ran.out
    assert "2 of 2 commits matter: 1 apply alone, 1 more with prerequisites" in ran.err


# --- watch -----------------------------------------------------------------------------------


def pick(project, subject, files):
    made = project.upstream(subject, files)
    project.run("cherry-pick", made, "--from", "main")
    return made


def test_a_revert_of_what_we_carry_is_found(project):
    kept = pick(project, "Mamba kept (#3)", {MODEL: text(l5="kept")})
    assert project.json("nightly", "watch")["findings"] == []
    back = project.upstream('Revert "Mamba kept (#3)" (#4)', {MODEL: text()})

    (found,) = project.json("nightly", "watch", code=7)["findings"]

    assert (found["patch"], found["verdict"]) == ("mamba-kept-3", "reverted-upstream")
    assert found["commits"] == [kept, back]
    assert back in found["evidence"][1]


def test_what_landed_again_is_told_apart(project):
    pick(project, "Mamba kept (#3)", {MODEL: text(l5="kept")})
    project.upstream('Revert "Mamba kept (#3)" (#4)', {MODEL: text()})
    project.upstream('Reland "Mamba kept (#3)" (#5)', {MODEL: text(l5="kept", l6="fixed")})

    (found,) = project.json("nightly", "watch", code=7)["findings"]

    assert (found["again"], found["verdict"]) == (True, "carried")


def test_an_absorbed_patch_that_upstream_took_back_is_found(project):
    project.run("patch", "edit", "keep-our-pool", "--pr", "9", "--kind", "hand-port")
    project.upstream("Pool (#9)", {POOL: text(l9="ours")})
    project.run("rebase", "--onto", "main", "--write")
    assert "absorbed" in project.text("patchsets/local/series.yaml")
    project.upstream("Revert #9 (#10)", {POOL: text()})

    (found,) = project.json("nightly", "watch", code=7)["findings"]

    assert (found["patch"], found["status"]) == ("keep-our-pool", "absorbed")
    assert found["evidence"][0].startswith("absorbed by upstream")


def test_a_dropped_patch_is_not_watched_and_a_lost_origin_is_said(project):
    project.run("patch", "edit", "keep-our-pool", "--commit", "a" * 40)
    project.upstream("Later", {MODEL: text(l1="x")})

    ran = project.run("nightly", "watch", "--json")

    assert (ran.data["followed"], ran.data["lost"]) == ([], ["keep-our-pool"])
    assert [d["code"] for d in ran.document["diagnostics"]] == ["W303"]


# --- cherry-pick with prerequisites ----------------------------------------------------------


def test_prerequisites_become_references_before_the_pick(project):
    first = project.upstream("Mamba one (#1)", {POOL: text(l2="one")})
    project.upstream("Weather (#2)", {"python/sglang/srt/other.py": text(l1="rain")})
    second = project.upstream("Mamba two (#3)", {POOL: text(l2="one two")})
    project.run("cherry-pick", "#3", "--from", "main", code=3)

    done = project.json("cherry-pick", "#3", "--from", "main", "--with-prerequisites")

    assert [(s["commit"], s["prerequisite_of"]) for s in done["steps"]] == [
        (first, second),
        (second, None),
    ]
    listed = project.json("patch", "list", "--patchset", "picks")["patches"]
    assert [(p["origin"]["commit"], p["requires"]) for p in listed] == [
        (first, []),
        (second, ["mamba-one-1"]),
    ]
    assert "prerequisite of #3" in project.text("patchsets/picks/series.yaml")


def test_a_shared_prerequisite_comes_once(project):
    project.upstream("Mamba one (#1)", {POOL: text(l2="one")})
    project.upstream("Mamba two (#2)", {POOL: text(l2="one two")})
    project.upstream("Mamba three (#3)", {POOL: text(l2="one two three")})

    done = project.json(
        "cherry-pick", "#2", "#3", "#1", "--from", "main", "--with-prerequisites", "-n"
    )

    assert [s["subject"] for s in done["steps"]] == [
        "Mamba one (#1) (prerequisite of #2)",
        "Mamba two (#2) (picked from upstream)",
        "Mamba three (#3) (picked from upstream)",
    ]


def test_a_pick_without_findable_prerequisites_says_why(project):
    project.upstream("Mamba nine (#1)", {POOL: text(l9="theirs")})

    ran = project.run(
        "cherry-pick", "#1", "--from", "main", "--with-prerequisites", "--json", code=3
    )

    assert [d["code"] for d in ran.document["diagnostics"]] == ["W302"]
    assert not (project.root / "patchsets/picks").exists()
