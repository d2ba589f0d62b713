"""Upstream from published releases, for a machine with a package index and no git host.

A release's source tree becomes one commit without a parent, `python/sglang/...`, with a tag
`vX.Y.Z`. Author, date, message and file modes are fixed, so the same release has the same commit id
on every machine, whichever of its wheels was used and whatever else was imported before. The branch
`releases` is the newest release that the cache holds; it moves by pointing elsewhere, and nothing
but a person who looks around depends on it.

All files have mode 100644: the wheels of one release do not agree on executable bits (0.5.23: 16
files are executable in the x86_64 wheel and not in the aarch64 one).
"""

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from elsa_build.errors import ConfigError, ToolError
from elsa_build.git.door import COMMITTER, Git
from elsa_build.git.objects import FILE
from elsa_build.model import Artifact, Oid, Pin, SourceKind
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream import pip, wheel
from elsa_build.upstream.cache import disk_full, mirror_path, open_mirror
from elsa_build.upstream.pip import Target

PREFIX = "python/"
"""Where upstream's repository keeps the package, so that patches fit both sources."""

DATE = "1980-01-01T00:00:00+00:00"
_DATE = "315532800 +0000"
"""pip does not tell when a release was made; this is the earliest time that zip files can hold."""


FORMAT = 1
"""Rises when the same wheel would give another commit, so that an old cache is not believed."""

# A pack is as quick to write as loose objects (5,765 files: 2.3 s, 2.2 s), is read twice as fast
# and appears in one rename; looking for deltas would take 1.6 s more and save nothing.
_FAST_IMPORT = ("-c", "pack.compression=1", "fast-import", "--quiet", "--depth=0", "--done")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSource:
    """Releases of one package, `url` being its name on the person's package index."""

    url: str
    cache: Path
    target: Target = field(default_factory=Target)
    progress: Progress = SILENT

    def __post_init__(self) -> None:
        """Refuse what is not the name of a package.

        Raises:
            ConfigError: It is not one.
        """
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", self.url):
            raise ConfigError(f"'{self.url}' is not the name of a package")

    @property
    def package(self) -> str:
        """Return the package's name in its canonical spelling, which every id is made with."""
        return str(canonicalize_name(self.url))

    def resolve(self, ref: str) -> Pin:
        """Return the pin of a release: `0.5.23`, `v0.5.23`, or `latest` for the newest final one.

        A release that the cache holds needs no network; `latest` always asks the index.

        Raises:
            ConfigError: There is no such release.
            ToolError: The index, pip or the disk failed.
        """
        version = None if ref == "latest" else _version(ref)
        with self._mirror() as git:
            path = self._cached(version) if version else None
            if path is None:
                wanted = f"{self.package}=={version}" if version else self.package
                path = self._download(wanted, self.target)
            version = self._version_of(path)
            artifact = Artifact(filename=path.name, sha256=path.parent.name)
            commit = self._commit(git, path, version)
            return Pin(
                source=SourceKind.RELEASE,
                url=self.package,
                ref=f"v{version}",
                commit=commit,
                tree=git.commit(commit).tree,
                date=DATE,
                artifacts=(artifact,),
                requires=wheel.requires(path),
            )

    def ensure(self, pin: Pin) -> Path:
        """Return the bare repository that holds the pin's commit, importing it when needed.

        Raises:
            ConfigError: The pin names no wheel, or its wheels do not hold the pinned tree.
            ToolError: The index, pip or the disk failed, or a wheel has another sha256.
        """
        with self._mirror() as git:
            if git.find(pin.commit) is None:
                if not pin.artifacts:
                    raise ConfigError(
                        "the lock names no wheel of this release", hint=_again(pin.ref)
                    )
                artifact = pin.artifacts[0]
                path = self._verified(artifact, pin)
                found = self._commit(git, path, self._version_of(path))
                if found != pin.commit:
                    raise ConfigError(
                        f"{artifact.filename} holds commit {found}, the lock says {pin.commit}",
                        hint=_again(pin.ref),
                    )
            if (tree := git.commit(pin.commit).tree) != pin.tree:
                raise ConfigError(
                    f"commit {pin.commit} has tree {tree}, the lock says {pin.tree}",
                    hint=_again(pin.ref),
                )
            return git.directory

    def update(self, pin: Pin) -> Pin:
        """Return the pin of the newest final release, with a wheel for each Python pinned now.

        Raises:
            ConfigError: The newest release lacks a wheel that the pin has.
            ToolError: The index, pip or the disk failed.
        """
        newest = self.resolve("latest")
        pinned = {target_of(file.filename, self.target) for file in pin.artifacts} - {self.target}
        artifacts = list(newest.artifacts)
        for target in sorted(pinned, key=lambda target: (target.python, target.machine)):
            artifacts += replace(self, target=target).resolve(newest.ref).artifacts
        return replace(newest, artifacts=tuple(artifacts))

    def wheel(self, pin: Pin) -> Path:
        """Return the pinned wheel for the target's Python, its sha256 verified.

        Raises:
            ConfigError: The lock has no wheel for this Python.
            ToolError: The index, pip or the disk failed, or the wheel has another sha256.
        """
        fitting = [found for found in pin.artifacts if _fits(found.filename, self.target)]
        if not fitting:
            names = ", ".join(found.filename for found in pin.artifacts) or "none"
            raise ConfigError(
                f"the lock has no wheel for Python {self.target.python} on {self.target.machine}, "
                f"it has: {names}",
                hint=f"{_again(pin.ref)} --python {self.target.python}",
            )
        with self._mirror():
            return self._verified(fitting[0], pin)

    # --- wheels -----------------------------------------------------------------------------

    def _mirror(self) -> AbstractContextManager[Git]:
        return open_mirror(mirror_path(self.cache, self.package), self.progress)

    def _cached(self, version: Version) -> Path | None:
        """Return a wheel of this release for the target that is in the cache, intact."""
        for path in sorted((self.cache / "wheels").glob("*/*.whl")):
            same = _parse(path.name) == (self.package, version)
            if same and _fits(path.name, self.target) and wheel.sha256(path) == path.parent.name:
                return path
        return None

    def _verified(self, artifact: Artifact, pin: Pin) -> Path:
        """Return exactly the file that the lock names, from the cache or from the index."""
        path = self.cache / "wheels" / artifact.sha256 / artifact.filename
        if path.is_file() and wheel.sha256(path) == artifact.sha256:
            return path
        _, version = _parse(artifact.filename)
        path = self._download(
            f"{self.package}=={version}", target_of(artifact.filename, self.target)
        )
        if path.parent.name != artifact.sha256:
            raise ToolError(
                f"{path.name} from your package index has sha256 {path.parent.name}, "
                f"the lock wants {artifact.filename} with {artifact.sha256}",
                hint=f"{_again(pin.ref)}, if you trust the new file",
            )
        return path

    def _download(self, requirement: str, target: Target) -> Path:
        """Download a wheel, check it, and move it to where its sha256 says."""
        scratch = self.cache / "tmp" / self.package
        # Left by a run that was killed: the mirror's lock says that nobody else uses it.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            fresh = pip.download(requirement, target, scratch, self.progress)
            wheel.check(fresh)
            place = self.cache / "wheels" / wheel.sha256(fresh)
            place.mkdir(parents=True, exist_ok=True)
            return fresh.replace(place / fresh.name)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _version_of(self, path: Path) -> Version:
        name, version = _parse(path.name)
        if name != self.package or version is None:
            raise ToolError(f"the package index answered {path.name} when asked for {self.package}")
        return version

    # --- commits ----------------------------------------------------------------------------

    def _commit(self, git: Git, path: Path, version: Version) -> Oid:
        """Return the commit of a wheel's source, importing it when the cache has not yet."""
        ref = f"refs/elsa/wheels/{FORMAT}/{path.parent.name}"
        commit = git.find(ref)
        if commit is None:
            files = wheel.sources(path)
            title = f"import {self.package} {version}, {len(files)} files"
            with self.progress.task(title):
                try:
                    git.run(*_FAST_IMPORT, stdin=_stream(ref, self.package, version, files))
                except ToolError as e:
                    raise disk_full(e, f"cannot import {path.name}") from e
            commit = git.resolve(ref)
        tag = f"refs/tags/v{version}"
        moves = {tag: (commit, git.find(tag))}
        newest = max((version, *_releases(git)))
        if newest == version:
            moves["refs/heads/releases"] = (commit, git.find("refs/heads/releases"))
        git.move_refs(moves)
        return commit


