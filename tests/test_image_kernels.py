import json
import shutil
from dataclasses import replace

import pytest

from elsa_build.errors import ConfigError, StaleError
from elsa_build.images import kernel_layer, serving
from elsa_build.images.build import build, forecast
from elsa_build.images.compare import compare
from elsa_build.images.config import served
from elsa_build.images.ingredients import Base
from elsa_build.images.oci.contents import visible
from elsa_build.images.oci.layer import Folder
from elsa_build.images.plan import layers
from elsa_build.images.verify import read_build, verify
from elsa_build.kernels.bundle import PREFIX, Missing
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.sealing import seal
from elsa_build.kernels.unpacking import archive, unpack
from tests import downstream
from tests.bundling import CUDA, HASHES, OPS, SOURCE, SOURCES, fill, manifest, sealed
from tests.gpucode import cubin
from tests.imaging import (
    UPSTREAM,
    built,
    destination,
    opened,
    prepared,
    recipe,
    shown,
    tar,
    write_base,
)
from tests.layouts import layer as raw_layer

FILES = {f"python/{path}": text for path, text in SOURCES.items()}
CUBIN = f"opt/elsa/cache/triton/{HASHES[0]}/scale.cubin"
GROUP = f"opt/elsa/cache/triton/{HASHES[0]}/__grp__scale.json"
MINE = recipe(name="elsa-test", python="3.12")


def with_kernels(story, tmp_path, bundle, patch=None, **changes):
    """Prepare an image of a tree that has the kernels' sources, with a bundle."""
    ready = prepared(story, tmp_path, patch, files=FILES, **({"recipe": MINE} | changes))
    shipped = kernel_layer.settle(bundle, ready.recipe, ready.pin, ready.trees)
    return replace(
        ready,
        kernels=kernel_layer.layers(shipped, epoch=ready.epoch, user=ready.recipe.user),
        kernels_summary=kernel_layer.summary(shipped),
        findings=tuple(kernel_layer.findings(shipped, ready.recipe)),
    )


def test_every_family_has_a_layer_below_the_patched_files(story, tmp_path):
    names = [one.name for one in layers(with_kernels(story, tmp_path, sealed(tmp_path)))]

    assert names == [
        "upstream",
        "kernels-flashinfer",
        "kernels-sglang-jit",
        "kernels-triton",
        "kernels",
        "patches-18",
    ]


def test_an_image_with_kernels_verifies_and_says_what_they_are(story, tmp_path):
    made = built(with_kernels(story, tmp_path, sealed(tmp_path)), tmp_path)

    image = opened(made.layout)
    said = read_build(image)["kernels"]
    found = verify(image)
    assert found.findings == ()
    assert found.kernels == 4
    assert (said["target"], said["list"]) == ("sm_120", "/opt/elsa/kernels/bundle.json")
    assert said["counts"] == {"triton": 2, "sglang-jit": 1, "flashinfer": 1}
    assert dict(made.record.labels)["ai.elsa-build.kernels"] == said["digest"]


def test_the_kernels_lie_where_the_environment_says_and_anyone_can_read_them(story, tmp_path):
    image = opened(built(with_kernels(story, tmp_path, sealed(tmp_path)), tmp_path).layout)

    seen = visible(image, lambda path: path.startswith("opt/elsa/cache/"))
    env = serving.environment(MINE)
    for family in ("TRITON_CACHE_DIR", "SGLANG_JIT_CACHE_DIR", "PYTHONPATH"):
        assert any(path.startswith(env[family].strip("/") + "/") for path in seen), family
    assert {one.mode & 0o777 for one in seen.values()} == {0o644}
    children = json.loads(shown(image)[GROUP])["child_paths"]
    assert all(child.strip("/") in seen for child in children.values())
    provider = shown(image)["opt/elsa/cache/python/flashinfer_jit_cache/__init__.py"].decode()
    assert "opt/elsa/cache/flashinfer_aot/page/page.so" in seen
    assert 'Path("/opt/elsa/cache/flashinfer_aot")' in provider


