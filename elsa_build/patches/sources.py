"""Patches as other people keep them, read into one shape.

A folder of numbered files, a quilt series, an mbox and a range of commits differ in where the
order, the author and the words are; after this module they do not. Mails are read by git's own
`mailinfo`, which knows base64, quoted-printable and headers inside the body.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Signature

_MAIL = re.compile(
    rb"From [0-9a-f]{7,64} |(?:From|Subject|Date|Message-Id|MIME-Version): ", re.IGNORECASE
)
_DIFF = re.compile(rb"^(?:diff -|Index: |--- )", re.MULTILINE)
_FIELD = re.compile(r"(Description|Subject|Author|From):[ \t]*(.*)", re.IGNORECASE)
_SUFFIXES = (".patch", ".diff", ".eml", ".mbox")


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """One patch from outside. `name` is its file or commit; author None means unknown.

    `strip` is patch(1)'s `-p`; `message` may be empty; `diff` may have any text in front.
    """

    name: str
    message: str
    author: Signature | None
    diff: bytes
    strip: int = 1
    reverse: bool = False
    commit: Oid | None = None
    had_crlf: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a source holds, in order, and the file names in it that were not taken."""

    patches: tuple[Incoming, ...]
    ignored: tuple[str, ...] = ()


def read(git: Git, path: Path, *, strip: int = 1) -> Found:
    """Return the patches of a folder, a quilt `series` file, an mbox, a mail or a diff.

    A folder with a file `series` is quilt's; else its files are taken in natural order
    (`9 < 10 < 10b`), whatever the locale.

    Raises:
        ConfigError: There is no patch there, or the series names a missing file (exit 5).
    """
    if path.is_dir() and (path / "series").is_file():
        path = path / "series"
    if path.is_dir():
        found = _folder(git, path, strip)
    elif path.name == "series":
        found = Found(patches=tuple(_quilt(git, path, strip)))
    else:
        found = Found(patches=tuple(_file(git, path, path.name, strip)))
    if not found.patches:
        raise ConfigError(f"{path}: no patches there")
    return found


def named(git: Git, word: str, *, strip: int = 1) -> tuple[Oid | None, Found]:
    """Return what a person named: a path, a range `A..B` or a commit; a range has a start.

    Raises:
        ConfigError: There is nothing of that name (exit 5).
    """
    if Path(word).exists():
        return None, read(git, Path(word), strip=strip)
    if ".." in word:
        return of_range(git, word)
    commit = git.find(word)
    if commit is None:
        raise ConfigError(f"'{word}' is neither a file nor a commit in {git.path}")
    return None, Found(patches=(of_commit(git, commit),))


def of_range(git: Git, revisions: str) -> tuple[Oid, Found]:
    """Return where a range `A..B` starts and its commits as patches, oldest first.

    Raises:
        ConfigError: It is no range, a revision is unknown, or it holds a merge (exit 5).
    """
    old, dots, new = revisions.partition("..")
    if not dots or not old or not new or new.startswith("."):
        raise ConfigError(f"'{revisions}' is not a range A..B of commits")
    start, end = git.resolve(old), git.resolve(new)
    commits = git.text("rev-list", "--reverse", "--topo-order", f"{start}..{end}").split()
    if not commits:
        raise ConfigError(f"{revisions}: no commits there")
    return start, Found(patches=tuple(of_commit(git, Oid(oid)) for oid in commits))


