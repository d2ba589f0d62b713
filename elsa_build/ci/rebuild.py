"""One nightly run: fetch, forecast, replay, guard, and, when all is well, build the images.

Whatever goes wrong is part of what the run found; only what keeps it from finding anything (no
network, a broken lock) is raised.
"""

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build import project, rebasing
from elsa_build.ci.standing import CiCode, Standing
from elsa_build.diagnostics import errors
from elsa_build.errors import ElsaError, ToolError
from elsa_build.images import tags
from elsa_build.images.build import build
from elsa_build.images.publish import Destination
from elsa_build.model import Outcome
from elsa_build.patches.review import Review
from elsa_build.progress import SILENT, Progress
from elsa_build.reports import markdown, wording

BROKEN = (Outcome.CONFLICT, Outcome.BLOCKED, Outcome.PROPOSED, Outcome.EMPTY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run found; `review` is None when there was nothing new."""

    standing: Standing
    onto: rebasing.Onto | None = None
    review: Review | None = None


CARRIED = ("upstream.lock", "patchsets", "recipes", "Dockerfile.j2")
"""What of a project decides an image."""


def run(
    root: Path, ref: str, *, now: str, upstream: str | None = None, progress: Progress = SILENT
) -> Run:
    """Replay the whole project on the newest upstream and return where it stands.

    Args:
        root: The project.
        ref: The upstream to try, `nightly` or a tag.
        now: When, ISO 8601 with an offset.
        upstream: A repository to take it from (default: the lock's source).
        progress: Told of each part.
    """
    lock = project.read_lock(root)
    onto = rebasing.find_onto(ref, lock=lock, upstream=upstream, progress=progress)
    if onto.commit == lock.pin.commit:
        nothing = Standing(
            code=CiCode.NOTHING_NEW,
            base=lock.pin.commit,
            onto=onto.commit,
            ref=ref,
            fingerprint="-",
            headline="nothing new",
            body="",
        )
        return Run(standing=nothing)
    with rebasing.rebased(root, onto, progress=progress) as (found, quarantine):
        review = rebasing.reviewed(found, quarantine, now=now, progress=progress)
    steps = found.done.steps
    broken = tuple(step.patch.id for step in steps if step.failed and step.outcome in BROKEN)
    failed = [
        f"`{step.patch.id}`: {finding}"
        for step in steps
        if step.failed and step.outcome not in BROKEN
        for finding in errors(step.findings)
    ]
    failed += [str(finding) for finding in errors(found.probes)]
    code = CiCode.CONFLICTS if broken else CiCode.FAILED if failed else CiCode.CLEAN
    standing = Standing(
        code=code,
        base=lock.pin.commit,
        onto=onto.commit,
        ref=ref,
        fingerprint=wording.fingerprint(review),
        headline=wording.headline(review),
        body=markdown.render(review),
        broken=broken,
        failed=tuple(failed),
    )
    return Run(standing=standing, onto=onto, review=review)


def proven(
    root: Path,
    found: Run,
    folder: Path,
    commands: Sequence[str] = (),
    *,
    progress: Progress = SILENT,
) -> Run:
    """Return a clean run with what moving, building and testing found; another stays as it is.

    Args:
        root: The project; it stays as it is.
        found: What `run` returned.
        folder: Gets the project as it is on the new upstream, its images below `dist`.
        commands: Each must succeed there; `ELSA_PATCHED_TREE` is the patched source.
        progress: Told of each part.
    """
    if found.standing.code is not CiCode.CLEAN or found.onto is None or found.onto.pin is None:
        return found
    failed = []
    try:
        _move(root, found.onto, folder, progress)
        _images(folder, progress)
        failed = list(_commands(folder, commands, progress))
    except ElsaError as e:
        failed = [str(e)]
    if not failed:
        return found
    broken = replace(found.standing, code=CiCode.FAILED, failed=tuple(failed))
    return replace(found, standing=broken)


def _move(root: Path, onto: rebasing.Onto, folder: Path, progress: Progress) -> None:
    """Write the project anew into `folder`, on the new upstream."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in CARRIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name)
            elif (root / name).exists():
                shutil.copy2(root / name, folder / name)
    except OSError as e:
        raise ToolError(f"cannot write {folder}: {e.strerror}") from e
    with rebasing.rebased(folder, onto, progress=progress) as (found, quarantine):
        rebasing.write(folder, found, quarantine)


def _images(folder: Path, progress: Progress) -> None:
    for name in project.recipe_names(folder):
        recipe = project.choose_recipe(folder, name=name)
        target = Destination(output=folder / "dist", lock=folder / tags.FILENAME)
        with project.prepare(folder, recipe, progress=progress) as ready:
            build(ready, target, name=recipe.tag, progress=progress)


def _commands(folder: Path, commands: Sequence[str], progress: Progress) -> Iterator[str]:
    if not commands:
        return
    tree = (folder / ".cache" / "patched").absolute()
    with project.replayed(folder, progress=progress) as (stack, quarantine):
        target = project.Target(folder=tree)
        project.write(folder, stack, quarantine, target, now=0, progress=progress)
    for line in commands:
        env = {**os.environ, "ELSA_PATCHED_TREE": str(tree)}
        with progress.task(line):
            ran = subprocess.run(shlex.split(line), cwd=folder, env=env, check=False)
        if ran.returncode:
            yield f"`{line}` ended with {ran.returncode}"
