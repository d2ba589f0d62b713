"""`elsa-build status`: where things stand, from our own files alone."""

from collections import Counter

from elsa_build import project
from elsa_build.cli.app import app
from elsa_build.cli.command import Result, Session, command
from elsa_build.images import tags
from elsa_build.patches import seriesfile


@command(app, "status", example="elsa-build status --json")
def status(session: Session) -> Result:
    """Say where things stand: the pin, the patchsets, the recipes, the tags."""
    lock = project.read_lock(session.root)
    sets = [
        seriesfile.load(session.root / project.PATCHSETS / name, root=session.root)
        for name in project.patchset_names(session.root)
    ]
    recipes = [
        project.choose_recipe(session.root, name=name)
        for name in project.recipe_names(session.root)
    ]
    behind = {r.name: project.staleness(session.root, r, lock) for r in recipes}
    claims = tags.read(session.root / tags.FILENAME)
    counted = {s.name: Counter(str(patch.status) for patch in s.patches) for s in sets}

    pin = lock.pin
    lines = [f"upstream  {pin.url} {pin.ref} ({pin.source})", f"          commit {pin.commit}"]
    lines += [f"          tree   {pin.tree}"]
    for name, counts in counted.items():
        words = ", ".join(f"{count} {word}" for word, count in counts.items()) or "empty"
        lines.append(f"patchset  {name}: {words}")
    for recipe in recipes:
        state = "stale" if behind[recipe.name] else f"tree {lock.results[recipe.name]}"
        lines.append(f"recipe    {recipe.name}: tag {recipe.tag}, {state}")
        lines += [f"          {finding}" for finding in behind[recipe.name]]
    lines += [f"tag       {tag}: config {claim.config}" for tag, claim in claims.items()]
    return Result(
        data={
            "root": str(session.root),
            "upstream": {
                "source": str(pin.source),
                "url": pin.url,
                "ref": pin.ref,
                "commit": pin.commit,
                "tree": pin.tree,
            },
            "patchsets": {name: dict(counts) for name, counts in counted.items()},
            "recipes": {
                r.name: {
                    "tag": r.tag,
                    "stale": [str(f) for f in behind[r.name]],
                    "tree": lock.results.get(r.name),
                }
                for r in recipes
            },
            "tags": {tag: claim.config for tag, claim in claims.items()},
        },
        view="\n".join(lines),
    )