def test_what_was_harvested_from_a_boot_has_a_layer_of_its_own(story, tmp_path):
    utils = "triton/U/cuda_utils.so"
    harvested = {"host": (utils,), "inductor": ("inductor/x.py",)}
    for path in (utils, "inductor/x.py"):
        (tmp_path / "harvest" / path).parent.mkdir(parents=True)
        (tmp_path / "harvest" / path).write_text("from a boot")
    folder = fill(tmp_path / "build")
    whole = manifest(folder, harvested=harvested)
    bundle = seal(folder, tmp_path / "bundle", whole, tmp_path / "harvest")

    ready = with_kernels(story, tmp_path, bundle)
    image = opened(built(ready, tmp_path).layout)

    assert [one.name for one in ready.kernels][-2:] == ["kernels-harvested", "kernels"]
    assert shown(image)[f"opt/elsa/cache/{utils}"] == b"from a boot"
    assert read_build(image)["kernels"]["harvested"] == {"host": 1, "inductor": 1}
    assert verify(image).findings == ()


def test_an_edit_of_a_patch_moves_no_kernel(story, tmp_path):
    bundle = sealed(tmp_path)
    one = with_kernels(story, tmp_path, bundle, {"python/sglang/pool.py": "SIZE = 2\n"})
    two = with_kernels(story, tmp_path, bundle, {"python/sglang/pool.py": "SIZE = 3\n"})

    first = built(one, tmp_path / "1")
    again = {one.name: one.cached for one in forecast(two)}
    second = built(two, tmp_path / "2")

    assert [name for name, cached in again.items() if not cached] == ["patches-18"]
    moved = {one.name for one in compare(opened(first.layout), opened(second.layout)).layers
             if one.size}  # fmt: skip
    assert moved == {"patches-18", "provenance"}


def test_a_diff_of_two_images_says_why_kernels_were_compiled_again(story, tmp_path):
    bundle = sealed(tmp_path)
    folder = fill(tmp_path / "again")
    (folder / f"triton/{HASHES[1]}/double.source").write_bytes(b"module {moved}\n")
    moved = {
        kernel.id: replace(kernel, key="n", parts={**kernel.parts, "line": 9})
        if kernel.id == "2"
        else kernel
        for kernel in manifest(folder).kernels
    }
    rebuilt = seal(folder, tmp_path / "rebuilt", manifest(folder, kernels=tuple(moved.values())))
    one = built(with_kernels(story, tmp_path, bundle), tmp_path / "1")
    two = built(with_kernels(story, tmp_path, rebuilt), tmp_path / "2")

    found = {one.name: one for one in compare(opened(one.layout), opened(two.layout)).layers}

    assert "moved (line): sglang.kernels.ops.scale:double" in found["kernels-triton"].why
    assert found["kernels-flashinfer"].size == 0


def test_a_bundle_built_for_another_place_is_relocated_into_the_image(story, tmp_path):
    bundle = sealed(tmp_path)
    elsewhere = unpack(bundle, tmp_path / "elsewhere")

    one = built(with_kernels(story, tmp_path, bundle), tmp_path / "1")
    two = built(with_kernels(story, tmp_path, elsewhere), tmp_path / "2")

    assert one.record.config == two.record.config
    assert verify(opened(two.layout)).findings == ()


def test_two_bundles_of_one_input_give_one_image(story, tmp_path):
    one = built(with_kernels(story, tmp_path / "a", sealed(tmp_path / "a")), tmp_path / "1")
    two = built(with_kernels(story, tmp_path / "b", sealed(tmp_path / "b")), tmp_path / "2")

    assert one.record.manifest == two.record.manifest