def of_commit(git: Git, oid: Oid) -> Incoming:
    """Return a commit as a patch against its only parent.

    Raises:
        ConfigError: It is a merge or a root (exit 5).
    """
    commit = git.commit(oid)
    if len(commit.parents) != 1:
        raise ConfigError(f"{oid} is a merge or a root; a patch has one parent")
    options = ("--full-index", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv")
    return Incoming(
        name=oid,
        message=commit.message,
        author=commit.author,
        diff=git.run("diff-tree", "-p", *options, commit.parents[0], oid)[1],
        commit=oid,
    )


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts `9-x` before `10-x`, and `10-x` before `10b-x`, everywhere."""
    parts = re.findall(r"(\d+)(\D*)|(\D+)", name)
    return [(not digits, int(digits or 0), text or head) for digits, text, head in parts]


# --- folders and files ------------------------------------------------------------------------


def _folder(git: Git, folder: Path, strip: int) -> Found:
    patches: list[Incoming] = []
    ignored: list[str] = []
    for path in sorted(folder.iterdir(), key=lambda path: (natural(path.name), path.name)):
        if path.is_file() and path.suffix in _SUFFIXES:
            patches += _file(git, path, path.name, strip)
        else:
            ignored.append(path.name)
    return Found(patches=tuple(patches), ignored=tuple(ignored))


def _quilt(git: Git, series: Path, strip: int) -> Iterator[Incoming]:
    text = _bytes(series).decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), 1):
        name, *options = re.sub(r"(^|\s)#.*", "", line).split() or [""]
        if not name:
            continue
        level, reverse = strip, False
        for option in options:
            if re.fullmatch(r"-p\d|-pab", option):
                level = 1 if option == "-pab" else int(option[2:])
            elif option == "-R":
                reverse = True
            else:
                raise ConfigError(f"{series}:{number}: unknown option '{option}'")
        path = series.parent / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ConfigError(f"{series}:{number}: '{name}' is outside the folder")
        if not path.is_file():
            raise ConfigError(f"{series}:{number}: '{name}' is missing")
        yield from _file(git, path, name, level, reverse=reverse)


def _file(
    git: Git, path: Path, name: str, strip: int, *, reverse: bool = False
) -> Iterator[Incoming]:
    raw = _bytes(path)
    lines = raw.split(b"\n")
    crlf = len(lines) > 1 and all(line.endswith(b"\r") for line in lines[:-1])
    if crlf:
        raw = raw.replace(b"\r\n", b"\n")
    if _is_mail(raw):
        yield from _mails(git, raw, name, strip, crlf=crlf, reverse=reverse)
        return
    found = _DIFF.search(raw)
    if not found:
        raise ConfigError(f"{path}: no patch in it")
    message, author = _words(raw[: found.start()].decode("utf-8", "replace"))
    yield Incoming(
        name=name,
        message=message,
        author=author,
        diff=raw[found.start() :],
        strip=strip,
        reverse=reverse,
        had_crlf=crlf,
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigError(f"{path}: cannot read: {e.strerror}") from e


def _words(text: str) -> tuple[str, Signature | None]:
    """Return the message in front of a plain diff and the author that a DEP-3 header names.

    No date is known there: the signature's `date` is empty.
    """
    lines = [line for line in text.strip().split("\n") if line != "---"]
    fields = {found[1].lower(): found[2] for found in map(_FIELD.fullmatch, lines) if found}
    title = fields.get("description") or fields.get("subject")
    author = None
    who = re.fullmatch(r"(.+?)\s*<([^<>]+)>", fields.get("author") or fields.get("from") or "")
    if who:
        author = Signature(name=who[1], email=who[2], date="")
    if title:
        lines = [title, "", *(line for line in lines if not _FIELD.fullmatch(line))]
    return "\n".join(line.removeprefix(" ") for line in lines).strip(), author


# --- mails ------------------------------------------------------------------------------------


def _is_mail(raw: bytes) -> bool:
    head = raw.lstrip(b"\n").partition(b"\n\n")[0]
    if not _MAIL.match(head):
        return False
    lines = head.split(b"\n")
    return all(re.match(rb"From |[ \t]|[!-9;-~]+:", line) for line in lines)


def _mails(
    git: Git, raw: bytes, name: str, strip: int, *, crlf: bool, reverse: bool
) -> Iterator[Incoming]:
    with tempfile.TemporaryDirectory(prefix="elsa-mbox-") as temporary:
        folder = Path(temporary)
        # Without --keep-cr git would drop the CR of files whose lines really end in CRLF.
        git.run("mailsplit", "-b", "--keep-cr", f"-o{folder}", stdin=raw)
        parts = sorted(path for path in folder.iterdir() if path.name.isdigit())
        for number, part in enumerate(parts, 1):
            _, out = git.run(
                "mailinfo",
                "-b",
                "--encoding=UTF-8",
                "--no-scissors",
                str(folder / "message"),
                str(folder / "diff"),
                stdin=part.read_bytes(),
            )
            headers = _headers(out.decode("utf-8", "replace").split("\n"))
            body = (folder / "message").read_bytes().decode("utf-8", "replace").strip("\n")
            yield Incoming(
                name=name if len(parts) == 1 else f"{name}#{number}",
                message=f"{headers.get('Subject', '')}\n\n{body}",
                author=_signature(headers),
                diff=(folder / "diff").read_bytes(),
                strip=strip,
                reverse=reverse,
                had_crlf=crlf,
            )


def _headers(lines: Iterable[str]) -> dict[str, str]:
    pairs = (line.partition(": ") for line in lines)
    return {key: value for key, colon, value in pairs if colon}


def _signature(headers: dict[str, str]) -> Signature | None:
    import email.utils  # noqa: PLC0415 - brings sockets along; keeps --help fast

    address = headers.get("Email", "")
    date = email.utils.parsedate_tz(headers.get("Date", ""))
    if not address or date is None:
        return None
    offset = date[9] or 0
    sign, minutes = ("-" if offset < 0 else "+"), abs(offset) // 60
    zone = f"{sign}{minutes // 60:02}{minutes % 60:02}"
    seconds = email.utils.mktime_tz(date)
    return Signature(name=headers.get("Author") or address, email=address, date=f"{seconds} {zone}")
