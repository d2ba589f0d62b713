"""What a GPU architecture is called by each compiler, and which machine code it runs.

One architecture has four names (Triton 120, nvcc 120f, FlashInfer 12.0f, CuTe sm_120a), and the
wrong one builds something that is silently slower or does not run. So there is one value, from data
(`targets.yaml`), and every name comes from it.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from elsa_build.errors import ConfigError
from elsa_build.strictyaml import Problems, read
from elsa_build.yamlform import Form, nearest

_FILE = Path(__file__).with_name("targets.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One architecture, as each builder names it, and the card that it is planned for.

    `number` is the compute capability as one number (120 is 12.0); `gencode` what nvcc is asked
    for; `runs` the forms of machine code that the card runs, best first; `nvcc` the oldest that
    knows it. `shared_bytes` is the shared memory that one block may have.
    """

    name: str
    number: int
    gencode: str
    runs: tuple[str, ...]
    flashinfer: str
    cute: str
    nvcc: tuple[int, int]
    card: str
    multiprocessors: int
    shared_bytes: int
    threads: int
    sm_clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    memory_bytes: int

    @property
    def capability(self) -> tuple[int, int]:
        """Return major and minor, as torch tells them."""
        return divmod(self.number, 10)

    @property
    def jit_folder(self) -> str:
        """Return the folder of SGLang's own JIT cache. Source: sglang v0.5.23 kernels/jit/utils."""
        return f"sm{self.gencode}"

    def document(self) -> dict[str, Any]:
        """Return plain data, for a program that runs in another interpreter."""
        return asdict(self)


def targets() -> tuple[Target, ...]:
    """Return every architecture that is known.

    Raises:
        ConfigError: The data file is wrong (exit 5).
    """
    problems = Problems(_FILE.name)
    form = Form(read(_FILE, _FILE.name), problems)
    form.integer("version", 1)
    found = []
    for entry in form.forms("targets"):
        numbers = {
            key: entry.integer(key, 0, minimum=1)
            for key in (
                "number",
                "multiprocessors",
                "shared_bytes",
                "threads",
                "sm_clock_khz",
                "memory_clock_khz",
                "bus_bits",
                "memory_bytes",
            )
        }
        major, _, minor = entry.text("nvcc", "0.0", required=True).partition(".")
        found.append(
            Target(
                name=entry.text("name", required=True),
                gencode=entry.text("gencode", required=True),
                runs=entry.texts("runs", required=True),
                flashinfer=entry.text("flashinfer", required=True),
                cute=entry.text("cute", required=True),
                nvcc=(int(major), int(minor)),
                card=entry.text("card", required=True),
                **numbers,
            )
        )
        entry.close()
    form.close()
    problems.check()
    return tuple(found)


def target(name: str) -> Target:
    """Return the architecture of a name that a person typed: `sm_120`, `120f`, `12.0f`.

    A name without the letter that the family needs is refused when it is not `sm_...`: as a
    compiler's flag, `12.0` and `12.0+PTX` build without block-scaled FP4 MMA.
    Source: vllm-project/vllm 41738, ggml-org/llama.cpp 17906.

    Raises:
        ConfigError: No such architecture, or one that names less than the card needs (exit 5).
    """
    known = targets()
    for one in known:
        if name in (one.name, one.gencode, one.flashinfer, one.cute):
            return one
    plain = re.fullmatch(r"(\d+)\.?(\d)(\+PTX)?", name)
    for one in known:
        if plain and int(plain[1] + plain[2]) == one.number:
            extra = "; PTX is compiled at the first start" if plain[3] else ""
            raise ConfigError(
                f"arch '{name}' would leave out what only {one.gencode} code has"
                f" (on 12.0: block-scaled FP4){extra}",
                hint=f"--arch {one.name} (for FlashInfer: {one.flashinfer})",
            )
    names = [one.name for one in known]
    raise ConfigError(
        f"no architecture '{name}'{nearest(name, names)}", hint=f"--arch {' | '.join(names)}"
    )
