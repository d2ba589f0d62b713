"""Recipes: what is read, and that a wrong one says everything that is wrong, with lines."""

import ast
import json
import re
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elsa_build.cli import main
from elsa_build.errors import ConfigError, UsageError
from elsa_build.images import serving
from elsa_build.images.recipe import find, load
from elsa_build.model import Health
from tests import release

ROOT = Path(__file__).parent.parent

SMALL = """\
version: 1
name: small
tag: "small-v1"
model: /models/small
arch: sm_120
patchsets: [fixes]
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "patchsets" / "fixes").mkdir(parents=True)
    (tmp_path / "recipes").mkdir()
    return tmp_path


def put(project, text, name="small"):
    path = project / "recipes" / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def complaints(project, text, name="small"):
    with pytest.raises(ConfigError) as caught:
        load(put(project, text, name))
    return str(caught.value).splitlines()


def test_the_recipe_of_elsa_says_what_elsa_runs():
    recipe = load(ROOT / "recipes" / "elsa-1.7.yaml")

    flags = dict(recipe.flags)
    assert (recipe.tag, recipe.arch, recipe.patchsets) == (
        "elsa-v1.7",
        "sm_120",
        ("chunked-state-copy", "mamba-checkpoint-guard", "sparse-verify"),
    )
    assert flags["max-running-requests"] == "12"
    assert flags["context-length"] == "262144"
    assert flags["hicache-size"] == "24"
    assert flags["enable-hierarchical-cache"] is None
    assert recipe.health.timeout_s > 20


def test_a_small_recipe_gets_every_default(project):
    recipe = load(put(project, SMALL))

    assert (recipe.python, recipe.user, recipe.base, recipe.package_dir) == ("3.12",) + (None,) * 3
    assert recipe.health == Health()
    assert recipe.build.network == "none"
    assert recipe.flags == ()


def test_flags_keep_their_order_and_the_text_that_was_typed(project):
    text = SMALL + "serve:\n  z-last: 0.90\n  a-first: true\n  quoted: '1e5'\n  words: a b\n"

    assert load(put(project, text)).flags == (
        ("z-last", "0.90"),
        ("a-first", None),
        ("quoted", "1e5"),
        ("words", "a b"),
    )


def test_everything_wrong_is_told_at_once_with_field_and_line(project):
    text = """\
version: 1
name: other
tag: 1.10
modle: x
arch: blackwell
python: 3.12
patchsets: [fixed, fixes, fixes]
base:
  image: lmsysorg/sglang:latest
  package_dir: ../python
health:
  timeout_s: 20
  start_period_s: 30
  retries: 1
labels:
  org.opencontainers.image.revision: abc
build:
  network: bridge
  packages: [sentencepiece]
