"""How an image runs its server: environment, command and health check, from a recipe alone.

Every backend writes the same values, so that an image behaves the same whoever built it.
"""

import re

from elsa_build.kernels.bundle import PREFIX
from elsa_build.kernels.placing import PYTHON
from elsa_build.model import Recipe

CACHE = PREFIX
"""Where every compiled kernel lives: one fixed folder, since some caches key by path."""

PATH = "PYTHONPATH"
"""The one variable that is put in front of what a recipe or a base has, instead of replacing it."""

PORT = "30000"
"""SGLang's own. Source: sglang v0.5.23 srt/arg_groups/fields/serving.py."""


def environment(recipe: Recipe) -> dict[str, str]:
    """Return the image's environment: where caches are, then the recipe's own, which wins.

    SGLang sets most of these from SGLANG_CACHE_DIR, but only if it is imported before FlashInfer
    and before inductor's first look; and the cache of its own JIT is not below that folder.
    Source: sglang v0.5.23 srt/environ.py, third_party_cache_defaults; sgl-project/sglang 35621.
    """
    ours, theirs = caches(recipe), dict(recipe.env)
    if PATH in theirs:
        theirs[PATH] = f"{ours[PATH]}:{theirs[PATH]}"
    return ours | theirs


def caches(recipe: Recipe) -> dict[str, str]:
    """Return where each family looks for compiled kernels, and what it asks for when it compiles.

    TRITON_LIBCUDA_PATH is not among them: it would have to name the folder in which the container
    runtime puts the driver, which differs between bases.
    """
    number = re.sub(r"\D", "", recipe.arch)
    major, minor = number[:-1], number[-1]
    ours = {
        "SGLANG_CACHE_DIR": CACHE,
        "SGLANG_JIT_CACHE_DIR": f"{CACHE}/jit",
        "TRITON_CACHE_DIR": f"{CACHE}/triton",
        # Else only autotuners that ask for it keep what they chose; vllm-project/vllm 37188.
        "TRITON_CACHE_AUTOTUNING": "1",
        # No such file, so Triton takes its own. Unset, FlashInfer sets it to the toolkit's ptxas
        # when it is imported: another version in every key, or code of one under the key of the
        # other, by which came first. Sources: flashinfer 0.7.2 triton/__init__.py; triton 3.8.0
        # knobs.py.
        "TRITON_PTXAS_BLACKWELL_PATH": "bundled",
        "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
        "TILELANG_CACHE_DIR": f"{CACHE}/tilelang",
        "CUDA_CACHE_PATH": f"{CACHE}/nv",
        "FLASHINFER_WORKSPACE_BASE": CACHE,
        # Else FlashInfer makes its norms with CuTe DSL at every start: no cache holds them, and the
        # switch that forbids its JIT does not see them. Source: flashinfer 0.7.2 norm/__init__.py.
        "FLASHINFER_USE_CUDA_NORM": "1",
        # FlashInfer trusts compiled libraries only where a module of this name says they are.
        PATH: f"{CACHE}/{PYTHON}",
    }
    if int(number) >= 90:
        # From sm_90 on kernels are built for one card's own features; the family names of two
        # builders differ (120a, 120f), so builder and server must be told the same one.
        suffix = "a" if int(number) < 100 else "f"
        ours["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}{suffix}"
        ours["CUTE_DSL_ARCH"] = f"sm_{number}a"
    return ours


def command(recipe: Recipe) -> tuple[str, ...]:
    """Return the argument list that starts the server; no shell reads it."""
    words = ["python3", "-m", "sglang.launch_server"]
    for name, value in (("model-path", recipe.model), *recipe.flags):
        if value is None:
            words.append(f"--{name}")
        elif value.startswith("-"):
            # argparse takes a value that begins with a dash for the next option.
            words.append(f"--{name}={value}")
        else:
            words += [f"--{name}", value]
    return tuple(words)


def health_command(recipe: Recipe) -> tuple[str, ...]:
    """Return the argument list that ends with 0 while the server is well.

    Python, since a base need not have curl; http.client, since it does not send a request to
    127.0.0.1 through the person's proxy; a time limit of its own below docker's, so that the
    reason lands in the health log.
    """
    port = dict(recipe.flags).get("port") or PORT
    limit = recipe.health.timeout_s - 1
    script = (
        "import http.client as h, sys; "
        f"c = h.HTTPConnection('127.0.0.1', {int(port)}, timeout={limit}); "
        "c.request('GET', '/health'); "
        "s = c.getresponse().status; print(s); sys.exit(s != 200)"
    )
    return ("python3", "-I", "-c", script)
