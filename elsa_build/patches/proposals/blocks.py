"""Three versions of a body joined statement by statement.

Where git sees two edits of neighbouring lines, there are mostly two statements, or one statement
that one side indented. What cannot be joined without a guess raises `Stuck`; nothing is dropped.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from elsa_build.patches.proposals.effects import clash, ends, lost
from elsa_build.patches.proposals.joining import Notes, import_text, join_statement
from elsa_build.patches.proposals.layout import Block, Clause, Lines, Unit, moved, outdented
from elsa_build.patches.proposals.matching import name_of, unit_pairs
from elsa_build.patches.proposals.sequences import Slot, Stuck, joined, keyed_pairs
from elsa_build.patches.proposals.trivia import join_comments
from elsa_build.patches.proposals.wrapping import Wrap, moved_in, outside, wraps

_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(slots=True)
class Blocks:
    """Joins blocks; `notes` collects what was done, for a reviewer."""

    notes: Notes = field(default_factory=Notes)
    _around_now: list[str] = field(default_factory=list)

    def join(self, b: Block, o: Block, t: Block) -> Lines:
        """Return the joined block, indented as ours.

        Raises:
            Stuck: It cannot be joined without a guess.
        """
        indent = o.indent if o.units else t.indent
        if t.lines == b.lines or moved(t.lines, t.indent, o.indent) == o.lines:
            return o.lines
        if o.lines == b.lines:
            return moved(t.lines, t.indent, indent, _quoted(t))
        ours, theirs = unit_pairs(b.units, o.units), unit_pairs(b.units, t.units)
        wrap = next(wraps(b, o, t, ours, theirs), None)
        if wrap is not None:
            return self._around(wrap, b, o, t)
        sizes = (len(b.units), len(o.units), len(t.units))
        changed = _changed(b, o, ours), _changed(b, t, theirs)
        slots = joined(sizes, ours, theirs, free=True, changed=changed)
        self._refuse_rewrites(b, o, t, slots, ours, theirs)
        slots = self._twins(o, t, slots)
        self._refuse_clashes(b, o, t, slots, ours)
        lines: list[str] = []
        for slot in slots:
            if slot.base is None and slot.ours is None and slot.theirs is not None:
                unit = t.units[slot.theirs]
                lines += _spaced(unit, lines, _added(unit, b, t, indent), indent)
            else:
                lines += self._slot(b, o, t, slot, indent)
        return (*lines, *self._tail(b, o, t, indent))

    # --- slots ------------------------------------------------------------------------------

    def _slot(self, b: Block, o: Block, t: Block, slot: Slot, indent: str) -> Lines:
        base = b.units[slot.base] if slot.base is not None else None
        mine = o.units[slot.ours] if slot.ours is not None else None
        their = t.units[slot.theirs] if slot.theirs is not None else None
        if base is None and mine is not None and their is not None:
            return (*mine.lead, *self._import_union(mine, their, indent))
        if base is None and mine is not None:
            return (*mine.lead, *mine.lines)
        if base is None or mine is None or their is None:
            return ()
        lead = join_comments(
            *(tuple(outdented(one.lead, one.indent)) for one in (base, mine, their))
        )
        lines = self.unit(base, mine, their)
        return (*moved_in(lead, indent), *moved(lines, mine.indent, indent))

    def unit(self, b: Unit, o: Unit, t: Unit) -> Lines:
        """Return one joined statement, indented as ours."""
        if t.code in (b.code, o.code):
            return o.lines
        if o.code == b.code:
            return moved(t.lines, t.indent, o.indent, t.quoted)
        if b.compound and o.compound and t.compound:
            return self._clauses(b, o, t)
        if b.meaning == t.meaning and _comments(b) == _comments(t):
            return o.lines
        if b.meaning == o.meaning and _comments(b) == _comments(o):
            return moved(t.lines, t.indent, o.indent, t.quoted)
        if b.compound or o.compound or t.compound:
            raise Stuck(f"a statement became another one: {_head(o)}")
        text = join_statement(b.code, o.code, t.code, self.notes)
        return moved_in(text.split("\n"), o.indent)

    def _clauses(self, b: Unit, o: Unit, t: Unit) -> Lines:
        sides = [unit.clauses for unit in (b, o, t)]
        ours = keyed_pairs(sides[0], sides[1], _clause_code, _clause_key)
        theirs = keyed_pairs(sides[0], sides[2], _clause_code, _clause_key)
        for found, other in ((ours, sides[1]), (theirs, sides[2])):
            found.setdefault(0, 0)
            _pair_rest(found, sides[0], other)
        slots = joined((len(sides[0]), len(sides[1]), len(sides[2])), ours, theirs)
        slots = _else_last(slots, sides[1], sides[2])
        lines: list[str] = []
        for slot in slots:
            if slot.base is None:
                side, number = (
                    (sides[1], slot.ours) if slot.ours is not None else (sides[2], slot.theirs)
                )
                assert number is not None
                unit = o if side is sides[1] else t
                lines += moved([*side[number].lead, *side[number].lines], unit.indent, o.indent)
                continue
            base = sides[0][slot.base]
            mine = sides[1][slot.ours] if slot.ours is not None else None
            their = sides[2][slot.theirs] if slot.theirs is not None else None
            if mine is None or their is None:
                left = mine or their
                if left is not None and _clause_code(left) != _clause_code(base):
                    raise Stuck("one side removed a branch that the other changed")
                continue
            lines += self._clause(base, mine, their, (b.indent, o.indent, t.indent))
        return tuple(lines)

    def _clause(self, b: Clause, o: Clause, t: Clause, indents: tuple[str, str, str]) -> Lines:
        three = (b, o, t)
        lead = join_comments(
            *(
                tuple(outdented(one.lead, indent))
                for one, indent in zip(three, indents, strict=True)
            )
        )
        marks = self._decorators(
            *(list(outdented(one.decorators, i)) for one, i in zip(three, indents, strict=True))
        )
        heads = ["\n".join(outdented(one.head, i)) for one, i in zip(three, indents, strict=True)]
        if heads[0] == heads[2] or heads[1] == heads[2]:
            head = heads[1]
        elif heads[0] == heads[1]:
            head = heads[2]
        elif b.word in {"else", "finally", "try"}:
            raise Stuck("both sides changed a header")
        else:
            head = join_statement(heads[0], heads[1], heads[2], self.notes, header=True)
        body = self.join(b.body, o.body, t.body)
        return (*moved_in([*lead, *marks, *head.split("\n")], indents[1]), *body)

    def _decorators(self, b: list[str], o: list[str], t: list[str]) -> list[str]:
        if t in (b, o):
            return o
        if o == b:
            return t
        three = [_marks(lines) for lines in (b, o, t)]
        pairs = [keyed_pairs(three[0], side, lambda text: text, _mark_key) for side in three[1:]]
        slots = joined((len(three[0]), len(three[1]), len(three[2])), pairs[0], pairs[1])
        lines: list[str] = []
        for slot in slots:
            if slot.base is None:
                lines.append(
                    three[1][slot.ours] if slot.ours is not None else three[2][slot.theirs or 0]
                )
            elif slot.ours is not None and slot.theirs is not None:
                texts = [three[0][slot.base], three[1][slot.ours], three[2][slot.theirs]]
                lines.append(self._mark(*texts))
            else:
                left = three[1][slot.ours] if slot.ours is not None else None
                left = three[2][slot.theirs] if slot.theirs is not None else left
                if left not in (None, three[0][slot.base]):
                    raise Stuck("one side removed a decorator that the other changed")
        return "\n".join(lines).split("\n")

    def _mark(self, b: str, o: str, t: str) -> str:
        if t in (b, o):
            return o
        if o == b:
            return t
        bare = [text.lstrip().removeprefix("@") for text in (b, o, t)]
        return "@" + join_statement(bare[0], bare[1], bare[2], self.notes)

    # --- both sides add -----------------------------------------------------------------------

    def _twins(self, o: Block, t: Block, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        """Make one of what both sides added: equal statements, or imports from one module."""
        mine = [s for s in slots if s.base is None and s.ours is not None]
        known = {unit.meaning for unit in o.units if isinstance(unit.node, _IMPORTS)}
        apart = _one_name_a_line(o) or _one_name_a_line(t)
        gone: set[Slot] = set()
        together: dict[Slot, Slot] = {}
        for slot in slots:
            if slot.base is not None or slot.theirs is None:
                continue
            unit = t.units[slot.theirs]
            if isinstance(unit.node, _IMPORTS) and unit.meaning in known:
                gone.add(slot)
            for other in mine:
                rival = o.units[other.ours or 0]
                if rival.code == unit.code or rival.meaning == unit.meaning:
                    gone.add(slot)
                elif (
                    isinstance(unit.node, ast.ImportFrom)
                    and name_of(unit) == name_of(rival)
                    and not apart
                ):
                    gone.add(slot)
                    together[other] = Slot(ours=other.ours, theirs=slot.theirs)
        return tuple(together.get(slot, slot) for slot in slots if slot not in gone)

    def _import_union(self, o: Unit, t: Unit, indent: str) -> Lines:
        assert isinstance(o.node, ast.ImportFrom)
        assert isinstance(t.node, ast.ImportFrom)
        texts = [
            [f"{n.name} as {n.asname}" if n.asname else n.name for n in unit.node.names]
            for unit in (o, t)
            if isinstance(unit.node, ast.ImportFrom)
        ]
        names = list(dict.fromkeys(texts[0] + texts[1]))
        if all(sorted(some, key=str.casefold) == some for some in texts):
            names.sort(key=str.casefold)
        head = f"from {'.' * o.node.level}{o.node.module or ''} import"
        return moved_in(import_text(head, names).split("\n"), indent)

    def _refuse_rewrites(
        self,
        b: Block,
        o: Block,
        t: Block,
        slots: Sequence[Slot],
        ours: dict[int, int],
        theirs: dict[int, int],
    ) -> None:
        """Refuse a statement that one side removed or rewrote and the other changed."""
        for number, base in enumerate(b.units):
            if number in ours and number in theirs:
                continue
            for mine, side in ((ours, o), (theirs, t)):
                if number in mine and side.units[mine[number]].code != base.code:
                    raise Stuck(f"one side removed what the other changed: {_head(base)}")
            if number not in ours and number not in theirs and _refilled(slots, ours, number):
                raise Stuck(f"both sides rewrote: {_head(base)}")

    def _refuse_clashes(
        self,
        b: Block,
        o: Block,
        t: Block,
        slots: Sequence[Slot],
        ours: dict[int, int],
    ) -> None:
        """Refuse neighbours that depend on each other, and code behind a jump."""
        removed = [unit for number, unit in enumerate(b.units) if number not in ours]
        runs = list(_runs(slots))
        for mine, their in runs:
            fresh = [t.units[s.theirs] for s in their if s.theirs is not None]
            beside = [o.units[s.ours] for s in mine if s.ours is not None]
            if beside and fresh:
                why = clash(beside, fresh)
                if why:
                    raise Stuck(why)
                if ends(beside[-1].node):
                    raise Stuck("what the patch adds would stand behind a jump")
            name = lost(removed, o.units, fresh) if fresh else ""
            if name:
                raise Stuck(f"the patch uses `{name}`, which upstream no longer sets there")

    # --- wraps and ends -----------------------------------------------------------------------

    def _around(self, wrap: Wrap, b: Block, o: Block, t: Block) -> Lines:
        """Join what stands inside a wrapper, then everything with the wrapper as one statement."""
        head = wrap.unit.clauses[0].head[0].strip()
        if head in self._around_now:
            raise Stuck(f"both sides put the statements into `{head}`")
        self._around_now.append(head)
        inner = self.join(wrap.base, wrap.ours, wrap.theirs)
        self._around_now.pop()
        self.notes.said.append(wrap.said)
        return self.join(*outside(wrap, b, o, t, inner))

    def _tail(self, b: Block, o: Block, t: Block, indent: str) -> Lines:
        tails = [tuple(outdented(one.tail, one.indent)) for one in (b, o, t)]
        return moved_in(join_comments(tails[0], tails[1], tails[2]), indent)


def _added(unit: Unit, b: Block, t: Block, indent: str) -> Lines:
    """Return a statement of the patch with its own comments, not those it found there."""
    old, new = _lead_comments(b), _lead_comments(t)
    lead = [line for line in unit.lead if not line.strip() or new[line.strip()] > old[line.strip()]]
    return (
        *moved(lead, unit.indent, indent),
        *moved(unit.lines, unit.indent, indent, unit.quoted),
    )


def _lead_comments(block: Block) -> Counter[str]:
    lines = [line for unit in block.units for line in unit.lead]
    return Counter(line.strip() for line in (*lines, *block.tail) if line.strip())


def _changed(b: Block, side: Block, found: dict[int, int]) -> frozenset[int]:
    return frozenset(old for old, at in found.items() if side.units[at].code != b.units[old].code)


def _spaced(unit: Unit, before: Sequence[str], lines: Lines, indent: str) -> Lines:
    """Put the usual blank lines before a definition that came without any."""
    if not before or not isinstance(unit.node, _DEFINITIONS) or not lines[0].strip():
        return lines
    return (*[""] * (1 if indent else 2), *lines)


def _one_name_a_line(block: Block) -> bool:
    """Say whether imports from one module stand one name a line, as some sort them."""
    names = [name_of(unit) for unit in block.units if isinstance(unit.node, ast.ImportFrom)]
    return any(one == other for one, other in pairwise(names))


def _quoted(block: Block) -> frozenset[int]:
    found: set[int] = set()
    at = 0
    for unit in block.units:
        at += len(unit.lead)
        found |= {at + line for line in unit.quoted}
        at += len(unit.lines)
    return frozenset(found)


def _head(unit: Unit) -> str:
    line = next((line for line in unit.lines if line.strip()), "").strip()
    return f"`{line}`"


def _comments(unit: Unit) -> list[str]:
    return [line.strip() for line in unit.lines if line.strip().startswith("#")]


def _clause_code(clause: Clause) -> str:
    indent = clause.head[0][: len(clause.head[0]) - len(clause.head[0].lstrip())]
    return "\n".join(outdented(clause.lines, indent))


def _clause_key(clause: Clause) -> str:
    head = " ".join(line.strip() for line in clause.head)
    return clause.word if clause.word in {"else", "finally", "try"} else head


def _pair_rest(found: dict[int, int], old: Sequence[Clause], new: Sequence[Clause]) -> None:
    """Pair the only clause left between two pairs with its counterpart of the same keyword."""
    taken = set(found.values())
    for number, clause in enumerate(old):
        if number in found:
            continue
        left = max((found[n] for n in found if n < number), default=-1)
        right = min((found[n] for n in found if n > number), default=len(new))
        free = [
            at for at in range(left + 1, right) if at not in taken and new[at].word == clause.word
        ]
        rivals = [n for n in range(len(old)) if n not in found and old[n].word == clause.word]
        if len(free) == 1 and len(rivals) == 1:
            found[number] = free[0]
            taken.add(free[0])


def _else_last(
    slots: tuple[Slot, ...], ours: Sequence[Clause], theirs: Sequence[Clause]
) -> tuple[Slot, ...]:
    """Put `else` and `finally` behind the branches that the other side added."""

    def rank(slot: Slot) -> int:
        clause = ours[slot.ours] if slot.ours is not None else None
        if clause is None and slot.theirs is not None:
            clause = theirs[slot.theirs]
        word = clause.word if clause else ""
        return {"else": 1, "finally": 2}.get(word, 0)

    words = [word for slot in slots if slot.base is None for word in [rank(slot)] if word]
    if len(words) != len(set(words)):
        raise Stuck("both sides add an `else`")
    return tuple(sorted(slots, key=rank))


def _marks(lines: list[str]) -> list[str]:
    """Split decorator lines into one text each."""
    found: list[str] = []
    for line in lines:
        if line.startswith("@") or not found:
            found.append(line)
        else:
            found[-1] += "\n" + line
    return found


def _mark_key(text: str) -> str:
    return text.partition("(")[0].strip()


def _runs(slots: Sequence[Slot]) -> Iterator[tuple[list[Slot], list[Slot]]]:
    """Yield what both sides added between two members that stay."""
    mine: list[Slot] = []
    their: list[Slot] = []
    for slot in slots:
        if slot.base is not None and slot.ours is not None and slot.theirs is not None:
            yield mine, their
            mine, their = [], []
        elif slot.base is None and slot.ours is not None:
            mine.append(slot)
        elif slot.base is None:
            their.append(slot)
    yield mine, their


def _refilled(slots: Sequence[Slot], ours: dict[int, int], number: int) -> bool:
    """Say whether a side put something where both removed a base statement."""
    left = max((n for n in ours if n < number), default=None)
    inside = left is None
    for slot in slots:
        if inside and slot.base is not None:
            return False
        if inside:
            return True
        inside = slot.base == left
    return False
