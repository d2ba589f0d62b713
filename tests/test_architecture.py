"""Imports point one way: the table in docs/explanation/architecture.md, held against the code."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = {"errors", "diagnostics", "model", "progress"}
HEAVY = {"git", "docker", "jinja2", "pydantic", "rich", "requests", "yaml", "torch", "numpy"}


def allowed() -> dict[str, set[str]]:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*)\|$", page, re.MULTILINE)
    return {room: set(re.findall(r"`(\w+)`", cell)) for room, cell in rows}


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "elsa_build" and len(parts) > 1 else None


def imported(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "elsa_build":
                names = [f"elsa_build.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms |= {room for name in names if (room := room_of(name))}
    return rooms


@pytest.mark.parametrize(
    "path", sorted((ROOT / "elsa_build").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_room_imports_only_what_the_table_lists(path):
    relative = path.relative_to(ROOT / "elsa_build").with_suffix("")
    room = relative.parts[0]
    if room in SHARED or room == "__init__":
        assert imported(path) <= SHARED
    elif room != "cli":
        assert imported(path) - SHARED - {room, "__version__"} <= allowed()[room]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['elsa-build', '--help']\n"
        "from elsa_build.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)\n"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    # Typer renders its help with Rich.
    assert not (HEAVY - {"rich"}) & set(ran.stderr.split())


def test_every_module_says_why_in_its_first_line():
    for path in (ROOT / "elsa_build").rglob("*.py"):
        text = path.read_text()
        assert not text or ast.get_docstring(ast.parse(text)), path
