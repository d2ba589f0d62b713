"""Looks into a base for the SGLang that it holds: where it lives, and whether it is the pinned one.

A patch that lands beside the package that runs does nothing, silently; a patch on another tree than
the one it was replayed on is untested. So the place is found, not assumed, and every file's git id
is compared with the pin's tree before a delta goes on top.
"""

import gzip
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlparse

from elsa_build.errors import ConfigError, FailedError
from elsa_build.git.objects import blob_id
from elsa_build.images.oci.archive import read_archive
from elsa_build.images.oci.contents import clean_name, entries
from elsa_build.images.oci.layer import OPAQUE, WHITEOUT
from elsa_build.images.oci.layout import read_layout
from elsa_build.images.oci.stored import FolderSource, StoredImage, StoredLayer
from elsa_build.model import Oid
from elsa_build.progress import SILENT, Progress

PACKAGE = "sglang"
SHOWN = 20
"""How many differing files an error names; it always says how many there are."""

_GENERATED = re.compile(r"sglang/_version\.py|.*\.(so|pyd|pyc)|(.*/)?__pycache__/.*")
"""What an installation makes and no source tree holds: compiled files, the version stamp."""

_METADATA = re.compile(
    r"(?P<site>.*)/sglang-(?P<version>[^/]+)\.dist-info/(METADATA|direct_url\.json)"
    r"|(?P<site2>.*)/[^/]*sglang[^/]*\.(pth|egg-link)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFindings:
    """What a base holds.

    `package_dir` is absolute; `python` is None where no path tells; the file lists are relative to
    `package_dir` (`sglang/...`), sorted. `paths` are all the package's files there, generated and
    compiled ones too: what a delta may have to hide.
    """

    package_dir: str
    python: str | None
    editable: bool
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    paths: frozenset[str] = frozenset()

    @property
    def equal(self) -> bool:
        """Say whether the base's tree is the pinned one."""
        return not (self.changed or self.missing or self.extra)


def open_base(path: Path) -> StoredImage:
    """Return the only image of an OCI layout folder, or of an archive of any kind.

    Raises:
        ConfigError: It is neither, a blob is missing or cut short, it holds several images, or the
            image is not for linux/amd64 (exit 5).
    """
    if path.is_dir():
        image = read_layout(FolderSource(path))
    elif path.is_file():
        image = read_archive(path)
    else:
        raise ConfigError(f"base {path}: no such file or folder")
    if image.platform != "linux/amd64":
        raise ConfigError(f"base {path} is for {image.platform}, not linux/amd64")
    return image


def inspect(
    image: StoredImage,
    tree: Mapping[str, Oid],
    *,
    package_dir: str | None = None,
    progress: Progress = SILENT,
) -> BaseFindings:
    """Find SGLang in a base and compare it with a tree.

    Args:
        image: The base; its layers are read as streams, once each, the top one first.
        tree: The pinned package: path relative to the package's folder (`sglang/...`) to git id.
        package_dir: Where the package must be; None finds it.
        progress: Told of every layer.

    Returns:
        The place and the differences, which are not an error here; see `check`.

    Raises:
        ConfigError: No SGLang is there, not where the recipe says, or in several places; or a
            layer is broken (exit 5).
    """
    survey = _Survey()
    for number, layer in enumerate(reversed(image.layers), 1):
        with (
            progress.task(f"look into layer {number} of {len(image.layers)} of the base"),
            _unbroken(f"{image.source.place}: {layer.file}"),
        ):
            survey.read(image, layer)
    where = _choose(survey, package_dir)
    prefix = f"{where.lstrip('/')}/" if where != "/" else ""
    inside = {
        path.removeprefix(prefix): oid
        for path, oid in survey.files.items()
        if path.startswith(f"{prefix}{PACKAGE}/")
    }
    found = {path: oid for path, oid in inside.items() if not _GENERATED.fullmatch(path)}
    wanted = {path: oid for path, oid in tree.items() if not _GENERATED.fullmatch(path)}
    return BaseFindings(
        package_dir=where,
        python=_python(where, survey),
        editable=where in survey.editable,
        changed=tuple(sorted(p for p in found.keys() & wanted.keys() if found[p] != wanted[p])),
        missing=tuple(sorted(wanted.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - wanted.keys())),
        paths=frozenset(inside),
    )


def check(findings: BaseFindings, *, base: str, commit: str, python: str) -> None:
    """Refuse a base that is not what the series was replayed on.

    Raises:
        FailedError: Files differ (the first 20 named, all counted), or the base's Python is
            another one than the recipe's (exit 7).
    """
    if findings.python and findings.python != python:
        raise FailedError(f"base {base} has Python {findings.python}, the recipe says {python}")
    if findings.equal:
        return
    lines = [
        *(f"  changed  {path}" for path in findings.changed),
        *(f"  missing  {path}" for path in findings.missing),
        *(f"  extra    {path}" for path in findings.extra),
    ]
    more = [f"  and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    raise FailedError(
        f"base {base}: {findings.package_dir}/{PACKAGE} is not the pinned tree of {commit}: "
        f"{len(lines)} files differ ({len(findings.changed)} changed, {len(findings.missing)} "
        f"missing, {len(findings.extra)} extra)\n" + "\n".join([*lines[:SHOWN], *more]),
        hint="pin the release that the base holds: elsa-build pin set REF",
    )


# --- what is visible --------------------------------------------------------------------------


@dataclass(slots=True)
class _Survey:
    """What an image shows of paths that matter, gathered from the top layer down.

    Paths have no leading slash. `covered` are paths below which lower layers are hidden: deleted,
    or a file or link on top of a folder. `opaque` are folders whose lower content is hidden.
    """

    files: dict[str, Oid] = field(default_factory=dict)
    editable: set[str] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    covered: set[str] = field(default_factory=set)
    opaque: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def read(self, image: StoredImage, layer: StoredLayer) -> None:
        """Add one layer below those already read."""
        own = _Survey()
        links: dict[str, str] = {}
        for path, member, tar in entries(image, layer):
            if own.mark(path, is_folder=member.isdir()) and _matters(path):
                if member.islnk():
                    links[path] = clean_name(member.linkname)
                else:
                    self.take(path, member, tar, own)
        own.files |= _follow(image, layer, links, own.files)
        for path, oid in own.files.items():
            if not self.hidden(path):
                self.files.setdefault(path, oid)
        # A layer's marks hide what is below it, never what it brings itself.
        self.covered |= own.covered
        self.opaque |= own.opaque
        self.folders |= own.folders

    def mark(self, path: str, *, is_folder: bool) -> bool:
        """Note what an entry hides in lower layers; say whether it is a file or a link."""
        folder, _, name = path.rpartition("/")
        if name == OPAQUE:
            self.opaque.add(folder)
        elif name.startswith(WHITEOUT):
            self.covered.add(f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"))
        elif is_folder:
            self.folders.add(path)
        else:
            self.covered.add(path)
            return True
        return False

    def take(
        self, path: str, member: tarfile.TarInfo, tar: tarfile.TarFile, layer: "_Survey"
    ) -> None:
        """Hash a file or a symbolic link into its layer; read what is said of installations."""
        body = member.linkname.encode() if member.issym() else _body(tar, member)
        layer.files[path] = blob_id(body)
        if not self.hidden(path):
            self.note(path, body)

    def hidden(self, path: str) -> bool:
        """Say whether the layers above hide a path."""
        if path in self.covered or path in self.folders:
            return True
        return any(parent in self.covered or parent in self.opaque for parent in _parents(path))

    def note(self, path: str, body: bytes) -> None:
        """Remember where an installation says that the package is."""
        found = _METADATA.fullmatch(path)
        if not found:
            return
        self.sites.add(f"/{found['site'] or found['site2']}")
        if path.endswith("direct_url.json"):
            self.editable |= _editable_target(body)
        elif path.endswith((".pth", ".egg-link")):
            lines = body.decode("utf-8", "replace").splitlines()
            self.editable |= {line.rstrip("/") for line in lines if line.startswith("/")}


@contextmanager
def _unbroken(where: str) -> Iterator[None]:
    """Turn what a cut or damaged layer raises while a body is read into an error of ours."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as e:
        raise ConfigError(f"{where}: broken layer: {e}") from e


def _body(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member) if member.isfile() else None
    return file.read() if file else b""


def _parents(path: str) -> Iterator[str]:
    """Yield every folder above a path, the root (empty) last."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _matters(path: str) -> bool:
    return f"/{PACKAGE}/" in f"/{path}" or bool(_METADATA.fullmatch(path))


def _follow(
    image: StoredImage, layer: StoredLayer, links: Mapping[str, str], files: Mapping[str, Oid]
) -> dict[str, Oid]:
    """Return the ids behind hard links; uv installs by linking from its cache.

    A target whose name did not look interesting is hashed in a second pass over the layer.
    """
    wanted = {target for target in links.values() if target not in files}
    others: dict[str, Oid] = {}
    if wanted:
        for path, member, tar in entries(image, layer):
            if path in wanted and member.isfile():
                others[path] = blob_id(_body(tar, member))
    known = {**others, **files}
    return {path: known[target] for path, target in links.items() if target in known}


# --- where it is ------------------------------------------------------------------------------


def _choose(survey: _Survey, package_dir: str | None) -> str:
    suffix = f"{PACKAGE}/__init__.py"
    places = sorted(
        "/" + path.removesuffix(suffix).rstrip("/")
        for path in survey.files
        if path == suffix or path.endswith(f"/{suffix}")
    )
    # A package of that name inside another one (sglang/test/...) is no installation.
    places = [place for place in places if f"/{PACKAGE}/" not in f"{place}/sub"]
    listed = ", ".join(places)
    if package_dir is not None:
        if package_dir in places:
            return package_dir
        seen = f"it is in {listed}" if places else "it is nowhere else either"
        raise ConfigError(f"base.package_dir: no {PACKAGE} in {package_dir} of the base; {seen}")
    if not places:
        raise ConfigError(f"the base holds no {PACKAGE} (no {suffix} in any layer)")
    # What Python can import comes before copies in caches and checkouts.
    importable = [
        place
        for place in places
        if place in survey.editable
        or PurePosixPath(place).name in ("site-packages", "dist-packages")
    ]
    chosen = importable or places
    if len(chosen) > 1:
        raise ConfigError(
            f"the base holds {PACKAGE} in several places: {', '.join(chosen)}",
            hint="say which in the recipe: base: {package_dir: ...}",
        )
    return chosen[0]


def _editable_target(body: bytes) -> set[str]:
    """Return the folder of an editable installation. Source: PEP 610."""
    try:
        document = json.loads(body)
        editable = document["dir_info"]["editable"] is True
        path = unquote(urlparse(document["url"]).path).rstrip("/")
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
    # A `src` layout would add a folder; SGLang's package lies directly in its project folder.
    return {path} if editable else set()


def _python(place: str, survey: _Survey) -> str | None:
    versions = {
        found[1]
        for site in (place, *survey.sites)
        if (found := re.search(r"/python(3\.\d+)(/|$)", f"{site}/"))
    }
    return versions.pop() if len(versions) == 1 else None
