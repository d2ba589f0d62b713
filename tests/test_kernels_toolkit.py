"""Which nvcc is taken, what a person hears of it, and what is refused before anything compiles."""

import os
from pathlib import Path

import pytest

from elsa_build.diagnostics import Severity
from elsa_build.errors import ToolError
from elsa_build.kernels import toolkit
from elsa_build.kernels.target import target

SM_120 = target("sm_120")


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def toolkit_at(home, version, headers=toolkit.HEADERS):
    """A toolkit as far as it is looked at: an nvcc that says who it is, and headers."""
    major_minor = version.rpartition(".")[0]
    script(
        home / "bin/nvcc",
        'if [ "$1" = --dryrun ]; then echo "#$ _HERE_=$(dirname "$0")" >&2;'
        ' echo "#$ TOP=$(dirname "$0")/.." >&2; exit; fi\n'
        f"echo 'Cuda compilation tools, release {major_minor}, V{version}'",
    )
    for part in ("include", "lib", "nvvm"):
        (home / part).mkdir(exist_ok=True)
    for name in headers:
        (home / "include" / name).touch()
    return home


def find(tmp_path, *, cuda_home=None, cuda_env=None, path=(), site=None):
    env = {"PATH": os.pathsep.join(map(str, path))}
    if cuda_env:
        env["CUDA_HOME"] = str(cuda_env)
    return toolkit.find(
        SM_120, cuda_home=cuda_home, env=env, site_packages=site, scratch=tmp_path / "scratch"
    )


# Where it is looked for.


def test_without_any_nvcc_the_error_says_where_it_was_looked_for_and_what_is_needed(tmp_path):
    with pytest.raises(ToolError, match=r"no nvcc: .*PATH.*120f needs 12\.9 or later") as e:
        find(tmp_path)

    assert e.value.hint.startswith("pip install nvidia-cuda-nvcc")


def test_a_named_toolkit_wins_over_all_others(tmp_path):
    named = toolkit_at(tmp_path / "named", "13.1.10")
    other = toolkit_at(tmp_path / "other", "13.1.10")

    found, said = find(tmp_path, cuda_home=named, cuda_env=other, path=[other / "bin"])

    assert (found.home, found.where, found.nvcc_version) == (named, "--cuda-home", "13.1.10")
    assert not said


def test_the_name_of_the_home_stays_as_it_was_typed_since_it_is_in_sglangs_key(tmp_path):
    real = toolkit_at(tmp_path / "cuda-13.1", "13.1.10")
    link = tmp_path / "cuda"
    link.symlink_to(real)

    found, _ = find(tmp_path, cuda_env=link)

    assert found.home == link


def test_a_script_on_path_is_not_taken_for_a_toolkit(tmp_path):
    real = toolkit_at(tmp_path / "cuda-13.1", "13.1.10")
    script(tmp_path / "bin/nvcc", f'exec {real}/bin/nvcc "$@"')

    found, _ = find(tmp_path, path=[tmp_path / "bin"])

    assert (found.home, found.where) == (real, "PATH")


@pytest.mark.parametrize("where", ["cuda_home", "cuda_env"])
def test_a_named_folder_without_nvcc_is_an_error_and_not_passed_over(tmp_path, where):
    other = toolkit_at(tmp_path / "other", "13.1.10")

    with pytest.raises(ToolError, match=r"nowhere, which has no bin/nvcc"):
        find(tmp_path, **{where: tmp_path / "nowhere"}, path=[other / "bin"])


def test_an_nvcc_that_says_no_version_is_an_error_with_its_own_words(tmp_path):
    script(tmp_path / "home/bin/nvcc", "echo 'segmentation fault' >&2; exit 1")

    with pytest.raises(ToolError, match=r"does not say its version: segmentation fault"):
        find(tmp_path, cuda_home=tmp_path / "home")


def test_an_nvcc_that_cannot_be_run_is_an_error(tmp_path):
    home = toolkit_at(tmp_path / "home", "13.1.10")
    (home / "bin/nvcc").write_bytes(b"\x7fELF of another machine")

    with pytest.raises(ToolError, match="does not run: Exec format error"):
        find(tmp_path, cuda_home=home)


# Versions.