"""

    found = complaints(project, text)

    expected = [
        "1: model: is missing",
        "2: name: 'other' must be the file's name, 'small'",
        "3: tag: 1.10 is a number to YAML; quote it",
        "4: modle: unknown field (did you mean 'model'?)",
        "5: arch: 'blackwell' must look like sm_120",
        "6: python: 3.12 is a number to YAML; quote it",
        "7: patchsets: no patchset 'fixed' in patchsets/ (did you mean 'fixes'?)",
        "7: patchsets: 'fixes' twice",
        "9: base.image: 'lmsysorg/sglang:latest' can move: name it by digest (name@",
        "10: base.package_dir: '../python' must be an absolute folder",
        "12: health.timeout_s: 20 does not outlast SGLang's own 20 s; use 22 or more",
        "13: health.start_period_s: 30 is less than 120",
        "14: health.retries: 1 is less than 3",
        "16: labels.org.opencontainers.image.revision: is written by elsa-build, from what is in",
        "18: build.network: 'bridge' is none of none, default, host",
        "19: build.packages: 'sentencepiece' can move: name one version (name==version)",
    ]
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(f"recipes/small.yaml:{start}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "max_running_requests: 12",
            "flags are written without --, with -: 'max-running-requests'",
        ),
        ("--port: 30000", "flags are written without --, with -: 'port'"),
        ("model-path: /x", "comes from 'model'"),
        ("enable-metrics: false", "leave a switch out instead of false"),
        ("enable-metrics: yes", "yes is a truth value to YAML; quote it"),
        ("watchdog-timeout: 1e5", "1e5 is a number to YAML; quote it"),
        ("port: 0123", "0123 is a number to YAML; quote it"),
        ("port: 70000", "must be a port number"),
        ("served-model-name:", "the value is nothing to YAML; quote it"),
        ("served-model-name: 2026-11-29", "2026-11-29 is a date to YAML; quote it"),
        ("served-model-name: [a, b]", "must be one value"),
        ('served-model-name: "a\\nb"', "character U+000A is not allowed"),
    ],
)
def test_a_flag_that_would_not_arrive_as_typed_is_refused(project, line, expected):
    found = complaints(project, f"{SMALL}serve:\n  {line}\n")

    assert any(text.startswith("recipes/small.yaml:8: serve.") for text in found)
    assert any(text.endswith(expected) for text in found)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("elsa v1", "' ' not allowed"),
        ("1.7+cu130", "'+' not allowed"),
        ("e" * 129, "129 characters, at most 128"),
        (".hidden", "it must begin with a letter, a digit or _"),
    ],
)
def test_a_tag_that_docker_would_refuse_is_refused_here(project, tag, expected):
    (found,) = complaints(project, SMALL.replace("small-v1", tag))

    assert found.startswith("recipes/small.yaml:3: tag: ")
    assert found.endswith(expected)


def test_the_health_limit_follows_the_servers_own(project):
    text = SMALL + "env:\n  SGLANG_HEALTH_CHECK_TIMEOUT: 40\n"

    (found,) = complaints(project, text)

    assert found.endswith("health.timeout_s: 30 does not outlast SGLang's own 40 s; use 42 or more")


def test_a_bad_name_of_a_variable_or_a_label_is_refused(project):
    found = complaints(project, SMALL + 'env:\n  A B: x\nlabels:\n  "A=b": x\n')

    assert [line.split(": ")[1] for line in found] == ["env.A B", "labels.A=b"]


# --- finding one ------------------------------------------------------------------------------


def other(name, tag):
    return SMALL.replace("name: small", f"name: {name}").replace("small-v1", tag)


def test_a_recipe_is_found_by_tag_by_name_or_because_it_is_the_only_one(project):
    put(project, SMALL)
    only = find(project, tag="something-else")
    put(project, other("big", "big-v1"), "big")

    assert only.name == "small"
    assert find(project, tag="big-v1").name == "big"
    assert find(project, name="small").name == "small"


def test_several_recipes_and_nothing_that_chooses_is_a_question(project):
    put(project, SMALL)
    put(project, other("big", "big-v1"), "big")

    with pytest.raises(UsageError) as caught:
        find(project, tag="nope")

    assert str(caught.value) == "which recipe? big (tag big-v1), small (tag small-v1)"
    assert caught.value.hint == "--recipe big | small"


def test_two_recipes_with_one_tag_are_refused(project):
    put(project, SMALL)
    put(project, other("big", "small-v1"), "big")

    with pytest.raises(ConfigError, match="tag 'small-v1': two recipes have it, big and small"):
        find(project, tag="small-v1")


def test_a_misspelt_recipe_is_answered_with_the_nearest(project):
    put(project, SMALL)

    with pytest.raises(ConfigError, match=r"no recipe 'smal' in recipes/ \(did you mean 'small'\?"):
        find(project, name="smal")


def test_a_project_without_recipes_says_so(project):
    with pytest.raises(ConfigError, match=r"no recipe: recipes/ has no \.yaml file"):
        find(project)


# --- what is served ---------------------------------------------------------------------------


def test_the_command_carries_values_that_look_like_options(project):
    text = SMALL + "serve:\n  schedule-conservativeness: -1\n  enable-metrics: true\n  name: a b\n"

    assert serving.command(load(put(project, text))) == (
        *("python3", "-m", "sglang.launch_server", "--model-path", "/models/small"),
        *("--schedule-conservativeness=-1", "--enable-metrics", "--name", "a b"),
    )


def test_the_recipes_environment_wins_over_ours(project):
    recipe = load(put(project, SMALL + "env:\n  TRITON_CACHE_DIR: /elsewhere\n  A: 1\n"))

    environment = serving.environment(recipe)

    assert environment["TRITON_CACHE_DIR"] == "/elsewhere"
    assert environment["A"] == "1"
    assert environment["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"


@pytest.mark.parametrize(
    ("arch", "listed"), [("sm_90", "9.0a"), ("sm_100", "10.0f"), ("sm_89", None)]
)
def test_kernels_are_asked_for_by_the_arch_of_the_card(project, arch, listed):
    recipe = load(put(project, SMALL.replace("sm_120", arch)))

    assert serving.environment(recipe).get("FLASHINFER_CUDA_ARCH_LIST") == listed


# --- the command line -------------------------------------------------------------------------


def test_recipe_show_prints_one_document(project):
    main.load(["recipe"])
    put(project, SMALL + "serve:\n  port: 8000\n")

    ran = CliRunner().invoke(main.app, ["recipe", "show", "--json", "-C", str(project)])

    document = json.loads(ran.stdout)
    assert document["schema"] == "elsa-build/recipe-show/1"
    assert document["data"]["command"][-2:] == ["--port", "8000"]
    assert document["data"]["path"] == "recipes/small.yaml"
    assert "8000" in document["data"]["health"]["command"][-1]


def test_recipe_show_reads_well(project):
    main.load(["recipe"])
    put(project, SMALL + "serve:\n  served-model-name: my model\n")

    ran = CliRunner().invoke(main.app, ["recipe", "show", "-C", str(project)])

    assert "tag        small-v1\n" in ran.stdout
    assert "\n    --served-model-name 'my model'\n" in ran.stdout


# --- against the pinned release ---------------------------------------------------------------


def arguments(wheel: zipfile.ZipFile) -> dict[str, list[str] | None]:
    """Return every server argument of a release, with its choices where they are written out."""
    lists = {
        node.targets[0].id: node.value
        for node in ast.parse(wheel.read("sglang/srt/arg_groups/choices.py")).body
        if isinstance(node, ast.Assign)
    }

    def choices(annotation: ast.expr) -> list[str] | None:
        for node in ast.walk(annotation):
            if isinstance(node, ast.keyword) and node.arg == "choices":
                value = lists.get(getattr(node.value, "id", ""), node.value)
                return ast.literal_eval(value) if isinstance(value, ast.List) else None
        return None

    options = re.findall(rb'"--([a-z0-9-]+)"', wheel.read("sglang/srt/server_args.py"))
    found: dict[str, list[str] | None] = {option.decode(): None for option in options}
    for name in wheel.namelist():
        if name.startswith("sglang/srt/arg_groups/fields/"):
            for node in ast.walk(ast.parse(wheel.read(name))):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    found[node.target.id.replace("_", "-")] = choices(node.annotation)
    return found


@pytest.mark.wheel
def test_every_flag_of_our_recipes_exists_in_the_pinned_release(tmp_path):
    _, path, _ = release.fetch(tmp_path)
    with zipfile.ZipFile(path) as wheel:
        known = arguments(wheel)

    for recipe in (ROOT / "recipes").glob("*.yaml"):
        for name, value in load(recipe).flags:
            assert name in known, f"{recipe.name}: --{name}"
            assert known[name] is None or value in known[name], f"{recipe.name}: --{name} {value}"
    assert known["hicache-write-policy"] == [
        "write_back",
        "write_through",
        "write_through_selective",
    ]
    assert "modelopt_fp4" in known["quantization"]
