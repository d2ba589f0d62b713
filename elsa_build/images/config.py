"""The config document of an image: what the base says, and on top what the recipe says.

Its digest is the image's identity, so nothing of this machine or this moment may be in it. The
base's history and dates stay as they are; `created` is the pin's date.
Source: OCI image spec, config.md; moby's `Healthcheck`, which Docker reads from the same place.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from elsa_build.images import serving
from elsa_build.images.ingredients import Prepared
from elsa_build.images.oci.layout import to_json
from elsa_build.images.provenance import iso
from elsa_build.model import Layer

_NS = 1_000_000_000


def config(prepared: Prepared, ours: Sequence[Layer], labels: Mapping[str, str]) -> bytes:
    """Return the config of the image: `ours` are the layers above the base, bottom first."""
    base = prepared.base.image.config if prepared.base else {}
    system, _, architecture = prepared.platform.partition("/")
    document: dict[str, Any] = {"os": system, "architecture": architecture, **deepcopy(dict(base))}
    run = document.get("config") or {}
    if prepared.base:
        run |= served(prepared, run)
    run["Labels"] = {**(run.get("Labels") or {}), **labels}
    created = iso(prepared.epoch)
    history = [
        {"created": created, "created_by": f"elsa-build {layer.name}", "comment": layer.key}
        for layer in ours
    ]
    document["created"] = created
    document["config"] = run
    document["rootfs"] = {
        "type": "layers",
        "diff_ids": [
            *((base.get("rootfs") or {}).get("diff_ids") or []),
            *(layer.diff_id for layer in ours),
        ],
    }
    document["history"] = [*(base.get("history") or []), *history]
    return to_json(document)


def served(prepared: Prepared, run: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the image runs its server; the base's entry point stays in front of it."""
    recipe = prepared.recipe
    env = dict(line.partition("=")[::2] for line in run.get("Env") or [])
    before = env.get(serving.PATH)
    env |= serving.environment(recipe)
    if before:
        env[serving.PATH] += f":{before}"
    health = recipe.health
    settings: dict[str, Any] = {
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Cmd": list(serving.command(recipe)),
        "ExposedPorts": {
            **(run.get("ExposedPorts") or {}),
            f"{dict(recipe.flags).get('port') or serving.PORT}/tcp": {},
        },
        "Healthcheck": {
            "Test": ["CMD", *serving.health_command(recipe)],
            "Interval": health.interval_s * _NS,
            "Timeout": health.timeout_s * _NS,
            "StartPeriod": health.start_period_s * _NS,
            "Retries": health.retries,
        },
    }
    return settings | ({"User": recipe.user} if recipe.user else {})