def test_the_user_of_a_recipe_may_add_to_the_caches(story, tmp_path):
    ready = with_kernels(story, tmp_path, sealed(tmp_path), recipe=replace(MINE, user="1000:1001"))

    (triton,) = [one for one in layers(ready) if one.name == "kernels-triton"]

    owner = Folder(uid=1000, gid=1001)
    assert triton.folders["opt/elsa/cache"] == owner
    assert triton.folders[f"opt/elsa/cache/triton/{HASHES[0]}"] == owner
    assert "opt/elsa" not in triton.folders


def test_the_folders_of_a_base_stay_and_the_cache_is_still_the_users(story, tmp_path):
    base = write_base(tmp_path / "base", [raw_layer({"opt/elsa": (0o700, 0, 0)})])
    held = Base(name="b", image=base, paths=frozenset(), folders={"opt/elsa": Folder(mode=0o700)})
    user = replace(MINE, user="1000")

    ready = with_kernels(story, tmp_path, sealed(tmp_path), recipe=user, base=held)

    (triton,) = [one for one in layers(ready) if one.name == "kernels-triton"]
    assert triton.folders["opt/elsa"] == Folder(mode=0o700)
    assert triton.folders["opt/elsa/cache"] == Folder(uid=1000, gid=1000)


# --- refused ----------------------------------------------------------------------------------


def test_kernels_for_another_card_are_refused(story, tmp_path):
    other = recipe(arch="sm_121")

    with pytest.raises(StaleError, match="triton: arch is sm_121 here, the kernels are for sm_120"):
        with_kernels(story, tmp_path, sealed(tmp_path), recipe=other)


def test_only_the_family_that_depends_on_python_is_refused_for_another_python(story, tmp_path):
    other = recipe(python="3.11")

    with pytest.raises(StaleError) as raised:
        with_kernels(story, tmp_path, sealed(tmp_path), recipe=other)

    assert "bundle: triton kernels are not for this place" in raised.value.message
    assert "flashinfer" not in raised.value.message
    assert raised.value.hint == "elsa-build kernels build --recipe elsa-test"


def test_kernels_of_another_flashinfer_than_upstream_pins_are_refused(story, tmp_path):
    pin = prepared(story, tmp_path, files=FILES).pin
    pins = ("torch==2.14.1", "flashinfer_python[cu13]==0.7.4", "apache-tvm-ffi==0.1.11")

    with pytest.raises(StaleError, match=r"flashinfer: flashinfer is 0\.7\.4 here"):
        with_kernels(story, tmp_path, sealed(tmp_path), pin=replace(pin, requires=pins))


def test_kernels_of_other_sources_are_refused_with_the_files(story, tmp_path):
    touched = {f"python/{OPS}": "# moved\n" + SOURCE, f"python/{CUDA}": None}

    with pytest.raises(StaleError) as raised:
        with_kernels(story, tmp_path, sealed(tmp_path), touched)

    assert raised.value.message.endswith(
        f"3 kernels were not compiled from this tree: {CUDA}, {OPS}"
    )
    said = {one.path: one.message for one in raised.value.findings}
    assert "same text, moved" in said[OPS]
    assert "gone: norm" in said[CUDA]


def test_a_file_that_changed_since_it_was_sealed_does_not_get_into_a_layer(story, tmp_path):
    bundle = sealed(tmp_path)
    ready = with_kernels(story, tmp_path, bundle)
    (bundle.folder / f"triton/{HASHES[0]}/scale.source").write_bytes(b"module {x\n")

    with pytest.raises(ConfigError, match="is not what was sealed"):
        build(ready, destination(tmp_path))


# --- images that someone changed --------------------------------------------------------------


def on_top(story, tmp_path, files):
    """Return what verify says of an image with kernels, after a layer on top of it."""
    image = opened(built(with_kernels(story, tmp_path, sealed(tmp_path)), tmp_path).layout)
    lower = []
    for one in image.layers:
        with image.plain(one) as stream:
            lower.append(stream.read())
    changed = write_base(tmp_path / "changed", [*lower, tar(files)])
    found = verify(changed).findings
    return {(one.code, one.path) for one in found if one.code.startswith("E42")}


