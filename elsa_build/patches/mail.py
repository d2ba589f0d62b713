"""Patch files: one git format-patch mail each, written by git, read back without it.

The form is fixed so that the same commit gives the same bytes on every machine: full ids (the
three-way merge reads the blobs, so one line of context is enough), no signature (git's version
would be in each file), no commit id, no numbering. Renames are written as a deletion and a new
file: whether git calls a pair a rename depends on a similarity limit and on the person's
configuration, and the reader of the file needs neither.
"""

import base64
import calendar
import quopri
import re
import tempfile
from pathlib import Path

from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.model import Mail, Oid, Signature
from elsa_build.patches.diffparse import parse as parse_diff

FORM = (
    "--no-signature",
    "--zero-commit",
    "--full-index",
    "--binary",
    "--no-stat",
    "-N",
    "--no-renames",
)
"""What decides the bytes of a patch file, with the lines of context."""

CONTEXT = 1
"""Lines of context in a patch file."""

_PINNED = (
    "--subject-prefix=PATCH",
    "--no-attach",
    "--no-cover-letter",
    "--no-thread",
    "--no-base",
    "--no-notes",
    "--no-to",
    "--no-cc",
    "--no-add-header",
    "--no-from",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--diff-algorithm=myers",
    "--indent-heuristic",
    "--inter-hunk-context=0",
    "--submodule=short",
    "-O/dev/null",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--encode-email-headers",
    "--suffix=.patch",
    "--always",
)
"""git's own defaults, so that no person's configuration shows in a patch file."""

_FROM = re.compile(r"From [0-9a-f]{40} Mon Sep 17 00:00:00 2001")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(r"\w{3}, (\d{1,2}) (\w{3}) (\d{4}) (\d{2}):(\d{2}):(\d{2}) ([+-])(\d{2})(\d{2})")
_DIFF = re.compile(rb"^diff -", re.MULTILINE)
_HEADING = re.compile(rb"^(@@ -\S+ \+\S+ @@) .*$", re.MULTILINE)
_WORD = re.compile(r"=\?([^?\s]+)\?([bBqQ])\?([^?\s]*)\?=")
_WORDS = re.compile(rf"(?:{_WORD.pattern}\s*)*{_WORD.pattern}")


# --- writing ----------------------------------------------------------------------------------


def write(git: Git, commit: Oid, context: int = CONTEXT) -> bytes:
    """Return the patch file of one commit that has one parent."""
    return write_all(git, git.commit(commit).parents[0], commit, context)[0]


def write_all(git: Git, base: Oid, tip: Oid, context: int = CONTEXT) -> tuple[bytes, ...]:
    """Return the patch files of `base..tip`, oldest first, with one git process for all.

    The commits must follow each other without a merge.
    """
    commits = git.text("rev-list", "--reverse", f"{base}..{tip}").split()
    if not commits:
        return ()
    with tempfile.TemporaryDirectory(prefix="elsa-mails-") as folder:
        git.run(
            "-c",
            "format.signOff=false",
            "-c",
            "i18n.logOutputEncoding=UTF-8",
            "format-patch",
            "--quiet",
            *FORM,
            f"-U{context}",
            *_PINNED,
            "--output-directory",
            folder,
            f"{base}..{tip}",
        )
        mails = [path.read_bytes() for path in sorted(Path(folder).iterdir(), key=_number)]
    if len(mails) != len(commits):
        raise ConfigError(f"the commits {base}..{tip} hold a merge", hint="git rebase first")
    return tuple(
        _without_headings(_with_ids(git, mail, Oid(commit)))
        for mail, commit in zip(mails, commits, strict=True)
    )


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0].removesuffix(".patch"))


def _with_ids(git: Git, mail: bytes, commit: Oid) -> bytes:
    """Give a pure change of mode the index line that git leaves out.

    Without it the file could not be put on a tree by blob ids; `git apply` takes it as usual.
    """
    start = diff_start(mail)
    bare = [file for file in parse_diff(mail[start:]) if file.new_path and file.new_oid is None]
    if not bare:
        return mail
    tree = git.commit(commit).tree
    lines = mail[start:].split(b"\n")
    for file in reversed(bare):
        entry = git.objects.find(tree, file.path)
        assert entry is not None
        # After `diff --git`, `old mode` and `new mode`.
        lines.insert(file.line + 2, f"index {entry.oid}..{entry.oid}".encode())
    return mail[:start] + b"\n".join(lines)


def _without_headings(mail: bytes) -> bytes:
    """Drop the function that git writes behind `@@`: it is upstream's text, and nobody needs it."""
    start = diff_start(mail)
    return mail[:start] + _HEADING.sub(rb"\1", mail[start:])


# --- reading ----------------------------------------------------------------------------------


