"""What a proposed text must pass before anyone sees it: a wrong proposal is worse than none.

The proposal is held against its three sources, whatever made it: nothing that either side added may
be missing, nothing that either side removed may be back, no name may hang in the air.
"""

import ast
import io
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence

from elsa_build.patches.proposals.attributes import missing
from elsa_build.patches.proposals.calls import misfits
from elsa_build.patches.proposals.effects import bound_by
from elsa_build.patches.proposals.extract import extracts
from elsa_build.patches.proposals.layout import Unparsable, parse, source
from elsa_build.patches.proposals.names import undefined, unused


def objections(
    base: str, ours: str, theirs: str, merged: str, *, idle: Sequence[str] = ()
) -> Iterator[str]:
    """Yield why a joined Python text cannot be right.

    Args:
        base: The file before the patch, as written.
        ours: The file that the patch is put on.
        theirs: The file after the patch, as written.
        merged: The proposal.
        idle: Texts of upstream's that the proposal knowingly leaves out.
    """
    try:
        texts = extracts([source(text) for text in (base, ours, theirs, merged)])
    except Unparsable as e:
        yield f"does not parse: {e}"
        return
    trees = [parse(text) for text in texts]
    yield from _dangers(texts, trees, ours, theirs, merged)
    for scope, name in sorted(unused(texts[3]).difference(*map(unused, texts[:3]))):
        yield f"`{name}` in {scope} is set but nothing reads it any more"
    yield from weighed(texts[0], texts[1], texts[2], texts[3], idle)
    yield from _imports(trees, merged)


def dangers(base: str, ours: str, theirs: str, partly: str) -> Iterator[str]:
    """Yield why a text cannot be right in which only some conflicts are settled yet."""
    try:
        texts = extracts([source(text) for text in (base, ours, theirs, partly)])
    except Unparsable as e:
        yield f"does not parse: {e}"
        return
    yield from _dangers(texts, [parse(text) for text in texts], ours, theirs, partly)


def _dangers(
    texts: Sequence[str], trees: Sequence[ast.Module], ours: str, theirs: str, merged: str
) -> Iterator[str]:
    yield from _twice(trees)
    known = {name for statement in source(merged).tree.body for name in bound_by(statement)}
    yield from _hanging(texts, frozenset(known))
    yield from missing(source(ours), source(theirs), source(merged))
    fits = [misfits(source(text).tree) for text in (ours, theirs, merged)]
    yield from sorted(fits[2] - fits[0] - fits[1])


def _hanging(texts: Sequence[str], known: frozenset[str]) -> Iterator[str]:
    """Yield names that the last text uses and that are bound nowhere in it."""
    before = [undefined(text, known) for text in texts[1:3]]
    names = {name for side in before for _, name in side}
    for scope, name in sorted(undefined(texts[3], known).difference(*before)):
        if name not in names:
            yield f"`{name}` in {scope or 'the module'} is bound nowhere"


def _imports(trees: Sequence[ast.Module], merged: str) -> Iterator[str]:
    """Yield imports that got lost, or that came back although nothing needs them."""
    old, mine, their, brought = map(_imported, trees)
    for name in sorted((mine | their) - old - brought):
        yield f"`{name}` is missing"
    for name in sorted((old & brought) - (mine & their)):
        _, _, other = name.rpartition(" as ")
        word = other if other != "None" else name.split(" ")[-3].partition(".")[0]
        if len(re.findall(rf"\b{re.escape(word)}\b", merged)) < 2:
            yield f"`{name}` is back, and nothing uses it"


def _imported(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"import {name.name} as {name.asname}" for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"from {module} import {one.name} as {one.asname}" for one in node.names}
    return found


def _twice(trees: Sequence[ast.Module]) -> Iterator[str]:
    """Yield definitions that stand twice in one body of the last tree and of no other."""
    *before, now = [Counter(_definitions(tree)) for tree in trees]
    for place, count in now.items():
        if count > 1 and count > max(side[place] for side in before):
            yield f"`{place}` is defined {count} times"


def _definitions(node: ast.AST, place: str = "") -> Iterator[str]:
    """Yield the qualified name of every definition; each branch is a place of its own."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{place}.{child.name}".lstrip(".")
                marks = [ast.unparse(mark) for mark in child.decorator_list]
                if not any(mark.endswith(_SECOND_IS_MEANT) for mark in marks):
                    yield name
                yield from _definitions(child, name)
            elif isinstance(child, ast.stmt | ast.ExceptHandler):
                head = getattr(child, "test", None) or getattr(child, "type", None)
                label = ast.unparse(head) if isinstance(head, ast.AST) else type(child).__name__
                yield from _definitions(child, f"{place}.<{field} {label}>")


_SECOND_IS_MEANT = (".setter", ".getter", ".deleter", "overload", ".register")


def weighed(
    base: str, ours: str, theirs: str, merged: str, idle: Sequence[str] = ()
) -> Iterator[str]:
    """Yield words that got lost or came back: each side's difference must be in the result."""
    b, o, t, m = (words(text) for text in (base, ours, theirs, merged))
    spare: Counter[str] = Counter()
    for text in idle:
        spare += words(text)
    for word in sorted({*b, *o, *t, *m}):
        mine, their = o[word] - b[word], t[word] - b[word]
        got = m[word] - b[word]
        low, high = sorted((mine + their, max(mine, their) if mine > 0 < their else mine + their))
        if mine < 0 and their < 0:
            low, high = mine + their, min(mine, their)
        if not low - spare[word] <= got <= high:
            yield f"`{word}` stands {m[word]} times, expected {b[word] + low} to {b[word] + high}"


def words(text: str) -> Counter[str]:
    """Return the names, numbers and strings of a Python text or a piece of one, imports apart."""
    found: Counter[str] = Counter()
    line: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NEWLINE:
                found.update(_counted(line))
                line = []
            elif token.type == tokenize.STRING:
                line.append(_bare(token.string))
            elif token.type in {tokenize.NAME, tokenize.NUMBER}:
                line.append(token.string)
    except (tokenize.TokenError, IndentationError, SyntaxError):
        pass
    found.update(_counted(line))
    return found


def _counted(line: list[str]) -> Iterator[str]:
    """Yield what counts of a line: `else: if` is `elif`, and imports are looked at by name."""
    if line and line[0] in {"from", "import"}:
        return
    for word in line:
        if word in _MEANT or not keyword.iskeyword(word):
            yield word


def _bare(string: str) -> str:
    """Return a string without its kind of quotes, which a formatter may change."""
    found = re.fullmatch(r"(?s)(\w*)(\"{3}|'{3}|\"|')(.*)\2", string)
    if found is None:
        return string
    inner = re.sub(r"\\([\"'])", r"\1", found[3])
    return f"{found[1]}'{inner}'"


_MEANT = {"True", "False", "None", "not", "and", "or", "return", "yield", "await", "raise"}
