import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, FailedError, ToolError
from elsa_build.git.door import Git
from elsa_build.images import record, tags
from elsa_build.images.build import build, forecast
from elsa_build.images.ingredients import Base
from elsa_build.images.oci.layer import Compressor
from elsa_build.images.publish import Destination, _swap
from tests.imaging import (
    EPOCH,
    POOL,
    WHERE,
    built,
    destination,
    opened,
    prepared,
    recipe,
    shown,
    tar,
    write_base,
)
from tests.test_oci_layout import blob

ROOT = WHERE.strip("/")


def identity(made):
    return (
        [layer.diff_id for layer in made.record.layers],
        made.record.config,
        made.record.manifest,
    )


def test_an_overlay_shows_upstream_with_the_patched_files_on_top(story, tmp_path):
    ready = prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 2\n"})

    image = opened(built(ready, tmp_path).layout)

    files = shown(image)
    assert files[f"{ROOT}/sglang/pool.py"] == b"SIZE = 2\n"
    assert files[f"{ROOT}/sglang/srt/engine.py"].startswith(b"def run")
    assert not any("pyproject" in path or "test_pool" in path for path in files)


def test_two_builds_at_two_places_and_times_are_one_image(story, tmp_path):
    first = built(prepared(story, tmp_path / "a"), tmp_path / "a")
    for path in tmp_path.rglob("*"):
        os.utime(path, (1, 1))

    second = built(prepared(story, tmp_path / "b"), tmp_path / "b")

    assert identity(first) == identity(second)
    assert second.made == ("upstream", POOL, "provenance")


