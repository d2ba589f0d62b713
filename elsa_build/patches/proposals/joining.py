"""Three versions of one statement joined into one, in the text of the side that changed more.

Every step is on the syntax tree, so that an operand stays an operand and an argument an argument;
a merge of words would put `a or b` into `not x` without brackets. What cannot be joined without a
guess raises `Stuck`.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from elsa_build.patches.proposals.itemtext import Edit, indent_at, with_items, without_item
from elsa_build.patches.proposals.layout import Unparsable, moved
from elsa_build.patches.proposals.parts import Part, Text
from elsa_build.patches.proposals.sequences import Slot, Stuck, joined, keyed_pairs

_LOOSE = {
    "BoolOp", "BinOp", "UnaryOp", "Compare", "IfExp", "Lambda", "Await", "Yield", "YieldFrom",
    "NamedExpr", "Tuple", "Starred", "GeneratorExp",
}  # fmt: skip
"""What needs brackets where an operand stands."""
_TIGHT = {"BoolOp", "BinOp", "UnaryOp", "Compare", "Attribute", "Subscript", "IfExp", "Await",
          "Starred", "Call", "Lambda", "withitem"}  # fmt: skip
"""What binds its operands by precedence alone."""
_OPEN = {"For", "AsyncFor", "Assign", "AnnAssign", "AugAssign", "Return", "Expr"}
"""What its parts stand in without brackets, a tuple too."""
_FREE_LISTS = {"List", "Set", "Dict", "ImportFrom", "Import", "BoolOp", "ClassDef", "FunctionDef",
               "AsyncFunctionDef", "Call", "Tuple", "With", "AsyncWith"}  # fmt: skip
_ANY_ORDER = {"ImportFrom", "Import"}
_WIDTH = 88


@dataclass(slots=True, kw_only=True)
class Notes:
    """What a reviewer should look at, and texts of upstream's that were knowingly left out."""

    said: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)


class _Piece(NamedTuple):
    """A joined text, and the part that says what kind of expression it is and where it was."""

    text: str
    part: Part
    source: Text


