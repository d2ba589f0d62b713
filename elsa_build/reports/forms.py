"""The forms that a review can take, by the name a person types, and their files."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from elsa_build.patches.review import Review
from elsa_build.reports import github, gitlab, html, junit, markdown, reading, sarif


class Form(StrEnum):
    """What `report --format` takes."""

    HTML = "html"
    MARKDOWN = "markdown"
    SARIF = "sarif"
    JUNIT = "junit"
    GITHUB = "github"
    GITLAB = "gitlab"


_RENDERERS: Mapping[Form, Callable[[Review], str]] = {
    Form.HTML: html.render,
    Form.MARKDOWN: markdown.render,
    Form.SARIF: sarif.render,
    Form.JUNIT: junit.render,
    Form.GITHUB: github.render,
    Form.GITLAB: gitlab.render,
}

FILES: Mapping[Form, str] = {
    Form.HTML: "report.html",
    Form.MARKDOWN: "report.md",
    Form.SARIF: "report.sarif",
    Form.JUNIT: "junit.xml",
    Form.GITHUB: "annotations.txt",
    Form.GITLAB: "gl-code-quality.json",
}
"""What each form is called in a folder of reports."""


def render(review: Review, form: Form) -> str:
    """Return a review in one form."""
    return _RENDERERS[form](review)


def every(review: Review) -> dict[str, str]:
    """Return all files of a folder of reports by name, the review itself among them."""
    made = {FILES[form]: render(review, form) for form in Form}
    return {reading.NAME: reading.to_json(review), **made}


def store(folder: Path, review: Review) -> tuple[Path, ...]:
    """Write all forms of a review into a folder and return the paths.

    Raises:
        ToolError: The disk refuses (exit 6).
    """
    paths = []
    for name, text in every(review).items():
        paths.append(folder / name)
        reading.write(paths[-1], text)
    return tuple(paths)
