"""The nvcc families as jobs: what is compiled, after what, with how much memory and time.

SGLang builds a module in one piece, so that is one job. FlashInfer's modules are many units of very
different weight (one takes 8 GiB), so each unit is a job, and linking and placing wait for it.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from elsa_build.kernels.jobs import Family, Job

_SGLANG_COSTS: tuple[tuple[str, int, float], ...] = (
    # Pattern of a module's name, peak in MiB, CPU seconds; measured for 120f with nvcc 13.0.
    (r"speculative_sampling", 1400, 33),
    (r"topk_softmax", 1200, 28),
    (r"speculative_tree|fused_add_rmsnorm|kvcache|hicache", 1000, 18),
    (r"", 1000, 14),
)
_LINK_MIB, _LINK_S = 500, 1.0
_PLACE_MIB, _PLACE_S = 100, 0.1


def sglang_jobs(planned: Iterable[Mapping[str, Any]]) -> tuple[Job, ...]:
    """Return one job for each planned module of SGLang's JIT; others are passed over."""
    found = []
    for one in planned:
        if one["family"] != Family.SGLANG_JIT:
            continue
        mib, seconds = next(
            (mib, seconds)
            for pattern, mib, seconds in _SGLANG_COSTS
            if re.search(pattern, one["name"])
        )
        spec = one["spec"]
        arguments = {key: spec[key] for key in ("entry", "args", "kwargs") if key in spec}
        found.append(
            _job(Family.SGLANG_JIT, one["name"], "sglang_jit:build", arguments, mib, seconds)
        )
    return tuple(found)


def generators(planned: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments with which `flashinfer:specs` tells the commands of planned modules."""
    modules = [one["spec"] for one in planned if one["family"] == Family.FLASHINFER]
    return {"modules": modules}


def flashinfer_jobs(specs: Mapping[str, Any]) -> tuple[Job, ...]:
    """Return the jobs of what `flashinfer:specs` answered: units, then link, then place."""
    return tuple(job for module in specs["modules"] for job in _module(module))


def _module(module: Mapping[str, Any]) -> list[Job]:
    """Return one module's jobs, each after those that it needs."""
    made: dict[str, Job] = {}
    for unit in module["units"]:
        arguments = {key: unit[key] for key in unit if key not in ("memory_mib", "cpu_s")}
        name = f"{module['name']}/{unit['output'].rpartition('/')[2]}"
        needs = tuple(made[path].id for path in unit.get("inputs", ()) if path in made)
        made[unit["output"]] = _job(
            Family.FLASHINFER,
            name,
            "command:run",
            arguments,
            unit["memory_mib"],
            unit["cpu_s"],
            needs,
        )
    link = _job(
        Family.FLASHINFER,
        f"{module['name']}/{module['name']}.so",
        "command:run",
        module["link"],
        _LINK_MIB,
        _LINK_S,
        tuple(made[path].id for path in module["link"]["inputs"]),
    )
    place = _job(
        Family.FLASHINFER,
        module["name"],
        "flashinfer:place",
        {key: module[key] for key in ("name", "library", "work") if key in module},
        _PLACE_MIB,
        _PLACE_S,
        (link.id,),
    )
    return [*made.values(), link, place]


def _job(
    family: Family,
    name: str,
    call: str,
    arguments: Mapping[str, Any],
    memory_mib: int,
    cpu_s: float,
    needs: tuple[str, ...] = (),
) -> Job:
    return Job(
        id=f"{family}:{name}:{_digest(call, arguments)}",
        family=family,
        name=name,
        call=call,
        arguments=arguments,
        memory_mib=memory_mib,
        cpu_s=cpu_s,
        needs=needs,
    )


def _digest(call: str, arguments: Mapping[str, Any]) -> str:
    """Return what tells one piece of work from another, wherever its work folder lies."""
    text = json.dumps([call, arguments], sort_keys=True)
    work = arguments.get("work")
    if work:
        text = text.replace(json.dumps(work)[1:-1], "<work>")
    return hashlib.sha256(text.encode()).hexdigest()[:12]