def test_another_hash_seed_gives_the_same_image(story, tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from elsa_build.git.door import Git\n"
        "from tests.conftest import Story\n"
        "from tests.imaging import built, prepared\n"
        "with Git(Path(sys.argv[1])) as git:\n"
        "    tmp = Path(sys.argv[2])\n"
        "    print(built(prepared(Story(git), tmp), tmp).record.manifest)\n"
    )
    expected = built(prepared(story, tmp_path / "here"), tmp_path / "here").record.manifest

    found = {
        subprocess.run(
            [sys.executable, "-c", script, story.git.path, tmp_path / seed],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert found == {expected}


def test_the_compressor_decides_the_manifest_and_nothing_else(story, tmp_path):
    small = built(prepared(story, tmp_path / "a"), tmp_path / "a")
    fast = built(
        prepared(story, tmp_path / "b"), tmp_path / "b", compressor=Compressor.parse("zlib-1")
    )

    assert identity(small)[:2] == identity(fast)[:2]
    assert small.record.manifest != fast.record.manifest
    assert record.read(tmp_path / "b/dist/elsa-v1.json").compressor.startswith("zlib-1/")


def test_editing_a_patch_changes_only_its_layer_and_the_proof(story, tmp_path):
    big = {f"python/sglang/big{n}.py": os.urandom(40_000).hex() for n in range(20)}
    before = built(prepared(story, tmp_path, files=big), tmp_path)
    edited = prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 3\n"}, files=big)
    start = time.monotonic()

    after = build(edited, destination(tmp_path, replace_local=True))

    assert time.monotonic() - start < 2
    old = {layer.name: layer.digest for layer in before.record.layers}
    new = {layer.name: layer.digest for layer in after.record.layers}
    assert [name for name in new if new[name] != old[name]] == [POOL, "provenance"]
    assert after.made == (POOL, "provenance")
    assert after.moved < 100_000


def test_nothing_is_made_twice(story, tmp_path):
    built(prepared(story, tmp_path), tmp_path)

    again = built(prepared(story, tmp_path), tmp_path)

    assert (again.made, again.moved > 0) == ((), True)


def test_a_dry_run_says_what_would_be_made_and_writes_nothing(story, tmp_path):
    ready = prepared(story, tmp_path)

    before = forecast(ready)

    assert [(layer.name, layer.cached) for layer in before] == [
        ("upstream", False),
        (POOL, False),
    ]
    assert not ready.cache.exists()
    built(ready, tmp_path)
    assert all(layer.cached for layer in forecast(ready))


def test_the_config_has_the_date_of_the_pin_and_a_line_of_history_a_layer(story, tmp_path):
    config = opened(built(prepared(story, tmp_path), tmp_path).layout).config

    assert config["created"] == "2023-11-14T22:13:20Z"
    assert [entry["created_by"] for entry in config["history"]] == [
        "elsa-build upstream",
        f"elsa-build {POOL}",
        "elsa-build provenance",
    ]


def test_the_record_on_disk_is_what_was_built(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path, name="team/elsa:v9")

    kept = record.read(tmp_path / "dist/v9.json")

    assert (kept.record, kept.name) == (made.record, "team/elsa:v9")
    assert kept.record.tag == "v9"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "elsa-build/image-record/9"}'])
def test_a_broken_record_is_refused_by_name(tmp_path, text):
    (tmp_path / "v1.json").write_text(text)

    with pytest.raises(ConfigError, match=r"v1\.json"):
        record.read(tmp_path / "v1.json")


# --- on a base --------------------------------------------------------------------------------


def on_base(story, tmp_path, patch, layers, *, paths=(), **stored):
    image = write_base(tmp_path / "base", layers, **stored)
    base = Base(name="example/base", image=image, paths=frozenset(paths))
    return prepared(story, tmp_path, patch, base=base)


BASE = tar(
    {
        f"{ROOT}/sglang/pool.py": b"SIZE = 1\n",
        f"{ROOT}/sglang/__pycache__/pool.cpython-312.pyc": b"old",
        f"{ROOT}/sglang/old/__init__.py": b"",
        "bin/sh": b"a shell",
    }
)
PATHS = ("sglang/pool.py", "sglang/__pycache__/pool.cpython-312.pyc", "sglang/old/__init__.py")


def test_only_the_delta_goes_on_a_base_that_holds_the_package(story, tmp_path):
    ready = on_base(story, tmp_path, None, [BASE], paths=PATHS)

    made = built(ready, tmp_path)

    assert [layer.name for layer in made.record.layers] == ["base", POOL, "provenance"]
    files = shown(opened(made.layout))
    assert files[f"{ROOT}/sglang/pool.py"] == b"SIZE = 2\n"
    assert files["bin/sh"] == b"a shell"


def test_bytecode_of_the_base_cannot_run_instead_of_the_patch(story, tmp_path):
    ready = on_base(story, tmp_path, None, [BASE], paths=PATHS)

    files = shown(opened(built(ready, tmp_path).layout))

    assert not [path for path in files if path.endswith(".pyc")]


def test_base_layers_history_and_settings_are_untouched(story, tmp_path):
    ready = on_base(story, tmp_path, None, [BASE], paths=PATHS)
    old = ready.base.image

    made = built(ready, tmp_path)

    new = opened(made.layout)
    assert blob(made.layout, old.layers[0].digest).read_bytes() == BASE
    assert new.config["history"][0] == old.config["history"][0]
    assert new.config["rootfs"]["diff_ids"][0] == old.layers[0].diff_id
    assert "KEPT=1" in new.config["config"]["Env"]
    assert new.labels["base.label"] == "kept"
    assert new.labels["org.opencontainers.image.base.digest"] == old.manifest


def test_an_image_on_a_base_starts_the_server_with_a_health_check(story, tmp_path):
    ready = on_base(story, tmp_path, None, [BASE], paths=PATHS)

    run = opened(built(ready, tmp_path).layout).config["config"]

    assert run["Cmd"][:4] == ["python3", "-m", "sglang.launch_server", "--model-path"]
    assert run["Healthcheck"]["Timeout"] > 20_000_000_000
    assert "SGLANG_CACHE_DIR=/opt/elsa/cache" in run["Env"]


def test_a_zstd_layer_of_a_base_is_carried_as_it_is_and_told(story, tmp_path):
    packed = b"\x28\xb5\x2f\xfd carried, never read"
    ready = on_base(
        story, tmp_path, None, [BASE], paths=PATHS,
        stored=[packed], media_type="application/vnd.oci.image.layer.v1.tar+zstd",
    )  # fmt: skip

    made = built(ready, tmp_path)

    assert made.record.layers[0].media_type.endswith("zstd")
    assert blob(made.layout, made.record.layers[0].digest).read_bytes() == packed
    assert [found.code for found in made.findings] == ["E520"]


def test_a_base_that_is_not_the_pinned_one_is_refused(story, tmp_path):
    ready = on_base(story, tmp_path, None, [BASE], paths=PATHS)
    pinned = replace(ready, recipe=recipe(base=f"example/base@sha256:{'0' * 64}"))

    with pytest.raises(ConfigError, match="the recipe's base is sha256:000") as caught:
        built(pinned, tmp_path)

    assert "--preserve-digests" in caught.value.hint


def test_equal_layers_of_a_base_are_all_listed(story, tmp_path):
    made = built(on_base(story, tmp_path, None, [BASE, BASE], paths=PATHS), tmp_path)

    assert [layer.name for layer in made.record.layers][:2] == ["base", "base"]
    assert len(opened(made.layout).layers) == 4


# --- tags -------------------------------------------------------------------------------------


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "cache" not in path.parts and "story.git" not in str(path)
    }