def test_a_kernel_that_was_exchanged_in_an_image_is_found(story, tmp_path):
    found = on_top(story, tmp_path, {CUBIN: cubin("90a")})

    assert ("E420", f"/{CUBIN}") in found
    assert ("E422", f"/{CUBIN}") in found


def test_a_kernel_that_was_removed_or_added_in_an_image_is_found(story, tmp_path):
    folder, _, name = CUBIN.rpartition("/")
    extra = "opt/elsa/cache/triton/OTHER/x.cubin"

    found = on_top(story, tmp_path, {f"{folder}/.wh.{name}": b"", extra: cubin("120a")})

    assert found == {("E420", f"/{CUBIN}"), ("E421", f"/{extra}")}


def test_what_the_server_wrote_beside_the_kernels_is_not_looked_at(story, tmp_path):
    assert on_top(story, tmp_path, {"opt/elsa/cache/inductor/x.py": b""}) == set()


def test_a_list_that_was_edited_in_an_image_is_found(story, tmp_path):
    found = on_top(story, tmp_path, {"opt/elsa/kernels/bundle.json": b"{}"})

    assert found == {("E420", "/opt/elsa/kernels/bundle.json")}


def test_a_group_file_that_leads_elsewhere_in_an_image_is_found(story, tmp_path):
    body = json.dumps({"child_paths": {"scale.cubin": "/builder/scale.cubin"}}).encode()

    assert ("E420", f"/{GROUP}") in on_top(story, tmp_path, {GROUP: body})


# --- the environment --------------------------------------------------------------------------


def test_every_familys_cache_lies_below_one_folder(story, tmp_path):
    env = serving.environment(MINE)

    paths = {
        "SGLANG_CACHE_DIR": "",
        "SGLANG_JIT_CACHE_DIR": "/jit",
        "TRITON_CACHE_DIR": "/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/inductor",
        "TILELANG_CACHE_DIR": "/tilelang",
        "CUDA_CACHE_PATH": "/nv",
        "FLASHINFER_WORKSPACE_BASE": "",
        "PYTHONPATH": "/python",
    }
    assert {name: env[name] for name in paths} == {n: f"{PREFIX}{p}" for n, p in paths.items()}
    assert env["TRITON_CACHE_AUTOTUNING"] == "1"
    assert (env["FLASHINFER_CUDA_ARCH_LIST"], env["CUTE_DSL_ARCH"]) == ("12.0f", "sm_120a")


def test_the_search_path_of_recipe_and_base_come_after_ours(story, tmp_path):
    ready = prepared(story, tmp_path, recipe=recipe(env=(("PYTHONPATH", "/theirs"),)))

    env = served(ready, {"Env": ["PYTHONPATH=/base"]})["Env"]

    assert "PYTHONPATH=/opt/elsa/cache/python:/theirs:/base" in env


def test_a_recipe_that_moves_a_cache_away_from_the_kernels_is_told(story, tmp_path):
    moved = replace(MINE, env=(("TRITON_CACHE_DIR", "/elsewhere"), ("A", "1")))

    (found,) = with_kernels(story, tmp_path, sealed(tmp_path), recipe=moved).findings

    assert (found.code, found.path) == ("E428", "recipes/elsa-test.yaml")
    assert "TRITON_CACHE_DIR is /elsewhere" in found.message


def test_what_a_bundle_lacks_is_told_and_written_down(story, tmp_path):
    lost = (Missing(family=Family.FLASHINFER, name="fused_moe_120", why="no time"),)

    ready = with_kernels(story, tmp_path, sealed(tmp_path, missing=lost))

    assert [one.code for one in ready.findings] == ["E426"]
    assert ready.kernels_summary["missing"] == ["flashinfer fused_moe_120"]


