"""One checkout's kernels: from its recipe and its patched tree to a plan, and to a bundle.

Here the rooms meet: the series is replayed and written out for the interpreter that compiles, the
recipe and its model say what the server does, and `kernels` plans and builds.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elsa_build import project
from elsa_build.diagnostics import Diagnostic
from elsa_build.errors import ConfigError
from elsa_build.git.objects import ObjectStore
from elsa_build.images import geometry, serving
from elsa_build.kernels import building, harvest, inside, planlock, source, toolchain, toolkit
from elsa_build.kernels import plan as plans
from elsa_build.kernels.harvest import Harvest
from elsa_build.kernels.inside import fingerprint
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.plan import Plan, PlanChange
from elsa_build.kernels.recorder import HARVEST, TIMINGS, WHOLE
from elsa_build.kernels.recording import Aged, aged
from elsa_build.kernels.target import Target, target
from elsa_build.kernels.toolchain import Toolchain
from elsa_build.model import Oid, Recipe
from elsa_build.progress import SILENT, Progress
from elsa_build.upstream.cache import cache_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where the kernels of one recipe are compiled: for which card, with what, from which tree.

    `tree` is the patched tree, `package` its `sglang/`, both in `objects`; `folder` is ours in the
    cache. `fingerprint` is what the interpreter compiles with, `triton` its Triton's files and
    their digests; `remarks` are what was odd about its nvcc.
    """

    recipe: Recipe
    target: Target
    tools: Toolchain
    tree: Oid
    package: str
    folder: Path
    fingerprint: Mapping[str, Any]
    triton: Mapping[str, str]
    objects: ObjectStore
    remarks: tuple[Diagnostic, ...] = ()


@contextmanager
def workplace(
    root: Path,
    recipe: Recipe,
    *,
    python: Path | None = None,
    arch: str | None = None,
    cuda_home: Path | None = None,
    environ: Mapping[str, str],
    progress: Progress = SILENT,
) -> Iterator[Workplace]:
    """Have a recipe's patched tree as files, and the interpreter that compiles from it.

    Raises:
        ConfigError: No such architecture or interpreter (exit 5).
        ConflictError: The series does not apply (exit 3).
    """
    card = target(arch or recipe.arch)
    found = toolchain.interpreter(python, root, environ)
    folder = cache_dir(environ) / "kernels"
    with project.replayed(root, recipe=recipe, progress=progress) as (stack, quarantine):
        project.require_clean(stack)
        objects, tree = quarantine.objects, stack.done.tree
        place = source.materialise(objects, tree, folder / "trees", progress=progress)
        tools = Toolchain(
            python=found,
            source=place,
            scratch=folder / "scratch",
            libraries=(folder / "scratch/stub",),
            variables=_variables(recipe),
        )
        tools, said, remarks = equipped(tools, card, cuda_home, folder, environ, progress)
        yield Workplace(
            recipe=recipe,
            target=card,
            tools=tools,
            tree=tree,
            package=place.name,
            folder=folder,
            fingerprint=said["fingerprint"],
            triton=said["triton_files"],
            objects=objects,
            remarks=remarks,
        )


def equipped(
    tools: Toolchain,
    card: Target,
    cuda_home: Path | None,
    folder: Path,
    environ: Mapping[str, str],
    progress: Progress = SILENT,
) -> tuple[Toolchain, Mapping[str, Any], tuple[Diagnostic, ...]]:
    """Return a toolchain with its nvcc, what the interpreter has, and what was odd.

    Raises:
        ToolError: There is no nvcc that knows the card (exit 6).
    """
    stub = str(tools.libraries[0])
    with progress.task("look at the interpreter"):
        env = tools.environment(folder / "planning", environ)
        said = toolchain.ask(tools.command("premises", stub), {}, env)
        kit, remarks = toolkit.find(
            card,
            env=environ,
            scratch=tools.scratch,
            cuda_home=cuda_home,
            site_packages=Path(said["site_packages"]),
        )
    nvcc = {"cuda_home": fingerprint.in_key(kit.home), "nvcc": toolkit.banner(kit.nvcc)}
    said = {**said, "fingerprint": {**said["fingerprint"], **nvcc}}
    return replace(tools, cuda_home=kit.home), said, remarks


def _variables(recipe: Recipe) -> dict[str, str]:
    """Return the image's environment but for its paths: they are the builder's own here."""
    ours = serving.environment(recipe)
    return {name: value for name, value in ours.items() if not value.startswith(serving.CACHE)}


def asked(root: Path, place: Workplace) -> dict[str, Any]:
    """Return what the drives are asked: the card, the model's shapes, how it is served.

    Raises:
        ConfigError: The recipe names no model whose shapes are known, or leaves to the server what
            kernels are compiled for (exit 5).
    """
    recipe = place.recipe
    if recipe.memory.model is None:
        raise ConfigError(
            f"{recipe.path.name}: memory.model: is missing, and kernels depend on the shapes",
            hint=f"memory: {{model: {' | '.join(geometry.models())}}}",
        )
    return {
        "target": place.target.document(),
        "geometry": _shapes(geometry.model(recipe.memory.model, root)),
        "serve": plans.serving(_deciding(recipe)),
        "flags": {name: value or "true" for name, value in recipe.flags},
    }