def test_a_tag_that_names_another_image_is_refused_and_nothing_is_lost(story, tmp_path):
    built(prepared(story, tmp_path), tmp_path)
    before = everything(tmp_path)
    edited = prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 3\n"})

    with pytest.raises(FailedError, match="already names"):
        built(edited, tmp_path)

    assert everything(tmp_path) == before


def test_a_tag_moves_with_its_image_when_the_person_says_so(story, tmp_path):
    built(prepared(story, tmp_path), tmp_path)
    edited = prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 3\n"})

    made = build(edited, destination(tmp_path, replace_local=True))

    assert opened(made.layout).manifest == made.record.manifest
    assert tags.read(tmp_path / "tags.lock")["elsa-v1"].config == made.record.config


def test_a_tag_that_docker_refuses_is_refused_before_anything_is_made(story, tmp_path):
    ready = prepared(story, tmp_path)

    with pytest.raises(ConfigError, match=r"1\.7\+cu130"):
        built(ready, tmp_path, name="1.7+cu130")

    assert not ready.cache.exists()


# --- ends that come early ---------------------------------------------------------------------


class Stop:
    """A person who presses ^C at the start of the n-th task."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.seen = []

    @contextmanager
    def task(self, description, total=None, unit=""):
        self.seen.append(description)
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        yield lambda _: None


STAGES = ["layer upstream", f"layer {POOL}", "layer provenance", "OCI layout", "archive", "publish"]


@pytest.mark.parametrize("stage", range(len(STAGES)), ids=STAGES)
def test_an_interrupt_at_any_stage_leaves_nothing_behind(story, tmp_path, stage):
    tmp_path.joinpath("project").mkdir()
    stop = Stop(stage)

    with pytest.raises(KeyboardInterrupt):
        built(prepared(story, tmp_path), tmp_path / "project", progress=stop)

    assert stop.seen[-1] == STAGES[stage]
    assert everything(tmp_path / "project") == {}
    assert not list(tmp_path.rglob(".building-*"))
    assert not list(tmp_path.rglob(".new-*"))


@pytest.mark.parametrize("stage", range(2, 5))
def test_an_interrupt_leaves_the_image_before_as_it_was(story, tmp_path, stage):
    built(prepared(story, tmp_path), tmp_path)
    before = everything(tmp_path)
    edited = prepared(story, tmp_path, {"python/sglang/pool.py": "SIZE = 3\n"})

    with pytest.raises(KeyboardInterrupt):
        build(edited, destination(tmp_path, replace_local=True), progress=Stop(stage))

    assert everything(tmp_path) == before


def test_what_a_killed_build_left_is_swept_away_by_the_next(story, tmp_path):
    left = tmp_path / "dist/.building-elsa-v1-killed"
    left.mkdir(parents=True)
    (left / "half.tar").write_bytes(b"half")

    built(prepared(story, tmp_path), tmp_path)

    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == [
        "elsa-v1",
        "elsa-v1.json",
        "elsa-v1.tar",
    ]


def test_too_little_space_is_told_before_anything_is_written(story, tmp_path):
    with pytest.raises(ToolError, match="1 MiB free, the image needs 16 MiB"):
        built(prepared(story, tmp_path), tmp_path, free=lambda _: 1 << 20)

    assert list((tmp_path / "dist").iterdir()) == []


@pytest.fixture
def short_files():
    """Let every write above 20 kB fail, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("size", [4_000, 30_000], ids=["in the archive", "in a layer"])
