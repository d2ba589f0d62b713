"""A review as Markdown that fits a pull request's comment: summary first, a fold a conflict.

Nothing in it reaches upstream: names and subjects stand in code, so that nobody is mentioned, and
links to pull requests take the way that leaves no mark there. What does not fit is counted, not
cut.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from elsa_build.model import Outcome, Step
from elsa_build.patches.causes import Cause
from elsa_build.patches.review import Case, Review, Site
from elsa_build.reports import sidebyside, wording
from elsa_build.reports.sidebyside import Row, RowKind, visible

MARKER = "<!-- elsa-build:rebase -->"
"""The first line, by which a bot finds its own comment."""
LIMIT = 65_536
"""Characters of a comment on GitHub."""

_SIGNS = {RowKind.SAME: " ", RowKind.ADDED: "+", RowKind.REMOVED: "-"}
_GITHUB = "https://github.com/"


def render(review: Review, limit: int = LIMIT) -> str:
    """Return the report in at most `limit` characters.

    Conflicts are shown in full as long as there is room, then by their first lines, then counted.
    """
    head, tail = _head(review), _tail(review)
    rows = [row for row in review.rows if row[0].failed]
    room = limit - len(head) - len(tail) - _RESERVE
    table, left_out = _fitting([_line(review, *row) for row in rows], room)
    room -= len(table)
    blocks, short, hidden = [], 0, 0
    for step, case in rows:
        block = _block(review, step, case, diffs=True)
        if len(block) > room:
            block = _block(review, step, case, diffs=False)
            short += 1
        if len(block) > room:
            short, hidden = short - 1, hidden + 1
            continue
        blocks.append(block)
        room -= len(block)
    missing = _missing(short=short, hidden=hidden, lines=left_out)
    return f"{head}{_table_head(rows)}{table}\n{''.join(blocks)}{missing}{tail}"


_RESERVE = 600
"""Characters kept for the table's head and for what says that something did not fit."""


def fingerprint_line(review: Review) -> str:
    """Return the hidden line that says what is wrong; equal lines need no new comment."""
    return f"<!-- elsa-build:fingerprint {wording.fingerprint(review)} -->"


def _head(review: Review) -> str:
    base, onto = _code(review.base.name), _code(review.onto.name)
    lines = [
        MARKER,
        fingerprint_line(review),
        f"## {_plain(wording.headline(review))}",
        "",
        f"Series {_code(review.series)}, from {base} onto {onto} ({_code(review.onto.commit)}).",
        "",
        " ".join(f"`{wording.letter(step)}`" for step in review.done.steps[:_STRIP]),
        "",
        _legend(review),
        "",
    ]
    return "\n".join(lines) + "\n"


_STRIP = 500
"""Cells of the strip; a longer series is told by its headline."""


def _legend(review: Review) -> str:
    present = {wording.letter(step) for step in review.done.steps}
    known = (f"`{sign}` {words}" for sign, words in wording.MEANINGS.items() if sign in present)
    return ", ".join(known)


def _table_head(rows: Sequence[tuple[Step, Case]]) -> str:
    return "| patch | what | where | upstream's reason |\n|---|---|---|---|\n" if rows else ""


def _line(review: Review, step: Step, case: Case) -> str:
    places = "<br>".join(_cell(path) for path in wording.places(case))
    causes = "<br>".join(_cause(review, cause, _cell) for cause in wording.reasons(case))
    return f"| {_cell(step.patch.id)} | {_plain(wording.state(step))} | {places} | {causes} |\n"


def _fitting(lines: Sequence[str], room: int) -> tuple[str, int]:
    """Return as many lines as fit into half of the room, and how many do not."""
    taken: list[str] = []
    room //= 2
    for line in lines:
        if len(line) > room:
            break
        taken.append(line)
        room -= len(line)
    return "".join(taken), len(lines) - len(taken)


def _missing(*, short: int, hidden: int, lines: int) -> str:
    """Return what did not fit: diffs of `short` patches, all of `hidden`, `lines` of the table."""
    told = {
        "without their diffs": short,
        "without a section": hidden,
        "not even in the table": lines,
    }
    parts = [f"{count} {words}" for words, count in told.items() if count]
    if not parts:
        return ""
    page = "`elsa-build report FILE --format html`"
    return f"\nToo long for a comment: {', '.join(parts)}. All of it: {page}\n"


# --- one patch --------------------------------------------------------------------------------