def _inputs(request: Mapping[str, Any], recorded: list[dict[str, Any]]) -> str:
    """Return a digest of what decides a plan beside the tree and the interpreter."""
    drives = sorted(Path(inside.__file__).parent.rglob("*.py"))
    bodies = [hashlib.sha256(path.read_bytes()).hexdigest() for path in drives]
    text = json.dumps([request, recorded, bodies], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def plan(root: Path, place: Workplace, *, progress: Progress = SILENT) -> Plan:
    """Return what the patched tree compiles for this recipe, from its drives and recorded boots.

    Raises:
        ConfigError: The recipe leaves something open that decides kernels (exit 5).
        ToolError: The patched tree cannot be driven at all (exit 6).
    """
    recipe, request = place.recipe, asked(root, place)
    build = place.folder / "planning"
    env = place.tools.environment(build, os.environ)
    with progress.task(f"drive the patched tree for {place.target.name}"):
        said = toolchain.ask(place.tools.command("plan"), request, env)
    recorded = _recorded(root, place, WHOLE)
    old = outrun(place, recorded)
    lost = {f"{name} (recorded)": "it is gone from the patched tree" for name in old.gone}
    lost |= {f"{name} (recorded)": "its text has changed: record again" for name in old.changed}
    kernels = plans.planned(
        [
            *({"family": Family.TRITON.value, **one} for one in said["kernels"]),
            *said["modules"],
            *(one for one in recorded if one["name"] not in {*old.gone, *old.changed}),
        ]
    )
    return Plan(
        recipe=recipe.name,
        target=place.target.name,
        package=place.package,
        inputs=_inputs(request, recorded),
        versions=said["versions"],
        kernels=tuple(kernels),
        tunings=tuple(plans.tunings(said["tunings"])),
        failures={**said["failures"], **lost},
    )


def _deciding(recipe: Recipe) -> dict[str, str | None]:
    """Return a recipe's flags when they say what is part of kernels' keys.

    Raises:
        ConfigError: The number of state slots or of requests is left to the server (exit 5).
    """
    flags = dict(recipe.flags)
    for name in ("max-mamba-cache-size", "max-running-requests"):
        if not flags.get(name):
            raise ConfigError(
                f"{recipe.path.name}: serve.{name}: is left to the server, and kernels are compiled"
                " for it",
                hint=f"serve: {{{name}: N}}, as a running server's log has it",
            )
    return flags


def _shapes(model: Any) -> dict[str, int]:  # noqa: ANN401 - images.sizing.Geometry
    names = (
        "hidden heads kv_heads head_dim rotary_dim key_heads value_heads key_dim value_dim"
        " conv_kernel experts experts_per_token moe_intermediate vocabulary context"
        " linear_layers attention_layers"
    )
    shapes = {name: getattr(model, name) for name in names.split()}
    unknown = [name for name, value in shapes.items() if not value]
    if unknown:
        raise ConfigError(f"model {model.name}: {', '.join(unknown)} must be known for kernels")
    return shapes


def _recorded(root: Path, place: Workplace, name: str) -> list[dict[str, Any]]:
    """Return the lines of one file that `kernels record` wrote of real boots; none is no error."""
    path = root / planlock.FOLDER / place.recipe.name / name
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as e:
        raise ConfigError(
            f"{path.relative_to(root)}: {e}",
            hint=f"elsa-build kernels record --into {place.recipe.name} -- COMMAND",
        ) from e


def outrun(place: Workplace, entries: list[dict[str, Any]]) -> Aged:
    """Return which recorded kernels the patched tree has outrun since: gone, or another text."""
    names = sorted({one["name"] for one in entries if one["family"] == Family.TRITON})
    if not names:
        return Aged(gone=(), changed=())
    request = {"target": place.target.document(), "names": names}
    env = place.tools.environment(place.folder / "planning", os.environ)
    said = toolchain.ask(place.tools.command("recorded"), request, env)
    return aged(entries, said["texts"])


def timings(root: Path, place: Workplace) -> dict[str, dict[str, list[float]]]:
    """Return what a card measured of tuners' choices, by function and key, as `building` asks."""
    return {
        building.choice_id(one["name"], one["spec"]["tuning_key"]): one["timings"]
        for one in _recorded(root, place, TIMINGS)
        if one.get("timings")
    }


def harvested(root: Path, place: Workplace) -> Harvest | None:
    """Return what a boot on the card has left for this recipe, or None.

    Raises:
        ConfigError: It is damaged (exit 5).
    """
    return harvest.read(root / planlock.FOLDER / place.recipe.name / HARVEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A plan, what of it is new against the one on disk, and the files that were written."""

    plan: Plan
    change: PlanChange
    written: tuple[Path, ...] = ()


def replan(
    root: Path, place: Workplace, *, dry_run: bool = False, progress: Progress = SILENT
) -> Planning:
    """Plan, compare with the plan on disk, and write it unless `dry_run`."""
    new = plan(root, place, progress=progress)
    try:
        old = planlock.load(root, place.recipe.name)
    except ConfigError:  # damaged: the new one replaces it
        old = None
    empty = Plan(
        recipe=new.recipe, target=new.target, package="", versions=new.versions, kernels=()
    )
    return Planning(
        plan=new,
        change=plans.changes(old or empty, new),
        written=() if dry_run else planlock.save(root, new),
    )


def current(
    root: Path, place: Workplace, *, dry_run: bool = False, progress: Progress = SILENT
) -> Plan:
    """Return the plan on disk where it is of this tree, card and interpreter, else a new one.

    A plan for the recipe's own card is written unless `dry_run`.
    """
    try:
        kept = planlock.load(root, place.recipe.name)
    except ConfigError:  # damaged: made anew
        kept = None
    ours = place.recipe.arch == place.target.name
    inputs = _inputs(asked(root, place), _recorded(root, place, WHOLE))
    if kept and kept.inputs == inputs and _same(kept, place):
        return kept
    return replan(root, place, dry_run=dry_run or not ours, progress=progress).plan


def _same(kept: Plan, place: Workplace) -> bool:
    known = {name: str(place.fingerprint.get(name)) for name in kept.versions}
    return (kept.package, kept.target, dict(kept.versions)) == (
        place.package,
        place.target.name,
        known,
    )
