"""Reads a YAML mapping field by field, so that each complaint names its field and its line.

The asking is the schema: a field that no reader asked for is unknown, and the fields that were
asked for are the names that a misspelt one is compared with.
"""

import difflib
import re
from collections.abc import Callable, Iterable

from elsa_build.strictyaml import Entry, Items, Node, Problems, Scalar, Table

Check = Callable[[str], str | None]
"""Looks at a text and returns what is wrong with it, or None."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known word most like this one, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


class Form:
    """One mapping, read field by field; `close` complains of what nobody asked for.

    A reader returns its default when the field is absent or wrong, and notes what is wrong.
    """

    def __init__(self, node: Node, problems: Problems, place: str = "") -> None:
        """Read this node; `place` is the dotted path to it, for messages."""
        self.problems = problems
        self.place = place
        self.line = node.line
        self._asked: list[str] = []
        if not isinstance(node, Table):
            problems.add(node.line, f"{place or 'the file'}: must be a mapping")
            node = Table(entries=(), line=node.line)
            self._broken = True
        else:
            self._broken = False
        self._table = node

    def path(self, key: str) -> str:
        """Return a field's dotted path, as messages name it."""
        return f"{self.place}.{key}" if self.place else key

    def problem(self, key: str, message: str, line: int | None = None) -> None:
        """Note a problem of one field at its line (or another)."""
        entry = self._table.get(key)
        self.problems.add(
            line or (entry.line if entry else self.line), f"{self.path(key)}: {message}"
        )

    def entry(self, key: str, *, required: bool = False) -> Entry | None:
        """Return a field's entry and count the field as known."""
        self._asked.append(key)
        entry = self._table.get(key)
        if entry is None and required and not self._broken:
            self.problem(key, "is missing")
        return entry

    def text(
        self, key: str, default: str = "", *, required: bool = False, check: Check | None = None
    ) -> str:
        """Return a field that is text; what YAML takes for something else must be quoted."""
        entry = self.entry(key, required=required)
        found = self._text(key, entry.value, check) if entry else None
        return default if found is None else found

    def texts(
        self, key: str, *, required: bool = False, check: Check | None = None
    ) -> tuple[str, ...]:
        """Return a field that is a list of texts; a text twice is a problem."""
        entry = self.entry(key, required=required)
        if entry is None:
            return ()
        if not isinstance(entry.value, Items):
            self.problem(key, "must be a list")
            return ()
        found: list[str] = []
        for node in entry.value.nodes:
            text = self._text(key, node, check)
            if text is not None and text in found:
                self.problem(key, f"'{text}' twice", node.line)
            elif text is not None:
                found.append(text)
        return tuple(found)

    def integer(self, key: str, default: int, *, minimum: int = 0) -> int:
        """Return a field that is a plain decimal number."""
        entry = self.entry(key)
        if entry is None:
            return default
        scalar = entry.value
        if (
            not isinstance(scalar, Scalar)
            or scalar.quoted
            or not re.fullmatch(r"0|-?[1-9][0-9]*", scalar.text)
        ):
            self.problem(key, "must be a whole number, unquoted")
            return default
        if int(scalar.text) < minimum:
            self.problem(key, f"{scalar.text} is less than {minimum}")
        return int(scalar.text)

    def boolean(self, key: str, *, default: bool = False) -> bool:
        """Return a field that is `true` or `false`; YAML's other spellings are refused."""
        entry = self.entry(key)
        if entry is None:
            return default
        scalar = entry.value
        if not isinstance(scalar, Scalar) or scalar.quoted or scalar.text not in ("true", "false"):
            self.problem(key, "must be true or false, unquoted")
            return default
        return scalar.text == "true"

    def form(self, key: str) -> "Form":
        """Return a field that is a mapping, as a form of its own (an empty one if absent)."""
        entry = self.entry(key)
        node = entry.value if entry else Table(entries=(), line=self.line)
        return Form(node, self.problems, self.path(key))

    def forms(self, key: str) -> tuple["Form", ...]:
        """Return a field that is a list of mappings; a list item's path is `key[0]`."""
        entry = self.entry(key)
        if entry is None:
            return ()
        if not isinstance(entry.value, Items):
            self.problem(key, "must be a list")
            return ()
        return tuple(
            Form(node, self.problems, f"{self.path(key)}[{number}]")
            for number, node in enumerate(entry.value.nodes)
        )

    def pairs(self) -> tuple[Entry, ...]:
        """Return every field as it stands, for a mapping whose keys are the person's own."""
        self._asked.extend(entry.key for entry in self._table.entries)
        return self._table.entries

    def close(self) -> None:
        """Complain of every field that was not asked for, with the nearest one that was."""
        for entry in self._table.entries:
            if entry.key not in self._asked:
                hint = nearest(entry.key, self._asked)
                self.problems.add(entry.line, f"{self.path(entry.key)}: unknown field{hint}")

    def _text(self, key: str, node: Node, check: Check | None) -> str | None:
        if not isinstance(node, Scalar):
            self.problem(key, "must be text", node.line)
            return None
        if node.implicit:
            self.problem(
                key, f"{node.text or 'the value'} is {node.implicit} to YAML; quote it", node.line
            )
            return None
        wrong = check(node.text) if check else None
        if wrong:
            self.problem(key, wrong, node.line)
            return None
        return node.text
