"""What the upper layers of an image hide of the lower ones, by whiteouts and by what they hold.

The one reader of these rules, so that everything that looks into an image sees the same of it.
Paths are relative to the image's root, without a leading slash. Source: OCI image spec, layer.md.
"""

from elsa_build.images.oci.layer import OPAQUE, WHITEOUT


class Cover:
    """What some layers hide of the layers below them; never what they bring themselves."""

    def __init__(self) -> None:
        self.gone: set[str] = set()  # with everything below it
        self.opaque: set[str] = set()  # only what is below
        self.folders: set[str] = set()  # hides a file of that name, not what is below

    def take(self, path: str, *, folder: bool) -> bool:
        """Take in a member of a layer; say whether it is something to see, so no marker."""
        parent, slash, name = path.rpartition("/")
        if name == OPAQUE:
            self.opaque.add(parent)
            return False
        if name.startswith(WHITEOUT):
            self.gone.add(f"{parent}{slash}{name.removeprefix(WHITEOUT)}")
            return False
        (self.folders if folder else self.gone).add(path)
        while path and (path := path.rpartition("/")[0]) not in self.folders:
            self.folders.add(path)
        return True

    def extend(self, other: "Cover") -> None:
        """Take in what another layer hides."""
        self.gone |= other.gone
        self.opaque |= other.opaque
        self.folders |= other.folders

    def hides(self, path: str) -> bool:
        """Say whether a file at this path, in a layer below, cannot be seen."""
        return path in self.folders or self.hides_folder(path)

    def hides_folder(self, path: str) -> bool:
        """Say whether a folder at this path, in a layer below, is not part of what is seen."""
        if path in self.gone:
            return True
        while path:
            path = path.rpartition("/")[0]
            if path in self.gone or path in self.opaque:
                return True
        return False
