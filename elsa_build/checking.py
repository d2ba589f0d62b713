"""`check`: is every file of ours right, does every patch round-trip, does every recipe replay.

Each part is looked at even when another is wrong, so that one run tells everything.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from elsa_build import project
from elsa_build.diagnostics import Diagnostic, Severity
from elsa_build.errors import ElsaError
from elsa_build.git.door import Git
from elsa_build.model import Outcome, Step
from elsa_build.patches import lint
from elsa_build.progress import SILENT, Progress


def check(root: Path, *, progress: Progress = SILENT) -> tuple[Diagnostic, ...]:
    """Return everything that is wrong with a project.

    The pinned repository is fetched when it is not in the cache.

    Raises:
        ElsaError: There is no lock that could be read, or its pin cannot be had.
    """
    lock = project.read_lock(root)
    found: list[Diagnostic] = []
    with Git(project.pinned_repository(lock, progress)) as git:
        for name in project.patchset_names(root):
            with git.quarantine() as inner, progress.task(f"check patchset {name}"):
                found += lint.check(root / project.PATCHSETS / name, root, inner)
    for name in project.recipe_names(root):
        found += _recipe(root, name, progress)
    return tuple(dict.fromkeys(found))


def _recipe(root: Path, name: str, progress: Progress) -> Iterator[Diagnostic]:
    try:
        recipe = project.choose_recipe(root, name=name)
        yield from project.staleness(root, recipe, project.read_lock(root))
        with project.replayed(root, recipe=recipe, progress=progress) as (stack, _):
            for step in stack.done.steps:
                yield from _step(step)
            yield from stack.probes
    except ElsaError as e:
        yield Diagnostic(
            code="E120",
            severity=Severity.ERROR,
            message=str(e),
            path=f"recipes/{name}.yaml",
            hint=e.hint,
        )


def _step(step: Step) -> Iterator[Diagnostic]:
    for found in step.findings:
        yield replace(found, message=f"{step.patch.id}: {found.message}")
    if step.failed and step.outcome is not Outcome.CLEAN:
        yield Diagnostic(
            code="E301",
            severity=Severity.ERROR,
            message=f"{step.patch.id}: {step.outcome} on the pin",
            path=str(step.patch.file.name) if step.patch.file else None,
            line=None,
            hint="elsa-build apply --dry-run",
        )
