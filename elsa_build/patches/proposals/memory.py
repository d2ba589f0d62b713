"""Resolutions that a person made or accepted, kept in the patchset where everyone reviews them.

git's rerere remembers too, but for one person, without a reason, and in silence. Here a resolution
is a file with author, reason and date; it counts for one patch, for the same three texts to the
last blank, and only while the lines around are the same.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError
from elsa_build.model import Oid
from elsa_build.patches.proposals.views import Hunk, Marked
from elsa_build.strictyaml import Items, Problems, Scalar, read
from elsa_build.yamlform import Check, Form

FOLDER = "resolutions"
VERSION = 1
AROUND = 3
"""Lines before and after a conflict that must be the same for a resolution to count."""

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_HEX_40 = re.compile(r"[0-9a-f]{40}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_BREAKS = {code: f"\\u{code:04x}" for code in (0x7F, 0x85, 0x2028, 0x2029, 0xFEFF)}
"""What YAML takes for the end of a line or does not allow, and JSON lets stand."""
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What one conflict of one patch becomes.

    `key` is the digest of the three texts, `context` of the lines around them; `lines` stand in
    their place. `base` is the commit that the patch was put on when this was decided, `date` the
    day (YYYY-MM-DD).
    """

    patch: str
    path: str
    key: str
    context: str
    lines: tuple[str, ...]
    author: str
    reason: str
    base: Oid
    date: str

    @property
    def name(self) -> str:
        """Return the name of its file."""
        return f"{self.patch}.{self.key[:12]}.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The resolutions that may serve; `patch` narrows them to one patch."""

    resolutions: tuple[Resolution, ...] = ()
    patch: str = ""

    def of(self, patch: str) -> "Memory":
        """Return what is remembered of one patch."""
        own = tuple(one for one in self.resolutions if one.patch == patch)
        return Memory(resolutions=own, patch=patch)

    def recall(self, path: str, marked: Marked, number: int) -> tuple[Resolution | None, bool]:
        """Return the resolution of a hunk, and whether there was one whose context has changed."""
        key = key_of(marked.hunks[number])
        same = [one for one in self.resolutions if one.key == key and one.path == path]
        context = context_of(marked, number)
        found = next((one for one in same if one.context == context), None)
        return found, bool(same) and found is None


EMPTY = Memory()


def key_of(hunk: Hunk) -> str:
    """Return the digest of a conflict's three texts, exact to the last blank."""
    return _digest("\0".join("\n".join(side) for side in (hunk.base, hunk.ours, hunk.theirs)))