def test_an_nvcc_too_old_is_refused_with_both_versions(tmp_path):
    # flashinfer 3633: nvcc 12.8 ends in "requires GPUs with sm75".
    old = toolkit_at(tmp_path / "old", "12.8.93")

    with pytest.raises(
        ToolError, match=r"nvcc 12\.8\.93 .* does not know 120f: it takes 12\.9"
    ) as e:
        find(tmp_path, cuda_home=old)

    assert "pip install" in e.value.hint


def test_an_old_nvcc_beside_a_new_one_names_the_new_one(tmp_path):
    old = toolkit_at(tmp_path / "old", "12.8.93")
    new = toolkit_at(tmp_path / "new", "13.1.10")

    with pytest.raises(ToolError, match=r"12\.8\.93") as e:
        find(tmp_path, cuda_env=old, path=[new / "bin"])

    assert e.value.hint == f"--cuda-home {new}"


def test_two_nvccs_of_different_versions_are_told_of(tmp_path):
    used = toolkit_at(tmp_path / "used", "13.0.88")
    other = toolkit_at(tmp_path / "other", "13.1.10")

    found, (said,) = find(tmp_path, cuda_env=used, path=[other / "bin"])

    assert found.home == used
    assert (said.code, said.severity) == ("E441", Severity.WARNING)
    assert "13.0.88 (CUDA_HOME" in said.message
    assert "13.1.10 (PATH" in said.message
    assert said.hint == f"--cuda-home {other}"


def test_one_toolkit_seen_twice_is_one(tmp_path):
    home = toolkit_at(tmp_path / "home", "13.0.88")

    _, said = find(tmp_path, cuda_env=home, path=[home / "bin"])

    assert not said


# Toolkits that lack something.


def test_a_partial_toolkit_on_path_gives_way_to_a_complete_one_of_pip(tmp_path):
    partial = toolkit_at(tmp_path / "partial", "13.0.88", headers=["cuda_runtime.h"])
    toolkit_at(tmp_path / "site/nvidia/cu13", "13.0.88")

    found, said = find(tmp_path, path=[partial / "bin"], site=tmp_path / "site")

    assert found.where == "pip"
    assert not said


def test_a_partial_toolkit_that_was_named_is_used_and_told_of(tmp_path):
    partial = toolkit_at(tmp_path / "partial", "13.0.88", headers=["cuda_runtime.h"])
    toolkit_at(tmp_path / "site/nvidia/cu13", "13.0.88")

    found, (said,) = find(tmp_path, cuda_home=partial, site=tmp_path / "site")

    assert found.home == partial
    assert (said.code, said.severity) == ("E442", Severity.WARNING)
    assert "curand.h, cublasLt.h" in said.message


# Pip's toolkit.


def test_pips_toolkit_gets_the_links_it_lacks_outside_of_site_packages(tmp_path):
    installed = toolkit_at(tmp_path / "site/nvidia/cu13", "13.0.88")
    (installed / "lib/libcudart.so.13").write_bytes(b"library")
    before = sorted(installed.rglob("*"))

    found, _ = find(tmp_path, site=tmp_path / "site")

    assert found.home == tmp_path / "scratch/cuda-13.0.88"
    assert (found.home / "lib64/libcudart.so").read_bytes() == b"library"
    assert (found.home / "lib/libcudart.so.13").read_bytes() == b"library"
    assert toolkit.compiler_version(found.nvcc) == "13.0.88"
    assert sorted(installed.rglob("*")) == before


def test_the_newest_of_pips_toolkits_is_taken(tmp_path):
    toolkit_at(tmp_path / "site/nvidia/cu13", "13.0.88")
    newest = toolkit_at(tmp_path / "site/nvidia/cu14", "14.0.1")

    found, _ = find(tmp_path, site=tmp_path / "site")

    assert (found.home / "bin").readlink() == newest / "bin"


def test_links_follow_an_interpreter_that_moved(tmp_path):
    toolkit_at(tmp_path / "old/nvidia/cu13", "13.0.88")
    moved = toolkit_at(tmp_path / "new/nvidia/cu13", "13.0.88")
    find(tmp_path, site=tmp_path / "old")

    found, _ = find(tmp_path, site=tmp_path / "new")

    assert (found.home / "bin").readlink() == moved / "bin"
    assert Path(found.nvcc).exists()
