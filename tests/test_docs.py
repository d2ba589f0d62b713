"""The documentation names what there is: codes, commands, links."""

import re
from pathlib import Path

from elsa_build.cli import main

ROOT = Path(__file__).parent.parent


def test_every_diagnostic_code_is_documented():
    page = (ROOT / "docs/reference/diagnostics.md").read_text()
    spans = re.findall(r"E(\d+)-E(\d+)", page)
    known = set(re.findall(r"[EW]\d{3}", page))
    known |= {f"E{n}" for a, b in spans for n in range(int(a), int(b) + 1)}

    used = set()
    for path in (ROOT / "elsa_build").rglob("*.py"):
        used |= set(re.findall(r'"([EW]\d{3})"', path.read_text()))

    assert used <= known, sorted(used - known)


def test_readme_names_every_command_and_both_make_targets():
    page = (ROOT / "README.md").read_text()

    for name in (*main.COMMANDS, "make image", "make test"):
        assert name in page, name


def test_every_relative_link_leads_somewhere():
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page}: {link}"


def test_no_file_carries_an_index_or_a_path_of_one_machine():
    pattern = re.compile("|".join(("--hash", "index-" + "url", "find-" + "links", "/sim" + "ple/")))
    for name in ("constraints.txt", "upstream.lock", "patchsets/requirements-test.txt"):
        text = (ROOT / name).read_text()
        assert not pattern.search(text), name
        assert "://" not in text, name


def test_every_test_that_the_reports_page_names_exists():
    page = (ROOT / "docs/explanation/public-reports.md").read_text()
    defined = set()
    for path in (ROOT / "tests").glob("test_*.py"):
        defined |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))

    named = set(re.findall(r"`(test_\w+)`", page))

    assert len(named) > 20
    assert named <= defined, sorted(named - defined)