@dataclass(slots=True, kw_only=True)
class Joiner:
    """Joins the parts of one statement; `notes` collects what a reviewer should look at."""

    base: Text
    ours: Text
    theirs: Text
    notes: Notes = field(default_factory=Notes)
    prefer_theirs: bool = False

    def text(self) -> str:
        """Return the joined statement."""
        return self._join(self.base.root, self.ours.root, self.theirs.root)[0]

    # --- one node ---------------------------------------------------------------------------

    def _join(self, b: Part, o: Part, t: Part) -> _Piece:
        """Return the joined text and the part that says which kind of expression it is."""
        if o.code == t.code:
            return self._their(t) if self.prefer_theirs else self._our(o)
        if b.code == o.code:
            return self._their(t)
        if b.code == t.code:
            return self._our(o)
        ways = (self._alike, self._chained, self._wrapped, self._switched)
        why: Stuck | None = None
        for way in ways:
            try:
                found = way(b, o, t)
            except Stuck as e:
                why = why or e
                continue
            if found is not None:
                return found
        raise why or Stuck(f"both sides rewrote `{_short(self.base.of(b))}`")

    def _our(self, part: Part) -> _Piece:
        return _Piece(self.ours.of(part), part, self.ours)

    def _their(self, part: Part) -> _Piece:
        return _Piece(self.theirs.of(part), part, self.theirs)

    def _alike(self, b: Part, o: Part, t: Part) -> _Piece | None:
        """Join three nodes of one kind child by child."""
        if not b.kind == o.kind == t.kind:
            return None
        if b.label not in {o.label, t.label} and o.label != t.label:
            return None
        slots = self._slots(b, o, t)
        need = _frame_for_parts(b, o, t)
        if need is None:
            return None
        if o.label != t.label:
            need.add("theirs" if o.label == b.label else "ours")
        if slots is not None:
            came = _edited(slots, len(b.items), len(o.items), "ours")
            went = _edited(slots, len(b.items), len(t.items), "theirs")
            if came != went:
                need.add("ours" if came else "theirs")
        if len(need) > 1:
            return None
        theirs = "theirs" in need or (not need and self.prefer_theirs)
        return self._framed(b, o, t, slots, theirs=theirs)

    def _framed(
        self, b: Part, o: Part, t: Part, slots: tuple[Slot, ...] | None, *, theirs: bool
    ) -> _Piece:
        frame, source = (t, self.theirs) if theirs else (o, self.ours)
        edits: list[Edit] = []
        if len(b.parts) == len(o.parts) == len(t.parts):
            for b_part, o_part, t_part in zip(b.parts, o.parts, t.parts, strict=True):
                self._replace(edits, frame, t_part if theirs else o_part, (b_part, o_part, t_part))
        if slots is not None:
            if frame.kind in {"ImportFrom", "Import"}:
                text = self._imports(frame, source, o, t, slots)
                return _Piece(text, frame, source)
            edits += self._listed(frame, source, (b, o, t), slots, theirs=theirs)
        return _Piece(_applied(source, frame, edits), frame, source)

    def _replace(
        self, edits: list[Edit], frame: Part, old: Part, three: tuple[Part, Part, Part]
    ) -> None:
        piece = self._join(*three)
        source = self.theirs if old is three[2] else self.ours
        if piece.text != source.of(old):
            edits.append(
                Edit(start=old.start, end=old.end, text=_fitting(piece, frame, source, old))
            )

    # --- lists ------------------------------------------------------------------------------

    def _slots(self, b: Part, o: Part, t: Part) -> tuple[Slot, ...] | None:
        if b.inner is None and o.inner is None and t.inner is None:
            return None
        if None in {o.inner, t.inner} or b.kind not in _FREE_LISTS:
            codes = [[item.code for item in side.items] for side in (b, o, t)]
            if codes[0] == codes[1] == codes[2]:
                return None
            raise Stuck("a list that cannot be edited on both sides")
        ours, theirs = _pairs(b, o), _pairs(b, t)
        sizes = (len(b.items), len(o.items), len(t.items))
        slots = joined(sizes, ours, theirs, free=b.kind in _ANY_ORDER)
        for number in range(len(b.items)):
            for mine, other, side in ((ours, theirs, t), (theirs, ours, o)):
                if number in mine or number not in other:
                    continue
                if side.items[other[number]].code != b.items[number].code:
                    raise Stuck("one side removed what the other changed")
        return self._merged_twins(b, o, t, slots)

    def _merged_twins(self, b: Part, o: Part, t: Part, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        """Drop what both sides added, and refuse what both added differently under one name."""
        added = {
            slot.ours: o.items[slot.ours]
            for slot in slots
            if slot.base is None and slot.ours is not None
        }
        kept: list[Slot] = []
        ours_new = list(added.values())
        for slot in slots:
            if slot.base is not None or slot.theirs is None:
                kept.append(slot)
                continue
            item = t.items[slot.theirs]
            if any(item.code == other.code for other in ours_new):
                continue
            rival = next((n for n, x in added.items() if item.key and x.key == item.key), None)
            if rival is not None:
                mine = o.items[rival]
                if not (item.kind == mine.kind == "keyword" and _overrides(mine, item)):
                    raise Stuck(f"both sides add `{item.key}`")
                self._note_switch(mine.parts[-1], item.parts[-1])
                kept = [replace(s, theirs=slot.theirs) if s.ours == rival else s for s in kept]
                continue
            kept.append(slot)
        _check_order(b, o, t, kept)
        return tuple(kept)

    def _listed(
        self,
        frame: Part,
        source: Text,
        three: tuple[Part, Part, Part],
        slots: tuple[Slot, ...],
        *,
        theirs: bool,
    ) -> list[Edit]:
        b, o, t = three
        edits: list[Edit] = []
        other, foreign = (o, self.ours) if theirs else (t, self.theirs)
        last: Part | None = None
        fresh: list[tuple[Part | None, list[Part]]] = []
        for slot in slots:
            own, away = (slot.theirs, slot.ours) if theirs else (slot.ours, slot.theirs)
            if own is None:
                assert away is not None
                if not fresh or fresh[-1][0] is not last:
                    fresh.append((last, []))
                fresh[-1][1].append(other.items[away])
                continue
            item = frame.items[own]
            if slot.base is not None and away is None:
                edits.append(without_item(source, frame, own))
                continue
            if slot.base is None and away is not None and not theirs:
                text = foreign.of(other.items[away])
                edits.append(Edit(start=item.start, end=item.end, text=text))
            elif slot.base is not None and slot.ours is not None and slot.theirs is not None:
                both = (b.items[slot.base], o.items[slot.ours], t.items[slot.theirs])
                self._replace(edits, frame, item, both)
            last = item
        edits += [with_items(source, frame, after, foreign, items) for after, items in fresh]
        return edits

    def _imports(self, frame: Part, source: Text, o: Part, t: Part, slots: tuple[Slot, ...]) -> str:
        """Return an import of what is left, sorted where both sides sort."""
        names = [
            o.items[slot.ours].label if slot.ours is not None else t.items[slot.theirs or 0].label
            for slot in slots
            if (slot.ours is not None and (slot.base is None or slot.theirs is not None))
            or (slot.base is None and slot.theirs is not None)
        ]
        olds = [[item.label for item in side.items] for side in (o, t)]
        for order in (str, str.casefold, _isort):
            if all(sorted(old, key=order) == old for old in olds):
                names.sort(key=order)
                break
        head = source.between(frame.start, frame.items[0].start).rstrip().rstrip("(").rstrip()
        return import_text(head, list(dict.fromkeys(names)))

    # --- one side around the other ------------------------------------------------------------

    def _chained(self, b: Part, o: Part, t: Part) -> _Piece | None:
        """Join `a and x` with `a and y`, where the base is only `a`."""
        if not (o.kind == t.kind == "BoolOp" and o.label == t.label):
            return None
        if b.kind == "BoolOp" or not all(any(i.code == b.code for i in s.items) for s in (o, t)):
            return None
        alone = Part(
            kind="BoolOp",
            start=b.start,
            end=b.end,
            label=o.label,
            items=(b,),
            inner=(b.start, b.end),
        )
        return self._alike(alone, o, t)

    def _wrapped(self, b: Part, o: Part, t: Part) -> _Piece | None:
        """Put one side's new expression where the other side has built around the old one.

        When both built around it, which of the two is inside is a guess.
        """
        around = [any(part.code == b.code for part in side.walk()) for side in (o, t)]
        if not _substantial(b) or all(around):
            return None
        for outer, source, inner, other in (
            (t, self.theirs, o, self.ours),
            (o, self.ours, t, self.theirs),
        ):
            holes = [part for part in outer.walk() if part.code == b.code]
            if not holes:
                continue
            edits = [
                Edit(
                    start=hole.start,
                    end=hole.end,
                    text=_fitting(_Piece(other.of(inner), inner, other), None, source, hole),
                )
                for hole in holes
            ]
            return _Piece(_applied(source, outer, edits), outer, source)
        return None

    def _switched(self, _: Part, o: Part, t: Part) -> _Piece | None:
        """Let a plain True or False of the patch stand for whatever upstream computes there."""
        if not _switch(t) or o.kind == "Constant":
            return None
        self._note_switch(o, t)
        return self._their(t)

    def _note_switch(self, o: Part, t: Part) -> None:
        self.notes.idle.append(self.ours.of(o))
        self.notes.said.append(
            f"the patch's `{self.theirs.of(t)}` stands for upstream's "
            f"`{_short(self.ours.of(o))}`, which it makes idle"
        )


def _check_order(b: Part, o: Part, t: Part, slots: Sequence[Slot]) -> None:
    """Refuse positions that both sides filled where a position has a meaning."""
    mine = [
        o.items[s.ours] for s in slots if s.base is None and s.ours is not None and s.theirs is None
    ]
    their = [
        t.items[s.theirs]
        for s in slots
        if s.base is None and s.ours is None and s.theirs is not None
    ]
    if not mine or not their:
        return
    if b.kind == "Call" and not all(item.key for item in (*mine, *their)):
        raise Stuck("both sides add an argument by position")
    if b.kind in {"With", "AsyncWith"}:
        raise Stuck("both sides add a context")
    if b.kind == "Tuple" and not all(i.kind == "Constant" for i in (*mine, *their)):
        raise Stuck("both sides lengthen a tuple")
    if b.kind.endswith("FunctionDef"):
        bare = [i for i in (*mine, *their) if i.kind == "Param" and i.label.endswith("=False")]
        if bare:
            raise Stuck("both sides add a parameter without a default")


def _frame_for_parts(b: Part, o: Part, t: Part) -> set[str] | None:
    """Return whose text must be the frame when a side has more or fewer children.

    None when both sides changed them.
    """
    if len(b.parts) == len(o.parts) == len(t.parts):
        return set()
    codes = [[part.code for part in side.parts] for side in (b, o, t)]
    if codes[0] == codes[1]:
        return {"theirs"}
    return {"ours"} if codes[0] == codes[2] else None


def _switch(part: Part) -> bool:
    return part.kind == "Constant" and part.label in {"True", "False"}


def _overrides(mine: Part, their: Part) -> bool:
    """Say whether an argument of the patch is a plain switch where upstream computes."""
    return _switch(their.parts[-1]) and mine.parts[-1].kind != "Constant"


def _substantial(part: Part) -> bool:
    """Say whether an expression is its own, not a word that may stand anywhere."""
    return part.kind in {"Call", "Attribute", "Subscript", "Compare", "BoolOp", "BinOp", "IfExp"}


def _pairs(b: Part, side: Part) -> dict[int, int]:
    found = keyed_pairs(b.items, side.items, lambda part: part.code, lambda part: part.key)
    if len(b.items) == len(side.items):
        taken = set(found.values())
        for number, (old, new) in enumerate(zip(b.items, side.items, strict=True)):
            if number not in found and number not in taken and old.kind == new.kind and not old.key:
                found[number] = number
    else:
        # One item between equal neighbours was edited, not removed and added.
        for number, old in enumerate(b.items):
            if number in found or old.key:
                continue
            left = found.get(number - 1, -1) if number else -1
            right = found.get(number + 1, len(side.items))
            if (number == 0 or number - 1 in found) and right - left == 2:
                new = side.items[left + 1]
                if not new.key and left + 1 not in found.values():
                    found[number] = left + 1
    return found


def _edited(slots: Sequence[Slot], base: int, size: int, side: str) -> bool:
    """Say whether a side added, removed or moved members."""
    kept = [slot for slot in slots if slot.base is not None and getattr(slot, side) is not None]
    in_base = sum(1 for slot in slots if slot.base is not None)
    return size != base or len(kept) != in_base or len(kept) != size


def _isort(name: str) -> tuple[int, str]:
    """Sort as isort does: constants, classes, functions."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name.casefold()


def import_text(head: str, names: list[str]) -> str:
    """Return an import of these names on one line where it fits, else one name a line."""
    line = f"{head} {', '.join(names)}"
    if len(line) <= _WIDTH or not head.startswith("from"):
        return line
    return f"{head} (\n" + "".join(f"    {name},\n" for name in names) + ")"


# --- text -------------------------------------------------------------------------------------


def _applied(source: Text, part: Part, edits: list[Edit]) -> str:
    """Return a part's text with the edits made; those at one place in their order."""
    found: list[str] = []
    cursor = part.start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < cursor:
            raise Stuck("edits overlap")
        found += [source.between(cursor, edit.start), edit.text]
        cursor = edit.end
    return "".join([*found, source.between(cursor, part.end)])


def _fitting(piece: _Piece, frame: Part | None, source: Text, old: Part) -> str:
    """Return the text as it fits in place of an old part: indented, in brackets if needed."""
    kind = piece.part.kind
    indents = indent_at(piece.source, piece.part.start), indent_at(source, old.start)
    first, *rest = piece.text.split("\n")
    text = "\n".join([first, *moved(rest, *indents)])
    if rest and not _closed(text):
        deeper = indents[1] + "    "
        inside = [deeper + first, *moved(rest, indents[0], deeper)]
        return "(\n" + "\n".join(inside) + f"\n{indents[1]})"
    if kind not in _LOOSE or kind == old.kind:
        return text
    if frame is not None and frame.kind in _OPEN:
        return text
    if frame is not None and frame.kind not in _TIGHT and kind != "Tuple":
        return text
    if source.between(old.start - 1, old.start) + source.between(old.end, old.end + 1) == "()":
        return text
    return f"({text})"


def _closed(text: str) -> bool:
    """Say whether an expression of several lines holds together without brackets around it."""
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


# --- whole statements -------------------------------------------------------------------------


def join_statement(base: str, ours: str, theirs: str, notes: Notes, *, header: bool = False) -> str:
    """Return one statement (or header), without indent, joined of three.

    Raises:
        Stuck: It cannot be joined without a guess.
    """
    three = [_parted(text, header=header) for text in (base, ours, theirs)]
    (b, b_note), (o, o_note), (t, t_note) = three
    if t_note != b_note and o_note not in {b_note, t_note}:
        raise Stuck("both sides rewrote a comment")
    note = t_note if t_note != b_note else o_note
    try:
        texts = [Text(text, header=header) for text in (b, o, t)]
    except Unparsable as e:
        raise Stuck(str(e)) from e
    wanted = (_comments(o) | _comments(t)) - _comments(b)
    best: tuple[int, str, Notes] | None = None
    for prefer in (False, True):
        said = Notes()
        joiner = Joiner(
            base=texts[0], ours=texts[1], theirs=texts[2], notes=said, prefer_theirs=prefer
        )
        text = joiner.text()
        lost = len(wanted - _comments(text))
        if best is None or lost < best[0]:
            best = (lost, text, said)
    assert best is not None
    lost, text, said = best
    if lost:
        raise Stuck("a comment inside a statement would be lost")
    notes.said += said.said
    notes.idle += said.idle
    if not header:
        text += texts[0].between(texts[0].root.end, len(b)).strip()
    return text + note


def _parted(text: str, *, header: bool) -> tuple[str, str]:
    """Return a statement and the comment at its end, with the blanks before it."""
    pattern = r"(:)([ \t]*#[^\n]*)\s*\Z" if header else r"([^\s#])([ \t]+#[^\n]*)\s*\Z"
    found = re.search(pattern, text)
    if found is None:
        return text.rstrip(), ""
    cut = text[: found.end(1)]
    try:
        Text(cut, header=header)
    except Unparsable:
        return text.rstrip(), ""
    return cut, found[2].rstrip()


def _comments(text: str) -> set[str]:
    return {line.strip() for line in text.split("\n") if line.strip().startswith("#")}
