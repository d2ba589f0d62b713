"""What will be compiled, and why: the plan of one recipe, from drives, recordings and builders.

A plan is data: `kernels/NAME.lock` says what it was made for, one JSON-lines file a family has its
kernels. A kernel is named by what decides it (function and specialisation), so the same plan is the
same text on every machine, and a diff of two plans is what changed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elsa_build.kernels.jobs import Family

TRITON_CPU_S = 1.0
"""What one specialisation takes, CPU seconds; measured 0.1 to 3.4 on one core."""
TRITON_MIB = 1100
"""Memory of a worker that has imported torch, Triton and the patched tree; measured 885 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One kernel or module to be compiled.

    `name` is `module:function`, or a module's name; `spec` is what decides the rest, as the family
    writes it down. `phases` are when the server first needs it, `why` which drive and which file of
    upstream call it. `boots` counts the recorded boots that had it (0: it comes from a drive).
    """

    family: Family
    name: str
    spec: Mapping[str, Any]
    phases: tuple[str, ...] = ()
    why: str = ""
    sources: tuple[str, ...] = ()
    boots: int = 0

    @property
    def id(self) -> str:
        """Return a name of the content: the same kernel has the same one in every plan."""
        text = json.dumps([self.family, self.name, self.spec], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def document(self) -> dict[str, Any]:
        """Return one line of a family's file."""
        return {
            "id": self.id,
            "name": self.name,
            "spec": dict(self.spec),
            "phases": list(self.phases),
            "why": self.why,
            "sources": list(self.sources),
            "boots": self.boots,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """A choice that Triton makes among compiled configurations, by timing them on the card."""

    name: str
    key: tuple[Any, ...]
    configs: tuple[str, ...]
    why: str = ""

    def document(self) -> dict[str, Any]:
        """Return one line of the file of choices."""
        return {
            "name": self.name,
            "spec": {"tuning_key": list(self.key), "configs": list(self.configs)},
            "why": self.why,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one recipe's server compiles on one target.

    `package` is the tree id of the patched `sglang/` that was driven, `inputs` a digest of what it
    was asked and of the drives themselves; `versions` are those of the interpreter that drove it.
    `failures` are drives that ended with an error, by name.
    """

    recipe: str
    target: str
    package: str
    versions: Mapping[str, str]
    kernels: tuple[Planned, ...]
    inputs: str = ""
    tunings: tuple[Tuning, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)

    def of(self, family: Family) -> tuple[Planned, ...]:
        """Return the kernels of one family."""
        return tuple(one for one in self.kernels if one.family is family)

    def counts(self) -> dict[str, int]:
        """Return how many kernels each family has."""
        found = Counter(one.family.value for one in self.kernels)
        return {family.value: found[family.value] for family in Family}


def planned(entries: Iterable[Mapping[str, Any]], family: Family | None = None) -> list[Planned]:
    """Return kernels from what a program or a file wrote down, each once, in a fixed order."""
    found: dict[str, Planned] = {}
    for entry in entries:
        one = Planned(
            family=Family(entry["family"]) if family is None else family,
            name=entry["name"],
            spec=entry["spec"],
            phases=tuple(entry.get("phases", ())),
            why=entry.get("why", ""),
            sources=tuple(sorted(entry.get("sources", ()))),
            boots=int(entry.get("boots", 0)),
        )
        found[one.id] = merged(found[one.id], one) if one.id in found else one
    return ordered(found.values())


def ordered(kernels: Iterable[Planned]) -> list[Planned]:
    """Return kernels in a plan's order, which no order of finding or reading changes."""
    return sorted(kernels, key=lambda one: (one.family, one.name, one.id))


def tunings(entries: Iterable[Mapping[str, Any]]) -> list[Tuning]:
    """Return tuner's choices from what a program or a file wrote down."""
    found = [
        Tuning(
            name=entry["name"],
            key=tuple(entry["spec"]["tuning_key"]),
            configs=tuple(entry["spec"]["configs"]),
            why=entry.get("why", ""),
        )
        for entry in entries
    ]
    return sorted(found, key=lambda one: (one.name, json.dumps(one.key)))


def merged(first: Planned, second: Planned) -> Planned:
    """Return one kernel that both a drive and a recording (or two drives) ask for."""
    return Planned(
        family=first.family,
        name=first.name,
        spec=first.spec,
        phases=tuple(dict.fromkeys((*first.phases, *second.phases))),
        why=first.why or second.why,
        sources=tuple(dict.fromkeys((*first.sources, *second.sources))),
        boots=max(first.boots, second.boots),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """How two plans differ: ids by what became of them."""

    new: tuple[Planned, ...]
    gone: tuple[Planned, ...]


def changes(old: Plan, new: Plan) -> PlanChange:
    """Return the kernels that only one of two plans has."""
    before = {one.id: one for one in old.kernels}
    after = {one.id: one for one in new.kernels}
    return PlanChange(
        new=tuple(one for key, one in after.items() if key not in before),
        gone=tuple(one for key, one in before.items() if key not in after),
    )


def serving(flags: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what drives need of a server's flags, by the names of `drives.served.Served`.

    Raises:
        ValueError: A flag that should be a whole number is none.
    """
    steps = int(flags.get("speculative-num-steps") or 0)
    drafts = int(flags.get("speculative-num-draft-tokens") or (steps + 1 if steps else 1))
    kv = flags.get("kv-cache-dtype") or "auto"
    return {
        "requests": int(flags.get("max-running-requests") or 0),
        "draft_tokens": drafts,
        "steps": steps,
        "topk": int(flags.get("speculative-eagle-topk") or 1),
        "slots": int(flags.get("max-mamba-cache-size") or 0),
        "state_dtype": flags.get("mamba-ssm-dtype") or "float32",
        "kv_dtype": _KV_DTYPES.get(kv, kv),
        "page_size": int(flags.get("page-size") or 1),
        "replay": "enable-linear-replayssm-spec" in flags,
    }


_KV_DTYPES = {
    "auto": "bfloat16",
    "bf16": "bfloat16",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
"""The recipe's words, and torch's. Source: sglang v0.5.23 srt/server_args.py, kv_cache_dtype."""