def _block(review: Review, step: Step, case: Case, *, diffs: bool) -> str:
    title = f"{_html(step.patch.id)}: {_html(wording.state(step))}"
    parts = [f"<details><summary><b>{title}</b></summary>", ""]
    parts += [f"Why we carry it: {_plain(step.patch.why)}", ""]
    if step.blocked_by:
        parts += [_plain(wording.blocked(step)), ""]
    if step.patch.hot_path:
        parts += ["Hot path: **measure again** before it ships.", ""]
    parts += [f"- {_plain(f'{f.severity} {f.code}')}: {_code(str(f))}" for f in step.findings]
    for site in case.sites:
        parts += _site(review, site, diffs=diffs)
    if step.proposal and diffs:
        parts += ["", "**A proposal**", "", *(f"1. {_plain(how)}" for how in step.proposal.how)]
        parts += ["", _fence(sidebyside.unified(case.proposal))]
    if case.commands:
        lines = "\n".join(command.line for command in case.commands)
        parts += ["", _fenced(lines, "sh")]
    return "\n".join([*parts, "", "</details>", "", ""])


def _site(review: Review, site: Site, *, diffs: bool) -> Iterator[str]:
    yield f"\n**{_code(wording.where(site))}**: {_plain(wording.reason(site))}\n"
    yield f"{_plain(wording.upstream_did(site))} {_plain(wording.patch_wants(site))}\n"
    if site.exact:
        for cause in site.causes:
            who = f"{_code(cause.author)}, {_plain(cause.date[:10])}, {_code(cause.oid)}"
            yield f"- {_cause(review, cause, _code)}: {who}, {cause.deed}"
    if not diffs:
        return
    if site.region is None:
        yield f"\nWhat the patch changes:\n\n{_fence(sidebyside.unified(site.patch_diff))}"
        return
    region = site.region
    left = sidebyside.columns(region.base, region.theirs, site.patch, by_base=True)
    right = sidebyside.columns(region.base, region.ours, site.upstream, by_base=False)
    yield f"\nWhat the patch changes:\n\n{_fence(left)}"
    yield f"\nWhat upstream changed:\n\n{_fence(right)}"


def _cause(review: Review, cause: Cause, code: Callable[[str], str]) -> str:
    subject = code(wording.bare_subject(cause))
    if cause.pr is None:
        return subject
    if review.project and review.project.startswith(_GITHUB):
        # A plain link to a pull request leaves a mark on it; this address does not.
        place = review.project.replace(_GITHUB, "https://redirect.github.com/", 1)
        return f"{subject} [`#{cause.pr}`]({place}/pull/{cause.pr})"
    return f"{subject} `#{cause.pr}`"


def _tail(review: Review) -> str:
    made = f"{review.made} by elsa-build {review.tool} with git {review.git}"
    again = "".join(f"- {_plain(item.does)}: {_code(item.line)}\n" for item in review.commands)
    look = [step for step, case in review.rows if not step.failed and wording.rescoped(case)]
    also = ""
    if look:
        names = ", ".join(_code(step.patch.id) for step in look[:20])
        also = f"\nApplied, but under another function than written: {names}\n"
    absorbed = [step for step in review.done.steps if step.outcome is Outcome.ABSORBED]
    if absorbed:
        names = ", ".join(_code(step.patch.id) for step in absorbed[:20])
        also += f"\nUpstream has it now: {names}\n"
    return f"{also}\n{again}\n<sub>Made {_plain(made)}; tree {_code(review.done.tree)}</sub>\n"


# --- text that stays text ---------------------------------------------------------------------


def _fence(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row.kind in _SIGNS:
            lines.append(_SIGNS[row.kind] + visible(row.text))
        else:
            lines.append(f"@@ {visible(row.text)} @@" if row.text else "@@ @@")
    return _fenced("\n".join(lines), "diff")


def _fenced(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _code(text: str) -> str:
    """Return text as a code span, in which nothing is a mention, a link or a tag."""
    line = " ".join(visible(text).split()) or " "
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def _cell(text: str) -> str:
    """Return a code span for a table, where a bar would begin the next cell."""
    return _code(text).replace("|", "\\|")


def _html(text: str) -> str:
    """Return text for inside a tag's content."""
    line = " ".join(visible(text).split())
    named = (
        line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "&grave;")
    )
    return _unlinked(named)


def _plain(text: str) -> str:
    """Return a sentence of ours that holds other people's words, with its signs escaped."""
    line = " ".join(visible(text).split())
    named = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _unlinked(re.sub(r"([\\`*_{}\[\]()|~$])", r"\\\1", named))


def _unlinked(text: str) -> str:
    """Keep `@name`, `#1` and addresses from being a mention or a link."""
    return re.sub(r"[@#](?=\w)|:(?=//)", lambda found: f"{found[0]}<!-- -->", text)