# --- as typed ---------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, story, monkeypatch):
    """A project whose tree has the kernels' sources, with one patch on another file."""
    made = downstream.begin(tmp_path, story, monkeypatch, UPSTREAM | FILES)
    made.patch("pool: larger", {"python/sglang/pool.py": "SIZE = 2\n"})
    return made


def image(project, *more, code=0):
    ran = project.run(
        "image", "--tag", "small-v1", "--json", "--replace-local",
        "--output", str(project.root / "dist"), *more, code=code,
    )  # fmt: skip
    return ran.document


def test_an_image_takes_the_kernels_of_its_recipe_where_they_were_built(project, tmp_path):
    shutil.copytree(sealed(tmp_path).folder, project.root / "dist/kernels/small")

    made = image(project)
    checked = project.run("verify", "small-v1", "--json").document

    assert "kernels-triton" in [one["name"] for one in made["data"]["layers"]]
    assert made["diagnostics"] == []
    assert checked["data"]["kernels"] == 4


def test_an_image_takes_a_named_bundle_packed_as_well(project, tmp_path):
    archive(sealed(tmp_path), tmp_path / "kernels.tar.gz")

    made = image(project, "--kernels", str(tmp_path / "kernels.tar.gz"))

    assert "kernels" in [one["name"] for one in made["data"]["layers"]]


def test_an_image_without_kernels_says_so_unless_that_is_meant(project):
    without = image(project)
    meant = image(project, "--kernels", "none")
    only_said = image(project, "--dry-run")

    for told in (without, only_said):
        (found,) = told["diagnostics"]
        assert (found["code"], found["severity"]) == ("E427", "warning")
        assert "elsa-build kernels build --recipe small" in found["hint"]
    assert meant["diagnostics"] == []
    assert without["data"]["config"] == meant["data"]["config"]


def test_kernels_none_leaves_out_even_what_was_built(project, tmp_path):
    shutil.copytree(sealed(tmp_path).folder, project.root / "dist/kernels/small")

    made = image(project, "--kernels", "none")

    assert [one["name"] for one in made["data"]["layers"]] == [
        "upstream",
        "patches-18",
        "provenance",
    ]


def test_a_bundle_that_is_not_there_is_an_error_and_not_an_image_without(project, tmp_path):
    said = image(project, "--kernels", str(tmp_path / "nowhere"), code=5)

    assert "nowhere: cannot read" in said["diagnostics"][0]["message"]


def test_a_patch_on_a_kernels_source_makes_its_bundle_stale(project, tmp_path):
    shutil.copytree(sealed(tmp_path).folder, project.root / "dist/kernels/small")
    project.patch("ops: a comment", {f"python/{OPS}": "# Why.\n" + SOURCE})

    said = image(project, code=4)
    checked = project.run("kernels", "verify", "--json", code=7).document

    assert [(one["code"], one["path"]) for one in said["diagnostics"]] == [("E425", OPS)]
    assert checked["diagnostics"] == said["diagnostics"]
    assert not (project.root / "dist/small-v1").exists()


def test_kernels_verify_packs_and_unpacks_what_is_right(project, tmp_path):
    bundle = sealed(tmp_path)
    tar_file, place = tmp_path / "out.tar.gz", tmp_path / "place"

    project.run("kernels", "verify", str(bundle.folder), "--pack", str(tar_file))
    found = project.json("kernels", "verify", str(tar_file), "--unpack", str(place))
    there = project.json("kernels", "verify", str(place))

    assert (found["counts"]["triton"], found["digest"]) == (2, bundle.digest)
    assert there["prefix"] == str(place)


def test_kernels_verify_does_not_hand_on_what_is_wrong(project, tmp_path):
    bundle = sealed(tmp_path, form="90a")

    ran = project.run(
        "kernels", "verify", str(bundle.folder), "--pack", str(tmp_path / "x.tar"), code=7
    )

    assert "error[E422]" in ran.err
    assert not (tmp_path / "x.tar").exists()