def test_a_disk_that_fills_up_is_a_tool_error_and_leaves_nothing(
    story, tmp_path, short_files, size
):
    big = {f"python/sglang/big{n}.bin": os.urandom(size // 2).hex() for n in range(3)}
    ready = prepared(story, tmp_path, files=big)

    with pytest.raises(ToolError, match="cannot write"):
        built(ready, tmp_path)

    assert everything(tmp_path) == {}
    assert not list(tmp_path.rglob(".new-*"))


def test_a_last_step_that_fails_puts_every_result_back(tmp_path):
    stage, output = tmp_path / "stage", tmp_path / "dist"
    for folder, text in ((stage, "new"), (output, "old")):
        (folder / "v1").mkdir(parents=True)
        (folder / "v1/file").write_text(text)
    (stage / "v1.json").write_text("new")

    def last():
        (tmp_path / "missing/lock").write_text("")

    with pytest.raises(FileNotFoundError):
        _swap([(stage / n, output / n) for n in ("v1", "v1.json")], stage / "old", last)

    assert everything(output) == {"v1/file": b"old"}


def test_several_builds_at_once_on_one_cache_agree(story, tmp_path):
    def one(_):
        with Git(story.git.path) as git:
            trees = replace(ready.trees, objects=git.objects)
            return built(replace(ready, trees=trees), tmp_path)

    ready = prepared(story, tmp_path)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(8)))

    assert len({made.record.manifest for made in found}) == 1
    assert opened(tmp_path / "dist/elsa-v1").manifest == found[0].record.manifest
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == [
        "elsa-v1",
        "elsa-v1.json",
        "elsa-v1.tar",
    ]


def test_output_and_lock_may_share_a_folder(story, tmp_path):
    where = Destination(output=tmp_path, lock=tmp_path / "tags.lock")

    build(prepared(story, tmp_path), where)

    assert (tmp_path / "tags.lock").is_file()


def test_the_archive_can_be_left_out(story, tmp_path):
    made = build(prepared(story, tmp_path), destination(tmp_path, archive=False))

    assert made.archive is None
    assert not (tmp_path / "dist/elsa-v1.tar").exists()


@pytest.mark.skipif(
    not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == Path("/tmp").stat().st_dev,
    reason="there is no second disk to try",
)
def test_another_disk_than_the_caches_gets_copies(story, tmp_path):
    where = Path(f"/dev/shm/elsa-test-{os.getpid()}")
    try:
        made = build(
            prepared(story, tmp_path), Destination(output=where, lock=tmp_path / "tags.lock")
        )

        assert opened(made.layout).manifest == made.record.manifest
    finally:
        shutil.rmtree(where, ignore_errors=True)


def test_every_file_has_the_date_of_the_pin(story, tmp_path):
    made = built(prepared(story, tmp_path), tmp_path)

    config = json.loads(blob(made.layout, made.record.config).read_bytes())

    assert {entry["created"] for entry in config["history"]} == {"2023-11-14T22:13:20Z"}
    assert EPOCH == 1_700_000_000
