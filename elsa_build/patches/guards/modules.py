"""What a tree's own modules are and which names they hold, read from their text.

Nothing is imported: upstream's modules need a GPU. A name counts as held when some statement at
module level may bind it; a module that makes its names at run time is taken at its word.
"""

import re
from dataclasses import dataclass

from elsa_build.patches.guards.bindings import Import
from elsa_build.patches.guards.change import TreeReader
from elsa_build.patches.guards.source import ModuleIndex, Source

_BUILT = (".pyi", ".pyx", ".pxd", ".so", ".proto")
"""A module may come to be at build time from a file with one of these endings beside it."""
_AT_RUN_TIME = re.compile(
    r"\bglobals\(\)|sys\.modules\[__name__\]|^def __getattr__\b", re.MULTILINE
)
_DEFINED = re.compile(r"^(?:async +def|def|class) +(\w+)", re.MULTILINE)
_GLOBALS = re.compile(r"^[ \t]+global +([\w, ]+)", re.MULTILINE)
_ALWAYS = frozenset({"__name__", "__file__", "__doc__", "__path__", "__spec__", "__package__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module of the tree: its directory or its file without ending, and its text if it has one.

    `package` says that names may also be submodules. `source` is absent for a namespace package
    and for a module that is made by a build (`built`).
    """

    place: str
    package: bool
    source: Source | None
    built: bool = False

    @property
    def path(self) -> str:
        """Return the file that holds the module's names."""
        return f"{self.place}/__init__.py" if self.package else f"{self.place}.py"


class Modules:
    """The modules of one tree."""

    def __init__(self, tree: TreeReader, roots: tuple[str, ...], index: ModuleIndex) -> None:
        self._tree = tree
        self._roots = roots
        self._index = index
        self._found: dict[str, Module | None] = {}
        self._names: dict[str, frozenset[str] | None] = {}

    def at(self, place: str) -> Module | None:
        """Return the module at a path without ending, or None."""
        if place not in self._found:
            self._found[place] = self._look(place)
        return self._found[place]

    def places(self, dotted: str) -> tuple[str, ...]:
        """Return where a module of the roots' own packages would be; empty for a foreign one."""
        names = dotted.split(".")
        return tuple(
            f"{root}/{'/'.join(names)}".lstrip("/")
            for root in self._roots
            if self.at(f"{root}/{names[0]}".lstrip("/")) is not None
        )

    def targets(self, found: Import, package: str) -> tuple[str, ...] | None:
        """Return where the module of a `from` import would be, seen from a package's directory.

        Empty for a module that is not of the tree, None for one above the top of the tree.
        """
        module = found.module or ""
        if not found.level:
            return self.places(module)
        steps = package.split("/") if package else []
        if found.level > len(steps):
            return None
        base = steps[: len(steps) - found.level + 1]
        return ("/".join([*base, *filter(None, module.split("."))]),)

    def holds(self, module: Module, name: str) -> bool:
        """Say whether `from module import name` may work."""
        if module.package and self.at(f"{module.place}/{name}") is not None:
            return True
        if module.source is None:
            return module.built
        if _plainly_defines(module.source.text, name):
            return True
        if module.place not in self._names:
            self._names[module.place] = self._names_of(module, frozenset())
        names = self._names[module.place]
        return names is None or name in names or module.source.fault is not None

    def _look(self, place: str) -> Module | None:
        if self._tree.is_dir(place):
            body = self._tree.read(f"{place}/__init__.py")
            source = None if body is None else self._index.source(body)
            return Module(place=place, package=True, source=source)
        body = self._tree.read(f"{place}.py")
        if body is not None:
            return Module(place=place, package=False, source=self._index.source(body))
        base = place.removesuffix("_grpc").removesuffix("_pb2")
        if any(self._tree.read(base + ending) is not None for ending in _BUILT):
            return Module(place=place, package=False, source=None, built=True)
        return None

    def names_in(
        self, source: Source, package: str, seen: frozenset[str] = frozenset()
    ) -> frozenset[str] | None:
        """Return the names that a text binds at module level, None when that may be any.

        `package` is the directory that its relative imports count from; `seen` ends star cycles.
        """
        if _AT_RUN_TIME.search(source.text):
            return None
        names = _ALWAYS.union(_DEFINED.findall(source.text))
        for listed in _GLOBALS.findall(source.text):
            names = names.union(re.findall(r"\w+", listed))
        for piece in source.pieces:
            if piece.definition:  # its name is found above, its inside binds nothing here
                continue
            parsed = source.parsed(piece)
            if parsed is None:
                return None
            names |= parsed.names
            for star in parsed.imports:
                more = self._star(star, package, seen)
                if more is None:
                    return None
                names |= more
        return names

    def _names_of(self, module: Module, seen: frozenset[str]) -> frozenset[str] | None:
        if module.source is None:
            return None if module.built else frozenset()
        package = module.place if module.package else module.place.rpartition("/")[0]
        return self.names_in(module.source, package, seen | {module.place})

    def _star(self, star: Import, package: str, seen: frozenset[str]) -> frozenset[str] | None:
        """Return what a star import brings, None when that is not known."""
        if star.names[0].name != "*":
            return frozenset()
        others = [self.at(place) for place in self.targets(star, package) or ()]
        found: frozenset[str] = frozenset()
        for other in others:
            names = None if other is None else frozenset[str]()
            if other is not None and other.place not in seen:
                names = self._names_of(other, seen)
            if names is None:
                return None
            found |= names
        return found if others else None


def _plainly_defines(text: str, name: str) -> bool:
    """Say yes when a line at column 0 defines the name: enough, and cheaper than a tree."""
    word = re.escape(name)
    pattern = rf"^(?:(?:async +)?def|class) +{word}\b|^{word}\b *(?::[^=\n]+)?=(?!=)"
    return re.search(pattern, text, re.MULTILINE) is not None
