"""Reads a base's layers once, from the top down, and keeps of them what a delta must know.

That is SGLang's files as git would name them, what installations say of themselves, and the folders
that are not 755 and root's: a layer that writes into one must say again how it is kept.
"""

import json
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import unquote, urlparse

from elsa_build.errors import ConfigError
from elsa_build.git.objects import blob_id
from elsa_build.images.oci.contents import clean_name, entries
from elsa_build.images.oci.cover import Cover
from elsa_build.images.oci.layer import USUAL, Folder
from elsa_build.images.oci.stored import StoredImage, StoredLayer
from elsa_build.model import Oid

PACKAGE = "sglang"

_METADATA = re.compile(
    r"(?P<site>.*)/sglang-(?P<version>[^/]+)\.dist-info/(METADATA|direct_url\.json)"
    r"|(?P<site2>.*)/[^/]*sglang[^/]*\.(pth|egg-link)"
)


@dataclass(slots=True)
class Survey:
    """What an image shows of paths that matter, gathered from the top layer down.

    Paths have no leading slash. `editable` are folders that editable installations point to,
    `sites` those that hold an installation's metadata (both absolute). `folders` are all that an
    entry describes, `links` all symbolic links outside of packages.
    """

    files: dict[str, Oid] = field(default_factory=dict)
    editable: set[str] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    folders: dict[str, Folder] = field(default_factory=dict)
    links: set[str] = field(default_factory=set)
    _cover: Cover = field(default_factory=Cover)

    def read(self, image: StoredImage, layer: StoredLayer) -> None:
        """Add one layer below those already read."""
        own, files, folders = Cover(), dict[str, Oid](), dict[str, Folder]()
        hard: dict[str, str] = {}
        with entries(image, layer) as members:
            for path, member, tar in members:
                if not own.take(path, folder=member.isdir()):
                    continue
                if member.isdir():
                    folders[path] = Folder(mode=member.mode, uid=member.uid, gid=member.gid)
                elif _matters(path) and member.islnk():
                    hard[path] = clean_name(member.linkname)
                elif _matters(path):
                    files[path] = self._take(path, member, tar)
                elif member.issym() and not self._cover.hides(path):
                    self.links.add(path)
        self._merge(files | _follow(image, layer, hard, files), folders)
        self._cover.extend(own)

    def _merge(self, files: Mapping[str, Oid], folders: Mapping[str, Folder]) -> None:
        """Keep what a layer brings and the layers above it neither hide nor have."""
        for path, oid in files.items():
            if not self._cover.hides(path):
                self.files.setdefault(path, oid)
        for path, folder in folders.items():
            if not self._cover.hides_folder(path):
                self.folders.setdefault(path, folder)

    def unusual(self) -> dict[str, Folder]:
        """Return the folders that are not 755 and root's."""
        return {path: folder for path, folder in self.folders.items() if folder != USUAL}

    def _take(self, path: str, member: tarfile.TarInfo, tar: tarfile.TarFile) -> Oid:
        """Hash a file or a symbolic link; remember where an installation says the package is."""
        body = (
            member.linkname.encode("utf-8", "surrogateescape")
            if member.issym()
            else _body(tar, member)
        )
        said = _METADATA.fullmatch(path)
        if said and not self._cover.hides(path):
            self.sites.add(f"/{said['site'] or said['site2']}")
            if path.endswith("direct_url.json"):
                self.editable |= _editable_target(body)
            elif path.endswith((".pth", ".egg-link")):
                lines = body.decode("utf-8", "replace").splitlines()
                self.editable |= {line.rstrip("/") for line in lines if line.startswith("/")}
        return blob_id(body)


def _body(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member) if member.isfile() else None
    return file.read() if file else b""


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
        with entries(image, layer) as members:
            for path, member, tar in members:
                if path in wanted and member.isfile():
                    others[path] = blob_id(_body(tar, member))
    known = {**others, **files}
    return {path: known[target] for path, target in links.items() if target in known}


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


# --- where it is ------------------------------------------------------------------------------


def choose(survey: Survey, package_dir: str | None) -> str:
    """Return the absolute folder that holds the package.

    Raises:
        ConfigError: It is nowhere, not in `package_dir`, or in several places (exit 5).
    """
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
        raise ConfigError(f"package_dir: no {PACKAGE} in {package_dir} of the base; {seen}")
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
            hint="say which: --package-dir DIR, or base: {package_dir: DIR} in the recipe",
        )
    return chosen[0]


def python_of(place: str, survey: Survey) -> str | None:
    """Return the version of the Python (`3.12`) that imports from a place, if a path says it."""
    versions = {
        found[1]
        for site in (place, *survey.sites)
        if (found := re.search(r"/python(3\.\d+)(/|$)", f"{site}/"))
    }
    return versions.pop() if len(versions) == 1 else None
