"""Probes: a patch's own claims about the patched tree, because a clean merge is not a right merge.

A patch of one pool applies cleanly and no longer covers the second pool that upstream has added;
a pattern that must be absent says so. Source of the case: the state copy between two releases,
where an override appeared that the patch had never seen.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.git.objects import TREE, Entry, ObjectStore
from elsa_build.model import Oid, Patch, Probe


@dataclass(frozen=True, slots=True)
class _Hit:
    path: str
    line: int


def examine(
    objects: ObjectStore, tree: Oid, patches: Iterable[Patch], *, root: str = "python"
) -> tuple[Diagnostic, ...]:
    """Return a finding for every probe that does not hold in a tree.

    Codes: E321 a pattern that must be absent is there, E322 a pattern that must be present is not,
    E323 another number of matches than expected, E324 an attribute does not exist. `root` is the
    folder that Python modules are looked up below.
    """
    texts = _Texts(objects, tree)
    found: list[Diagnostic] = []
    for patch in patches:
        for probe in patch.probes:
            if probe.attribute:
                found += _attribute(texts, patch, probe.attribute, root)
            else:
                found += _pattern(patch, probe, texts.of(probe.paths))
    return tuple(found)


class _Texts:
    """The files of a tree by glob, each read once however many probes look at it."""

    def __init__(self, objects: ObjectStore, tree: Oid) -> None:
        self._objects = objects
        self._tree = tree
        self._read: dict[Oid, bytes] = {}
        self._listed: dict[str, tuple[tuple[str, Entry], ...]] = {}
        self._parsed: dict[Oid, ast.Module] = {}

    def of(self, globs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the files that any of the globs names, in path order."""
        entries: dict[str, Entry] = {}
        for glob in globs:
            if glob not in self._listed:
                self._listed[glob] = tuple(self._matching(glob))
            entries.update(self._listed[glob])
        unread = [entry.oid for entry in entries.values() if entry.oid not in self._read]
        self._read.update(zip(unread, self._objects.blobs(unread), strict=True))
        for path in sorted(entries):
            yield path, self._read[entries[path].oid]

    def module(self, path: str) -> ast.Module | None:
        """Return a Python file parsed, or None when there is none."""
        entry = self._objects.find(self._tree, path)
        if entry is None or entry.mode == TREE:
            return None
        if entry.oid not in self._parsed:
            self._parsed[entry.oid] = ast.parse(self._objects.blob(entry.oid))
        return self._parsed[entry.oid]

    def _matching(self, glob: str) -> Iterator[tuple[str, Entry]]:
        """Look only below the folders that stand before the first wildcard."""
        plain = re.split(r"[*?]", glob, maxsplit=1)[0]
        if plain == glob:
            entry = self._objects.find(self._tree, glob)
            if entry is not None and entry.mode != TREE:
                yield glob, entry
            return
        folder = plain.rpartition("/")[0]
        top = self._objects.find(self._tree, folder) if folder else Entry(TREE, self._tree)
        if top is None or top.mode != TREE:
            return
        pattern = re.compile(_regex(glob))
        prefix = f"{folder}/" if folder else ""
        for path, entry in self._objects.files(top.oid):
            if pattern.fullmatch(prefix + path):
                yield prefix + path, entry


def _regex(glob: str) -> str:
    """Return a glob as a regular expression: `*` stays in its folder, `**/` is any folders."""
    parts = re.split(r"(\*\*/|\*|\?)", glob)
    words = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(words.get(part, re.escape(part)) for part in parts)


def _pattern(
    patch: Patch, probe: Probe, texts: Iterator[tuple[str, bytes]]
) -> Iterator[Diagnostic]:
    wanted = probe.absent or probe.present or ""
    # Patterns are in UTF-8 and see bytes, so that a file in another encoding is searched too.
    pattern = re.compile(wanted.encode(), re.MULTILINE)
    literal = required(wanted).encode()
    hits = [
        _Hit(path, text.count(b"\n", 0, hit.start()) + 1)
        for path, text in texts
        if literal in text
        for hit in pattern.finditer(text)
    ]
    where = ", ".join(probe.paths)
    if probe.absent:
        for hit in hits:
            yield _finding("E321", patch, probe, f"must be absent: {wanted}", hit)
    elif not hits:
        yield _finding("E322", patch, probe, f"not found in {where}: {wanted}", None)
    elif probe.count is not None and len(hits) != probe.count:
        message = f"expected {probe.count} times in {where}, found {len(hits)}: {wanted}"
        yield _finding("E323", patch, probe, message, hits[-1])


def required(pattern: str) -> str:
    """Return the longest word that any match of a pattern contains; empty when none is certain.

    Most files lack it, and looking for a word is many times faster than trying the pattern.
    """
    if "(?" in pattern.replace("(?:", "(").replace("(?=", "(").replace("(?!", "("):
        return ""
    plain = re.sub(r"\[[^\]]*\]", " ", re.sub(r"\\.", " ", pattern))
    while "(" in plain:
        fewer = re.sub(r"\([^()]*\)", "*", plain)
        if fewer == plain:
            return ""
        plain = fewer
    if "|" in plain:
        return ""
    words = re.findall(r"\w{5,}(?![\w?*{])", plain, re.ASCII)
    return max(words, key=len, default="")


def _attribute(texts: _Texts, patch: Patch, name: str, root: str) -> Iterator[Diagnostic]:
    module, _, qualified = name.partition(":")
    stem = f"{root}/{module.replace('.', '/')}"
    for path in (f"{stem}.py", f"{stem}/__init__.py"):
        parsed = texts.module(path)
        if parsed is not None:
            if not _defines(parsed.body, qualified.split(".")):
                yield _finding("E324", patch, None, f"no such attribute: {name}", _Hit(path, 1))
            return
    yield _finding("E324", patch, None, f"no such module: {name}", None)


def _defines(body: list[ast.stmt], names: list[str]) -> bool:
    """Say whether a body binds a dotted name; `self.x = ...` in a method binds in its class."""
    first, rest = names[0], names[1:]
    for node in (inner for statement in body for inner in _flat(statement)):
        match node:
            case ast.ClassDef(name=name) if name == first:
                return not rest or _defines(node.body, rest)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == first:
                return not rest
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not rest and any(_is_self(inner, first) for inner in ast.walk(node)):
                    return True
            case ast.Assign() | ast.AnnAssign() | ast.Import() | ast.ImportFrom() if not rest:
                if first in _bound(node):
                    return True
    return False


def _flat(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement and, for `if` and `try`, the statements inside."""
    yield statement
    if isinstance(statement, ast.If | ast.Try):
        for inner in ast.iter_child_nodes(statement):
            if isinstance(inner, ast.stmt):
                yield from _flat(inner)


def _is_self(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _bound(node: ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {inner.id for t in targets for inner in ast.walk(t) if isinstance(inner, ast.Name)}


def _finding(
    code: str, patch: Patch, probe: Probe | None, message: str, hit: _Hit | None
) -> Diagnostic:
    why = f" ({probe.why})" if probe and probe.why else ""
    return Diagnostic(
        code=code,
        severity=Severity.ERROR,
        message=f"probe of {patch.id}: {message}{why}",
        path=hit.path if hit else None,
        line=hit.line if hit else None,
        hint=f"elsa-build patch show {patch.id}",
    )
