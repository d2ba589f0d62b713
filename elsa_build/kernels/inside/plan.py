"""Lists what the patched tree would compile for a model on a card, with no card and no compiling.

Run as a program: one JSON document on stdin (`target`, `geometry`, `serve`,
`flags`), one on stdout. A drive
that fails is reported beside the others' kernels: a wrapper that moved is news, not a crash.
"""

import importlib
import json
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from elsa_build.kernels.inside import drives, fingerprint, nvcc_capture, nvcc_plan
from elsa_build.kernels.inside.capture import Captured, capturing
from elsa_build.kernels.inside.drives.served import Drive, Served, served
from elsa_build.kernels.inside.drives.server import BOOT
from elsa_build.kernels.inside.nvcc_capture import Asked
from elsa_build.kernels.inside.whereabouts import tensors_anywhere

_VERSIONS = ("torch", "triton", "flashinfer", "tvm_ffi", "sglang_kernel")
"""What a plan says that it was made with; nothing that differs between two builders of one kind."""


def all_drives() -> Iterator[Drive]:
    """Yield every drive, by module and in the module's order."""
    for module in sorted(pkgutil.iter_modules(drives.__path__), key=lambda one: one.name):
        loaded = importlib.import_module(f"{drives.__name__}.{module.name}")
        yield from getattr(loaded, "DRIVES", ())


def drive(one: Drive, model: Served, *found: Captured | Asked) -> str | None:
    """Run one drive and return what went wrong, if anything did; `found` hear of its phases."""
    for listed in found:
        listed.why, listed.phase = f"{one.name}: {one.source}", ""
    try:
        for phase in one.run(model):
            for listed in found:
                listed.phase = phase
    except Exception as e:  # noqa: BLE001 - any failure of upstream's code is this drive's result
        frames = traceback.extract_tb(e.__traceback__)
        place = next((f for f in reversed(frames) if "sglang" in f.filename), frames[-1])
        said = next(iter(str(e).strip().splitlines()), "")
        return f"{type(e).__name__}: {said} ({Path(place.filename).name}:{place.lineno})"
    return None


def plan(
    model: Served, flags: Mapping[str, str], names: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return `kernels`, `tunings`, `modules` and `failures` of all drives, or of those named."""
    failures = {}
    with capturing() as found, tensors_anywhere(), nvcc_capture.asking() as asked:
        for one in (BOOT, *all_drives()):
            if names and one.name not in names and one is not BOOT:
                continue
            if (problem := drive(one, model, found, asked)) is not None:
                failures[one.name] = problem
        if not names:
            failures |= nvcc_plan.survey(model, flags)
    return {
        "kernels": list(found.kernels.values()),
        "tunings": list(found.tunings.values()),
        "modules": list(asked.modules.values()),
        "failures": failures,
    }


def main() -> None:
    """Read the request, answer it; whatever libraries print goes to stderr."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    request: Mapping[str, Any] = json.load(sys.stdin)
    nvcc_plan.prepare(request["target"])
    flags, names = request.get("flags", {}), request.get("drives", ())
    model = served(request["geometry"], {**request["serve"], "flags": sorted(flags.items())})
    known = fingerprint.fingerprint()
    answer = {
        **plan(model, flags, frozenset(names)),
        "versions": {name: known[name] for name in _VERSIONS if known[name]},
    }
    with os.fdopen(answer_to, "w", encoding="utf-8") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    main()
