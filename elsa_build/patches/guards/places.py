"""Whether two places in two versions of a file are one place.

Names decide first. Where they differ, the blocks' own lines say whether upstream moved or reworded
the block (then the place is the same), or whether a like block was taken for the right one.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from elsa_build.diagnostics import Severity
from elsa_build.patches.guards.scopes import LEAVES, SCOPES
from elsa_build.patches.guards.source import Frame, Keys, Path, keys
from elsa_build.patches.guards.view import Version

_ALIKE = 0.5
"""Share of equal lines from which two blocks count as one that upstream moved or renamed."""
_MOST = 0.6
"""Share of the lines around a hunk from which they count as moved with it."""
_AROUND = 8
"""Lines of code on each side of a line that are its surroundings."""
_MARGIN = 0.2
"""How much more alike another block must be than the one of the same name to count as its heir."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misplaced:
    """Two places that should be one; `home` is where the written block is now, if it still is."""

    severity: Severity
    written: Path
    landed: Path
    home: Frame | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """The lines of code around a line as written and as landed, without what the patch changed."""

    mine: Counter[str]
    there: Counter[str]


def words(path: Path) -> str:
    """Return a place as a person says it, from the outside in."""
    names = [frame.key for frame in path if frame.kind in SCOPES]
    inner = max((at for at, frame in enumerate(path) if frame.kind in SCOPES), default=-1)
    branches = [frame.block.words for frame in path[inner + 1 :]]
    return ", ".join([f"in `{'.'.join(names)}`" if names else "at module level", *branches])


class Surveyor:
    """Compare places of one version as written with places of the version that came out."""

    def __init__(self, asked: Version, got: Version) -> None:
        self._asked = asked
        self._got = got
        self._known: dict[tuple[Path, Path], Misplaced | None] = {}
        self._bags: dict[tuple[int, range], Counter[str]] = {}

    def compare(self, written_line: int, landed_line: int) -> Misplaced | None:
        """Return what is wrong when a line written at one place came out at another."""
        if self._same_text(written_line, landed_line):
            return None
        written = self._asked.source.path(written_line)
        landed = self._got.source.path(landed_line)
        if written is None or landed is None:
            return self._roughly(written_line, landed_line)
        pair = (written, landed)
        if pair not in self._known:
            self._known[pair] = self._judge(written, landed, written_line, landed_line)
        return self._known[pair]

    def _roughly(self, written_line: int, landed_line: int) -> Misplaced | None:
        """Compare classes and functions by indentation, where a text does not parse."""
        written = self._asked.source.rough_path(written_line)
        landed = self._got.source.rough_path(landed_line)
        if keys(written) == keys(landed):
            return None
        known = (
            not written
            or self._got.source.mentions(written[-1])
            or (bool(landed) and self._asked.source.mentions(landed[-1]))
        )
        severity = Severity.ERROR if known else Severity.WARNING
        return Misplaced(severity=severity, written=written, landed=landed)

    def _same_text(self, written_line: int, landed_line: int) -> bool:
        """Say whether both lines have the same place in one and the same text: the usual case."""
        mine = self._asked.source.piece_at(written_line)
        there = self._got.source.piece_at(landed_line)
        if mine.text != there.text or written_line - mine.offset != landed_line - there.offset:
            return False
        outer, other = self._asked.source.class_of(mine), self._got.source.class_of(there)
        return outer is other or (outer is not None and other is not None and outer.like(other))

    def _judge(
        self, written: Path, landed: Path, written_line: int, landed_line: int
    ) -> Misplaced | None:
        if keys(written) != keys(landed):
            written, landed = _settled(self._asked, written), _settled(self._got, landed)
            if not (_in_leaf(written) and _in_leaf(landed)):
                written, landed = _without_leaf(written), _without_leaf(landed)
        if keys(written) == keys(landed):
            return self._wrong_twin(written, landed)
        here = _Spot(mine=_around(self._asked, written_line), there=_around(self._got, landed_line))
        if scopes(written) != scopes(landed):
            return self._wrong_scope(written, landed, here)
        return self._wrong_branch(written, landed, here)

    def _wrong_twin(self, written: Path, landed: Path) -> Misplaced | None:
        """Tell blocks of one name apart (a second `if fast:`, another call of one function)."""
        for at, (mine, there) in enumerate(zip(written, landed, strict=True)):
            if self._asked.fresh(mine) or self._got.fresh(there):
                return None
            mine_all = self._twins(self._asked, written[:at], mine)
            there_all = self._twins(self._got, landed[:at], there)
            others = [frame for frame in there_all if frame != there]
            if not others:
                continue
            best = max(others, key=lambda frame: self._likeness(mine, frame))
            gain = self._likeness(mine, best) - self._likeness(mine, there)
            if len(mine_all) == len(there_all):
                same = mine_all.index(mine) == there_all.index(there)
                wrong = not same and gain > -_MARGIN
            else:
                wrong = gain >= _MARGIN
            if wrong:
                return Misplaced(
                    severity=Severity.ERROR,
                    written=written[: at + 1],
                    landed=landed[: at + 1],
                    home=best,
                )
        return None

    def _wrong_scope(self, written: Path, landed: Path, spot: _Spot) -> Misplaced:
        mine, there = _innermost_scope(written), _innermost_scope(landed)
        verdict = Misplaced(severity=Severity.ERROR, written=written, landed=landed)
        if mine is None:
            known = self._find(self._asked, scopes(landed))
            return verdict if known else replace(verdict, severity=Severity.WARNING)
        homes = self._find(self._got, scopes(written))
        rivals = self._find(self._asked, scopes(landed))
        return self._heir(verdict, mine, there, homes, rivals, spot)

    def _wrong_branch(self, written: Path, landed: Path, spot: _Spot) -> Misplaced:
        verdict = Misplaced(severity=Severity.ERROR, written=written, landed=landed)
        extra, missing = _surplus(landed, written), _surplus(written, landed)
        if not missing:  # upstream put something around the block
            known = any(self._blocks_like(self._asked, written, frame) for frame in extra)
            return verdict if known else replace(verdict, severity=Severity.WARNING)
        homes = self._blocks_like(self._got, landed, missing[0])
        if not extra:
            if homes:
                return replace(verdict, home=homes[0])
            return replace(verdict, severity=Severity.WARNING)
        rivals = self._blocks_like(self._asked, written, extra[0])
        return self._heir(verdict, missing[0], extra[0], homes, rivals, spot)

    def _heir(
        self,
        verdict: Misplaced,
        mine: Frame,
        there: Frame | None,
        homes: Sequence[Frame],
        rivals: Sequence[Frame],
        spot: _Spot,
    ) -> Misplaced:
        """Soften the verdict when the block that was hit is what the written one has become.

        For that speaks that the two are alike, or that the lines around the hunk went along.
        Against it speak `homes`, blocks of the written name that are still there, and `rivals`,
        blocks of the landed name that were there when the patch was written.
        """
        home = max(homes, key=lambda frame: self._likeness(mine, frame), default=None)
        verdict = replace(verdict, home=home)
        if there is None:
            return verdict
        here = self._likeness(mine, there)
        enough = _ALIKE if home is None else self._likeness(mine, home) + _MARGIN
        left = _share(spot.mine, self._bag(self._got, home)) if home else 0.0
        went_along = _share(spot.mine, spot.there) >= _MOST and left <= 1 - _MOST
        if any(self._likeness(rival, there) >= here for rival in rivals):
            return verdict
        if here >= enough or went_along:
            return replace(verdict, severity=Severity.WARNING)
        return verdict

    # --- looking around ---------------------------------------------------------------------

    def _twins(self, version: Version, parents: Path, frame: Frame) -> list[Frame]:
        """Return the siblings of one kind and key, without those that the patch itself adds."""
        source = version.source
        beside = source.named_below(parents[-1], frame) if parents else source.top(frame)
        return [other for other in beside if other == frame or not version.fresh(other)]

    def _find(self, version: Version, names: Keys) -> list[Frame]:
        """Return the definitions with this qualified name, whatever branches are around them."""
        found = list(version.source.outermost(*names[0])) if names else []
        for kind, key in names[1:]:
            found = [
                frame
                for outer in found
                for frame in _all_below(version, outer)
                if frame.kind is kind and frame.key == key
            ]
        return [frame for frame in found if not version.fresh(frame)]

    def _blocks_like(self, version: Version, path: Path, wanted: Frame) -> list[Frame]:
        """Return the blocks of the wanted kind and key in the scope of a path."""
        scope = _innermost_scope(path)
        inside = _all_below(version, scope) if scope else version.source.top(wanted)
        return [frame for frame in inside if frame.like(wanted) and not version.fresh(frame)]

    def _likeness(self, mine: Frame, there: Frame) -> float:
        """Return the share of equal lines of two blocks, 0 to 1, without what the patch changed."""
        a, b = self._bag(self._asked, mine), self._bag(self._got, there)
        total = a.total() + b.total()
        return 2 * (a & b).total() / total if total else 0.0

    def _bag(self, version: Version, frame: Frame) -> Counter[str]:
        name = (id(version), frame.lines)
        if name not in self._bags:
            lines = (version.code(at) for at in frame.lines if at not in version.changed)
            self._bags[name] = Counter(line for line in lines if line)
        return self._bags[name]