def context_of(marked: Marked, number: int) -> str:
    """Return the digest of the lines around a hunk."""
    before, after = marked.beside(number)
    return _digest("\n".join(before[-AROUND:]) + "\0" + "\n".join(after[:AROUND]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def resolved(marked: Marked, text: str) -> tuple[tuple[str, ...], ...] | None:
    """Return the lines that a resolved text has in place of each hunk.

    None when it also differs outside of the conflicts: then no hunk alone gives this text.
    """
    lines = text.split("\n")
    found: list[tuple[str, ...]] = []
    cursor = 0
    runs = marked.runs
    for number, run in enumerate(runs):
        if isinstance(run, Hunk):
            after = runs[number + 1]
            assert not isinstance(after, Hunk)
            last = number + 2 == len(runs)
            at = len(lines) - len(after) if last else _find(lines, after, cursor)
            if at is None or at < cursor:
                return None
            found.append(tuple(lines[cursor:at]))
            cursor = at
        elif tuple(lines[cursor : cursor + len(run)]) != run:
            return None
        else:
            cursor += len(run)
    return tuple(found) if cursor == len(lines) else None


def _find(lines: list[str], run: tuple[str, ...], start: int) -> int | None:
    for at in range(start, len(lines) - len(run) + 1):
        if tuple(lines[at : at + len(run)]) == run:
            return at
    return None


# --- files --------------------------------------------------------------------------------------


def load(folder: Path, *, root: Path | None = None) -> Memory:
    """Return what a patchset (`patchsets/NAME`) remembers; nothing when it has no such folder.

    Raises:
        ConfigError: A file there is wrong; every complaint at once, `path:line: field: ...`.
    """
    found: list[Resolution] = []
    complaints: list[str] = []
    for path in sorted((folder / FOLDER).glob("*.yaml")):
        name = str(path.relative_to(root) if root else path)
        try:
            found.append(_read(path, name))
        except ConfigError as e:
            complaints.append(e.message)
    if complaints:
        raise ConfigError("\n".join(complaints))
    return Memory(resolutions=tuple(found))


def _read(path: Path, name: str) -> Resolution:
    problems = Problems(name)
    form = Form(read(path, name), problems)
    if form.integer("version", 0) != VERSION:
        form.problem("version", f"must be {VERSION}")
    found = Resolution(
        patch=form.text("patch", required=True, check=_matches(_SLUG, "a patch id")),
        path=form.text("path", required=True),
        key=form.text("key", required=True, check=_matches(_HEX_64, "64 hex digits")),
        context=form.text("context", required=True, check=_matches(_HEX_64, "64 hex digits")),
        author=form.text("author", required=True, check=_something),
        reason=form.text("reason", required=True, check=_something),
        base=Oid(form.text("base", required=True, check=_matches(_HEX_40, "a full commit id"))),
        date=form.text("date", required=True, check=_matches(_DATE, "a day, YYYY-MM-DD")),
        lines=_lines(form),
    )
    form.close()
    problems.check()
    if path.name != found.name:
        raise ConfigError(f"{name}:1: the file must be called {found.name}")
    return found


def _lines(form: Form) -> tuple[str, ...]:
    entry = form.entry("lines", required=True)
    if entry is None:
        return ()
    if not isinstance(entry.value, Items):
        form.problem("lines", "must be a list")
        return ()
    found: list[str] = []
    for node in entry.value.nodes:
        if not isinstance(node, Scalar) or not node.quoted or "\n" in node.text:
            form.problem("lines", "each line must be one quoted text", node.line)
        else:
            found.append(node.text)
    return tuple(found)


def _matches(pattern: re.Pattern[str], what: str) -> Check:
    return lambda text: None if pattern.fullmatch(text) else f"must be {what}"


def _something(text: str) -> str | None:
    return None if text.strip() else "must not be empty"


def render(resolution: Resolution) -> str:
    """Return the file of a resolution."""
    head = (
        ("patch", resolution.patch),
        ("path", resolution.path),
        ("author", resolution.author),
        ("date", resolution.date),
        ("reason", resolution.reason),
        ("base", resolution.base),
        ("key", resolution.key),
        ("context", resolution.context),
    )
    lines = [f"version: {VERSION}", *(f"{name}: {_quoted(text)}" for name, text in head)]
    if resolution.lines:
        lines += ["lines:", *(f"  - {_quoted(line)}" for line in resolution.lines)]
    else:
        lines.append("lines: []")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a YAML string in double quotes; a JSON string is one."""
    import json  # noqa: PLC0415 - only writing needs it

    return json.dumps(text, ensure_ascii=False).translate(_BREAKS)


def save(folder: Path, resolutions: Iterable[Resolution]) -> tuple[Path, ...]:
    """Write resolutions into a patchset and return their files; each arrives by a rename."""
    place = folder / FOLDER
    written = []
    for one in resolutions:
        place.mkdir(exist_ok=True)
        path = place / one.name
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(render(one), encoding="utf-8")
        fresh.replace(path)
        written.append(path)
    return tuple(written)


def remember(
    patch: str, path: str, marked: str, text: str, *, author: str, reason: str, base: Oid, date: str
) -> tuple[Resolution, ...]:
    """Return the resolutions that a resolved file stands for, one a hunk.

    Empty when the text also differs outside of the conflicts, which no stored hunk can give.
    """
    whole = Marked(marked)
    return tuple(
        Resolution(
            patch=patch,
            path=path,
            key=key_of(whole.hunks[number]),
            context=context_of(whole, number),
            lines=lines,
            author=author,
            reason=reason,
            base=base,
            date=date,
        )
        for number, lines in enumerate(resolved(whole, text) or ())
    )
