"""`kernels plan`, `build` and `verify` as typed, on the recipe, the series and the pinned release.

One plan and one build serve all tests here: they take some minutes of a core. With
`ELSA_BUILD_TEST_CACHE` what was compiled is kept from run to run.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from elsa_build import prebuilding, precompiling, project
from elsa_build.kernels import bundle, harvest, planlock, toolchain
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.machine_code import arch_of, code_of
from elsa_build.kernels.target import target
from elsa_build.progress import SILENT

pytestmark = [pytest.mark.kernels, pytest.mark.wheel, pytest.mark.slow]

ROOT = Path(__file__).parent.parent
SM_120 = target("sm_120")
NAMED = {
    "chunked prefill of linear attention": "ops.attention.fla.chunk_delta_h:",
    "recurrent decode": "fused_recurrent",
    "gating": "fused_gdn_gating",
    "causal convolution": "mamba.causal_conv1d_triton:",
    "state slots": "mamba_slot_fused:",
    "our direct copy": "kvcache.copy_slots:",
    "sparse verify": "speculative.sparse_topk_verify:",
    "speculation": "ops.speculative.",
    "verification of drafts": "speculative.topk1:",
    "sampling": "sampling",
}
"""What issue 5 wants in the plan of elsa-1.7, by a part of the functions' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A copy of this project with its cache, whose commands are called as they are typed."""

    root: Path
    cache: Path

    @property
    def environ(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return env | {"ELSA_BUILD_CACHE": str(self.cache), "GIT_CONFIG_GLOBAL": os.devnull}

    def __call__(self, *arguments, codes=(0,)):
        ran = subprocess.run(
            [sys.executable, "-c", "from elsa_build.cli.main import run; run()", *arguments],
            cwd=self.root,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode in codes, ran.stderr
        return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    if not os.environ.get(toolchain.VARIABLE):
        pytest.skip(f"{toolchain.VARIABLE} names no interpreter with torch, Triton and FlashInfer")
    folder = tmp_path_factory.mktemp("commands")
    root, kept = folder / "project", os.environ.get("ELSA_BUILD_TEST_CACHE")
    for name in ("recipes", "patchsets", "kernels"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "upstream.lock", root)
    return Shop(root=root, cache=Path(kept) if kept else folder / "cache")


@pytest.fixture(scope="module")
def planned(shop):
    """Plan with the repository's own plan there to compare with."""
    return shop("kernels", "plan", "--json")


@pytest.fixture(scope="module")
def made(shop, planned):
    """Build the Triton family twice into two folders; a kernel that fails fails one test."""
    assert planned["status"] == "ok"
    words = ("kernels", "build", "--only", "triton", "--first-config", "--all", "--json")
    first = shop(*words, "-o", "first", codes=(0, 7))
    second = shop(*words, "-o", "second", codes=(0, 7))
    return SimpleNamespace(
        first=first,
        second=second,
        bundle=bundle.read(shop.root / "first"),
        again=bundle.read(shop.root / "second"),
    )


# --- the plan -------------------------------------------------------------------------------------


def test_the_plan_has_every_family_and_no_drive_failed(planned):
    assert planned["schema"] == "elsa-build/kernels-plan/1"
    assert planned["data"]["failures"] == {}
    assert planned["diagnostics"] == []
    assert min(planned["data"]["counts"].values()) > 0


@pytest.mark.parametrize("what", NAMED)
def test_the_plan_has_what_the_model_runs(planned, what):
    names = [one["name"] for one in planned["data"]["kernels"]]

    assert [name for name in names if NAMED[what] in name], sorted(set(names))


def test_every_planned_kernel_says_when_it_is_needed_and_who_calls_it(planned):
    for one in planned["data"]["kernels"]:
        assert one["why"], one["name"]
        assert one["phases"] or one["family"] != "triton", one["name"]


def test_the_plan_that_is_kept_is_what_the_tree_and_the_recipe_give(shop, planned):
    changed = {name: planned["data"][name] for name in ("new", "gone")}

    assert changed == {"new": [], "gone": []}
    assert planlock.load(shop.root, "elsa-1.7").package == planned["data"]["package"]


# --- the build ------------------------------------------------------------------------------------


def test_everything_that_is_planned_for_triton_is_compiled(planned, made):
    counts = planned["data"]["counts"]
    choices = len(planned["data"]["tunings"])

    works = made.first["data"]["works"]
    assert [one for one in works if one["error"] is not None] == []
    assert len(works) == counts["triton"] + choices
    assert made.first["data"]["left"] == []
    planned_ids = {one["id"] for one in planned["data"]["kernels"] if one["family"] == "triton"}
    assert planned_ids <= {one.id for one in made.bundle.manifest.kernels}
    assert made.bundle.manifest.missing == ()


def test_building_again_compiles_nothing_and_gives_the_same_bytes(shop, made):
    assert made.second["data"]["compiled"] == 0
    assert made.second["data"]["digest"] == made.first["data"]["digest"]
    for path in (*made.bundle.manifest.files, bundle.DOCUMENT):
        assert (shop.root / "first" / path).read_bytes() == (
            shop.root / "second" / path
        ).read_bytes(), path


def test_every_cubin_is_for_the_card_and_within_its_shared_memory(shop, planned, made):
    cubins = sorted((shop.root / "first").rglob("*.cubin"))

    assert len(cubins) >= len({one.key for one in made.bundle.manifest.kernels if one.shared})
    assert {arch_of([code_of(path.read_bytes())]) for path in cubins} == {"sm_120a"}
    ids = {one["id"] for one in planned["data"]["kernels"]}
    shared = [one.shared for one in made.bundle.manifest.kernels if one.id in ids]
    assert len(shared) > 50
    assert max(shared) <= SM_120.shared_bytes == 101_376


def test_a_bundle_tells_nothing_of_the_machine_that_built_it(shop, made):
    told = str(shop.cache).encode(), str(shop.root).encode()

    for path in made.bundle.manifest.files:
        body = (shop.root / "first" / path).read_bytes()
        assert not [place for place in told if place in body], path


def test_the_bundle_is_right_and_of_this_tree(shop, made):
    assert made.bundle.manifest.target == SM_120.name

    checked = shop("kernels", "verify", "first", "--recipe", "elsa-1.7", "--json")

    assert checked["status"] == "ok"
    assert len(checked["diagnostics"]) == len(made.bundle.manifest.missing), checked["diagnostics"]


def test_an_unpacked_bundle_has_every_kernel_where_triton_looks(shop, made, tmp_path, monkeypatch):
    # flashinfer 838, sglang-omni 1297: what was copied was compiled again.
    there = tmp_path / "elsewhere"
    shop("kernels", "verify", "first", "--unpack", str(there), "--json")
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    monkeypatch.setenv("ELSA_BUILD_CACHE", str(shop.cache))

    outcomes = replayed(shop, there)

    failed = [one for one in made.first["data"]["works"] if one["error"] is not None]
    found = [one for one in outcomes if one.error is None]
    assert len(found) == len(made.first["data"]["works"]) - len(failed)
    assert [one for one in found if one.fresh] == []
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


def replayed(shop, folder):
    """Look every planned kernel up in another cache folder, as the builder's workers do."""
    recipe = project.choose_recipe(shop.root)
    plan = planlock.load(shop.root, recipe.name)
    wanted = prebuilding.Wanted(families=(Family.TRITON,), first_config=True, workers=1)
    with precompiling.workplace(shop.root, recipe, environ=os.environ) as place:
        work = prebuilding.Shop(place, wanted, SILENT)
        jobs = [job for one in work.works(plan) for job in one.jobs]
        work.folder, work.journal = folder, folder.with_name("journal.jsonl")
        return work.do(jobs)


# --- refused --------------------------------------------------------------------------------------


def test_what_a_boot_on_the_card_left_goes_into_the_bundle(shop, planned):
    caches = shop.root / "caches"
    (caches / "inductor").mkdir(parents=True)
    (caches / "inductor/x.py").write_text("# compiled on the card")
    kept = shop.root / "kernels/elsa-1.7/harvest"
    harvest.harvest(harvest.caches({}, caches), kept)
    words = ("kernels", "build", "--cpu", "0", "--json", "-o", "harvested")

    taken = shop(*words)
    listing = kept / harvest.LISTING
    listing.write_text(listing.read_text().replace('"archs": []', '"archs": ["sm_90"]'))
    left = shop(*words)
    shutil.rmtree(kept)

    assert taken["data"]["harvested"] == {"inductor": 1}
    assert left["data"]["harvested"] == {}
    (said,) = [one for one in left["diagnostics"] if one["code"] == "E472"]
    assert "was harvested on sm_90, not on sm_120" in said["message"]


def test_a_dry_run_says_what_is_taken_and_what_is_left_and_writes_nothing(shop, planned):
    assert planned["status"] == "ok"

    said = shop("kernels", "build", "--cpu", "10s", "--dry-run", "-o", "none", "--json")

    assert said["data"]["cpu_s"] <= 10
    assert said["data"]["taken"]
    assert {one["family"] for one in said["data"]["left"]} >= {"flashinfer", "sglang-jit"}
    assert not (shop.root / "none").exists()


def test_a_card_that_the_recipe_names_without_its_letter_is_refused(shop):
    said = shop("kernels", "plan", "--arch", "12.0+PTX", "--json", codes=(5,))

    assert "12.0f" in said["diagnostics"][0]["hint"]


def test_without_an_interpreter_the_command_says_how_to_get_one(shop):
    said = shop("kernels", "plan", "--python", "none/python", "--json", codes=(5,))

    assert "make .venv-kernels/.ready" in said["diagnostics"][0]["hint"]
