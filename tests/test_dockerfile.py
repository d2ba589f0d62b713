"""The Dockerfile: golden text, clean for hadolint, and no value that becomes syntax.

To remake the golden file: `elsa-build dockerfile -o tests/golden/Dockerfile.elsa-1.7`.
"""

import http.server
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elsa_build.cli import main
from elsa_build.cli.main import app
from elsa_build.errors import ConfigError, ToolError
from elsa_build.images import dockerfile
from elsa_build.images.dockerfile import quote, render, stale_list
from elsa_build.images.recipe import load
from elsa_build.model import BuildOptions

ROOT = Path(__file__).parent.parent
TEMPLATE = ROOT / "Dockerfile.j2"
GOLDEN = Path(__file__).parent / "golden" / "Dockerfile.elsa-1.7"
PINNED = "lmsysorg/sglang@sha256:" + "a" * 64
NASTY = """a b'c"d $HOME `id` \\ # ; && {{ x }} %s é"""


@pytest.fixture
def recipe():
    return load(ROOT / "recipes" / "elsa-1.7.yaml")


def hadolint(text: str) -> str:
    program = Path(sys.executable).with_name("hadolint")
    ran = subprocess.run([program, "-"], input=text, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def continued(text: str) -> list[str]:
    """Return the Dockerfile's logical lines, as its parser joins them."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return [line for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines() if line]


def words(text: str, instruction: str) -> list[str]:
    found = [line for line in continued(text) if line.startswith(f"{instruction} ")]
    return [word for line in found for word in shlex.split(line)[1:]]


def array(text: str, instruction: str) -> list[str]:
    (line,) = [line for line in continued(text) if line.startswith(instruction)]
    return json.loads(line[line.index("[") :])


def test_the_golden_dockerfile_is_what_is_rendered(recipe):
    text = render(recipe, TEMPLATE, overlay="elsa:elsa-v1.7")

    assert text == GOLDEN.read_text(encoding="utf-8")


def test_hadolint_has_nothing_to_say(recipe):
    full = replace(
        recipe,
        user="1000:1000",
        build=BuildOptions(packages=("sentencepiece==0.2.1",), ca_bundle=Path("ca.pem")),
        env=(("A", NASTY),),
    )

    assert hadolint(render(recipe, TEMPLATE)) == ""
    assert hadolint(render(full, TEMPLATE, base=PINNED, labels={"x": NASTY})) == ""


def test_hadolint_is_really_asked():
    assert "DL3007" in hadolint("FROM debian:latest\n")


def test_a_base_by_digest_is_the_default_of_the_build_argument(recipe):
    text = render(replace(recipe, base=PINNED), TEMPLATE)

    assert f"ARG BASE={PINNED}\n" in text
    assert f"org.opencontainers.image.base.digest=sha256:{'a' * 64}" in words(text, "LABEL")


def test_without_a_base_the_build_argument_has_no_default(recipe):
    assert "\nARG BASE\n" in render(recipe, TEMPLATE)


def test_values_arrive_as_they_are_whatever_is_in_them(recipe):
    nasty = replace(
        recipe, flags=(("served-model-name", NASTY),), env=(("A", NASTY),), labels=(("l", NASTY),)
    )

    text = render(nasty, TEMPLATE)

    assert array(text, "CMD")[-2:] == ["--served-model-name", NASTY]
    assert f"A={NASTY}" in words(text, "ENV")
    assert f"l={NASTY}" in words(text, "LABEL")
    assert len(continued(text)) == len(continued(render(recipe, TEMPLATE)))


@pytest.mark.parametrize("bad", ["a\nRUN id", "a\rb", "a\0b", "a\x1bb", "a\u2028b"])
@pytest.mark.parametrize("place", ["flags", "env", "labels"])
def test_a_line_break_or_control_character_is_refused_wherever_it_is(recipe, place, bad):
    with pytest.raises(ConfigError, match="cannot be in a Dockerfile"):
        render(replace(recipe, **{place: (("key", bad),)}), TEMPLATE)


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": "x\nRUN id"},
        {"base": "x AS y"},
        {"overlay": "Elsa:1"},
        {"package_dir": "/a b"},
        {"package_dir": "/a/../b"},
        {"overlay_dir": "/$HOME"},
    ],
)
def test_a_name_that_would_become_syntax_is_refused(recipe, arguments):
    with pytest.raises(ConfigError):
        render(recipe, TEMPLATE, **arguments)


def test_true_facts_win_over_the_recipes_labels(recipe):
    labels = {"org.opencontainers.image.title": "from the build"}

    assert "org.opencontainers.image.title=from the build" in words(
        render(recipe, TEMPLATE, labels=labels), "LABEL"
    )


def test_the_health_check_outlasts_sglangs_own_and_gives_a_first_boot_its_time(recipe):
    text = render(recipe, TEMPLATE)

    found = re.search(r"--timeout=(\d+)s \\\n +--start-period=(\d+)s --retries=(\d+)", text)
    timeout, start, retries = (int(number) for number in found.groups())
    own = int(re.search(r"timeout=(\d+)\)", array(text, "HEALTHCHECK")[-1])[1])
    assert 20 < own < timeout
    assert start >= 120
    assert retries >= 3


def test_the_health_command_tells_a_well_server_from_one_that_starts(recipe, unused_server):
    for status, code in ((200, 0), (503, 1)):
        port = unused_server(status)
        command = array(
            render(replace(recipe, flags=(("port", str(port)),)), TEMPLATE), "HEALTHCHECK"
        )

        ran = subprocess.run(
            [sys.executable, *command[2:]],
            env={"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"},
            capture_output=True,
            text=True,
            check=False,
        )

        assert (ran.returncode, ran.stdout) == (code, f"{status}\n")


@pytest.fixture
def unused_server():
    servers = []

    def start(status):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status if self.path == "/health" else 404)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_user_of_the_recipe_runs_the_server_and_owns_the_cache(recipe):
    text = render(replace(recipe, user="1000:1000"), TEMPLATE)

    lines = continued(text)
    assert [line for line in lines if line.startswith("USER")] == ["USER 0", "USER 1000:1000"]
    assert any("find /opt/elsa/cache -type d -exec chown 1000:1000" in line for line in lines)


def test_packages_are_installed_with_the_recipes_certificates(recipe):
    build = BuildOptions(
        packages=("sentencepiece==0.2.1",), pip_args=("--timeout=60",), ca_bundle=Path("/x/ca.pem")
    )

    text = render(replace(recipe, build=build), TEMPLATE)

    (run,) = [line for line in continued(text) if "pip install" in line]
    assert run.startswith("RUN PIP_CERT=/opt/elsa/ca-bundle.pem python3 -m pip install")
    assert run.endswith("--timeout=60 sentencepiece==0.2.1")


# --- templates --------------------------------------------------------------------------------


def test_an_unknown_name_in_the_template_is_an_error_with_its_line(recipe, tmp_path):
    template = tmp_path / "Dockerfile.j2"
    template.write_text("FROM x\n\n{{ recipe.modle }}\n")

    with pytest.raises(ConfigError, match=r"^Dockerfile\.j2:3: .*modle"):
        render(recipe, template)


def test_a_broken_template_is_an_error_with_its_line(recipe, tmp_path):
    template = tmp_path / "Dockerfile.j2"
    template.write_text("FROM x\n{% if %}\n")

    with pytest.raises(ConfigError, match=r"^Dockerfile\.j2:2: "):
        render(recipe, template)


def test_a_missing_template_is_named(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"^Dockerfile\.j2: cannot read: No such file"):
        render(recipe, tmp_path / "Dockerfile.j2")


def test_without_a_place_for_the_package_the_error_says_what_to_type(recipe):
    with pytest.raises(ConfigError, match=r"^recipes/elsa-1\.7\.yaml: base\.package_dir") as caught:
        render(replace(recipe, package_dir=None), TEMPLATE)

    assert caught.value.hint == "elsa-build dockerfile --package-dir DIR"


# --- what must go -----------------------------------------------------------------------------


def test_the_stale_list_removes_deleted_files_and_every_compiled_copy(tmp_path):
    package = tmp_path / "site"
    gone = [
        "sglang/old.py",
        "sglang/__pycache__/old.cpython-312.pyc",
        "sglang/srt/__pycache__/pool.cpython-312.pyc",
        "sglang/srt/__pycache__/pool.cpython-311.opt-1.pyc",
        "sglang/srt/pool.pyc",
        "sglang/we ird[1].py",
        "sglang/em/__pycache__/pty.cpython-312.pyc",
    ]
    stays = ["sglang/srt/pool.py", "sglang/srt/__pycache__/pool_config.cpython-312.pyc"]
    for path in [*gone, *stays]:
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).touch()
    stale = tmp_path / "stale"
    stale.write_bytes(
        stale_list(["sglang/srt/pool.py"], ["sglang/old.py", "sglang/we ird[1].py"], ["sglang/em"])
    )
    (loop,) = re.findall(r"^RUN (cd .*)$", TEMPLATE.read_text(), re.MULTILINE)
    places = {"{{ stale }}": stale, "{{ package_dir }}": package}
    for name, place in places.items():
        loop = loop.replace(name, shlex.quote(str(place)))

    subprocess.run(["sh", "-c", loop], check=True)

    left = sorted(str(p.relative_to(package)) for p in package.rglob("*") if p.is_file())
    assert left == sorted(stays)
    assert not (package / "sglang/em").exists()


def test_nothing_changed_is_an_empty_list():
    assert stale_list([], []) == b""


def test_a_path_with_a_line_break_is_refused():
    with pytest.raises(ConfigError, match="line break"):
        stale_list([], ["sglang/a\nb"])


def test_quote_gives_one_word_to_a_shell():
    assert shlex.split(quote(NASTY)) == [NASTY]


# --- the command line -------------------------------------------------------------------------


def test_the_command_prints_the_dockerfile_or_writes_it(tmp_path):
    project = tmp_path / "project"
    for name in ("recipes", "patchsets"):
        shutil.copytree(ROOT / name, project / name)
    shutil.copy(TEMPLATE, project)
    out = tmp_path / "Dockerfile"
    run = CliRunner().invoke
    main.load(["dockerfile"])

    printed = run(app, ["dockerfile", "-C", str(project)])
    dry = run(app, ["dockerfile", "-C", str(project), "-o", str(out), "-n"])
    existed = out.exists()
    written = run(app, ["dockerfile", "-C", str(project), "-o", str(out), "--json"])

    assert printed.stdout == dry.stdout == GOLDEN.read_text()
    assert not existed
    assert out.read_text() == GOLDEN.read_text()
    assert json.loads(written.stdout)["data"]["written"] is True
    assert sorted(tmp_path.iterdir()) == [out, project]


def test_a_dockerfile_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(ToolError, match="cannot write"):
        dockerfile.write(tmp_path / "no" / "Dockerfile", "FROM x\n")

    assert list(tmp_path.iterdir()) == []
