"""A CycloneDX bill of materials from the lock alone, equal for equal locks.

No time and no random serial number: both are optional in the format and would make two builds of
one input differ. Source: CycloneDX 1.6 JSON schema; purl-spec, type pypi.
"""

import re
from collections.abc import Iterable
from typing import Any

from elsa_build.images.ingredients import AppliedPatch, Prepared
from elsa_build.images.survey import PACKAGE

_PATCH_TYPES = {"cherry-pick": "cherry-pick", "hand-port": "backport"}


def bill(prepared: Prepared, version: str) -> dict[str, Any]:
    """Return the bill: SGLang with the patches on it, and what its lock says that it requires.

    A requirement that leaves the version open is listed without one, with its specifier as a
    property: what the base image has is the base's to say.
    """
    pin, recipe = prepared.pin, prepared.recipe
    number = pin.ref.removeprefix("v")
    subject: dict[str, Any] = {
        "type": "application",
        "bom-ref": f"pkg:pypi/{PACKAGE}@{number}",
        "name": PACKAGE,
        "version": number,
        "purl": f"pkg:pypi/{PACKAGE}@{number}",
        "pedigree": {
            "commits": [{"uid": pin.commit}, {"uid": prepared.head}],
            "patches": [_patch(patch) for patch in prepared.series if patch.outcome == "clean"],
        },
    }
    if pin.artifacts:
        subject["properties"] = [
            {"name": f"elsa-build:sha256:{artifact.filename}", "value": artifact.sha256}
            for artifact in pin.artifacts
        ]
    requirements = sorted(_requirements(pin.requires), key=lambda found: str(found["bom-ref"]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": recipe.tag,
                "name": recipe.name,
                "version": recipe.tag,
            },
            "tools": {
                "components": [{"type": "application", "name": "elsa-build", "version": version}]
            },
        },
        "components": [subject, *requirements],
        "dependencies": [
            {"ref": recipe.tag, "dependsOn": [subject["bom-ref"]]},
            {
                "ref": subject["bom-ref"],
                "dependsOn": [requirement["bom-ref"] for requirement in requirements],
            },
        ],
    }


def _patch(patch: AppliedPatch) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": _PATCH_TYPES.get(patch.kind, "unofficial")}
    entry["resolves"] = [{"type": "enhancement", "id": patch.id}]
    return entry


def _requirements(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    from packaging.requirements import Requirement  # noqa: PLC0415 - not for --help

    seen = set()
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker and "extra" in str(requirement.marker):
            continue  # an extra is installed only where somebody asks for it
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        exact = [part for part in requirement.specifier if part.operator == "=="]
        version = exact[0].version if exact and not exact[0].version.endswith(".*") else None
        ref = f"pkg:pypi/{name}" + (f"@{version}" if version else "")
        if ref in seen:
            continue
        seen.add(ref)
        entry: dict[str, Any] = {"type": "library", "bom-ref": ref, "name": name, "purl": ref}
        if version:
            entry["version"] = version
        properties = {
            "elsa-build:specifier": "" if version else str(requirement.specifier),
            "elsa-build:marker": str(requirement.marker or ""),
        }
        listed = [{"name": key, "value": value} for key, value in properties.items() if value]
        yield entry | ({"properties": listed} if listed else {})
