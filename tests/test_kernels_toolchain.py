"""The other interpreter: what reaches it of a person's shell, and what it is believed of."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, ToolError
from elsa_build.images import serving
from elsa_build.kernels import toolchain, wheels
from elsa_build.kernels.toolchain import Toolchain
from tests.imaging import recipe
from tests.kerneling import PYTHON

SHELL = {
    "PATH": "/usr/bin",
    "HOME": "/home/ada",
    "CXX": "g++-12",
    "LD_LIBRARY_PATH": "/opt/theirs",
}
FOREIGN = {
    # In Triton's keys. Source: triton 3.8.0, include/triton/Tools/Sys/GetEnv.hpp.
    "TRITON_DEFAULT_FP_FUSION": "0",
    "TRITON_CACHE_DIR": "/home/ada/.triton",
    "DISABLE_LLVM_OPT": "1",
    "DISABLE_PTXAS_OPT": "1",
    "LLVM_IR_ENABLE_DUMP": "1",
    "MLIR_ENABLE_DUMP": "1",
    "NVPTX_ENABLE_DUMP": "1",
    "USE_IR_LOC": "ttir",
    "PTXAS_OPTIONS": "-O1",
    # Read by the patched tree, by nvcc, or by the imports.
    "SGLANG_JIT_CACHE_DIR": "/home/ada/jit",
    "SGLANG_ENABLE_SPEC_V2": "1",
    "FLASHINFER_EXTRA_CUDAFLAGS": "-O0",
    "NVCC_APPEND_FLAGS": "-O0",
    "NVCC_PREPEND_FLAGS": "-G",
    "TORCHINDUCTOR_CACHE_DIR": "/home/ada/inductor",
    "CUDA_HOME": "/opt/other",
    "CUDA_VISIBLE_DEVICES": "0",
    "CUTE_DSL_ARCH": "sm_90a",
    "PYTHONPATH": "/home/ada/lib",
    "PYTHONSTARTUP": "/home/ada/start.py",
}


@pytest.fixture
def tools(tmp_path):
    return Toolchain(
        python=Path("/venv/bin/python"),
        source=tmp_path / "tree",
        scratch=tmp_path / "scratch",
        cuda_home=Path("/cuda"),
        libraries=(tmp_path / "stub",),
        variables={"SGLANG_ENABLE_JIT_DEEPGEMM": "0"},
    )


def test_nothing_of_a_persons_shell_that_reaches_a_key_reaches_the_programs(tools, tmp_path):
    clean = tools.environment(tmp_path / "build", SHELL)

    assert tools.environment(tmp_path / "build", SHELL | FOREIGN) == clean
    assert clean["CXX"] == "g++-12"
    assert clean["HOME"] == "/home/ada"


def test_the_recipes_own_variables_reach_the_programs(tools, tmp_path):
    env = tools.environment(tmp_path / "build", {"SGLANG_ENABLE_JIT_DEEPGEMM": "1"})

    assert env["SGLANG_ENABLE_JIT_DEEPGEMM"] == "0"


def test_the_interpreters_programs_and_its_toolkit_come_first(tools, tmp_path):
    env = tools.environment(tmp_path / "build", SHELL)

    assert env["PATH"] == "/venv/bin:/cuda/bin:/usr/bin"
    assert env["LD_LIBRARY_PATH"] == f"{tmp_path}/stub:/opt/theirs"
    assert (env["CUDA_HOME"], env["CUDA_VISIBLE_DEVICES"]) == ("/cuda", "")
    assert tools.environment(tmp_path / "build", {})["LD_LIBRARY_PATH"] == f"{tmp_path}/stub"


def test_the_caches_of_every_family_are_below_the_build_folder_or_in_our_scratch(tools, tmp_path):
    # sglang 19612 and 35621: one of them was somewhere else.
    env = tools.environment(tmp_path / "build", SHELL)

    places = {
        name: value
        for name, value in env.items()
        if name.endswith(("_CACHE_DIR", "_WORKSPACE_BASE"))
    }
    assert places["TRITON_CACHE_DIR"] == f"{tmp_path}/build/triton"
    assert places["SGLANG_JIT_CACHE_DIR"] == f"{tmp_path}/build/jit"
    assert all(value.startswith(f"{tmp_path}/") for value in places.values())


def test_the_programs_see_our_package_and_the_tree_and_nothing_else_of_ours(tools, tmp_path):
    lent, source = tools.environment(tmp_path / "build", SHELL)["PYTHONPATH"].split(os.pathsep)

    assert source == str(tmp_path / "tree")
    assert [path.name for path in Path(lent).iterdir()] == ["elsa_build"]
    assert (Path(lent) / "elsa_build/kernels/inside/worker.py").is_file()


def test_a_link_to_a_package_that_moved_is_made_again(tools, tmp_path):
    link = tmp_path / "scratch/lent/elsa_build"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "gone")

    tools.environment(tmp_path / "build", SHELL)

    assert (link / "kernels").is_dir()


# --- which interpreter ------------------------------------------------------------------------


def test_the_given_interpreter_wins_over_the_variable_and_that_over_the_projects(tmp_path):
    named = {toolchain.VARIABLE: sys.executable}
    own = tmp_path / ".venv-kernels/bin/python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    given = tmp_path / "python"
    given.symlink_to(sys.executable)

    assert toolchain.interpreter(given, tmp_path, named) == given
    assert toolchain.interpreter(None, tmp_path, named) == Path(sys.executable)
    # An environment is found by its own link: following it would leave the environment.
    assert toolchain.interpreter(None, tmp_path, {toolchain.VARIABLE: ""}) == own


@pytest.mark.parametrize("kind", ["nothing", "a folder", "no program"])
def test_without_an_interpreter_the_command_that_makes_one_is_named(tmp_path, kind):
    path = tmp_path / ".venv-kernels/bin/python"
    path.parent.mkdir(parents=True)
    if kind == "a folder":
        path.mkdir()
    elif kind == "no program":
        path.write_text("text")

    with pytest.raises(ConfigError, match="no interpreter with torch") as caught:
        toolchain.interpreter(None, tmp_path, {})

    assert str(path) in caught.value.message
    assert "make .venv-kernels/.ready" in caught.value.hint
    assert "--python" in caught.value.hint


# --- asking a program -------------------------------------------------------------------------


def ask(code, request=None):
    return toolchain.ask((sys.executable, "-c", code), request or {}, dict(os.environ))


def test_a_program_is_asked_in_json_and_answers_in_json():
    doubled = "import json, sys; print(json.dumps(json.load(sys.stdin)['n'] * 2))"

    assert ask(doubled, {"n": 21}) == 42


def test_one_of_our_programs_answers(tmp_path):
    tools = Toolchain(python=Path(sys.executable), source=tmp_path, scratch=tmp_path / "scratch")

    said = toolchain.ask(
        tools.command("fingerprint"), {}, tools.environment(tmp_path / "build", os.environ)
    )

    assert said["python"] == ".".join(map(str, sys.version_info[:3]))
    assert said["triton"] is None


def test_a_program_that_fails_is_named_with_its_last_lines():
    code = "import sys; [print('line', n, file=sys.stderr) for n in range(50)]; sys.exit(9)"

    with pytest.raises(ToolError, match="ended with 9") as caught:
        ask(code)

    lines = caught.value.message.splitlines()
    assert lines[-1] == "line 49"
    assert "line 10" not in lines


def test_a_program_that_is_killed_is_an_error_and_not_an_empty_answer():
    with pytest.raises(ToolError, match="ended with -9"):
        ask("import os; os.kill(os.getpid(), 9)")


@pytest.mark.parametrize("said", ["", "a greeting", json.dumps({"a": 1}) + "and more"])
def test_an_answer_that_is_no_json_is_an_error(said):
    with pytest.raises(ToolError, match="something else than JSON"):
        ask(f"print({said!r}, end='')")


def test_a_program_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ToolError, match="cannot be run: No such file"):
        toolchain.ask((str(tmp_path / "python"), "-m", "x"), {}, {})


@pytest.mark.kernels
def test_the_real_interpreter_says_what_it_compiles_with(tmp_path):
    if not os.environ.get(toolchain.VARIABLE):
        pytest.skip(f"{toolchain.VARIABLE} names no interpreter with torch and Triton")
    tools = Toolchain(
        python=Path(os.environ[toolchain.VARIABLE]), source=tmp_path, scratch=tmp_path / "scratch"
    )
    stub = tmp_path / "stub"

    said = toolchain.ask(
        tools.command("premises", str(stub)), {}, tools.environment(tmp_path / "b", os.environ)
    )

    known = said["fingerprint"]
    assert all(known[name] for name in ("torch", "triton", "flashinfer", "ptxas", "triton_key"))
    assert "site-packages" in said["site_packages"]
    assert list(stub.glob("libcuda.so*"))
    installed = wheels.installed(said["triton_files"])
    assert installed[wheels.LIBTRITON] == known["libtriton"]
    assert wheels.libtriton_for(installed, installed) == known["libtriton"]


@pytest.mark.kernels
@pytest.mark.skipif(not PYTHON, reason=f"{toolchain.VARIABLE} names no interpreter")
def test_flashinfer_does_not_swap_tritons_assembler_under_the_images_environment(tmp_path):
    newer = tmp_path / "ptxas"
    newer.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    newer.chmod(0o755)
    code = (
        "import flashinfer.triton\n"
        "from triton import knobs\n"
        "print(knobs.nvidia.ptxas_blackwell.path)"
    )
    name = "TRITON_PTXAS_BLACKWELL_PATH"
    image = {name: serving.environment(recipe())[name]}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def chosen(extra):
        ran = subprocess.run(
            [PYTHON, "-c", code], env=env | extra, capture_output=True, text=True, check=True
        )
        return ran.stdout.splitlines()[-1]

    assert chosen({}) == str(newer)
    assert chosen(image).endswith("triton/backends/nvidia/bin/ptxas-blackwell")
