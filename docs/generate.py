"""Write docs/reference/ from the command tree, so that the reference is never behind the code.

Run `make docs`; a test compares. With `--check` nothing is written and a difference is exit 1.
"""

import re
import sys
from pathlib import Path
from typing import Any

import typer

from elsa_build.cli import main
from elsa_build.errors import ElsaError, ExitCode

REFERENCE = Path(__file__).parent / "reference"


def pages() -> dict[str, str]:
    """Return every generated page by its file name."""
    main.load_all()
    root: Any = typer.main.get_command(main.app)
    commands = {name: root.commands[name] for name in main.COMMANDS}
    found = {f"{name}.md": _page(name, command) for name, command in commands.items()}
    rows = [f"| [`{name}`]({name}.md) | {_summary(c)} |" for name, c in commands.items()]
    table = "\n".join(["| command | what it does |", "|---|---|", *rows])
    found["README.md"] = f"# Commands\n\n{table}\n\nMade by `make docs`.\n"
    found["exit-codes.md"] = _exit_codes()
    return found


def _summary(command: Any) -> str:
    return (command.help or "").partition("\n")[0]


def _page(name: str, command: Any) -> str:
    parts = [f"# elsa-build {name}\n", *_command(f"elsa-build {name}", command)]
    for sub, inner in getattr(command, "commands", {}).items():
        parts += [f"## {name} {sub}\n", *_command(f"elsa-build {name} {sub}", inner)]
    return "\n".join(parts).rstrip() + "\n"


def _command(path: str, command: Any) -> list[str]:
    text, _, example = (command.help or "").partition("\b\nExample:\n")
    parts = [re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"]
    if hasattr(command, "commands"):
        return parts
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    parts.append(f"```\n{usage}\n```\n")
    if example:
        lines = "\n".join(line.strip() for line in example.strip().splitlines())
        parts.append(f"Example:\n\n```\n{lines}\n```\n")
    rows = [_row(p) for p in command.params if not getattr(p, "hidden", False)]
    parts.append("\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]))
    return [*parts, ""]


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name}`"
    else:
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    shown = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
    meaning = (getattr(parameter, "help", None) or "").replace("|", "\\|")
    return f"| {names} | {meaning} | {shown} |"


def _exit_codes() -> str:
    rows = [f"| {int(ExitCode.OK)} | OK | done, or nothing to do |"]
    rows.append(f"| {int(ExitCode.BUG)} | BUG | an unexpected exception; a report file is named |")
    for kind in ElsaError.__subclasses__():
        if kind.__module__ == "elsa_build.errors":
            first = (kind.__doc__ or "").partition("\n")[0].rstrip(".")
            rows.append(f"| {int(kind.code)} | {kind.code.name} | {first} |")
    table = "\n".join(["| code | name | when |", "|---|---|---|", *rows])
    return f"# Exit codes\n\n{table}\n\nMade by `make docs`.\n"


def run(*, check: bool) -> int:
    """Write the pages, or compare them; return the exit code."""
    made = pages()
    behind = [
        name
        for name, text in made.items()
        if not (REFERENCE / name).is_file() or (REFERENCE / name).read_text() != text
    ]
    if check:
        for name in behind:
            sys.stderr.write(
                f"docs/reference/{name} is not what the commands say; run: make docs\n"
            )
        return 1 if behind else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in behind:
        (REFERENCE / name).write_text(made[name])
    return 0


if __name__ == "__main__":
    sys.exit(run(check="--check" in sys.argv[1:]))
