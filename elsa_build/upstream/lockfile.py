"""Read `upstream.lock` strictly, since a lock that is half right is worse than none.

Every fault is named with its line and field, all of them in one run.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.model import Artifact, Oid, Pin, SourceKind
from elsa_build.upstream.lock import VERSION, Lock, quote, seal

_OID = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEAD = re.compile(r"\[\[?(.+?)\]\]?\s*$")
_KEY = re.compile(r"(\"(?:[^\"\\]|\\.)*\"|[A-Za-z0-9_-]+)\s*=")


def read(path: Path) -> Lock:
    """Return what a lock file says.

    Raises:
        ConfigError: There is no lock, it is not TOML, a field is wrong, or it was edited by hand.
    """
    try:
        text = path.read_bytes().decode().replace("\r\n", "\n")
    except FileNotFoundError as e:
        raise ConfigError(
            f"{path}: there is no lock yet", hint="elsa-build pin set latest --source release"
        ) from e
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot read the lock: {e}", hint=_again(None)) from e
    return parse(text, str(path))


def parse(text: str, name: str) -> Lock:
    """Return what the text of a lock says; `name` is the file for messages.

    Raises:
        ConfigError: As `read`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        found = re.search(r" \(at line (\d+), column \d+\)| \(at end of document\)", str(e))
        line = int(found[1]) if found and found[1] else text.count("\n") + 1
        what = str(e)[: found.start()] if found else str(e)
        raise ConfigError(
            f"{name}:{line}: this is not a lock that elsa-build wrote: {what}", hint=_again(None)
        ) from e
    reader = _Reader(text, name)
    lock = reader.lock(document)
    if reader.faults or lock is None:
        raise ConfigError("\n".join(reader.faults), hint=_again(document))
    sealed = document["seal"]
    lines = text.split("\n")
    at = reader.line("seal")
    if sealed != seal(lines[at:]):
        raise ConfigError(
            f"{name}:{at}: seal: this lock was edited by hand, or merged from two",
            hint=_again(document),
        )
    return lock


def _again(document: Mapping[str, Any] | None) -> str:
    upstream = document.get("upstream") if document else None
    ref = upstream.get("ref") if isinstance(upstream, dict) else None
    return f"elsa-build pin set {ref if isinstance(ref, str) and ref else 'REF'}"


class _Reader:
    """Checks one document and gathers its faults, so that one run shows them all."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.faults: list[str] = []
        self._lines = _lines(text)

    def fault(self, where: str, message: str) -> None:
        self.faults.append(f"{self.name}:{self.line(where)}: {where}: {message}")

    def line(self, where: str) -> int:
        return self._lines.get(where) or self._lines.get(where.rpartition(".")[0], 1)

    def lock(self, document: Mapping[str, Any]) -> Lock | None:
        version = document.get("version")
        if version != VERSION or isinstance(version, bool):
            newer = isinstance(version, int) and version > VERSION
            why = "made by a newer elsa-build" if newer else f"expected {VERSION}"
            self.fault("version", f"{version!r} is not a format that we read ({why})")
            return None
        self.known("", document, {"version", "seal", "upstream", "recipe"})
        self.text("", document, "seal", _SHA256)
        pin = self.pin(self.table("upstream", document.get("upstream")))
        inputs: dict[str, dict[str, str]] = {}
        results: dict[str, Oid] = {}
        for recipe, value in self.table("recipe", document.get("recipe", {})).items():
            where = f"recipe.{quote(recipe)}"
            entry = self.table(where, value)
            self.known(where, entry, {"tree", "inputs"})
            if "tree" in entry:
                results[recipe] = Oid(self.text(where, entry, "tree", _OID))
            if "inputs" in entry:
                inside = f"{where}.inputs"
                files = self.table(inside, entry["inputs"])
                inputs[recipe] = {file: self.text(inside, files, file, _SHA256) for file in files}
        return Lock(pin=pin, inputs=inputs, results=results) if pin else None

    def pin(self, table: Mapping[str, Any]) -> Pin | None:
        keys = {"source", "url", "ref", "commit", "tree", "date", "requires", "artifact"}
        self.known("upstream", table, keys)
        source = self.text("upstream", table, "source")
        if source and source not in set(SourceKind):
            self.fault("upstream.source", f"{source!r} is neither 'git' nor 'release'")
        requires = table.get("requires", [])
        if not isinstance(requires, list) or not all(isinstance(line, str) for line in requires):
            self.fault("upstream.requires", "must be a list of strings")
        artifacts = table.get("artifact", [])
        if not isinstance(artifacts, list):
            self.fault("upstream.artifact", "must be a list of tables")
            artifacts = []
        fields = {key: self.text("upstream", table, key) for key in ("url", "ref", "date")}
        oids = {key: Oid(self.text("upstream", table, key, _OID)) for key in ("commit", "tree")}
        files = tuple(self.artifact(number, value) for number, value in enumerate(artifacts))
        if self.faults:
            return None
        return Pin(
            source=SourceKind(source),
            url=fields["url"],
            ref=fields["ref"],
            date=fields["date"],
            commit=oids["commit"],
            tree=oids["tree"],
            artifacts=files,
            requires=tuple(requires),
        )

    def artifact(self, number: int, value: object) -> Artifact:
        where = f"upstream.artifact[{number}]"
        table = self.table(where, value)
        self.known(where, table, {"filename", "sha256"})
        return Artifact(
            filename=self.text(where, table, "filename"),
            sha256=self.text(where, table, "sha256", _SHA256),
        )

    def table(self, where: str, value: object) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self.fault(where, "is missing" if value is None else "must be a table")
        return {}

    def known(self, where: str, table: Mapping[str, Any], keys: set[str]) -> None:
        for key in table.keys() - keys:
            self.fault(f"{where}.{key}".lstrip("."), "unknown key")

    def text(
        self, where: str, table: Mapping[str, Any], key: str, form: re.Pattern[str] | None = None
    ) -> str:
        place = f"{where}.{quote(key) if where.endswith('.inputs') else key}".lstrip(".")
        value = table.get(key)
        if not isinstance(value, str) or not value:
            self.fault(place, "is missing" if value is None else f"{value!r} is not a string")
            return ""
        if form and not form.fullmatch(value):
            digits = 40 if form is _OID else 64
            self.fault(place, f"{value!r} is not {digits} lower-case hex digits")
        return value


def _lines(text: str) -> dict[str, int]:
    """Return the 1-based line of every `table`, `table.key` and `array[number]`; first one wins."""
    where: dict[str, int] = {}
    section, count = "", Counter[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if head := _HEAD.match(line):
            section = head[1]
            if line.startswith("[["):
                section = f"{section}[{count[section]}]"
                count[head[1]] += 1
            where.setdefault(section, number)
        elif key := _KEY.match(line):
            where.setdefault(f"{section}.{key[1]}".lstrip("."), number)
    return where
