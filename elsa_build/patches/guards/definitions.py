"""Whether a patch defines a second time what is already defined.

When upstream adds the function that a patch adds, a clean merge can leave both: the later one wins
in silence, and which one that is depends on where the hunk fell.
"""

import re
from collections.abc import Iterator

from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.patches.guards.scopes import SCOPES, BlockKind
from elsa_build.patches.guards.source import Frame, Keys, Path, keys
from elsa_build.patches.guards.view import Version, View

CODE = "E315"
_DEFINED = SCOPES | {BlockKind.FIELD}
_MAY_DEFINE = re.compile(r"(?:async +def|def|class)\b|\w+ *:")
_SECOND_IS_MEANT = (".setter", ".getter", ".deleter", ".register", "overload")


def check(view: View) -> Iterator[Diagnostic]:
    """Yield a finding for each name that now stands twice in one block, and did not before."""
    if view.change.merged == view.change.patched:
        return
    merged = view.got.after
    said: set[Keys] = set()
    for path in _added_definitions(merged):
        name = keys(path)
        here = _definitions(merged, path)
        allowed = max(len(_same(version, path)) for version in (view.asked.after, view.got.before))
        if name in said or len(here) < 2 or len(here) <= allowed:
            continue
        said.add(name)
        lines = [frame.head for frame in here]
        qualified = ".".join(frame.key for frame in path if frame.kind in _DEFINED)
        yield Diagnostic(
            code=CODE,
            severity=Severity.ERROR,
            message=f"`{qualified}` is defined {len(lines)} times, at lines "
            f"{', '.join(map(str, lines))}; the last one wins",
            path=view.path,
            line=path[-1].head,
            hint="elsa-build patch edit ID (take upstream's definition, or rename yours)",
        )


def _added_definitions(version: Version) -> Iterator[Path]:
    for line in sorted(version.changed):
        if not _MAY_DEFINE.match(version.code(line)):
            continue
        path = version.source.path(line)
        if path and path[-1].head == line and _counts(path[-1]):
            yield path


def _counts(frame: Frame) -> bool:
    meant = any(
        decorator.partition("(")[0].endswith(_SECOND_IS_MEANT)
        for decorator in frame.block.decorators
    )
    return frame.kind in _DEFINED and frame.key != "_" and not meant


def _definitions(version: Version, path: Path) -> list[Frame]:
    """Return what stands under the same name in the very block where the path ends."""
    source = version.source
    beside = source.named_below(path[-2], path[-1]) if path[:-1] else source.top(path[-1])
    return [frame for frame in beside if _counts(frame)]


def _same(version: Version, path: Path) -> list[Frame]:
    """Return the definitions of that name in another version, in the block that has most."""
    source = version.source
    blocks = [source.top(path[0])]
    for wanted in path[1:]:
        blocks = [source.named_below(outer, wanted) for block in blocks for outer in block]
    return max(([it for it in block if _counts(it)] for block in blocks), key=len, default=[])
