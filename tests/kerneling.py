"""The plan of recipe elsa-1.7, made once a session in the interpreter that has torch and Triton.

`ELSA_KERNELS_PYTHON` names that interpreter, `ELSA_PATCHED_TREE` the patched tree to be driven
(`.cache/patched` when unset).
"""

import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from elsa_build.images import geometry, recipe
from elsa_build.kernels import plan as plans
from elsa_build.kernels import toolchain
from elsa_build.kernels.target import target
from elsa_build.kernels.toolchain import Toolchain

ROOT = Path(__file__).parent.parent
# Read before the seal takes them away.
TREE = Path(os.environ.get("ELSA_PATCHED_TREE", ROOT / ".cache/patched")) / "python"
PYTHON = os.environ.get(toolchain.VARIABLE)
SHAPES = [
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "rotary_dim",
    "key_heads",
    "value_heads",
    "key_dim",
    "value_dim",
    "conv_kernel",
    "experts",
    "experts_per_token",
    "moe_intermediate",
    "vocabulary",
    "context",
    "linear_layers",
    "attention_layers",
]

Planned = Callable[..., Mapping[str, Any]]


def request(arch: str, *drives: str, **serve: Any) -> dict[str, Any]:
    """Return what the plan program is asked: the recipe's model and flags, or other `serve` facts."""
    served = recipe.load(ROOT / "recipes/elsa-1.7.yaml")
    model = geometry.model(served.memory.model, ROOT)
    flags = dict(served.flags)
    return {
        "target": target(arch).document(),
        "geometry": {name: getattr(model, name) for name in SHAPES},
        "serve": plans.serving(flags) | serve,
        "flags": {} if serve else {name: value or "true" for name, value in flags.items()},
        "drives": drives,
    }


def ask(folder: Path, question: Mapping[str, Any], **env: str) -> Mapping[str, Any]:
    """Run the plan program."""
    stub = folder / "stub"
    tools = Toolchain(python=Path(PYTHON), source=TREE, scratch=folder, libraries=(stub,))
    env = tools.environment(folder / "build", os.environ) | env
    if not stub.exists():
        toolchain.ask(tools.command("premises", str(stub)), {}, env)
    return toolchain.ask(tools.command("plan"), question, env)


@pytest.fixture(scope="session")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """Call it with an architecture for the whole plan, with names of drives and `serve` for a part."""
    if not PYTHON:
        pytest.skip(f"{toolchain.VARIABLE} names no interpreter with torch and Triton")
    if not (TREE / "sglang").is_dir():
        pytest.skip(f"no patched tree at {TREE}; ELSA_PATCHED_TREE names its folder")
    # Test processes that run side by side have folders of their own below one.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "planned"
    folder.mkdir(exist_ok=True)

    @functools.cache
    def plan(arch: str, *drives: str, **serve: Any) -> Mapping[str, Any]:
        question = request(arch, *drives, **serve)
        text = json.dumps(question, sort_keys=True)
        kept = folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
        with (folder / "lock").open("w") as alone:
            fcntl.flock(alone, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(ask(folder, question)))
        return json.loads(kept.read_text())

    return plan
