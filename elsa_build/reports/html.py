"""A review as one HTML file: no script, nothing loaded, all text escaped, readable on a phone.

The base is in both diffs of a conflict, so the eye does the merge: left what the patch changes,
right what upstream changed.
"""

import functools
import hashlib
import re
from importlib.resources import files
from typing import TYPE_CHECKING

from elsa_build.model import Outcome, Step
from elsa_build.patches.review import Case, Review, Site
from elsa_build.reports import sidebyside, wording

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2 import Environment
    from markupsafe import Markup

_TEMPLATES = files("elsa_build.reports") / "templates"
_ATTENTION = (Outcome.CONFLICT, Outcome.BLOCKED, Outcome.PROPOSED, Outcome.PARTIAL, Outcome.EMPTY)


def render(review: Review) -> str:
    """Return the page."""
    shown = [(step, case) for step, case in review.rows if needs_a_person(step)]
    changed = [(step, case) for step, case in review.rows if worth_a_look(step, case)]
    project = review.project if (review.project or "").startswith("https://") else None
    template = _environment().get_template("review.html.j2")
    return template.render(
        review=review,
        css=(_TEMPLATES / "review.css").read_text(encoding="utf-8"),
        conflicts=shown,
        changed=changed,
        linked={step.patch.id for step, _ in (*shown, *changed)},
        pull=f"{project}/pull/" if project else None,
        commit=f"{project}/commit/" if project else None,
        present={wording.letter(step) for step in review.done.steps},
    )


def needs_a_person(step: Step) -> bool:
    """Say whether a step has a section of its own on the page."""
    return step.outcome in _ATTENTION or step.failed


def worth_a_look(step: Step, case: Case) -> bool:
    """Say whether a step applied, but not quite as it was written."""
    return not needs_a_person(step) and bool(
        case.drift.changed or wording.worrying(step) or wording.rescoped(case)
    )


def anchor(patch: str) -> str:
    """Return the anchor of a patch: its id, or for an id with other characters a digest of it."""
    if re.fullmatch(r"[A-Za-z0-9_.-]+", patch):
        return f"patch-{patch}"
    return f"patch-{hashlib.sha256(patch.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415 - only here

    environment = Environment(
        loader=FunctionLoader(lambda name: (_TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_shown,
    )
    words: dict[str, Callable[..., object]] = {
        "anchor": anchor,
        "bare_subject": wording.bare_subject,
        "blocked": wording.blocked,
        "explanation": wording.explanation,
        "headline": wording.headline,
        "landed": wording.landed,
        "letter": wording.letter,
        "patch_rows": _patch_rows,
        "patch_wants": wording.patch_wants,
        "places": wording.places,
        "reason": wording.reason,
        "reasons": wording.reasons,
        "rows_of_diff": sidebyside.unified,
        "rows_of_drift": sidebyside.of_diffs,
        "state": wording.state,
        "upstream_did": wording.upstream_did,
        "upstream_rows": _upstream_rows,
        "where": wording.where,
    }
    environment.globals.update(words)
    environment.filters["path"] = _path
    environment.globals["MEANINGS"] = wording.MEANINGS
    return environment


def _path(text: str) -> "Markup":
    """Return a path that may break after its slashes and underscores, and does not elsewhere."""
    from markupsafe import Markup, escape  # noqa: PLC0415 - comes with Jinja2

    parts = re.split(r"(?<=[/_.])(?=\w)", sidebyside.visible(text))
    return Markup("<wbr>").join(escape(part) for part in parts)


def _shown(value: object) -> object:
    """Give signs to what would hide in a page; Jinja2 escapes afterwards."""
    return sidebyside.visible(value) if type(value) is str else value


def _patch_rows(site: Site) -> tuple[sidebyside.Row, ...]:
    if site.region is None:
        return sidebyside.unified(site.patch_diff)
    region = site.region
    return sidebyside.columns(region.base, region.theirs, site.patch, by_base=True)


def _upstream_rows(site: Site) -> tuple[sidebyside.Row, ...]:
    if site.region is None:
        return ()
    region = site.region
    return sidebyside.columns(region.base, region.ours, site.upstream, by_base=False)