class MailError(ConfigError):
    """A patch file cannot be read; `line` is 1-based in it, `reason` the words without it."""

    def __init__(self, name: str, line: int, reason: str) -> None:
        super().__init__(f"{name}:{line}: {reason}")
        self.line = line
        self.reason = reason


def diff_start(mail: bytes) -> int:
    """Return where the diff begins, in bytes; the end when the patch changes nothing."""
    found = _DIFF.search(mail)
    return found.start() if found else len(mail)


def parse(name: str, text: bytes) -> Mail:
    """Return what a patch file says; `name` is the path to show.

    Raises:
        MailError: It is not a mail as `write` makes them, or not UTF-8 (exit 5).
    """
    head, _, body = text[: diff_start(text)].partition(b"\n\n")
    lines = _decoded(name, head, 1).split("\n")
    if lines[0].endswith("\r"):
        raise MailError(name, 1, "lines end in CRLF: a mailer or an editor damaged the patch")
    if not _FROM.fullmatch(lines[0]):
        raise MailError(name, 1, "not a git format-patch mail (elsa-build patch import reads it)")
    headers = _headers(name, lines)
    if headers.get("content-transfer-encoding", (0, "8bit"))[1].lower() not in ("7bit", "8bit"):
        line = headers["content-transfer-encoding"][0]
        raise MailError(name, line, "an encoded mail (elsa-build patch import reads it)")
    for needed in ("From", "Date", "Subject"):
        if needed.lower() not in headers:
            raise MailError(name, 1, f"no '{needed}:' header")
    title = _words(headers["subject"][1]).removeprefix("[PATCH] ").strip(" ")
    rest = _decoded(name, body, len(lines) + 2).strip("\n")
    return Mail(
        author=_author(name, headers),
        message=f"{title}\n\n{rest}" if rest else title,
        diff=text[diff_start(text) :],
    )


def message_line(text: bytes, line: int) -> int:
    """Return where a line of the message (1-based, 3 is the first of the body) is in the file."""
    return text[: diff_start(text)].partition(b"\n\n")[0].count(b"\n") + line


def _decoded(name: str, raw: bytes, first: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as e:
        line = first + raw.count(b"\n", 0, e.start)
        raise MailError(name, line, f"not UTF-8 (byte 0x{raw[e.start]:02x})") from e


def _headers(name: str, lines: list[str]) -> dict[str, tuple[int, str]]:
    """Return the headers, unfolded, by lower-case name, each with its line."""
    headers: dict[str, tuple[int, str]] = {}
    last = ""
    for number, line in enumerate(lines[1:], 2):
        key, colon, value = line.partition(":")
        if line.startswith((" ", "\t")) and last:
            headers[last] = (headers[last][0], f"{headers[last][1]}\n{line[1:]}")
        elif colon and re.fullmatch(r"[A-Za-z-]+", key):
            last = key.lower()
            headers[last] = (number, value.strip(" \t"))
        else:
            raise MailError(name, number, f"not a mail header: {line!r}")
    return headers


def _words(value: str) -> str:
    """Decode RFC 2047 encoded words; blanks between two of them do not count."""
    return _WORDS.sub(_decoded_words, value).replace("\n", " ")


def _decoded_words(found: re.Match[str]) -> str:
    raw, charset = b"", "utf-8"
    for charset, kind, body in _WORD.findall(found[0]):  # noqa: B007 - one charset a header
        if kind in "bB":
            raw += base64.b64decode(body)
        else:
            raw += quopri.decodestring(body.replace("_", " "))
    return raw.decode(charset, "replace")


def _author(name: str, headers: dict[str, tuple[int, str]]) -> Signature:
    line, value = headers["from"]
    found = re.fullmatch(r"(.*?)\s*<([^<>\n]*)>", value, re.DOTALL)
    if not found:
        raise MailError(name, line, f"not an author with an address: {value!r}")
    who = found[1]
    quoted = re.fullmatch(r'"((?:[^"\\]|\\.)*)"', who, re.DOTALL)
    who = re.sub(r"\\(.)", r"\1", quoted[1]).replace("\n", " ") if quoted else _words(who)
    return Signature(name=who, email=found[2], date=_date(name, *headers["date"]))


def _date(name: str, line: int, value: str) -> str:
    """Return git's raw date of an RFC 2822 one."""
    found = _DATE.fullmatch(value)
    if not found or found[2] not in _MONTHS:
        raise MailError(name, line, f"not a date: {value!r}")
    day, year, hour, minute, second = (int(found[n]) for n in (1, 3, 4, 5, 6))
    utc = calendar.timegm((year, _MONTHS.index(found[2]) + 1, day, hour, minute, second))
    offset = int(found[8]) * 3600 + int(found[9]) * 60
    seconds = utc - offset if found[7] == "+" else utc + offset
    return f"{seconds} {found[7]}{found[8]}{found[9]}"
