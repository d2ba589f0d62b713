"""Edits of `series.yaml` by line, so that a person's comments and order survive.

PyYAML drops comments when it writes. Here only the lines of the field that changes are replaced,
and the result is read back: an edit that changes anything else is refused.
"""

import json
import re
import textwrap
from collections.abc import Iterable, Mapping

from elsa_build.errors import ConfigError
from elsa_build.model import Oid, Patch
from elsa_build.strictyaml import Entry, Items, Node, Scalar, Table, load

WIDTH = 96
"""Columns of prose."""

FIELDS = (
    "id",
    "file",
    "kind",
    "status",
    "origin",
    "why",
    "drop_when",
    "requires",
    "conflicts_with",
    "hot_path",
    "tests",
    "evidence",
    "probes",
    "guards",
)
"""A patch's fields in the order in which they are written."""

Value = str | bool | Iterable[str] | Mapping[str, str | int] | None
"""What a field can be set to; None removes it."""

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*|[0-9]{4}-[a-z0-9-]*\.patch")
_WORDS_OF_YAML = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


# --- writing ----------------------------------------------------------------------------------


def header(name: str, base: Oid | None, ref: str | None) -> str:
    """Return a new `series.yaml` without patches."""
    lines = [
        "# The order of the patches is the order of this list; the numbers are for people.",
        "version: 1",
        f"name: {_scalar(name)}",
    ]
    if base:
        lines.append(f'base: "{base}"')
    if ref:
        lines.append(f"ref: {json.dumps(ref, ensure_ascii=False)}")
    return "\n".join([*lines, "patches: []", ""])


def entry(patch: Patch) -> list[str]:
    """Return a patch's lines, indented for the list `patches`."""
    origin: dict[str, str | int] = {}
    if patch.origin.commit:
        origin["commit"] = patch.origin.commit
    if patch.origin.pr:
        origin["pr"] = patch.origin.pr
    values: dict[str, Value] = {
        "id": patch.id,
        "file": patch.file.name if patch.file else None,
        "kind": patch.kind,
        "status": patch.status,
        "origin": origin or None,
        "why": patch.why,
        "drop_when": patch.drop_when,
        "requires": patch.requires or None,
        "conflicts_with": patch.conflicts_with or None,
        "hot_path": patch.hot_path or None,
        "tests": patch.tests or None,
        "evidence": patch.evidence or None,
    }
    lines = [
        line for key, value in values.items() if value is not None for line in _field(key, value, 4)
    ]
    return ["  - " + lines[0][4:], *lines[1:]]


def _field(key: str, value: Value, indent: int) -> list[str]:
    pad = " " * indent
    if isinstance(value, bool):
        return [f"{pad}{key}: {'true' if value else 'false'}"]
    if isinstance(value, str):
        if key in ("why", "drop_when"):
            return [f"{pad}{key}: >-", *_prose(value, indent + 2)]
        return [f"{pad}{key}: {_scalar(value)}"]
    if isinstance(value, Mapping):
        inner = (f"{pad}  {name}: {json.dumps(one)}" for name, one in value.items())
        return [f"{pad}{key}:", *inner]
    assert value is not None
    return [f"{pad}{key}:", *(f"{pad}  - {_scalar(one)}" for one in value)]


