"""Whether a bundle's kernels are still those of a tree, and why one had to be compiled again.

A patch or a release changes many files and few kernels: of 99 kernels that two releases share, 43
got another key, and 38 of those only because lines above them moved. A key holds the line, so they
must be compiled again all the same; but the reviewer's question is another one, so it is answered.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from elsa_build.kernels.bundle import Kernel, Manifest
from elsa_build.model import Oid


class Fate(StrEnum):
    """What became of a kernel's sources; `beside`: its file changed, and its functions did not."""

    BESIDE = "beside"
    MOVED = "moved"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale:
    """A kernel whose sources are not those of the tree: `paths` are the files, sorted."""

    kernel: Kernel
    fate: Fate
    paths: tuple[str, ...]


def stale(
    manifest: Manifest, oid: Callable[[str], Oid | None], body: Callable[[Oid], bytes]
) -> tuple[Stale, ...]:
    """Return the kernels whose sources differ from a tree's.

    Args:
        manifest: The bundle's.
        oid: Returns the git id of a file of the tree, by path from the folder that holds `sglang/`.
        body: Returns the bytes of such an id; only asked for files that differ.
    """
    wanted = {path: was for kernel in manifest.kernels for path, was in kernel.sources.items()}
    now = {path: oid(path) for path in wanted}
    texts: dict[str, str | None] = {}
    for path, found in now.items():
        if found != wanted[path]:
            texts[path] = body(found).decode("utf-8", "replace") if found else None
    return tuple(_stale(manifest, now, texts))


def _stale(
    manifest: Manifest, now: Mapping[str, Oid | None], texts: Mapping[str, str | None]
) -> Iterator[Stale]:
    for kernel in manifest.kernels:
        paths = tuple(sorted(p for p, was in kernel.sources.items() if now[p] != was))
        if paths:
            yield Stale(kernel=kernel, fate=_fate(kernel, paths, texts), paths=paths)


def _fate(kernel: Kernel, paths: tuple[str, ...], texts: Mapping[str, str | None]) -> Fate:
    """Return the worst that became of the functions whose text is in a kernel's key."""
    functions = dict(_functions(kernel))
    known = {path for path in paths if any(_of(name, path) for name in functions)}
    if known != set(
        paths
    ):  # a source of another kind, such as a CUDA file: its text is all we have
        return Fate.GONE if None in (texts[path] for path in paths) else Fate.CHANGED
    fate = Fate.BESIDE
    for name, (text, line) in functions.items():
        path = next((path for path in paths if _of(name, path)), None)
        if path is None:
            continue
        place = _place(texts[path] or "", name.partition(":")[2])
        if place is None:
            return Fate.GONE
        if place[0] != text:
            fate = Fate.CHANGED
        elif place[1] != line and fate is Fate.BESIDE:
            fate = Fate.MOVED
    # A global that a kernel reads may be defined anywhere in the file.
    return Fate.CHANGED if fate is Fate.BESIDE and kernel.parts.get("globals") else fate


def _functions(kernel: Kernel) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield each function of a key with the digest of its text and its line."""
    if {"text", "line"} <= kernel.parts.keys():
        yield kernel.name, (kernel.parts["text"], kernel.parts["line"])
    yield from dict(kernel.parts.get("calls") or {}).items()


def _of(name: str, path: str) -> bool:
    """Say whether `module:function` is defined in a file."""
    module = name.partition(":")[0].replace(".", "/")
    return path in (f"{module}.py", f"{module}/__init__.py")


def _place(source: str, qualname: str) -> tuple[str, int] | None:
    """Return the digest of a function's text and its first line, as Triton takes both.

    Source: Triton 3.8.0 runtime/jit.py, JITCallable: from `def` on, without indentation; the line
    is that of the first decorator.
    """
    try:
        nodes: list[ast.stmt] = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    node: ast.stmt | None = None
    for name in qualname.split("."):
        # The last definition of a name is the one that an import sees.
        node = next((one for one in reversed(nodes) if getattr(one, "name", None) == name), None)
        nodes = getattr(node, "body", [])
    if not isinstance(node, ast.FunctionDef):
        return None
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    lines = source.splitlines(keepends=True)[first - 1 :]
    text = textwrap.dedent("".join(inspect.getblock(lines)))
    start = re.search(r"^def\s+\w+\s*\(", text, re.MULTILINE)
    return (sha256(text[start.start() :].encode()).hexdigest(), first) if start else None


# --- two bundles ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one kernel of a bundle differs from the older bundle's: `why` names fields of the key."""

    kernel: Kernel
    what: str
    why: tuple[str, ...] = ()


def changes(old: Manifest, new: Manifest) -> tuple[Change, ...]:
    """Return what a rebuild changed, kernel by kernel: new, gone, moved, or changed.

    Kernels are the same by the plan's id, which says nothing of lines; `moved` means that the same
    text stands on other lines.
    """
    before = {(one.family, one.id): one for one in old.kernels}
    after = {(one.family, one.id): one for one in new.kernels}
    found = [Change(kernel=one, what="new") for key, one in after.items() if key not in before]
    found += [Change(kernel=one, what="gone") for key, one in before.items() if key not in after]
    for key, one in after.items():
        was = before.get(key)
        if was and was.key != one.key:
            why = _why(was, one)
            moved = why and set(why) <= {"line", "calls' lines", "function"}
            found.append(Change(kernel=one, what="moved" if moved else "changed", why=why))
    return tuple(sorted(found, key=lambda one: (one.kernel.family, one.kernel.name, one.kernel.id)))


def reasons(found: Iterable[Change]) -> tuple[str, ...]:
    """Return changes in words, kernels of one reason together: `moved (line): a, b`."""
    named: dict[str, set[str]] = {}
    for one in found:
        why = f" ({', '.join(one.why)})" if one.why else ""
        named.setdefault(f"{one.what}{why}", set()).add(one.kernel.name)
    return tuple(f"{what}: {', '.join(sorted(names))}" for what, names in sorted(named.items()))


def _why(was: Kernel, now: Kernel) -> tuple[str, ...]:
    """Return the fields of a key that differ, calls told apart by text and line."""
    fields = sorted(
        name
        for name in {*was.parts, *now.parts} - {"calls"}
        if was.parts.get(name) != now.parts.get(name)
    )
    calls = [dict(one.parts.get("calls") or {}) for one in (was, now)]
    for name in sorted({*calls[0], *calls[1]}):
        a, b = calls[0].get(name), calls[1].get(name)
        if a and b and a[0] == b[0]:
            fields += ["calls' lines"] if a[1] != b[1] else []
        elif a != b:
            fields.append(name)
    return tuple(dict.fromkeys(fields))
