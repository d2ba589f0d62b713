import json
import tomllib

from elsa_build import __version__
from elsa_build.images.oci.store import digest_of
from elsa_build.images.provenance import labels
from elsa_build.images.treeid import tree_id
from tests.imaging import POOL, WHERE, built, opened, prepared, recipe, shown

PATCH = {"python/sglang/pool.py": "SIZE = 2\n", "python/sglang/old/thing.py": None, "test/t.py": ""}


def inside(story, tmp_path, **changes):
    files = shown(opened(built(prepared(story, tmp_path, PATCH, **changes), tmp_path).layout))
    return {
        path.removeprefix("opt/elsa/"): body
        for path, body in files.items()
        if path.startswith("opt/elsa/")
    }


def test_build_json_names_every_input(story, tmp_path):
    ready = prepared(story, tmp_path, PATCH)

    build = json.loads(inside(story, tmp_path)["build.json"])

    assert build["tool"] == {"name": "elsa-build", "version": __version__}
    assert build["upstream"] == {
        "source": "release",
        "ref": "v0.5.23",
        "commit": ready.pin.commit,
        "tree": ready.pin.tree,
        "artifacts": {"sglang-0.5.23-cp312.whl": "ab" * 32},
    }
    assert build["result"]["tree"] == ready.trees.patched
    assert build["recipe"]["digest"] == ready.recipe_digest
    assert build["series"][0]["id"] == "bigger-pool"
    assert build["series"][0]["sha256"] == ready.series[0].sha256
    assert [layer["name"] for layer in build["layers"]] == ["upstream", "patches-11", POOL]


def test_build_json_says_what_every_patched_file_must_be(story, tmp_path):
    build = json.loads(inside(story, tmp_path)["build.json"])

    assert build["files"] == {
        f"{WHERE}/sglang/pool.py": {"digest": digest_of(b"SIZE = 2\n"), "mode": "644"}
    }
    assert build["deleted"] == [f"{WHERE}/sglang/old/thing.py"]
    assert build["outside"] == ["test/t.py"]


def test_build_json_holds_nothing_of_the_machine_and_not_the_compressor(story, tmp_path):
    text = inside(story, tmp_path)["build.json"].decode()

    assert str(tmp_path) not in text
    assert "zlib" not in text


def test_the_files_beside_it_are_named_with_their_digests(story, tmp_path):
    files = inside(story, tmp_path)

    build = json.loads(files.pop("build.json"))

    assert build["companions"] == {
        f"/opt/elsa/{name}": digest_of(body) for name, body in files.items()
    }
    assert set(files) == {"patches.lock", "sbom.cdx.json", "stale", "upstream.lock"}


def test_patches_lock_is_toml_with_the_series_in_order(story, tmp_path):
    ready = prepared(story, tmp_path, PATCH)

    lock = tomllib.loads(inside(story, tmp_path)["patches.lock"].decode())

    assert lock["upstream"] == ready.pin.commit
    assert lock["patch"] == [
        {
            "id": "bigger-pool",
            "patchset": "one",
            "sha256": ready.series[0].sha256,
            "outcome": "clean",
            "tree": ready.trees.patched,
        }
    ]


def test_the_bill_of_materials_comes_from_the_lock(story, tmp_path):
    bill = json.loads(inside(story, tmp_path)["sbom.cdx.json"])

    refs = [component["bom-ref"] for component in bill["components"]]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert refs == ["pkg:pypi/sglang@0.5.23", "pkg:pypi/requests", "pkg:pypi/torch@2.14.1"]
    assert bill["dependencies"][1]["dependsOn"] == refs[1:]
    assert bill["components"][0]["pedigree"]["patches"][0]["resolves"][0]["id"] == "bigger-pool"


def test_the_bill_has_no_time_and_no_random_number(story, tmp_path):
    bill = json.loads(inside(story, tmp_path)["sbom.cdx.json"])

    assert "serialNumber" not in bill
    assert "timestamp" not in bill["metadata"]


def test_an_overlay_lists_what_a_dockerfile_must_remove(story, tmp_path):
    stale = inside(story, tmp_path)["stale"].decode().splitlines()

    assert "sglang/old/thing.py" in stale
    assert "sglang/__pycache__/pool.*.pyc" in stale


def test_labels_say_what_build_json_says(story, tmp_path):
    made = built(prepared(story, tmp_path, PATCH), tmp_path)
    image = opened(made.layout)

    build = json.loads(shown(image)["opt/elsa/build.json"])

    assert image.labels == labels(build) == dict(image.annotations) == dict(made.record.labels)
    assert image.labels["ai.elsa-build.upstream.ref"] == "v0.5.23"
    assert image.labels["ai.elsa-build.series"] == "bigger-pool"
    assert image.labels["org.opencontainers.image.revision"] == build["result"]["commit"]


def test_a_recipe_may_name_its_image_but_not_change_a_fact(story, tmp_path):
    own = recipe(
        labels=(
            ("org.opencontainers.image.title", "Elsa"),
            ("ai.elsa-build.upstream.ref", "v9"),
            ("team", "inference"),
        )
    )

    image = opened(built(prepared(story, tmp_path, recipe=own), tmp_path).layout)

    assert image.labels["org.opencontainers.image.title"] == "Elsa"
    assert image.labels["team"] == "inference"
    assert image.labels["ai.elsa-build.upstream.ref"] == "v0.5.23"


def test_a_tree_id_computed_from_files_is_gits_own(story, tmp_path):
    trees = prepared(story, tmp_path).trees
    objects = story.git.objects

    assert tree_id(dict(objects.files(trees.patched))) == trees.patched


def test_a_tree_id_sorts_a_folder_as_git_does(story):
    names = {"a/x": "", "a.b": "", "a-b": "", "a0": "", "a/y/z": ""}
    tree = story.git.commit(story.commit(None, "names", names)).tree

    assert tree_id(dict(story.git.objects.files(tree))) == tree
