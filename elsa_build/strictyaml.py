"""YAML that cannot surprise: every scalar stays the text that was typed, with its line.

YAML guesses types (`1.10` becomes 1.1, `0001234` becomes 668, `on` becomes True, measured with
PyYAML 6.0.3) and PyYAML lets a key appear twice. Here nothing is guessed: `load` gives nodes, and
`Problems` collects every complaint of a file, so that one run shows all of them.
`elsa_build.yamlform` reads the nodes field by field.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elsa_build.errors import ConfigError

if TYPE_CHECKING:
    import yaml

MAX_DEPTH = 20
"""Deeper nesting is a mistake or an attack; our files need five levels."""

_TYPED = {
    "tag:yaml.org,2002:bool": "a truth value",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:timestamp": "a date",
}
_NUMBER_1_2 = re.compile(r"[-+]?(0o[0-7]+|0x[0-9a-fA-F]+|(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?)")
"""What a YAML 1.2 reader takes for a number although PyYAML (1.1) does not, as `12e4567`."""


# --- nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One value as typed. `implicit` says what YAML would take it for, if not for text."""

    text: str
    line: int
    quoted: bool
    implicit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A sequence."""

    nodes: "tuple[Node, ...]"
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key of a mapping; `line` is the key's."""

    key: str
    line: int
    value: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A mapping in the file's order."""

    entries: tuple[Entry, ...]
    line: int

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key, or None."""
        return next((entry for entry in self.entries if entry.key == key), None)


Node = Scalar | Items | Table


# --- reading ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Problems:
    """What is wrong with one file; `name` is the file as a person would type it."""

    name: str
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, message: str) -> None:
        """Note one problem; the same one twice is noted once."""
        if (line, message) not in self.found:
            self.found.append((line, message))

    def check(self) -> None:
        """Raise everything noted so far, by line.

        Raises:
            ConfigError: There was a problem (exit 5).
        """
        if self.found:
            lines = sorted(self.found, key=lambda problem: problem[0])
            raise ConfigError("\n".join(f"{self.name}:{line}: {text}" for line, text in lines))


def load(text: str, name: str) -> Node:
    """Return the only document of a YAML text as nodes.

    Raises:
        ConfigError: No YAML, nothing in it, a second document, a key twice, an anchor, an alias
            or a tag; all of them that can be seen, as `name:line: ...` (exit 5).
    """
    import yaml  # noqa: PLC0415 - keeps --help fast

    problems = Problems(name)
    builder = _Builder(problems, yaml.resolver.Resolver().resolve, yaml)
    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        node = builder.document(events)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        words = ", ".join(part for part in (e.context, e.problem) if part)
        raise ConfigError(f"{name}:{mark.line + 1 if mark else 1}: not YAML: {words}") from e
    except yaml.reader.ReaderError as e:
        line = text.count("\n", 0, e.position) + 1
        raise ConfigError(
            f"{name}:{line}: not YAML: character U+{e.character:04X} is not allowed"
        ) from e
    problems.check()
    if node is None:
        raise ConfigError(f"{name}:1: the file is empty")
    return node


def read(path: Path, name: str) -> Node:
    """Return the nodes of a file; `name` is the path to show.

    Raises:
        ConfigError: The file is missing, not UTF-8, or `load` refuses it (exit 5).
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as e:
        raise ConfigError(f"{name}: cannot read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        line = e.object.count(b"\n", 0, e.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 (byte 0x{e.object[e.start]:02x})") from e
    return load(text, name)


@dataclass(slots=True)
class _Builder:
    problems: Problems
    resolve: Callable[..., str]
    yaml: Any

    def document(self, events: "Iterator[yaml.Event]") -> Node | None:
        documents: list[Node] = []
        for event in events:
            if isinstance(event, self.yaml.DocumentStartEvent):
                if documents:
                    self.problems.add(event.start_mark.line + 1, "a second document")
                documents.append(self.node(next(events), events, 0))
        return documents[0] if documents else None

    def node(self, event: "yaml.Event", events: "Iterator[yaml.Event]", depth: int) -> Node:
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self.problems.name}:{line}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, self.yaml.AliasEvent):
            self.problems.add(line, f"alias '*{event.anchor}': write the value out")
            return Scalar(text="", line=line, quoted=True)
        if event.anchor:
            self.problems.add(line, f"anchor '&{event.anchor}': write the value out")
        if event.tag:
            self.problems.add(line, f"tag '{event.tag}': values are text, quote them instead")
        if isinstance(event, self.yaml.ScalarEvent):
            return self.scalar(event, line)
        if isinstance(event, self.yaml.SequenceStartEvent):
            end = self.yaml.SequenceEndEvent
            return Items(nodes=tuple(self.until(end, events, depth)), line=line)
        return self.table(events, line, depth)

    def until(self, end: type, events: "Iterator[yaml.Event]", depth: int) -> Iterator[Node]:
        for event in events:
            if isinstance(event, end):
                return
            yield self.node(event, events, depth + 1)

    def table(self, events: "Iterator[yaml.Event]", line: int, depth: int) -> Table:
        entries: dict[str, Entry] = {}
        nodes = self.until(self.yaml.MappingEndEvent, events, depth)
        for key in nodes:
            value = next(nodes)
            if not isinstance(key, Scalar):
                self.problems.add(key.line, "a key must be a word")
            elif key.text in entries:
                first = entries[key.text].line
                self.problems.add(key.line, f"{key.text}: key twice, first on line {first}")
            else:
                entries[key.text] = Entry(key=key.text, line=key.line, value=value)
        return Table(entries=tuple(entries.values()), line=line)

    def scalar(self, event: "yaml.ScalarEvent", line: int) -> Scalar:
        quoted = event.style is not None
        implicit = None
        if not quoted:
            tag = self.resolve(self.yaml.ScalarNode, event.value, (True, False))
            implicit = _TYPED.get(tag)
            if implicit is None and _NUMBER_1_2.fullmatch(event.value):
                implicit = "a number"
        return Scalar(text=event.value, line=line, quoted=quoted, implicit=implicit)
