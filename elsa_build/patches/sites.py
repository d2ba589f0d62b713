"""The places where one step conflicts, each with what surrounds it and who changed it upstream."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from elsa_build.git.door import Git
from elsa_build.git.objects import Change
from elsa_build.model import Conflict, Oid, Region, Step
from elsa_build.patches.causes import Deed, Spot, Tracer, before, file_lines
from elsa_build.patches.diffparse import DiffError
from elsa_build.patches.guards.linediff import hunks
from elsa_build.patches.replay import change_of
from elsa_build.patches.review import Around, Site
from elsa_build.patches.standalone import trees

_DEFINITION = re.compile(r"(?:async +)?(?:def|class) +(\w+)")
_HEADING = re.compile(r"[^\W\d]|\$")
CONTEXT = 3
"""Lines above and below a region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What a step met: the trees of onto and of each step before it, oldest first."""

    onto: Oid
    earlier: tuple[Step, ...]

    @property
    def tree(self) -> Oid:
        """Return the tree that the step met."""
        return self.earlier[-1].tree if self.earlier else self.onto


def sites(git: Git, step: Step, ground: Ground, tracer: Tracer) -> tuple[Site, ...]:
    """Return every conflict of a step, regions in the order of the files."""
    if not step.conflicts:
        return ()
    try:
        change, _ = change_of(git, step.patch)
    except DiffError:
        change = ()
    made = _Maker(git=git, change=tuple(change), ground=ground, tracer=tracer)
    found = [site for conflict in step.conflicts for site in made.of(conflict)]
    return tuple(replace(site, number=number) for number, site in enumerate(found, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    git: Git
    change: tuple[Change, ...]
    ground: Ground
    tracer: Tracer

    def of(self, conflict: Conflict) -> Iterator[Site]:
        if not conflict.regions:
            yield self._whole(conflict)
        for region in conflict.regions:
            yield self._region(conflict, region)

    # --- a region ---------------------------------------------------------------------------

    def _region(self, conflict: Conflict, region: Region) -> Site:
        path = conflict.path
        here = file_lines(self.git, self.git.objects.find(self.ground.tree, path))
        start = region.line - 1
        stop = start + region.ours.count("\n")
        stacked, lines = self._through_stack(path, (start, stop))
        causes = self.tracer.causes(Spot(path=path, lines=lines))
        return Site(
            number=0,
            path=path,
            reason=conflict.reason,
            region=region,
            scope=scope(path, here, region.line),
            line=lines[0] + 1,
            patch=self._written(path, here, region, (start, stop)),
            upstream=_around(here, start, stop, lines[0] + 1),
            causes=causes,
            exact=any(cause.deed is not Deed.FILE for cause in causes),
            stacked=stacked,
        )

    def _through_stack(
        self, path: str, lines: tuple[int, int]
    ) -> tuple[tuple[str, ...], tuple[int, int]]:
        """Return the earlier patches that changed these lines, and where the lines are on onto."""
        found = []
        trees_below = [self.ground.onto, *(step.tree for step in self.ground.earlier)]
        for step, below in zip(
            reversed(self.ground.earlier), reversed(trees_below[:-1]), strict=True
        ):
            old, new = (self.git.objects.find(tree, path) for tree in (below, step.tree))
            if old != new:
                differ = hunks(file_lines(self.git, old), file_lines(self.git, new))
                hit, lines = before(differ, lines)
                if hit:
                    found.append(step.patch.id)
        return tuple(reversed(found)), lines

    def _written(
        self, path: str, here: Sequence[str], region: Region, lines: tuple[int, int]
    ) -> Around | None:
        """Return where the region's base is in the file that the patch was written on."""
        change = self._change(path)
        if change is None:
            return None
        old = file_lines(self.git, change.old)
        wanted = tuple(region.base.split("\n")[:-1])
        (guess, _) = before(hunks(old, here), lines)[1]
        size = len(wanted)
        places = [at for at in range(len(old) - size + 1) if old[at : at + size] == wanted]
        start = min(places, key=lambda at: abs(at - guess)) if places and size else guess
        return _around(old, start, start + size, start + 1)

    def _change(self, path: str) -> Change | None:
        """Return the patch's change of a path, or of the file that git followed to it."""
        same = [change for change in self.change if change.path == path]
        name = PurePosixPath(path).name
        named = [change for change in self.change if PurePosixPath(change.path).name == name]
        return next(iter(same or named), None)

    # --- a whole file -----------------------------------------------------------------------

    def _whole(self, conflict: Conflict) -> Site:
        path = conflict.path
        change = self._change(path)
        own = change.path if change else path
        causes = self.tracer.causes(Spot(path=own))
        if not causes and own != path:
            causes = self.tracer.folder_moves(_folder(own), _folder(path))
        return Site(
            number=0,
            path=own,
            reason=conflict.reason,
            causes=causes,
            exact=any(cause.deed is not Deed.FILE for cause in causes),
            home=self.tracer.home(own) or (path if own != path else None),
            gone=self.git.objects.find(self.ground.onto, own) is None,
            patch_deletes=change is not None and change.new is None,
            patch_diff=self._diff(change) if change else "",
        )

    def _diff(self, change: Change) -> str:
        form = ("-p", "-r", "-U3", "--full-index", "--no-renames", "--no-ext-diff")
        old, new = trees(self.git, (change,))
        out = self.git.run("diff-tree", *form, "--no-textconv", old, new)[1]
        return out.decode("utf-8", "replace")


def _around(lines: Sequence[str], start: int, stop: int, shown: int) -> Around:
    return Around(
        line=shown,
        above=tuple(lines[max(0, start - CONTEXT) : start]),
        below=tuple(lines[stop : stop + CONTEXT]),
    )


def scope(path: str, lines: Sequence[str], line: int) -> str:
    """Return the class and function around a line (1-based), '' at module level.

    For Python by indentation, since a text in conflict need not parse; elsewhere the last line
    above that begins like a name, as git does.
    """
    above = lines[: min(line, len(lines))]
    if path.endswith((".py", ".pyi")):
        return ".".join(reversed(tuple(_around_python(above))))
    return next((text.strip() for text in reversed(above) if _HEADING.match(text)), "")


def _around_python(above: Sequence[str]) -> Iterator[str]:
    """Yield the names of the definitions around the last line, innermost first."""
    limit: int | None = None
    for text in reversed(above):
        bare = text.lstrip()
        # A closing bracket may stand further out than what it closes.
        if not bare or bare[0] in ")]}":
            continue
        indent = len(text) - len(bare)
        if limit is None or indent < limit:
            found = _DEFINITION.match(bare)
            if found:
                yield found[1]
            limit = indent
        if not limit:
            return


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
