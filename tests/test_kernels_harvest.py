"""What only a boot on the card can make goes from its caches into a bundle, and is found there."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError
from elsa_build.kernels import boots, gate, recorder
from elsa_build.kernels.booting import Watch
from elsa_build.kernels.bundle import PREFIX, read, text
from elsa_build.kernels.bundle_verify import verify
from elsa_build.kernels.harvest import Harvest, Harvested, caches, for_bundle, harvest
from elsa_build.kernels.harvest import read as read_harvest
from elsa_build.kernels.sealing import seal
from elsa_build.kernels.target import target
from elsa_build.kernels.unpacking import unpack
from tests.bundling import fill, manifest
from tests.gpucode import cubin
from tests.hooking import BOTH, real, write

CARD = target("sm_120")
KEY = "K" * 52
UTILS = f"triton/{'U' * 52}/cuda_utils.cpython-312-x86_64-linux-gnu.so"
TACTICS = "flashinfer/autotune/0.7.2/sm120/rank.json"


def reaped(folder, files, **more):
    """Harvest caches with these files."""
    return harvest(caches({}, write(folder / "cache", files)), folder / "harvest", **more)


def packed(folder, found, **changes):
    """Seal a harvest beside the kernels of a builder."""
    build = fill(folder / "build")
    made = manifest(build, harvested=for_bundle(found, ()), **changes)
    return seal(build, folder / "bundle", made, found.folder)


def test_the_harvest_has_what_no_builder_can_make_and_leaves_the_rest(tmp_path):
    write(tmp_path / "harvest", {"old": "from before"})

    found = reaped(
        tmp_path,
        {
            f"triton/{KEY}/f.autotune.json": "{}",
            "triton/PLANNED/f.cubin": "code",
            "triton/UNPLANNED/f.cubin": "code",
            "triton/UNPLANNED/__grp__f.json": "{}",
            "triton/L/__triton_launcher.cpython-312-x86_64-linux-gnu.so": "C",
            UTILS: "C",
            "inductor/ab/x.py": "source",
            TACTICS: "{}",
            ".cache/flashinfer/log": "log",
        },
        unplanned={"UNPLANNED"},
    )

    assert [(one.path, one.family) for one in found.files] == [
        (TACTICS, "flashinfer-tactics"),
        ("inductor/ab/x.py", "inductor"),
        (f"triton/{KEY}/f.autotune.json", "autotune"),
        ("triton/L/__triton_launcher.cpython-312-x86_64-linux-gnu.so", "host"),
        ("triton/UNPLANNED/__grp__f.json", "triton"),
        ("triton/UNPLANNED/f.cubin", "triton"),
        (UTILS, "host"),
    ]
    assert read_harvest(tmp_path / "harvest") == found
    assert not (tmp_path / "harvest/old").exists()


def test_the_card_is_what_the_kernels_that_were_looked_up_are_for(tmp_path):
    facts = {f"triton/{n}/f.json": json.dumps({"target": {"arch": n}}) for n in (90, 120)}

    found = reaped(tmp_path, {**facts, "triton/120/__grp__f.json": "{}"}, seen={"120", "gone"})

    assert found.archs == ("sm_120",)


def test_a_file_that_is_gone_or_forbidden_is_named_and_the_rest_is_taken(tmp_path):
    files = write(tmp_path / "cache", {"inductor/a": "1", "inductor/b": "2"})
    forbidden = files / "inductor/a"
    forbidden.chmod(0)
    unreadable = not os.access(forbidden, os.R_OK)

    found = harvest(caches({}, files), tmp_path / "harvest")

    assert "inductor/b" in [one.path for one in found.files]
    if unreadable:
        assert found.unread == {str(forbidden): "Permission denied"}


def test_a_harvest_that_is_damaged_is_refused_with_the_command_that_makes_it_again(tmp_path):
    assert read_harvest(tmp_path / "harvest") is None
    reaped(tmp_path, {"inductor/a": "1"})
    listing = tmp_path / "harvest/harvest.json"

    def refused(match):
        with pytest.raises(ConfigError, match=match) as failure:
            read_harvest(tmp_path / "harvest")
        assert failure.value.hint == "elsa-build kernels record"

    (tmp_path / "harvest/inductor/a").write_text("2")
    refused(r"inductor/a: is not what was harvested")
    (tmp_path / "harvest/inductor/a").unlink()
    refused(r"inductor/a: cannot be read")
    whole = listing.read_text()
    listing.write_text(whole.replace('"version": 1', '"version": 0'))
    refused(r"harvest\.json: version: 0 is not 1")
    listing.write_text(whole.replace("inductor/a", "../a"))
    refused(r"harvest\.json: not a harvest: .*'\.\./a' is not a path inside")
    listing.write_text(whole[:40])
    refused(r"harvest\.json: not a harvest")


def test_a_bundle_takes_none_of_triton_s_timings_and_nothing_that_its_builders_made():
    files = [
        Harvested(path=path, family=family, size=1, sha256="0" * 64)
        for path, family in (
            ("triton/A/f.autotune.json", "autotune"),
            ("triton/B/f.cubin", "triton"),
            ("triton/C/f.cubin", "triton"),
        )
    ]

    taken = for_bundle(Harvest(folder=None, files=tuple(files)), {"triton/B/f.cubin"})

    assert taken == {"triton": ("triton/C/f.cubin",)}


# --- in a bundle ------------------------------------------------------------------------------


def test_what_was_harvested_is_sealed_relocated_and_verified_like_the_rest(tmp_path):
    files = {UTILS: "C", TACTICS: "{}", f"triton/{KEY}/f.json": "{}"}
    group = f"triton/{KEY}/__grp__f.json"
    files[group] = json.dumps({"child_paths": {"f.json": f"/srv/cache/triton/{KEY}/f.json"}})

    bundle = packed(tmp_path, reaped(tmp_path, files, unplanned={KEY}))

    assert read(bundle.folder) == bundle
    assert verify(bundle, CARD) == ()
    assert bundle.manifest.harvested == {
        "flashinfer-tactics": (TACTICS,),
        "host": (UTILS,),
        "triton": (group, f"triton/{KEY}/f.json"),
    }
    assert PREFIX in (bundle.folder / group).read_text()
    moved = unpack(bundle, tmp_path / "moved")
    assert str(tmp_path / "moved") in (moved.folder / group).read_text()
    (moved.folder / UTILS).write_text("D")
    assert [(one.code, one.path) for one in verify(moved, CARD)] == [("E420", UTILS)]


def test_harvested_machine_code_of_another_card_is_found(tmp_path):
    found = reaped(tmp_path, {f"triton/{KEY}/f.cubin": ""}, unplanned={KEY})
    path = found.folder / found.files[0].path
    path.write_bytes(cubin("90a"))

    bundle = packed(tmp_path, found)

    (said,) = verify(bundle, CARD)
    assert (said.code, said.path) == ("E422", f"triton/{KEY}/f.cubin")
    assert "harvested from a boot (triton)" in said.message


def test_a_document_that_names_a_harvested_file_it_does_not_have_is_refused(tmp_path):
    bundle = packed(tmp_path, reaped(tmp_path, {UTILS: "C"}))
    wrong = replace(bundle.manifest, harvested={"host": ("triton/gone",)})

    (bundle.folder / "bundle.json").write_bytes(text(wrong))

    with pytest.raises(ConfigError, match="harvested: host: 'triton/gone' is not among the files"):
        read(bundle.folder)


# --- from a boot to the next one ----------------------------------------------------------------


def recorded(stack, folder, *words):
    with boots.held(folder / "logs") as logs:
        done = recorder.record(
            stack.command(*words), stack.environ(), Watch(), folder / "kernels", logs
        )
    assert not done.booted[-1].broke
    return done


@pytest.mark.parametrize("make", BOTH)
def test_a_kernel_that_no_plan_can_have_is_found_at_the_next_boot(make, tmp_path):
    stack = make(tmp_path / "s")
    stack.edit("def warm(B):", 'add.fn.__module__ = "torch._inductor.kern"\n\ndef warm(B):')

    done = recorded(stack, tmp_path, 16)
    bundle = packed(tmp_path, read_harvest(tmp_path / "kernels/harvest"), kernels=())
    with boots.held(tmp_path / "logs") as logs:
        (found,) = gate.gate(stack.command(16), bundle, stack.environ(), Watch(), logs)

    assert done.recording.entries == ()
    assert gate.findings(found) == ()
    assert [(one.what, one.family) for one in found.booted.heard.lookups()] == [("hit", "inductor")]


@pytest.mark.kernels
def test_a_harvest_knows_its_card_and_is_right_for_it(tmp_path):
    stack = real(tmp_path / "s")
    stack.edit("def warm(B):", 'add.fn.__module__ = "torch._inductor.kern"\n\ndef warm(B):')

    done = recorded(stack, tmp_path, 16)
    bundle = packed(tmp_path, done.harvest, kernels=())

    assert done.harvest.archs == ("sm_120",)
    assert verify(bundle, CARD) == ()
    assert any(path.endswith(".cubin") for path in bundle.manifest.harvested["triton"])


def test_tactics_are_a_copy_that_the_server_may_write(tmp_path):
    bundle = packed(tmp_path, reaped(tmp_path, {TACTICS: "{}", UTILS: "C"}))

    with gate.caches(bundle, {}, tmp_path / "logs", copied=False) as places:
        copy = Path(places.variables["SGLANG_CACHE_DIR"], TACTICS)
        assert copy.read_text() == "{}"
        assert bundle.folder not in copy.parents
        assert Path(places.variables["TRITON_CACHE_DIR"]).parent.joinpath(UTILS).is_file()