def _around(version: Version, line: int) -> Counter[str]:
    kept = [(at, text) for at, text in version.code_lines if at not in version.changed]
    middle = bisect_left(kept, (line, ""))
    return Counter(text for _, text in kept[max(middle - _AROUND, 0) : middle + _AROUND])


def _share(lines: Counter[str], of: Counter[str]) -> float:
    """Return which share of some lines is among others."""
    return (lines & of).total() / lines.total() if lines else 0.0


def _all_below(version: Version, frame: Frame) -> Iterator[Frame]:
    for child in version.source.below(frame):
        yield child
        yield from _all_below(version, child)


def _settled(version: Version, path: Path) -> Path:
    """Return the path up to the first block that the patch itself adds."""
    cut = next((at for at, frame in enumerate(path) if version.fresh(frame)), len(path))
    return path[:cut]


def _in_leaf(path: Path) -> bool:
    return bool(path) and path[-1].kind in LEAVES


def _without_leaf(path: Path) -> Path:
    return path[:-1] if _in_leaf(path) else path


def scopes(path: Path) -> Keys:
    """Return the classes and functions of a path: its qualified name."""
    return tuple(key for key in keys(path) if key[0] in SCOPES)


def _innermost_scope(path: Path) -> Frame | None:
    return next((frame for frame in reversed(path) if frame.kind in SCOPES), None)


def _surplus(path: Path, other: Path) -> list[Frame]:
    """Return the blocks of a path that the other lacks, outermost first."""
    spare = Counter(keys(other))
    found = []
    for frame, key in zip(path, keys(path), strict=True):
        spare[key] -= 1
        if spare[key] < 0:
            found.append(frame)
    return found
