"""The nvcc families: one command done once, jobs in their order, modules where they are found."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from elsa_build.kernels import nvcc_jobs, toolkit
from elsa_build.kernels.inside import command, flashinfer, neutral, nvcc_capture, stub_cuda, values
from elsa_build.kernels.jobs import Family, Job
from elsa_build.kernels.machine_code import arch_of, code_of
from elsa_build.kernels.target import target

ROOT = Path(__file__).parent.parent
# Read before the seal takes it away.
TREE = Path(os.environ.get("ELSA_PATCHED_TREE", ROOT / ".cache/patched")) / "python"
SM_120 = target("sm_120")

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


# One command.


class Unit:
    """One compiler call: a shell that copies its source, tells what it read, and counts itself."""

    def __init__(self, work):
        self.work = work
        work.mkdir(parents=True)
        self.source, self.output = work / "a.cu", work / "out/a.o"
        self.source.write_text("one")
        self.text = f"set -e; cat {self.source} > {self.output}; echo x >> {work}/count;"

    def arguments(self, **changed):
        depfile = f"{self.output}.d"
        return {
            "command": f"{self.text} echo '{self.output}: {self.source}' > {depfile}",
            "cwd": str(self.work),
            "output": str(self.output),
            "depfile": depfile,
            "compiler": "nvcc 13.0",
            "work": str(self.work),
            **changed,
        }

    def run(self, **changed):
        return command.run({}, self.arguments(**changed))

    @property
    def times(self):
        count = self.work / "count"
        return len(count.read_text().split()) if count.exists() else 0


@pytest.fixture
def unit(tmp_path):
    return Unit(tmp_path / "work")


def test_a_command_is_run_once(unit):
    first = unit.run()
    second = unit.run()

    assert (first["fresh"], second["fresh"], unit.times) == (True, False, 1)
    assert first["key"] == second["key"]
    assert unit.output.read_text() == "one"


def test_touching_a_file_or_setting_all_times_alike_repeats_nothing(unit):
    # What ninja repeats: flashinfer 838, and every image with one epoch.
    unit.run()
    for path in unit.work.rglob("*"):
        os.utime(path, (1, 1))

    assert not unit.run()["fresh"]


def test_a_work_folder_that_moved_repeats_nothing_and_keeps_its_key(tmp_path):
    before = Unit(tmp_path / "here")
    key = before.run()["key"]
    (tmp_path / "here").rename(tmp_path / "there")
    after = Unit.__new__(Unit)
    after.work = tmp_path / "there"
    after.source, after.output = after.work / "a.cu", after.work / "out/a.o"
    after.text = before.text.replace(str(before.work), str(after.work))

    again = after.run()

    assert not again["fresh"]
    assert again["key"] == key


@pytest.mark.parametrize("what", ["source", "command", "compiler", "output", "stamp"])
def test_what_changes_the_result_is_done_again(unit, what):
    unit.run()
    changed = {}
    if what == "source":
        unit.source.write_text("two")
    elif what == "command":
        unit.text += " true;"
    elif what == "compiler":
        changed = {"compiler": "nvcc 13.1"}
    elif what == "output":
        unit.output.write_text("on")
    else:
        (unit.work / "out/a.o.done").write_text('{"command"')

    assert unit.run(**changed)["fresh"]
    assert unit.output.read_text() == unit.source.read_text()


def test_an_input_that_is_gone_is_found_out_by_the_compiler(unit):
    unit.run()
    unit.source.unlink()

    with pytest.raises(RuntimeError, match="No such file"):
        unit.run()


def test_a_failed_command_tells_the_end_of_what_it_said_and_leaves_no_output(unit):
    lines = "; ".join(f"echo line {n} >&2" for n in range(60))

    with pytest.raises(RuntimeError) as e:
        unit.run(command=f"echo half > {unit.output}; {lines}; exit 3")

    said = str(e.value).splitlines()
    assert said[0] == "a.o: exit 3"
    assert said[-1] == "line 59"
    assert "line 10" not in said
    assert not list(unit.output.parent.iterdir())


def test_a_compiler_that_is_killed_or_finds_the_disk_full_leaves_no_half_output(unit):
    full = f"ulimit -f 1; head -c 100000 /dev/zero > {unit.output}"

    with pytest.raises(RuntimeError, match=r"a\.o: (killed by signal 25|exit 153)"):
        unit.run(command=f"exec sh -c '{full}'")
    with pytest.raises(RuntimeError, match="killed by signal 9"):
        unit.run(command=f"echo half > {unit.output}; kill -9 $$")

    assert not list(unit.output.parent.iterdir())


def test_a_new_version_replaces_the_old_one_only_when_it_is_whole(unit):
    unit.run()
    unit.source.write_text("two")

    with pytest.raises(RuntimeError):
        unit.run(command=f"echo tw > {unit.output}; exit 1")

    assert unit.output.read_text() == "one"


def test_what_a_killed_run_left_is_cleared_away(unit):
    unit.output.parent.mkdir()
    (unit.output.parent / ".a.o.making").write_text("half")

    unit.run()

    assert sorted(path.name for path in unit.output.parent.iterdir()) == ["a.o", "a.o.done"]


def test_a_link_is_repeated_when_an_object_changed_or_another_is_linked(unit):
    link = {"depfile": None, "command": f"{unit.text} true"}
    objects = [str(unit.source)]

    unit.run(**link, inputs=objects)
    same = unit.run(**link, inputs=objects)
    unit.source.write_text("two")
    changed = unit.run(**link, inputs=objects)
    other = unit.run(**link, inputs=[*objects, str(unit.work / "count")])

    assert [one["fresh"] for one in (same, changed, other)] == [False, True, True]


def test_a_launcher_comes_before_a_compiler_and_changes_no_key(unit, tmp_path):
    launcher = tmp_path / "sccache"
    launcher.write_text('#!/bin/sh\necho launched >> "$(dirname "$0")/log"\nexec "$@"\n')
    launcher.chmod(0o755)
    plain = unit.run()["key"]
    unit.output.unlink()

    launched = command.run({"launcher": str(launcher)}, unit.arguments())

    assert (launched["fresh"], launched["key"]) == (True, plain)
    assert (tmp_path / "log").read_text() == "launched\n"


def test_the_deepest_folder_names_a_path_in_keys_and_in_what_gcc_writes():
    names = {"/w/lib/tree": "tree", "/w/a b": "odd", "/w/lib": "site-packages"}
    folders = neutral.Folders(names)

    text = "nvcc -I/w/lib/tvm -I/w/lib/tree/x -I'/w/a b' /w/lib2"

    assert folders.hidden(text) == "nvcc -I<site-packages>/tvm -I<tree>/x -I'<odd>' /w/lib2"
    assert folders.shown(folders.hidden(text)) == text
    assert folders.flags() == [  # gcc takes the last that matches; nvcc splits at blanks
        "-ffile-prefix-map=/w/lib/=site-packages/",
        "-ffile-prefix-map=/w/lib/tree/=tree/",
    ]


def test_without_binutils_a_library_is_not_left_as_the_compiler_made_it(tmp_path, monkeypatch):
    library = tmp_path / "a.so"
    library.write_bytes(b"\x7fELF")

    with pytest.raises(RuntimeError, match=r"strip a\.so: "):
        neutral.strip(library)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="strip cannot be run: No such file"):
        neutral.strip(library)


def test_names_with_blanks_and_folded_lines_are_read_from_a_depfile():
    text = "a.o: one.h \\\n  two\\ words.h three.h\n\none.h:\n"

    assert command.prerequisites(text) == ["one.h", "two words.h", "three.h"]


# Arguments as plain data.


def test_arguments_survive_the_way_to_a_worker():
    sent = values.plain([1, True, None, 2.5, "x", (1, ("y",)), ["z"]])

    assert values.meant(json.loads(json.dumps(sent))) == [
        1,
        True,
        None,
        2.5,
        "x",
        (1, ("y",)),
        ["z"],
    ]


def test_what_has_no_plain_form_is_refused_by_its_name():
    with pytest.raises(TypeError, match=r"cannot be sent in a job: .*Unit"):
        values.plain((1, Unit))
    with pytest.raises(TypeError, match="no argument has this form"):
        values.meant({"tensor": [1]})


# Jobs.


def planned(family, name, **spec):
    return {"family": family, "name": name, "spec": spec}


def answered(work="/w", flags=""):
    """What `flashinfer:specs` says of a module with two units, one of which needs the other."""
    units = [
        {
            "command": f"nvcc {flags} {work}/{name}",
            "output": f"{work}/m/{name}",
            "work": work,
            "memory_mib": mib,
            "cpu_s": 9.0,
            **more,
        }
        for name, mib, more in (
            ("a.o", 10240, {}),
            ("b.o", 800, {"inputs": [f"{work}/m/a.o"]}),
        )
    ]
    link = {"inputs": [one["output"] for one in units], "output": f"{work}/m/m.so", "work": work}
    module = {"name": "m", "library": f"{work}/m/m.so", "work": work, "units": units, "link": link}
    return {"modules": [module]}


def test_each_flashinfer_unit_is_a_job_and_link_and_place_wait_for_them():
    a, b, link, place = nvcc_jobs.flashinfer_jobs(answered())

    assert (a.name, a.call, a.memory_mib, a.cpu_s) == ("m/a.o", "command:run", 10240, 9.0)
    assert "memory_mib" not in a.arguments
    assert (a.needs, b.needs) == ((), (a.id,))
    assert link.needs == (a.id, b.id)
    assert (place.call, place.needs, place.name) == ("flashinfer:place", (link.id,), "m")
    assert {one.family for one in (a, b, link, place)} == {Family.FLASHINFER}


def test_the_same_work_has_the_same_id_in_another_work_folder():
    here = [job.id for job in nvcc_jobs.flashinfer_jobs(answered("/here"))]
    there = [job.id for job in nvcc_jobs.flashinfer_jobs(answered("/some/where"))]
    other = [job.id for job in nvcc_jobs.flashinfer_jobs(answered("/here", "-O0"))]

    assert here == there
    assert not set(here[:2]) & set(other[:2])


def test_a_module_of_sglang_is_one_job_and_other_families_are_passed_over():
    modules = [
        planned("sglang-jit", "sgl_kernel_jit_speculative_tree", entry="a.b:c", args=[]),
        planned("flashinfer", "norm", generator="f.j:gen", args=[]),
    ]

    (job,) = nvcc_jobs.sglang_jobs(modules)

    assert (job.call, job.arguments) == ("sglang_jit:build", {"entry": "a.b:c", "args": []})
    assert nvcc_jobs.generators(modules) == {"modules": [{"generator": "f.j:gen", "args": []}]}


def test_the_units_that_take_7_to_11_gib_are_known_by_name():
    # Peaks in MiB of a whole build on two cores.
    moe = "fused_moe_120/cutlass_kernel_file_gemm_grouped_{}.generated.cu"
    fp4 = "fp4_gemm_cutlass_sm120/fp4_gemm_cutlass_half_128_256_128.cu"

    assert flashinfer.cost(moe.format("sm120_M128_BS_group6"))[0] > 10_635
    assert flashinfer.cost(moe.format("sm80_M16_group1"))[0] > 6_800
    assert flashinfer.cost(fp4)[0] > 7_102
    assert flashinfer.cost("norm/norm.cu")[0] < 2048


# FlashInfer's way to a folder of ours.


def provided(tmp_path, *later):
    for name, text in flashinfer.aot_provider("0.7.2", str(tmp_path / "aot"), "120f").items():
        path = tmp_path / "python" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    code = (
        "import json, flashinfer_jit_cache as f\n"
        "print(json.dumps([f.__version__, [[p.provider_id, p.version, str(p.jit_cache_dir),"
        " sorted(p.cuda_architectures), sorted(p.modules)] for p in f.get_jit_cache_providers()]]))"
    )
    path = os.pathsep.join(map(str, (tmp_path / "python", *later)))
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def test_flashinfer_is_told_of_the_modules_in_a_folder(tmp_path):
    (tmp_path / "aot/norm").mkdir(parents=True)

    version, (ours,) = provided(tmp_path)

    assert version == "0.7.2"
    assert ours == ["elsa-build", "0.7.2", str(tmp_path / "aot"), ["sm120f"], ["norm"]]


def test_a_folder_that_is_not_there_has_no_modules(tmp_path):
    _, (ours,) = provided(tmp_path)

    assert ours[-1] == []


def test_a_package_that_the_image_already_has_is_still_heard(tmp_path):
    theirs = tmp_path / "site/flashinfer_jit_cache"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text(
        "from types import SimpleNamespace\nfrom . import more\n__version__ = '0.7.2+cu130'\n"
        "def get_jit_cache_providers():\n"
        "    return (SimpleNamespace(provider_id='theirs', version=__version__,"
        " jit_cache_dir='/t', cuda_architectures={'sm90a'}, modules=more.NAMES),)\n"
    )
    (theirs / "more.py").write_text("NAMES = {'page'}\n")

    version, (ours, others) = provided(tmp_path, tmp_path / "site")

    # FlashInfer holds each provider's version against the package's own.
    assert (version, ours[1]) == ("0.7.2+cu130", "0.7.2+cu130")
    assert others == ["theirs", "0.7.2+cu130", "/t", ["sm90a"], ["page"]]


def test_a_library_is_copied_into_the_aot_folder_once(tmp_path):
    library = tmp_path / "work/m.so"
    library.parent.mkdir()
    library.write_bytes(b"library")
    library.with_name("m.so.done").write_text('{"key": "k"}')
    setup = {"build": str(tmp_path / "build")}

    first = flashinfer.place(setup, {"name": "m", "library": str(library)})
    second = flashinfer.place(setup, {"name": "m", "library": str(library)})

    assert (first["fresh"], second["fresh"]) == (True, False)
    assert first["files"] == ["flashinfer_aot/m/m.so"]
    assert (tmp_path / "build/flashinfer_aot/m/m.so").read_bytes() == b"library"
    assert first["key"] == "k"


# The driver that is not there.


def test_a_silent_module_takes_any_call():
    module = nvcc_capture.Silent()

    assert list(module.plan(1, x=2)) == []
    assert module["init"](3).run_moe(int(module)) is module


@needs_cc
def test_the_stub_answers_no_device_and_exports_what_its_users_name(tmp_path):
    user = tmp_path / "user.c"
    user.write_text(
        "int cuInit(int); int cudaMalloc(void); int cublasCreate(void);"
        "int use(void) { return cuInit(0) + cudaMalloc() + cublasCreate(); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "user.so", user], check=True)
    header = tmp_path / "cuda.h"
    header.write_text("CUresult CUDAAPI cuPointerGetAttribute(void *d);\n")

    names = stub_cuda.wanted([tmp_path / "user.so"], [header])
    library = stub_cuda.make(tmp_path / "stub", names)

    assert names == ("cuInit", "cuPointerGetAttribute")
    assert ctypes.CDLL(str(library)).cuInit(0) == stub_cuda.NO_DEVICE
    assert (tmp_path / "stub/libcuda.so").resolve() == library


@needs_cc
def test_the_stub_is_made_again_only_for_a_name_that_it_lacks(tmp_path):
    library = stub_cuda.make(tmp_path, ["cuInit", "cuCtxGetDevice"])
    made = library.stat().st_ino

    stub_cuda.make(tmp_path, ["cuInit"])
    assert library.stat().st_ino == made

    stub_cuda.make(tmp_path, ["cuMemAlloc_v2"])
    assert {"cuInit", "cuMemAlloc_v2"} <= set(stub_cuda.wanted([], [tmp_path / "libcuda.c"]))


@needs_cc
def test_a_library_that_loads_the_driver_by_its_soname_gets_the_stub(tmp_path):
    library = stub_cuda.make(tmp_path, ["cuInit"])
    code = (
        f"from pathlib import Path; from elsa_build.kernels.inside import stub_cuda as s;"
        f"s.load(Path({str(library)!r})); import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "100\n"


def test_a_library_that_nm_cannot_read_is_named(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF and no more")

    with pytest.raises(RuntimeError, match=r"nm cannot read .*broken\.so"):
        stub_cuda.wanted([broken])


# What decides whether a bundle fits.


def seen(home):
    """What the fingerprint program says in an interpreter that has none of the packages."""
    ran = subprocess.run(
        [sys.executable, "-m", "elsa_build.kernels.inside.fingerprint"],
        env={"PATH": "", "CUDA_HOME": str(home), "CXX": str(home / "c++"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def test_what_is_not_there_is_null_and_compilers_are_named_by_their_own_words(tmp_path):
    for name, says in (("bin/nvcc", "release 13.0, V13.0.88"), ("c++", "c++ 12.2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)

    found = seen(tmp_path)

    assert (found["nvcc"], found["cxx"]) == ("release 13.0, V13.0.88", "c++ 12.2")
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["torch"] is found["triton_key"] is found["flashinfer"] is None


def test_a_linked_home_is_another_toolkit_to_sglangs_key_and_a_real_one_is_like_any(tmp_path):
    (tmp_path / "cuda-13").mkdir()
    (tmp_path / "cuda").symlink_to("cuda-13")

    assert seen(tmp_path / "cuda-13")["cuda_home"] == "<toolkit>"
    assert seen(tmp_path / "cuda")["cuda_home"] == str(tmp_path / "cuda")


# The real thing: an interpreter with torch and FlashInfer, a toolkit, no GPU.

FLASHINFER = {
    "norm": "flashinfer.jit.norm:gen_norm_module",
    "sampling": "flashinfer.jit.sampling:gen_sampling_module",
    "moe": "flashinfer.jit.fused_moe:gen_cutlass_fused_moe_sm120_module",
}


class Inside:
    """A worker in the interpreter that has torch, as a build has one."""

    def __init__(self, folder: Path, build: Path | None = None) -> None:
        python = Path(os.environ["ELSA_KERNELS_PYTHON"])
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(subprocess.check_output([python, "-c", code], text=True).strip())
        self.build = build or folder / "build"
        self.build.mkdir(parents=True, exist_ok=True)
        found, _ = toolkit.find(
            SM_120, cuda_home=None, env=os.environ, site_packages=site, scratch=folder
        )
        users = site.glob("sgl_kernel/sm100/common_ops*.so")
        names = stub_cuda.wanted(users, [found.home / "include/cuda.h"])
        lent = folder / "lent"
        lent.mkdir(exist_ok=True)
        if not (lent / "elsa_build").is_symlink():
            (lent / "elsa_build").symlink_to(ROOT / "elsa_build")
        self.env = {
            **os.environ,
            "CUDA_HOME": str(found.home),
            "LD_LIBRARY_PATH": str(stub_cuda.make(folder / "stub", names).parent),
            "PYTHONPATH": os.pathsep.join((str(lent), str(TREE))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FLASHINFER_WORKSPACE_BASE": str(folder / "work"),
            "SGLANG_CACHE_DIR": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
        }
        self.python = python

    def ask(self, *calls, **env):
        """Answer calls in one worker; a failed one fails the test with what it said."""
        setup = {"target": SM_120.document(), "build": str(self.build)}
        lines = [setup, *({"id": c, "call": c, "arguments": a} for c, a in calls)]
        ran = subprocess.run(
            [self.python, "-m", "elsa_build.kernels.inside.worker"],
            input="".join(json.dumps(line) + "\n" for line in lines),
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=True,
        )
        answers = [json.loads(line) for line in ran.stdout.splitlines()]
        assert [one["error"] for one in answers] == [None] * len(calls), answers
        return [{**one["found"], "fresh": one["fresh"]} for one in answers]

    def do(self, jobs: tuple[Job, ...]):
        return self.ask(*((job.call, dict(job.arguments)) for job in jobs))


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    if not os.environ.get("ELSA_KERNELS_PYTHON"):
        pytest.skip("ELSA_KERNELS_PYTHON names no interpreter with torch and FlashInfer")
    cache = os.environ.get("ELSA_BUILD_TEST_CACHE")
    folder = Path(cache) / "kernels-nvcc" if cache else tmp_path_factory.mktemp("nvcc")
    folder.mkdir(parents=True, exist_ok=True)
    return Inside(folder)


needs_tree = pytest.mark.skipif(
    not (TREE / "sglang").is_dir(), reason="no patched tree: elsa-build apply --to .cache/patched"
)


def archs(path: Path) -> str:
    return arch_of([code] if (code := code_of(path.read_bytes())) else [])


@pytest.mark.kernels
@pytest.mark.slow
def test_a_module_of_flashinfer_builds_without_a_gpu_and_loads_at_once(inside, tmp_path):
    modules = [{"generator": "flashinfer.jit.quantization:gen_quantization_module"}]
    (specs,) = inside.ask(("flashinfer:specs", {"modules": modules}))
    jobs = nvcc_jobs.flashinfer_jobs(specs)

    inside.do(jobs)
    again = inside.do(jobs)

    assert not any(found["fresh"] for found in again)
    objects = [Path(unit["output"]) for one in specs["modules"] for unit in one["units"]]
    libraries = sorted((inside.build / "flashinfer_aot").glob("*/*.so"))
    assert [one.stem for one in libraries] == ["quantization"]
    assert {archs(one) for one in (*objects, *libraries)} == {"sm_120f"}
    assert loaded(inside, tmp_path, "12.0f") == {"quantization": True}
    assert loaded(inside, tmp_path, "9.0a") == {"quantization": False}


def loaded(inside, tmp_path, arch):
    """Which modules FlashInfer loads from our folder when it may not compile."""
    folder = tmp_path / arch
    provider = flashinfer.aot_provider("0.7.2", str(inside.build / "flashinfer_aot"), "120f")
    for name, text in provider.items():
        path = folder / "python" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    code = (
        "import json\n"
        "from flashinfer.jit.quantization import gen_quantization_module\n"
        "def loads(spec):\n"
        "    try: spec.build_and_load()\n"
        "    except RuntimeError: return False\n"
        "    return spec.is_aot\n"
        "spec = gen_quantization_module()\n"
        "print(json.dumps({spec.name: loads(spec)}))"
    )
    env = {
        **inside.env,
        "PYTHONPATH": str(folder / "python"),
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        "FLASHINFER_CUDA_ARCH_LIST": arch,
        "FLASHINFER_DISABLE_JIT": "1",
    }
    ran = subprocess.run(
        [inside.python, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.kernels
@pytest.mark.slow
@needs_tree
def test_a_module_of_sglang_builds_without_a_gpu_and_is_found_in_a_moved_folder(inside, tmp_path):
    entry = "sglang.kernels.ops.attention.clamp_position:_jit_clamp_position_module"
    (job,) = nvcc_jobs.sglang_jobs(
        [planned("sglang-jit", "clamp", entry=entry, args=[{"dtype": "int64"}])]
    )

    (built,) = inside.do((job,))
    (again,) = inside.do((job,))
    shutil.copytree(inside.build / "jit", tmp_path / "moved/jit")
    for path in (tmp_path / "moved").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (moved,) = Inside(tmp_path, tmp_path / "moved").do((job,))

    assert [one["fresh"] for one in (again, moved)] == [False, False]
    assert built["modules"][0]["key"] == moved["modules"][0]["key"]
    library, deps = sorted(moved["files"], reverse=True)
    assert library.endswith(".so")
    assert deps.endswith("sgl_deps.json")
    assert archs(tmp_path / "moved" / library) == "sm_120f"
    body = (inside.build / library).read_bytes()
    assert b"tree/sglang/kernels/jit/" in body
    assert not [one for one in told_of_a_machine(inside) if one in body]


def told_of_a_machine(inside):
    """What a library must not hold: where things are here, and when it was made."""
    places = (inside.build, TREE, inside.env["CUDA_HOME"], inside.python.parent.parent, Path.home())
    return [b"tmpxft", *(str(one).encode() for one in places)]


NOISY = """
#include "tvm/ffi/error.h"
#include "own.h"
namespace { __device__ int kept[4]; __global__ void hidden(int x) { kept[0] = x; } }
__global__ void add(int* x) { *x += kept[1]; }
void call() { hidden<<<1, 1>>>(2); }
const char* told() { return own(); }
const char* thrown() { return tvm::ffi::TypeIndexToTypeKey(0).data() ? own() : __FILE__; }
"""


@pytest.mark.kernels
def test_two_builders_make_the_same_library_wherever_their_folders_are(inside, tmp_path):
    made = []
    for name in ("here", "there/deeper"):
        work = tmp_path / name
        work.mkdir(parents=True)
        (work / "own.h").write_text("inline const char* own() { return __FILE__; }\n")
        (work / "a.cu").write_text(NOISY)
        nvcc = f"{inside.env['CUDA_HOME']}/bin/nvcc"
        tvm = "$(python -c 'import tvm_ffi.libinfo as i; print(i.find_include_path())')"
        common = {"cwd": str(work), "compiler": "nvcc", "work": str(work)}
        compiled = {
            **common,
            "command": f"{nvcc} -std=c++17 -gencode=arch=compute_120f,code=sm_120f"
            f" -Xcompiler=-fPIC -MD -MF {work}/a.o.d -I{work} -isystem {tvm} -c {work}/a.cu"
            f" -o {work}/a.o",
            "output": f"{work}/a.o",
            "source": f"{work}/a.cu",
            "depfile": f"{work}/a.o.d",
        }
        linked = {
            **common,
            "command": f"c++ {work}/a.o -shared -L{inside.env['CUDA_HOME']}/lib64 -lcudart"
            f" -o {work}/a.so",
            "output": f"{work}/a.so",
            "depfile": None,
            "inputs": [f"{work}/a.o"],
        }
        path = f"{inside.python.parent}:{os.environ['PATH']}"
        found = inside.ask(("command:run", compiled), ("command:run", linked), PATH=path)
        made.append(([one["key"] for one in found], (work / "a.so").read_bytes()))

    assert made[0] == made[1]
    assert b"work/own.h" in made[0][1]
    assert not [one for one in (*told_of_a_machine(inside), bytes(tmp_path)) if one in made[0][1]]
    assert archs(tmp_path / "here/a.so") == "sm_120f"


@pytest.mark.kernels
def test_the_experts_module_is_listed_with_what_its_units_take(inside):
    (specs,) = inside.ask(("flashinfer:specs", {"modules": [{"generator": FLASHINFER["moe"]}]}))

    jobs = nvcc_jobs.flashinfer_jobs(specs)

    heavy = [job for job in jobs if job.memory_mib > 8192]
    assert len(jobs) == 96 + 2
    assert len(heavy) == 11
    assert all("grouped_sm120" in job.name for job in heavy)
