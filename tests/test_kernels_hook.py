"""Every process of a command tells what it looks up, and is otherwise as it would be without us."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elsa_build.kernels import events, lending
from tests.hooking import BOTH, real, standin, write


@pytest.fixture
def lent(tmp_path):
    return lending.lend(tmp_path / "hook")


def run(stack, lent, *words, strict=False, events_at=None, code=None, **more):
    told = events_at or stack.folder / "events"
    if not events_at:
        told.mkdir(exist_ok=True)
    env = stack.environ(TRITON_CACHE_DIR=str(stack.folder / "cache"), **more)
    env = lending.hooked(env, lent, told, marks=stack.folder / "marks", strict=strict)
    command = [stack.python, "-c", code] if code else stack.command(*words)
    return subprocess.run(
        command, env=env, cwd=stack.folder, capture_output=True, text=True, check=False
    )


def lookups(stack):
    return events.read(stack.folder / "events").lookups()


@pytest.mark.parametrize("make", BOTH)
def test_a_lookup_is_a_compile_first_and_a_hit_afterwards(make, tmp_path, lent):
    stack = make(tmp_path / "s")

    done = [run(stack, lent, 16, 32), run(stack, lent, 16)]

    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    found = lookups(stack)
    assert [(e.what, e.family, e.name) for e in found] == [
        ("compiled", "triton", "kern:add"),
        ("compiled", "triton", "kern:add"),
        ("hit", "triton", "kern:add"),
    ]
    assert [e.said["spec"]["constant_vals"] for e in found] == [[16], [32], [16]]
    assert found[0].said["key"] == found[2].said["key"] != found[1].said["key"]
    assert "parts" in found[0].said
    assert "parts" not in found[2].said


@pytest.mark.parametrize("make", BOTH)
def test_what_is_told_of_a_kernel_is_what_the_plan_has(make, tmp_path, lent):
    stack = make(tmp_path / "s")

    run(stack, lent, 16)

    spec = lookups(stack)[0].said["spec"]
    assert spec["name"] == "kern.add"
    assert not {"key", "target"} & spec.keys()
    assert not {"arch", "extern_libs"} & spec["options"].keys()
    assert spec["options"]["num_warps"] == 4


@pytest.mark.parametrize("make", BOTH)
def test_strictly_a_miss_is_refused_and_leaves_no_trace_in_the_cache(make, tmp_path, lent):
    stack = make(tmp_path / "s")
    run(stack, lent, 16)
    before = sorted((stack.folder / "cache").rglob("*"))

    hit, miss = run(stack, lent, 16, strict=True), run(stack, lent, 32, strict=True)

    assert hit.returncode == 0
    assert miss.returncode != 0
    assert "kern:add is not in the cache" in miss.stderr
    assert sorted((stack.folder / "cache").rglob("*")) == before
    last = lookups(stack)[-1]
    assert last.what == "missed"
    assert last.said["parts"]["line"] > 0


@pytest.mark.parametrize("make", BOTH)
def test_a_cache_of_another_user_gives_a_miss_not_only_an_error(make, tmp_path, lent):
    if os.geteuid() == 0:
        cache = "/proc/1/triton"  # even root makes no folder there
    else:
        (tmp_path / "theirs").mkdir(mode=0o555)
        cache = str(tmp_path / "theirs")
    stack = make(tmp_path / "s")

    env = stack.environ(TRITON_CACHE_DIR=cache)
    (stack.folder / "events").mkdir()
    env = lending.hooked(
        env, lent, stack.folder / "events", marks=stack.folder / "marks", strict=True
    )
    subprocess.run(stack.command(16), env=env, capture_output=True, check=False)

    assert [e.what for e in lookups(stack)] in (["missed"], ["failed"])
    assert lookups(stack)[0].said["key"]


@pytest.mark.parametrize("make", BOTH)
def test_processes_that_are_spawned_and_forked_tell_too(make, tmp_path, lent):
    stack = make(tmp_path / "s")
    code = (
        "import multiprocessing as mp, kern\n"
        "if __name__ == '__main__':\n"
        "    kern.warm(16)\n"
        "    for how, size in (('spawn', 32), ('fork', 64)):\n"
        "        child = mp.get_context(how).Process(target=kern.warm, args=(size,))\n"
        "        child.start(); child.join(); assert child.exitcode == 0\n"
    )
    write(stack.folder, {"parent.py": code})

    told = stack.folder / "events"
    told.mkdir()
    env = stack.environ(TRITON_CACHE_DIR=str(stack.folder / "cache"))
    env = lending.hooked(env, lent, told, marks=stack.folder / "marks", strict=False)
    command = [stack.python, "-W", "ignore", str(stack.folder / "parent.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    heard = events.read(told)
    assert heard.processes == 3
    assert sorted(e.said["spec"]["constant_vals"][0] for e in heard.lookups()) == [16, 32, 64]
    assert len({e.process for e in heard.lookups()}) == 3


def test_a_process_that_compiles_nothing_writes_nothing_and_imports_nothing(tmp_path, lent):
    stack = standin(tmp_path / "s")
    code = "import sys; print(*sorted(sys.modules))"

    with_hook = run(stack, lent, code=code).stdout.split()
    without = subprocess.run(
        [stack.python, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()

    assert list((stack.folder / "events").iterdir()) == []
    assert "elsa_build" not in with_hook
    assert set(with_hook) - set(without) <= {"_elsa_kernels_hook", "sitecustomize", "__future__"}


def test_the_hook_costs_a_process_little(tmp_path, lent):
    bare = {"PATH": os.environ["PATH"]}
    hooked = lending.hooked(bare, lent, tmp_path, marks=tmp_path / "m", strict=False)

    def cpu(env):
        times = []
        for _ in range(7):
            before = os.times()
            subprocess.run([sys.executable, "-S", "-c", ""], env=env, check=True)
            subprocess.run([sys.executable, "-c", ""], env=env, check=True)
            after = os.times()
            times.append(
                after.children_user
                + after.children_system
                - before.children_user
                - before.children_system
            )
        return min(times)

    assert cpu(hooked) - cpu(bare) < 0.06


def test_another_sitecustomize_is_run_and_is_the_one_that_is_seen(tmp_path, lent):
    stack = standin(tmp_path / "s")
    write(stack.folder, {"sitecustomize.py": "import sys\nsys.theirs = True\nNAME = 'theirs'\n"})

    done = run(stack, lent, code="import sys, sitecustomize; print(sys.theirs, sitecustomize.NAME)")

    assert done.stdout.split() == ["True", "theirs"], done.stderr


def test_a_command_with_our_package_of_its_own_keeps_it(tmp_path, lent):
    stack = standin(tmp_path / "s")
    write(stack.folder, {"elsa_build/__init__.py": "mine = 1\n"})
    code = "import kern; kern.warm(16); import elsa_build; print(elsa_build.mine)"

    done = run(stack, lent, code=code)

    assert done.stdout.strip() == "1", done.stderr
    assert events.read(stack.folder / "events").of("blind")  # said, since it cannot be watched


def test_a_folder_that_cannot_be_written_is_told_once_and_the_command_goes_on(tmp_path, lent):
    stack = standin(tmp_path / "s")

    done = run(stack, lent, 16, 32, events_at=tmp_path / "nowhere")

    assert done.returncode == 0
    assert done.stderr.count("kernels are not recorded") == 1


def test_a_version_that_cannot_be_watched_says_so_and_runs(tmp_path, lent):
    stack = standin(tmp_path / "s")
    path = stack.folder / "triton/compiler/compiler.py"
    path.write_text(path.read_text().replace("get_cache_manager", "manager_of"))

    done = run(stack, lent, 16)

    assert done.returncode == 0
    blind = events.read(stack.folder / "events").of("blind")
    assert blind[0].said["module"] == "triton.compiler.compiler"
    assert "get_cache_manager" in blind[0].said["error"]


def test_a_compile_that_fails_is_told_with_its_error_and_raised(tmp_path, lent):
    stack = standin(tmp_path / "s")

    done = run(stack, lent, 16, STANDIN_FAILS="1")

    assert "ValueError: no such instruction" in done.stderr
    assert [(e.what, e.said["error"]) for e in lookups(stack)] == [
        ("failed", "ValueError: no such instruction")
    ]


def test_a_source_of_another_language_is_refused_too(tmp_path, lent):
    stack = standin(tmp_path / "s")
    code = (
        "import kern\n"
        "from triton.compiler import compiler\n"
        "class Gluon(compiler.ASTSource):\n"
        "    def make_ir(self): return 'other ir'\n"
        "compiler.compile(Gluon(kern.add, {'x': '*fp32'}, {}), options={})\n"
    )

    free, strict = (
        run(stack, lent, code=code),
        run(stack, lent, code=code.replace("fp32", "i8"), strict=True),
    )

    assert (free.returncode, strict.returncode) == (0, 1)
    assert [e.what for e in lookups(stack)] == ["compiled", "missed"]


def test_timing_is_told_per_configuration_without_the_compiles_inside(tmp_path, lent):
    stack = standin(tmp_path / "s")
    code = (
        "import kern\n"
        "from triton.runtime.autotuner import Autotuner\n"
        "tuner = Autotuner(kern.add, [16, 32])\n"
        "tuner.run('n', True); tuner.run('m', False)\n"
    )

    run(stack, lent, code=code)

    heard = events.read(stack.folder / "events")
    assert len(heard.of("bench")) == 4
    (tuned,) = heard.of("tuned")
    assert tuned.said["tuning_key"] == ["n"]
    assert tuned.said["timings"] == [["16", [16.0] * 3], ["32", [32.0] * 3]]
    compiled = sum(e.seconds for e in heard.of("compiled"))
    assert all(e.seconds < max(compiled, 0.5) for e in heard.of("bench"))


def test_lines_cut_short_are_counted_and_the_rest_is_read(tmp_path):
    whole = json.dumps({"at": 2.0, "what": "hit", "family": "triton", "name": "m:f"})
    write(
        tmp_path,
        {
            "1.jsonl": f'{whole}\n{{"at": 3, "wh',
            "2.jsonl": '[]\n{"what": "hit"}\n{"at": "x", "what": "hit"}\n\0\n',
            "other.txt": "not ours",
        },
    )

    heard = events.read(tmp_path)

    assert [e.name for e in heard.events] == ["m:f"]
    assert heard.damaged == {"1.jsonl": 1, "2.jsonl": 4}


def test_a_killed_process_leaves_its_events(tmp_path, lent):
    stack = standin(tmp_path / "s")
    told = stack.folder / "events"
    told.mkdir()
    env = stack.environ(TRITON_CACHE_DIR=str(stack.folder / "cache"))
    env = lending.hooked(env, lent, told, marks=stack.folder / "marks", strict=False)

    with subprocess.Popen(stack.command(16, "sleep"), env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.kill()

    assert [e.what for e in events.read(told).lookups()] == ["compiled"]


def test_events_are_stamped_with_the_time_of_the_machine(tmp_path, lent):
    stack = standin(tmp_path / "s")
    began = time.time()

    run(stack, lent, 16)

    heard = events.read(stack.folder / "events")
    assert all(began <= e.at <= time.time() for e in heard.events)
    (process,) = heard.of("process")
    assert began <= process.said["began"] <= process.at


def test_the_lent_folder_needs_nothing_of_ours(tmp_path, lent):
    copied = tmp_path / "elsewhere"
    lent.rename(copied)
    stack = standin(tmp_path / "s")

    run(stack, copied, 16)

    assert [e.what for e in lookups(stack)] == ["compiled"]


@pytest.mark.kernels
def test_flashinfer_tells_a_module_by_its_generator_and_refuses_to_compile_it(tmp_path, lent):
    stack = real(tmp_path / "s")
    code = (
        "from flashinfer.jit import gen_batch_decode_module as gen\n"
        "import torch\n"
        "b = torch.bfloat16\n"
        "try: gen(b, b, b, torch.int32, 256, 256, 0, False, False).build_and_load()\n"
        "except Exception as e: print(type(e).__name__)\n"
    )

    done = run(
        stack,
        lent,
        code=code,
        FLASHINFER_DISABLE_JIT="1",
        FLASHINFER_CUDA_ARCH_LIST="12.0f",
        FLASHINFER_WORKSPACE_BASE=str(tmp_path),
    )

    assert "MissingJITCacheError" in done.stdout, done.stderr
    (event,) = lookups(stack)
    assert (event.what, event.family) == ("missed", "flashinfer")
    assert event.name.startswith("batch_decode")
    assert event.said["spec"]["generator"].endswith(":gen_batch_decode_module")
    assert event.said["spec"]["args"][0] == {"dtype": "bfloat16"}


@pytest.mark.slow
@pytest.mark.kernels
def test_sglangs_jit_tells_a_module_by_its_entry_and_a_crash_as_a_miss(tmp_path, lent):
    stack = real(tmp_path / "s")
    tree = Path(__file__).parent.parent / ".cache/patched/python"
    if not tree.is_dir():
        pytest.skip(f"{tree} does not hold the patched sglang/: make test-patches")
    code = (
        "import json, os, sys\n"
        "sys.path.append(os.environ['TREE'])\n"
        "from elsa_build.kernels.inside import gpu\n"
        "gpu.install(json.loads(os.environ['TEST_TARGET']))\n"
        "import torch\n"
        "from sglang.kernels.ops.layernorm import norm\n"
        "try: norm._jit_rmsnorm_module(2048, torch.bfloat16)\n"
        "except RuntimeError as e: print(e)\n"
    )

    done = run(
        stack,
        lent,
        code=code,
        TREE=str(tree),
        SGLANG_CRASH_ON_JIT_COMPILE="1",
        SGLANG_JIT_CACHE_DIR=str(tmp_path / "jit"),
    )

    assert "no usable cached build" in done.stdout, done.stderr
    (event,) = [e for e in lookups(stack) if e.family == "sglang-jit"]
    assert event.what == "missed"
    assert event.said["key"].startswith("build-")
    assert event.said["spec"]["entry"].endswith("layernorm.norm:_jit_rmsnorm_module")
    assert event.said["spec"]["args"] == [2048, {"dtype": "bfloat16"}]


@pytest.mark.slow
@pytest.mark.kernels
def test_a_kernel_of_the_patched_tree_is_told_as_a_drive_plans_it(tmp_path, lent):
    stack = real(tmp_path / "s")
    tree = Path(__file__).parent.parent / ".cache/patched/python"
    if not tree.is_dir():
        pytest.skip(f"{tree} does not hold the patched sglang/: make test-patches")
    code = (
        "import json, os, sys\n"
        "sys.path.append(os.environ['TREE'])\n"
        "target = json.loads(os.environ['TEST_TARGET'])\n"
        "from elsa_build.kernels.inside import gpu\n"
        "gpu.install(target)\n"
        "import torch\n"
        "from elsa_build.kernels.inside import triton as build\n"
        "from elsa_build.kernels.inside.capture import capturing\n"
        "from elsa_build.kernels.inside.whereabouts import tensors_anywhere\n"
        "from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating\n"
        "gates = torch.zeros(33, 32, dtype=torch.bfloat16)\n"
        "with capturing() as found, tensors_anywhere():\n"
        "    fused_gdn_gating(torch.zeros(32), gates, gates, torch.zeros(32))\n"
        "(one,) = found.kernels.values()\n"
        "built = build.compile({'target': target}, one)\n"
        "print(json.dumps([one, built['key'], built['parts']]))\n"
    )

    done = run(stack, lent, code=code, TREE=str(tree))

    assert done.returncode == 0, done.stderr
    planned, key, parts = json.loads(done.stdout.splitlines()[-1])
    (event,) = [e for e in lookups(stack) if e.family == "triton"]
    assert (event.name, event.said["spec"]) == (planned["name"], planned["spec"])
    assert (event.said["key"], event.said["parts"]) == (key, parts)
