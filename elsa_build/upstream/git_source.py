"""Upstream from a git repository: any address or local path, mirrored bare in the cache.

An address is fetched without blobs where the server can (a partial clone); those of a pinned tree
are then fetched in one go, since git would otherwise fetch each when it is read. A local path is
borrowed from (`objects/info/alternates`), not copied, and never written to.
"""

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

from packaging.version import InvalidVersion, Version

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import Git
from elsa_build.model import Oid, Pin, SourceKind
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream.cache import mirror_path, open_mirror
from elsa_build.upstream.fetch import ALLOWED, fetch
from elsa_build.upstream.requirements import from_pyproject

NIGHTLY = "nightly"
DEFAULT_BRANCH = "main"
PYPROJECT = "python/pyproject.toml"
_EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_OPTIONS = ("--prune", "--force", "--no-write-fetch-head", "--update-shallow")
_OID = re.compile(r"[0-9a-f]{40}")
_SHORT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitSource:
    """One git repository; `url` is its address or path, `branch` what `nightly` means."""

    url: str
    cache: Path
    branch: str = DEFAULT_BRANCH
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        """Refuse an address that git would take for something else.

        Raises:
            ConfigError: The protocol is not one of https, ssh and file, or it is an option.
        """
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)", self.url)
        if not self.url or self.url.startswith("-"):
            raise ConfigError(f"'{self.url}' is not the address of a git repository")
        if scheme and scheme[1].lower() not in ALLOWED:
            raise ConfigError(
                f"protocol '{scheme[1]}' is not allowed in {self.address}: "
                f"use {', '.join(ALLOWED)} or a local path"
            )

    @property
    def local(self) -> Path | None:
        """Return the path when the source is on this machine."""
        if self.url.lower().startswith("file://"):
            return Path(url2pathname(urlsplit(self.url).path))
        path = Path(self.url).expanduser()
        if "://" in self.url or (":" in self.url and not path.exists()):
            return None
        return path.resolve()

    @property
    def address(self) -> str:
        """Return the address as it may be shown and locked: absolute, without a password."""
        if self.local:
            return str(self.local)
        return plain(self.url)

    # --- the interface ----------------------------------------------------------------------

    def resolve(self, ref: str) -> Pin:
        """Return the pin of a tag, branch, commit, short commit id, or `nightly`.

        Tags and commits that the mirror holds need no network; a branch is always asked for.

        Raises:
            ConfigError: There is no such name, or a short id is ambiguous.
            ToolError: The repository cannot be reached, or git or the disk failed.
        """
        with self._mirror() as git:
            commit = self._settled(git, ref)
            if commit is None:
                self._fetch(git)
                commit = self._named(git, ref)
            if commit is None and _OID.fullmatch(ref):
                commit = self._fetch_commit(git, Oid(ref))
            if commit is None:
                raise self._unknown(git, ref)
            named = self.branch if ref == NIGHTLY and self.branch != DEFAULT_BRANCH else ref
            return self._pin(git, named, commit)

    def ensure(self, pin: Pin) -> Path:
        """Return the mirror, holding the pin's commit with every file of its tree.

        Raises:
            ConfigError: The repository no longer has the commit, or its tree is another.
            ToolError: The repository cannot be reached, or git or the disk failed.
        """
        with self._mirror() as git:
            if git.find(pin.commit) is None:
                self._fetch(git)
            if git.find(pin.commit) is None and self._fetch_commit(git, pin.commit) is None:
                raise ConfigError(
                    f"{self.address} no longer has commit {pin.commit} ({pin.ref})",
                    hint=f"elsa-build pin set {pin.ref} --source git",
                )
            if (tree := git.commit(pin.commit).tree) != pin.tree:
                raise ConfigError(
                    f"commit {pin.commit} has tree {tree}, the lock says {pin.tree}",
                    hint=f"elsa-build pin set {pin.ref} --source git",
                )
            self._keep(git, pin.commit)
            return git.directory

    def update(self, pin: Pin) -> Pin:
        """Return the pin of the branch's tip, or of the newest release tag when a tag is pinned.

        Raises:
            ConfigError: The pin is a single commit, which has nothing newer.
            ToolError: The repository cannot be reached, or git or the disk failed.
        """
        with self._mirror() as git:
            self._fetch(git)
            tags = git.text("for-each-ref", "--format=%(refname:lstrip=2)", "refs/tags").split()
            ref = pin.ref
            if ref in tags:
                ref = max([ref, *(tag for tag in tags if _final(tag))], key=_order)
            commit = self._named(git, ref)
            if commit is None or _SHORT.fullmatch(ref):
                raise ConfigError(
                    f"'{ref}' is a single commit, which has nothing newer",
                    hint="elsa-build pin set nightly --source git",
                )
            return self._pin(git, ref, commit)

    def complete(self, since: Oid, until: Oid) -> None:
        """Fetch the files that the commits after `since` up to `until` changed, all in one go.

        A mirror of an address lacks them, and git would fetch each when it is read.

        Raises:
            ToolError: The repository cannot be reached, or git or the disk failed.
        """
        with self._mirror() as git:
            self._complete(git, f"{since}..{until}")

    # --- names ------------------------------------------------------------------------------

    def _settled(self, git: Git, ref: str) -> Oid | None:
        """Return what a name means when no fetch could change it."""
        if ref == NIGHTLY:
            return None
        if tag := git.find(f"refs/tags/{ref}"):
            return tag
        if git.find(f"refs/heads/{ref}"):
            return None
        return git.find(ref) if _SHORT.fullmatch(ref) else None

    def _named(self, git: Git, ref: str) -> Oid | None:
        if ref == NIGHTLY:
            return git.find(f"refs/heads/{self.branch}")
        for name in (f"refs/tags/{ref}", f"refs/heads/{ref}", ref):
            if found := git.find(name):
                return found
        return None

    def _unknown(self, git: Git, ref: str) -> ConfigError:
        if _SHORT.fullmatch(ref):
            known = git.text("rev-parse", f"--disambiguate={ref}").split()
            commits = [oid for oid in known if git.find(oid) == oid]
            if len(commits) > 1:
                return ConfigError(
                    f"'{ref}' is the beginning of {len(commits)} commits: {', '.join(commits)}"
                )
        wanted = self.branch if ref == NIGHTLY else ref
        refs = git.text("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads", "refs/tags")
        near = difflib.get_close_matches(wanted, refs.split(), n=3)
        return ConfigError(
            f"unknown ref '{wanted}' in {self.address}"
            + (f"; near: {', '.join(near)}" if near else ""),
            hint=f"elsa-build pin set {near[0]} --source git" if near else None,
        )

    def _pin(self, git: Git, ref: str, commit: Oid) -> Pin:
        self._keep(git, commit)
        entry = git.objects.find(git.commit(commit).tree, PYPROJECT)
        requires = from_pyproject(git.objects.blob(entry.oid), PYPROJECT) if entry else ()
        return Pin(
            source=SourceKind.GIT,
            url=self.address,
            ref=ref,
            commit=commit,
            tree=git.commit(commit).tree,
            date=git.text("log", "-1", "--format=%cI", "--end-of-options", commit),
            requires=requires,
        )

    # --- the mirror -------------------------------------------------------------------------

    @contextmanager
    def _mirror(self) -> Iterator[Git]:
        """Open the mirror, set up to fetch from the source and from nowhere else."""
        local = self.local
        objects = _objects(local) if local else None
        with open_mirror(mirror_path(self.cache, self.address), self.progress) as git:
            known = git.run("config", "--get", "remote.origin.url", ok=(0, 1))[1].decode().strip()
            # A password is kept from the run that gave it, since the lock has the plain address.
            if plain(known) != self.address or plain(self.url) != self.url:
                git.run("config", "protocol.allow", "never")
                for name in ALLOWED:
                    git.run("config", f"protocol.{name}.allow", "always")
                git.run("config", "remote.origin.url", str(local or self.url))
            if objects:
                alternates = git.directory / "objects" / "info" / "alternates"
                alternates.parent.mkdir(exist_ok=True)
                alternates.write_text(f"{objects}\n", encoding="utf-8")
            yield git

    def _fetch(self, git: Git, *refspecs: str) -> None:
        partial = () if self.local else ("--filter=blob:none",)
        wanted = refspecs or _EVERYTHING
        options = _OPTIONS if not refspecs else _OPTIONS[1:]
        fetch(git, self.address, *options, *partial, "origin", *wanted, progress=self.progress)

    def _fetch_commit(self, git: Git, commit: Oid) -> Oid | None:
        """Fetch one commit that no branch or tag holds, where the server gives it out."""
        try:
            self._fetch(git, f"{commit}:refs/elsa/pins/{commit}")
        except ToolError:
            return None
        return git.find(commit)

    def _keep(self, git: Git, commit: Oid) -> None:
        """Hold on to a commit, whatever upstream does to its branches, with all of its files."""
        ref = f"refs/elsa/pins/{commit}"
        git.move_refs({ref: (commit, git.find(ref))})
        self._complete(git, "--no-walk", commit)

    def _complete(self, git: Git, *revisions: str) -> None:
        """Fetch what a partial clone lacks of the files of some commits."""
        if git.run("config", "--get", "remote.origin.promisor", ok=(0, 1))[1] == b"":
            return
        listed = git.text("rev-list", "--objects", "--missing=print", *revisions)
        missing = [line[1:] for line in listed.splitlines() if line.startswith("?")]
        if missing:
            wanted = "\n".join([*missing, ""]).encode()
            args = ("--no-tags", "--no-write-fetch-head", "--filter=blob:none", "--stdin", "origin")
            fetch(git, self.address, *args, progress=self.progress, wants=wanted)


def plain(url: str) -> str:
    """Return an address without the name and password that an https one may carry."""
    parts = urlsplit(url)
    if parts.scheme != "https" or "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _objects(path: Path) -> Path:
    """Return where a local repository keeps its objects (a linked work tree's lie elsewhere)."""
    if not path.exists():
        raise ConfigError(f"{path}: no such folder or repository")
    with Git(path) as git:
        return Path(git.text("rev-parse", "--path-format=absolute", "--git-path", "objects"))


def _final(tag: str) -> bool:
    try:
        return not Version(tag).is_prerelease
    except InvalidVersion:
        return False


def _order(tag: str) -> Version:
    try:
        return Version(tag)
    except InvalidVersion:
        return Version("0")
