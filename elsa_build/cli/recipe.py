"""`elsa-build recipe`: what a recipe resolves to, and where the card's memory goes."""

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.errors import UsageError
from elsa_build.images import explain as explaining
from elsa_build.images import recipe as recipes
from elsa_build.images import serving
from elsa_build.model import Recipe
from elsa_build.reports import ledger

group = typer.Typer(
    help="Show what a recipe resolves to, and where the memory of its card goes.",
    no_args_is_help=True,
)
app.add_typer(group, name="recipe")

Name = Annotated[
    str | None, typer.Argument(metavar="[RECIPE]", help="Which recipe (default: the only one)")
]
Tag = Annotated[str | None, typer.Option(metavar="TAG", help="The recipe that has this tag")]


@command(group, "show", example="elsa-build recipe show elsa-1.7 --json", schema="recipe-show")
def show(session: Session, name: Name = None, tag: Tag = None) -> Result:
    """Show a recipe with every default filled in: command, environment, health check."""
    found = recipes.find(session.root, tag=tag, name=name)
    return Result(data=_document(found, session.root), view="\n".join(_lines(found)))


@command(
    group,
    "explain",
    example="elsa-build recipe explain\n"
    "elsa-build recipe explain --slots 8,12,16\n"
    "elsa-build recipe explain --card h200 --load 139.30:117.85",
    schema="recipe-explain",
)
def explain(
    session: Session,
    *,
    name: Name = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="The same, as an option")
    ] = None,
    slots: Annotated[
        str | None,
        typer.Option(metavar="N,N...", help="Running requests to compare (default: the recipe's)"),
    ] = None,
    card: Annotated[
        str | None, typer.Option(metavar="CARD", help="On which card (default: the recipe's)")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Which model: a name, or a checkpoint's config.json"),
    ] = None,
    load: Annotated[
        str | None,
        typer.Option(
            metavar="BEGIN:END",
            help="Free memory before and after loading the weights, GB, as the server logs it",
        ),
    ] = None,
    weights: Annotated[
        int | None,
        typer.Option(min=1, metavar="MIB", help="Size of the weights, instead of --load"),
    ] = None,
) -> Result:
    """Explain where a recipe's memory goes on a card, term by term, and how many requests fit."""
    if name and recipe and name != recipe:
        raise UsageError(f"two recipes are named: {name} and {recipe}")
    ask = explaining.Ask(
        requests=_numbers(slots),
        card=card,
        model=model,
        load_gb=_load(load),
        weights_mib=weights,
    )
    chosen = recipes.find(session.root, name=recipe or name)
    found = explaining.explain(chosen, session.root, ask)
    return Result(data=ledger.document(found), view=ledger.page(found), diagnostics=found.findings)


def _numbers(text: str | None) -> tuple[int, ...]:
    words = text.split(",") if text else []
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise UsageError(f"--slots {text}: numbers above 0, joined by commas", hint="--slots 8,12")
    return tuple(int(word) for word in words)


def _load(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", text)
    if not found:
        raise UsageError(f"--load {text}: two sizes in GB", hint="--load 31.20:8.43")
    return float(found[1]), float(found[2])


def _document(recipe: Recipe, root: Path) -> dict[str, Any]:
    return {
        "name": recipe.name,
        "path": _shown(recipe.path, root),
        "tag": recipe.tag,
        "model": recipe.model,
        "arch": recipe.arch,
        "python": recipe.python,
        "patchsets": list(recipe.patchsets),
        "command": list(serving.command(recipe)),
        "env": serving.environment(recipe),
        "labels": dict(recipe.labels),
        "user": recipe.user,
        "base": {
            "image": recipe.base,
            "layout": _shown(recipe.base_layout, root) if recipe.base_layout else None,
            "package_dir": recipe.package_dir,
        },
        "health": {**asdict(recipe.health), "command": list(serving.health_command(recipe))},
        "build": {
            "network": recipe.build.network,
            "packages": list(recipe.build.packages),
            "pip_args": list(recipe.build.pip_args),
            "ca_bundle": _shown(recipe.build.ca_bundle, root) if recipe.build.ca_bundle else None,
        },
    }


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _lines(recipe: Recipe) -> list[str]:
    health = recipe.health
    base = recipe.base or (str(recipe.base_layout) if recipe.base_layout else "none: an overlay")
    lines = [
        f"recipe     {recipe.name}",
        f"tag        {recipe.tag}",
        f"model      {recipe.model}",
        f"arch       {recipe.arch}, Python {recipe.python}",
        f"base       {base}",
        f"package    {recipe.package_dir or 'found by a look into the base'}",
        f"patchsets  {', '.join(recipe.patchsets) or 'none'}",
        f"health     {health.retries} tries of {health.timeout_s} s every {health.interval_s} s",
        f"           what fails in the first {health.start_period_s} s does not count",
        "environment",
    ]
    lines += [f"  {key}={shlex.quote(text)}" for key, text in serving.environment(recipe).items()]
    # One option a line, its value behind it.
    words = shlex.join(serving.command(recipe))
    return [*lines, "command", f"  {words.replace(' --', chr(10) + '    --')}"]