def _stream(ref: str, package: str, version: Version, files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the input of `git fast-import` for one commit without a parent."""
    message = f"{package} {version}\n\nSource tree of the published release.\n".encode()
    who = f"{COMMITTER[0]} <{COMMITTER[1]}> {_DATE}"
    parts = [f"commit {ref}\ncommitter {who}\ndata {len(message)}\n".encode(), message]
    for name, body in files:
        path = json.dumps(PREFIX + name, ensure_ascii=False)
        parts += [f"M {FILE} inline {path}\ndata {len(body)}\n".encode(), body, b"\n"]
    parts.append(b"done\n")
    return b"".join(parts)


def _releases(git: Git) -> Iterator[Version]:
    for line in git.text("for-each-ref", "--format=%(refname:lstrip=2)", "refs/tags").split():
        with suppress(InvalidVersion):
            yield Version(line)


def _version(ref: str) -> Version:
    try:
        return Version(ref)
    except InvalidVersion as e:
        raise ConfigError(
            f"'{ref}' is not a release: expected such as 0.5.23, v0.5.23 or latest",
            hint="elsa-build pin set latest --source release",
        ) from e


def _parse(filename: str) -> tuple[str, Version | None]:
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return "", None
    return name, version


def _fits(filename: str, target: Target) -> bool:
    """Say whether a wheel's tags name the target's Python and machine."""
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return False
    pythons = {f"cp{target.python.replace('.', '')}", "py3"}
    return any(
        tag.interpreter in pythons
        and (tag.platform == "any" or tag.platform.endswith(f"_{target.machine}"))
        for tag in tags
    )


def target_of(filename: str, default: Target) -> Target:
    """Return the target that a wheel's file name speaks of."""
    python, machine = default.python, default.machine
    for tag in parse_wheel_filename(filename)[3]:
        if found := re.fullmatch(r"cp(\d)(\d+)", tag.interpreter):
            python = f"{found[1]}.{found[2]}"
        if found := re.search(r"_(x86_64|aarch64)$", tag.platform):
            machine = found[1]
    return Target(python=python, machine=machine)


def _again(ref: str) -> str:
    return f"elsa-build pin set {ref} --source release"
