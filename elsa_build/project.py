"""One checkout of ours, read together: the lock, a recipe, its patchsets, the pinned repository.

Commands start here. What a run needs of the disk is found once and handed on as values.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from elsa_build.diagnostics import Diagnostic, errors
from elsa_build.errors import ConfigError, ConflictError, FailedError
from elsa_build.git.door import Git, Quarantine
from elsa_build.images import kernel_layer
from elsa_build.images import recipe as recipes
from elsa_build.images.ingredients import Prepared, SourceTrees
from elsa_build.images.prepare import prepare as gather
from elsa_build.kernels.bundle import Manifest
from elsa_build.kernels.staleness import Stale
from elsa_build.kernels.unpacking import opened
from elsa_build.model import Oid, Outcome, Patch, Recipe, Replay, Series, SourceKind, Step
from elsa_build.patches import checkout, probes, seriesfile
from elsa_build.patches.guarding import guarded
from elsa_build.patches.replay import replay
from elsa_build.patches.subset import subset
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream import lock as locks
from elsa_build.upstream import lockfile
from elsa_build.upstream.cache import cache_dir
from elsa_build.upstream.git_source import GitSource
from elsa_build.upstream.source import open_pinned, open_source, open_wheel

PATCHSETS = "patchsets"
NO_KERNELS = "none"


def read_lock(root: Path) -> locks.Lock:
    """Return the project's lock.

    Raises:
        ConfigError: There is none, or it is not what the tool wrote.
    """
    path = root / locks.FILENAME
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; nothing is pinned yet", hint="elsa-build pin set latest"
        )
    return lockfile.read(path)


def patchset_names(root: Path) -> tuple[str, ...]:
    """Return the patchsets of the project, sorted."""
    return tuple(
        sorted(path.parent.name for path in (root / PATCHSETS).glob(f"*/{seriesfile.NAME}"))
    )


def read_series(root: Path, names: tuple[str, ...] | None = None) -> Series:
    """Return these patchsets (all of them by default) as one series.

    Raises:
        SeriesError: Something in them is wrong.
    """
    chosen = patchset_names(root) if names is None else names
    return seriesfile.combine(
        *(seriesfile.load(root / PATCHSETS / name, root=root) for name in chosen)
    )


def pinned_repository(
    lock: locks.Lock, progress: Progress = SILENT, series: Series | None = None
) -> Path:
    """Return the bare repository that holds the pin, fetching it when needed.

    The commits that picks of a `series` refer to are fetched too, where the lock's source is git.

    Raises:
        ConfigError: The source does not have the pin, or a commit that a pick refers to.
    """
    repository = open_pinned(lock, cache=cache_dir(os.environ), progress=progress)
    wanted = (
        [p for p in series.patches if p.mail is None and seriesfile.active(p)] if series else []
    )
    if wanted:
        _fetch_picks(lock, repository, wanted, progress)
    return repository


def _fetch_picks(
    lock: locks.Lock, repository: Path, picks: Sequence[Patch], progress: Progress
) -> None:
    with Git(repository) as git:
        missing = [p for p in picks if p.origin.commit and git.objects.get(p.origin.commit) is None]
    for patch in missing:
        place = f"patchsets/{patch.patchset}/{seriesfile.NAME}:{patch.line}"
        lost = ConfigError(
            f"{place}: origin.commit: {patch.origin.commit} is not in {lock.pin.url}",
            hint=f"elsa-build patch vendor {patch.id} --upstream PATH",
        )
        if lock.pin.source is not SourceKind.GIT or patch.origin.commit is None:
            raise lost
        source = open_source(
            lock.pin.source, lock.pin.url, cache=cache_dir(os.environ), progress=progress
        )
        try:
            source.resolve(patch.origin.commit)
        except ConfigError as e:
            raise lost from e


def fetch_files(lock: locks.Lock, since: Oid, until: Oid, progress: Progress = SILENT) -> None:
    """Fetch the files that upstream changed after `since`, where a mirror lacks them."""
    if lock.pin.source is SourceKind.GIT:
        GitSource(url=lock.pin.url, cache=cache_dir(os.environ), progress=progress).complete(
            since, until
        )


def input_files(root: Path, recipe: Recipe, series: Series) -> tuple[Path, ...]:
    """Return every file of ours that decides a recipe's tree: itself, its series, their mails."""
    listed = [recipe.path]
    listed += [root / PATCHSETS / name / seriesfile.NAME for name in recipe.patchsets]
    listed += [patch.file for patch in series.patches if patch.file]
    return tuple(dict.fromkeys(path.resolve() for path in listed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A recipe's series on the pin, guarded: what `apply` writes and `image` ships.

    `repository` is where the objects live; `inputs` are the sha256 digests for the lock;
    `probes` are the claims of the series that do not hold in the result.
    """

    lock: locks.Lock
    recipe: Recipe | None
    series: Series
    done: Replay
    repository: Path
    inputs: dict[str, str]
    probes: tuple[Diagnostic, ...] = ()

    @property
    def clean(self) -> bool:
        """Say whether the result may be written and shipped."""
        return self.done.clean and not errors(self.probes)


@contextmanager
def replayed(
    root: Path,
    *,
    recipe: Recipe | None = None,
    locked: bool = False,
    only: Collection[str] = (),
    without: Collection[str] = (),
    progress: Progress = SILENT,
) -> Iterator[tuple[Stack, Quarantine]]:
    """Replay a recipe's series (or all patchsets) on the pin and guard it, in a quarantine.

    Nothing of it stays unless the caller keeps the quarantine. With `only` or `without` it is a
    part of the series, which is no recipe's: the stack has none, so that no lock records it.

    Raises:
        StaleError: `locked`, and an input is not what the lock recorded.
        UsageError: A patch needs one that is left out.
    """
    lock = read_lock(root)
    series = read_series(root, recipe.patchsets if recipe else None)
    inputs: dict[str, str] = {}
    if recipe:
        inputs = locks.digest_inputs(root, input_files(root, recipe, series))
        if locked:
            locks.require_fresh(lock, recipe.name, inputs)
    if only or without:
        series, recipe = subset(series, only=only, without=without), None
    repository = pinned_repository(lock, progress, series)
    with Git(repository) as git, git.quarantine() as inner:
        done = replay(inner, series, lock.pin.commit, progress=progress)
        done = guarded(inner, done, progress=progress)
        standing = [step.patch for step in done.steps if step.commit]
        yield (
            Stack(
                lock=lock,
                recipe=recipe,
                series=series,
                done=done,
                repository=repository,
                inputs=inputs,
                probes=probes.examine(inner.objects, done.tree, standing),
            ),
            inner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where `apply` puts a result: a folder, or a branch of a repository (None: the mirror)."""

    folder: Path | None = None
    branch: str | None = None
    repository: Path | None = None


def write(
    root: Path,
    stack: Stack,
    quarantine: Quarantine,
    target: Target,
    *,
    now: int,
    locked: bool = False,
    progress: Progress = SILENT,
) -> Oid | None:
    """Keep a clean result, record it in the lock, put it where it was asked for.

    Returns:
        Where the branch was before, if it moved.
    """
    quarantine.keep()
    before = None
    if target.folder:
        with progress.task(f"write {target.folder}"):
            checkout.to_folder(stack.repository, stack.done, target.folder)
    elif target.branch:
        with Git(target.repository or stack.repository) as git:
            if target.repository:
                git.borrow(stack.repository, stack.done.head)
            before = checkout.to_branch(git, stack.done, target.branch, now=now)
    if stack.recipe:
        recorded = locks.record(stack.lock, stack.recipe.name, stack.inputs, stack.done.tree)
        locks.save(root / locks.FILENAME, recorded, locked=locked)
    return before


def require_clean(stack: Stack) -> None:
    """Return when every patch applied, no guard objected and every probe holds.

    Raises:
        ConflictError: Some patches do not apply; the message names them.
        FailedError: A probe does not hold.
    """
    steps = stack.done.steps
    failed = [f"{step.patch.id} ({_why(step)})" for step in steps if step.failed]
    if failed:
        raise ConflictError(
            f"{len(failed)} of {len(steps)} patches do not apply: {', '.join(failed)}",
            hint="elsa-build apply --dry-run",
        )
    broken = errors(stack.probes)
    if broken:
        raise FailedError("; ".join(map(str, broken)), hint=broken[0].hint)


def _why(step: Step) -> str:
    return "guards" if step.outcome is Outcome.CLEAN else str(step.outcome)


@contextmanager
def prepare(
    root: Path,
    recipe: Recipe,
    *,
    locked: bool = False,
    dry_run: bool = False,
    kernels: str | None = None,
    progress: Progress = SILENT,
) -> Iterator[Prepared]:
    """Replay a recipe and gather everything that its image is made of.

    The lock is brought up to date first (unless `dry_run`), since the image carries it. `kernels`
    is the bundle of compiled kernels, a folder or an archive; None: the recipe's own, where it was
    built; "none": an image without kernels is meant.

    Raises:
        ConflictError: The series does not apply.
        StaleError: `locked`, and an input is not what the lock recorded; or the kernels are not
            those of this recipe and tree.
    """
    own = bundle_folder(root, recipe.name)
    chosen = Path(kernels) if kernels else own if own.exists() else None
    with (
        replayed(root, recipe=recipe, locked=locked, progress=progress) as (stack, quarantine),
        opened(chosen) if chosen and kernels != NO_KERNELS else nullcontext() as bundle,
    ):
        require_clean(stack)
        lock = locks.record(stack.lock, recipe.name, stack.inputs, stack.done.tree)
        if not dry_run:
            locks.save(root / locks.FILENAME, lock, locked=locked)
        cache = cache_dir(os.environ)
        wheel = None
        if lock.pin.source is SourceKind.RELEASE and not recipe.base_layout:
            wheel = open_wheel(lock, python=recipe.python, cache=cache, progress=progress)
        ready = gather(
            pin=lock.pin,
            recipe=recipe,
            done=stack.done,
            objects=quarantine.objects,
            lock=locks.write(lock).encode(),
            cache=cache / "images",
            wheel=wheel,
            kernels=bundle,
            progress=progress,
        )
        forgotten = tuple(kernel_layer.findings(None, recipe)) if chosen is None else ()
        yield replace(ready, findings=(*ready.findings, *forgotten))


def outdated(
    root: Path, recipe: Recipe, kernels: Manifest, *, progress: Progress = SILENT
) -> tuple[Stale, ...]:
    """Return the kernels that were compiled from other sources than a recipe's patched tree.

    Raises:
        ConflictError: The series does not apply.
    """
    with replayed(root, recipe=recipe, progress=progress) as (stack, quarantine):
        require_clean(stack)
        trees = SourceTrees(
            objects=quarantine.objects, upstream=stack.lock.pin.tree, patched=stack.done.tree
        )
        return kernel_layer.outdated(kernels, trees)


def bundle_folder(root: Path, recipe: str) -> Path:
    """Return where the compiled kernels of a recipe are built."""
    return root / "dist" / "kernels" / recipe


def choose_recipe(root: Path, *, tag: str | None = None, name: str | None = None) -> Recipe:
    """Return the recipe of a tag or a name, else the only one."""
    return recipes.find(root, tag=tag, name=name)


def recipe_names(root: Path) -> tuple[str, ...]:
    """Return the recipes of the project, sorted."""
    return tuple(sorted(path.stem for path in (root / recipes.FOLDER).glob("*.yaml")))


def staleness(root: Path, recipe: Recipe, lock: locks.Lock) -> tuple[Diagnostic, ...]:
    """Return what of a recipe's inputs is no longer as the lock recorded it."""
    series = read_series(root, recipe.patchsets)
    digests = locks.digest_inputs(root, input_files(root, recipe, series))
    return locks.stale(lock, recipe.name, digests)
