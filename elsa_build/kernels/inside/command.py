"""Runs one compiler or linker, unless its output is already what it would make.

ninja decides by times and by the text of the command, so a moved folder or a reproducible image
builds everything again. Here a stamp beside the output names the contents of all inputs that the
compiler reported, so only a change of contents repeats the work.
"""

import hashlib
import json
import os
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from elsa_build.kernels.inside import neutral

_LAST_LINES = 40
"""Of stderr: a compiler's last error and the notes that belong to it."""

_seen: dict[tuple[str, int, int], str] = {}


def run(setup: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run `command` by the shell in `cwd`, so that it makes `output`; return what it stands for.

    `arguments` also has `compiler` (the versions of the compilers, as text), `depfile` (what the
    command writes its inputs into, or None) or `inputs` (when it has no depfile), `source` (of what
    a compiler compiles) and `work`: a folder whose place does not matter to the result, as that of
    the interpreter and the toolkit do not. `setup["launcher"]` (sccache) comes before a command
    that compiles; with or without it the result is the same.

    Raises:
        RuntimeError: The command failed; the end of what it said.
    """
    output = Path(arguments["output"])
    stamp = output.with_name(f"{output.name}.done")
    kept = _kept(stamp, output, arguments)
    if kept:
        return {"fresh": False, **kept}
    for left in output.parent.glob(f".{output.name}.*"):  # of a run that was killed
        left.unlink()
    # One name in every run: a compiler cache finds by it what it has made before.
    making = output.with_name(f".{output.name}.making")
    depfile = arguments.get("depfile")
    try:
        _execute(arguments, output, making, setup.get("launcher") if depfile else None)
        inputs = _prerequisites(making, depfile, arguments)
        neutral.strip(making)
        record = _record(arguments, inputs, making)
        making.rename(output)
        _write(stamp, json.dumps(record, indent=1))
    finally:
        for left in output.parent.glob(f"{making.name}*"):
            left.unlink()
    return {"fresh": True, "output": str(output), "key": record["key"]}


def _execute(
    arguments: Mapping[str, Any], output: Path, making: Path, launcher: str | None
) -> None:
    """Run the command with its output (and its depfile, named after it) under another name."""
    output.parent.mkdir(parents=True, exist_ok=True)
    show_libraries()
    known = _folders(arguments)
    text = arguments["command"].replace(str(output), str(making))
    if arguments.get("depfile") and text.split()[0] == os.environ.get("CXX", "c++"):
        text = f"{text} {shlex.join(known.flags())}"
    text = f"{launcher} {text}" if launcher else text
    ran = subprocess.run(
        ["/bin/sh", "-c", text],
        cwd=arguments["cwd"],
        env={**os.environ, **known.for_nvcc(arguments.get("source") or str(output))},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode or not making.exists():
        said = (ran.stderr + ran.stdout).strip().splitlines()[-_LAST_LINES:]
        ended = (
            f"killed by signal {-ran.returncode}"
            if ran.returncode < 0
            else f"exit {ran.returncode}"
        )
        raise RuntimeError("\n".join([f"{output.name}: {ended}", *said]))


def show_libraries() -> None:
    """Let linkers find what the dynamic loader finds here: a stub of libcuda for `-lcuda`.

    In the environment and not in a command line, since that is part of SGLang's key.
    """
    known = [os.environ.get(name, "") for name in ("LIBRARY_PATH", "LD_LIBRARY_PATH")]
    folders = dict.fromkeys(folder for one in known for folder in one.split(":") if folder)
    os.environ["LIBRARY_PATH"] = ":".join(folders)


def _prerequisites(
    making: Path, depfile: str | None, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the files that the command read, sorted."""
    if depfile is None:
        return tuple(sorted(arguments["inputs"]))
    written = making.parent / Path(depfile).name.replace(
        Path(arguments["output"]).name, making.name
    )
    cwd = Path(arguments["cwd"])
    # A relative name is relative to where the compiler ran; `..` is kept out of the record.
    named = prerequisites(written.read_text(errors="replace"))
    return tuple(sorted({os.path.normpath(cwd / name) for name in named}))


def prerequisites(text: str) -> list[str]:
    """Return the files after the colon of a make rule; an escaped blank belongs to a name.

    nvcc also writes empty rules, one a header: they name nothing new.
    """
    found: list[str] = []
    for rule in text.replace("\\\n", " ").splitlines():
        names = rule.partition(":")[2].replace("\\ ", "\0").split()
        found += [name.replace("\0", " ") for name in names]
    return found


def _record(arguments: Mapping[str, Any], inputs: Iterable[str], output: Path) -> dict[str, Any]:
    """Return what a stamp says: the key, and the contents that it was made from and made."""
    hidden = _folders(arguments).hidden
    read = {hidden(name): digest(Path(name)) for name in inputs}
    return {
        "command": hidden(arguments["command"]),
        "compiler": arguments["compiler"],
        "inputs": read,
        "key": _key(arguments, read),
        "output": digest(output),
    }


def _kept(stamp: Path, output: Path, arguments: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the output and its key when the stamp still says the truth."""
    known = _folders(arguments)
    asked = (known.hidden(arguments["command"]), arguments["compiler"])
    try:
        record = json.loads(stamp.read_text())
        if (record["command"], record["compiler"]) != asked:
            return None
        named = {known.shown(name): sha for name, sha in record["inputs"].items()}
        if arguments.get("depfile") is None and sorted(named) != sorted(arguments["inputs"]):
            return None
        if any(digest(Path(name)) != sha for name, sha in named.items()):
            return None
        if digest(output) != record["output"]:
            return None
        return {"output": str(output), "key": record["key"]}
    except (OSError, ValueError, KeyError):
        return None


def _key(arguments: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Return what the output follows from, in 64 hex; the same wherever the folders lie."""
    command = _folders(arguments).hidden(arguments["command"])
    text = json.dumps([command, arguments["compiler"], sorted(inputs.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def _folders(arguments: Mapping[str, Any]) -> neutral.Folders:
    return neutral.folders(arguments["work"])


def digest(path: Path) -> str:
    """Return the sha256 of a file's contents; a header that many units read is read once."""
    stat = path.stat()
    place = (str(path), stat.st_mtime_ns, stat.st_size)
    if place not in _seen:
        with path.open("rb") as file:
            _seen[place] = hashlib.file_digest(file, "sha256").hexdigest()
    return _seen[place]


def _write(path: Path, text: str) -> None:
    making = path.with_name(f".{path.name}.making")
    making.write_text(text)
    making.rename(path)