def _prose(text: str, indent: int) -> list[str]:
    words = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    pad = " " * indent
    return textwrap.wrap(
        words,
        width=WIDTH,
        initial_indent=pad,
        subsequent_indent=pad,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _scalar(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML:
        return text
    return json.dumps(text, ensure_ascii=False)


# --- editing ----------------------------------------------------------------------------------


def appended(text: str, name: str, patches: Iterable[Patch]) -> str:
    """Return a `series.yaml` with patches added at the end of its list.

    `name` is the file as messages show it.

    Raises:
        ConfigError: The text cannot be edited by line (exit 5).
    """
    before = _patches(text, name)
    lines = text.rstrip("\n").split("\n")
    key = _key(load(text, name), "patches", name)
    if before.nodes:
        end = _end(lines, key.line - 1)
        first = lines[before.nodes[0].line - 1]
        dash = len(first) - len(first.lstrip(" "))
    else:
        lines[key.line - 1] = re.sub(r"\[\s*\]", "", lines[key.line - 1]).rstrip()
        end, dash = key.line, 2
    fresh: list[str] = []
    for patch in patches:
        if before.nodes or fresh:
            fresh.append("")
        fresh += [" " * dash + line[2:] for line in entry(patch)]
    result = "\n".join([*lines[:end], *fresh, *lines[end:], ""])
    after = _patches(result, name)
    if [_plain(node) for node in after.nodes[: len(before.nodes)]] != list(
        map(_plain, before.nodes)
    ):
        raise ConfigError(
            f"{name}: cannot be edited by line; write each field on a line of its own"
        )
    return result


def with_field(text: str, name: str, patch_id: str, key: str, value: Value) -> str:
    """Return a `series.yaml` with one field of one patch set, or removed for None.

    Raises:
        ConfigError: There is no such patch, or its entry cannot be edited by line (exit 5).
    """
    table = _table(text, name, patch_id)
    lines = text.split("\n")
    old = table.get(key)
    if old:
        start, end = old.line - 1, _end(lines, old.line - 1)
        before = lines[start]
    else:
        previous = [one for one in table.entries if _rank(one.key) <= _rank(key)]
        start = end = _end(lines, previous[-1].line - 1)
        before = ""
    indent = _indent(lines[table.entries[0].line - 1])
    fresh = [] if value is None else _field(key, value, indent)
    if old and fresh:
        fresh[0] = _restored(before, fresh[0], indent, single=end == start + 1 and len(fresh) == 1)
    result = "\n".join([*lines[:start], *fresh, *lines[end:]])
    _check(text, result, name, patch_id, key)
    return result


def _restored(old: str, new: str, indent: int, *, single: bool) -> str:
    """Keep the list's dash in front, and a comment behind a value that is one plain word."""
    comment = re.fullmatch(r"[ -]*[a-z_]+: *[^\s\"'#]+( +#.*)", old)
    return old[:indent] + new[indent:] + (comment[1] if comment and single else "")


def _indent(line: str) -> int:
    """Return the column of the key on a line that may begin with the list's dash."""
    return len(line) - len(line.lstrip(" -"))


def _end(lines: list[str], start: int) -> int:
    """Return the line behind a field: the next one that is not deeper, without comments above it.

    A list's dashes may stand in the column of its key.
    """
    indent = _indent(lines[start])
    end = start + 1
    for number in range(start + 1, len(lines)):
        line = lines[number]
        bare = line.lstrip(" ")
        if not bare or (bare.startswith("#") and len(line) - len(bare) <= indent):
            continue
        column = len(line) - len(bare)
        item = bare.startswith("- ") and column == indent
        if column <= indent and not item:
            break
        end = number + 1
    return end


def _rank(key: str) -> int:
    return FIELDS.index(key) if key in FIELDS else len(FIELDS)


# --- reading back -----------------------------------------------------------------------------


def _key(node: Node, key: str, name: str) -> Entry:
    found = node.get(key) if isinstance(node, Table) else None
    if found is None:
        raise ConfigError(f"{name}:{node.line}: {key}: is missing")
    return found


def _patches(text: str, name: str) -> Items:
    value = _key(load(text, name), "patches", name).value
    if not isinstance(value, Items):
        raise ConfigError(f"{name}:{value.line}: patches: must be a list")
    return value


def _table(text: str, name: str, patch_id: str) -> Table:
    for node in _patches(text, name).nodes:
        if isinstance(node, Table) and _id(node) == patch_id:
            if len({one.line for one in node.entries}) < len(node.entries):
                raise ConfigError(
                    f"{name}:{node.line}: cannot be edited by line; "
                    "write each field on a line of its own"
                )
            return node
    raise ConfigError(f"{name}: no patch '{patch_id}'", hint="elsa-build patch list")


def _id(table: Table) -> str:
    found = table.get("id")
    return found.value.text if found and isinstance(found.value, Scalar) else ""


def _check(before: str, after: str, name: str, patch_id: str, key: str) -> None:
    """Refuse an edit that changed more than the one field."""
    old, new = (_plain_patches(text, name) for text in (before, after))
    for patches in (old, new):
        patches.get(patch_id, {}).pop(key, None)
    if old != new:
        raise ConfigError(
            f"{name}: cannot set {key} of '{patch_id}' by line",
            hint=f"edit {name} by hand",
        )


def _plain_patches(text: str, name: str) -> dict[str, dict[str, object]]:
    found = {}
    for node in _patches(text, name).nodes:
        if isinstance(node, Table):
            found[_id(node)] = {one.key: _plain(one.value) for one in node.entries}
    return found


def _plain(node: Node) -> object:
    """Return a node's content without its lines."""
    match node:
        case Scalar():
            return node.text
        case Items():
            return [_plain(one) for one in node.nodes]
        case Table():
            return {one.key: _plain(one.value) for one in node.entries}


def with_base(text: str, name: str, base: Oid, ref: str) -> str:
    """Return a `series.yaml` with another base; `ref` is what a person calls it.

    Raises:
        ConfigError: The file has no `base` on a line of its own (exit 5).
    """
    lines = text.split("\n")
    found = [number for number, line in enumerate(lines) if line.startswith("base:")]
    if len(found) != 1:
        raise ConfigError(f"{name}: base: is missing", hint=f'add the line: base: "{base}"')
    lines[found[0]] = f'base: "{base}"'
    kept = [line for line in lines if not line.startswith("ref:")]
    kept.insert(kept.index(lines[found[0]]) + 1, f"ref: {json.dumps(ref, ensure_ascii=False)}")
    return "\n".join(kept)
