"""Commit messages that survive every mail tool, and their trailers.

A patch file is a mail, and a mail reader guesses where the message ends and the patch begins: a
message line `diff -` cuts the patch in two, `---` drops what follows, a subject `Re: x` loses its
head. So messages are brought into a form once, on the way in, that git's own reader leaves as it
is. Source: git's `mailinfo.c`, `mailsplit.c`, git-interpret-trailers(1).
"""

import re
from collections.abc import Mapping, Sequence

from elsa_build.model import Kind, Origin

TRAILERS = ("Elsa-Patch-Id", "Elsa-Kind", "Upstream-Commit", "Upstream-PR")
"""Ours, in the order in which they are written."""

WHY = "Elsa-Why"
"""The reason. Only exports have it: in a patchset `series.yaml` says it, once."""

_TRAILER = re.compile(r"([A-Za-z0-9-]+)[ \t]*:[ \t]*(.*)")
_GENERATED = ("Signed-off-by: ", "(cherry picked from commit ")
_CUTS = (
    (re.compile(r"diff -"), "begins a diff"),
    (re.compile(r"Index: "), "begins a CVS diff"),
    (re.compile(r"--- [^ \t\r]|---[ \t\r]*$"), "ends the message"),
    (re.compile(r"From .*\d:\d\d"), "begins another mail"),
)
_HEADERS = re.compile(r"(>?From |\[PATCH\]|(From|Subject|Date):)", re.IGNORECASE)


# --- what a mail reader would cut -------------------------------------------------------------


def cuts(message: str) -> tuple[tuple[int, str], ...]:
    """Return the lines that git's mail reader would not take for the message, with the reason.

    Lines are 1-based in the message.
    """
    lines = message.split("\n")
    found = []
    first = next((n for n, line in enumerate(lines[1:], 2) if line.strip()), 0)
    for number, line in enumerate(lines[1:], 2):
        reason = next((why for pattern, why in _CUTS if pattern.match(line)), None)
        if reason is None and number == first and _HEADERS.match(line):
            reason = "replaces a mail header"
        if reason:
            found.append((number, f"a mail reader takes '{line}' for a line that {reason}"))
    return tuple(found)


def normal(message: str) -> str:
    """Return the message as git's mail reader would give it back, with no line lost.

    The subject is one line without `Re:` and `[PATCH]`, and blanks in a row are one; the body has
    no trailing blanks and no two blank lines in a row; a line that would be cut is indented by one
    blank. Applying it twice changes nothing. LF, no final newline; empty if nothing is left.
    """
    text = message.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    lines = [line.rstrip(" \t\v\f") for line in text.lstrip("\n").split("\n")]
    while lines and not lines[0]:
        del lines[0]
    end = lines.index("") if "" in lines else len(lines)
    title = subject(" ".join(lines[:end]))
    if not title:
        # `[PATCH]` alone: what comes next is the subject.
        return normal("\n".join(lines[end + 1 :])) if end < len(lines) else ""
    body: list[str] = []
    for line in lines[end + 1 :]:
        if line or (body and body[-1]):
            body.append(line)
    while body and not body[-1]:
        body.pop()
    whole = [title, "", *body] if body else [title]
    for number, _ in cuts("\n".join(whole)):
        whole[number - 1] = " " + whole[number - 1]
    return "\n".join(whole)


def subject(raw: str) -> str:
    """Return a subject as `git am --keep-non-patch` reads it: no `Re:`, no `[PATCH ...]`."""
    at, text = 0, _one_line(raw)
    while at < len(text):
        rest = text[at:]
        bracket = re.match(r"\[[^\]]*\]", rest)
        if len(rest) > 3 and rest[:3].lower() == "re:":
            text = text[:at] + rest[3:]
        elif rest[0] in " \t:":
            text = text[:at] + rest[1:]
        elif bracket and "PATCH" in bracket[0]:
            text = text[:at] + rest[bracket.end() :]
        elif bracket:
            at += bracket.end() + rest[bracket.end() :][:1].isspace()
        else:
            break
    return _one_line(text)


# --- trailers ---------------------------------------------------------------------------------


def trailers(message: str) -> tuple[tuple[str, str], ...]:
    """Return the trailers of a message in its order; a folded value is one line."""
    found: list[tuple[str, str]] = []
    open_ended = False
    for line in _split(message)[1]:
        pair = _TRAILER.fullmatch(line)
        if pair:
            found.append((pair[1], pair[2].strip()))
        elif line[:1] in (" ", "\t") and open_ended:
            key, value = found[-1]
            found[-1] = (key, f"{value} {line.strip()}")
        open_ended = bool(pair) or (open_ended and line[:1] in (" ", "\t"))
    return tuple(found)


def wanted(patch_id: str, kind: Kind, origin: Origin) -> dict[str, str | None]:
    """Return the trailers that a patch of ours must have; None for those it must not."""
    values = (patch_id, kind, origin.commit, str(origin.pr) if origin.pr else None)
    return dict(zip(TRAILERS, values, strict=True))


def with_trailers(message: str, values: Mapping[str, str | None]) -> str:
    """Return the message with these trailers set, at the end and in the order of `values`.

    A trailer that is there already is replaced, None removes it; all others stay where they are.
    """
    body, lines = _split(message)
    names = {key.lower() for key in values}
    kept: list[str] = []
    dropping = False
    for line in lines:
        pair = _TRAILER.fullmatch(line)
        if line[:1] not in (" ", "\t"):
            dropping = pair is not None and pair[1].lower() in names
        if not dropping:
            kept.append(line)
    kept += [f"{key}: {_one_line(value)}" for key, value in values.items() if value]
    return "\n".join([*body, "", *kept]) if kept else "\n".join(body)


def _one_line(value: str) -> str:
    """Make blanks in a row one; only ASCII ones, as git does."""
    return re.sub(r"[ \t\n\v\f\r]+", " ", value).strip(" ")


def _split(message: str) -> tuple[list[str], list[str]]:
    """Return the lines before the trailer block, without the blank one, and the block's lines.

    The last paragraph is one if it is not the subject and all of it is trailers, or a quarter is
    and one line is of those that git itself writes.
    """
    lines = message.rstrip("\n").split("\n")
    start = next((n for n in range(len(lines) - 1, 0, -1) if not lines[n].strip()), 0)
    block = lines[start + 1 :]
    if not start or not _is_trailers(block):
        return lines, []
    body = lines[:start]
    while len(body) > 1 and not body[-1].strip():
        body.pop()
    return body, block


def _is_trailers(block: Sequence[str]) -> bool:
    """Count as git does, from below: a folded line counts with the line that it continues."""
    good = bad = folded = 0
    generated = False
    for line in reversed(block):
        if line.startswith(_GENERATED):
            good, folded, generated = good + 1, 0, True
        elif _TRAILER.fullmatch(line):
            good, folded = good + 1, 0
        elif line[:1] in (" ", "\t"):
            folded += 1
        else:
            bad, folded = bad + 1 + folded, 0
    bad += folded
    return bool(good) and (not bad or (generated and good * 3 >= bad))
