"""Build folders as the builders leave them: two Triton kernels, a JIT module, a FlashInfer one."""

import hashlib
import json
import re
import textwrap
from pathlib import Path

from elsa_build.git.objects import blob_id
from elsa_build.kernels.bundle import Bundle, Kernel, Manifest
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.sealing import seal
from tests.gpucode import built, cubin

OPS = "sglang/kernels/ops/scale.py"
CUDA = "sglang/kernels/jit/norm.cu"
SOURCE = '''\
import triton


@triton.autotune(
    configs=[],
    key=["n"],
)
@triton.jit
def scale(x, n):
    """Scale."""
    x = double(x)


@triton.jit
def double(x):
    return x + x
'''
SOURCES = {OPS: SOURCE, CUDA: "__global__ void norm() {}\n"}
TOOLS = {
    "python": "3.12",
    "triton": "3.8.0",
    "libtriton": "aa",
    "nvcc": "13.0.88",
    "cuda_home": "<toolkit>",
    "cxx": "c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "torch": "2.14.1+cu130",
    "flashinfer": "0.7.2",
    "tvm_ffi": "0.1.11",
    "cuda": "13.0",
}
HASHES = ("A" * 26 + "2345", "B" * 26 + "2345")


def text_of(source: str, name: str) -> tuple[str, int]:
    """Return the digest and the first line of a function as Triton has them, found by hand."""
    lines = source.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if re.match(rf"\s*def {name}\(", line))
    end = next((n for n in range(at + 1, len(lines)) if re.match(r"\S", lines[n])), len(lines))
    body = textwrap.dedent("".join(lines[at:end]).rstrip("\n") + "\n")
    first = at
    while first and lines[first - 1].strip():
        first -= 1
    return hashlib.sha256(body.encode()).hexdigest(), first + 1


def fill(build: Path, *, form: str = "120a", shared: int = 1024) -> Path:
    """Write the caches as builders do, group files with the builder's own paths."""
    for hash_, name in zip(HASHES, ("scale", "double"), strict=True):
        folder = build / "triton" / hash_
        folder.mkdir(parents=True)
        files = {
            f"{name}.cubin": cubin(form),
            f"{name}.json": json.dumps({"hash": hash_, "shared": shared}).encode(),
            f"{name}.source": b"module {}\n",
        }
        for file, body in files.items():
            (folder / file).write_bytes(body)
        children = {file: str(folder / file) for file in reversed(files)}
        (folder / f"__grp__{name}.json").write_text(json.dumps({"child_paths": children}))
        (folder / "left by a killed run").write_text("not named by any kernel")
    leaf = build / "jit/sm120f/norm/build-1/deps-1"
    leaf.mkdir(parents=True)
    (leaf / "norm.so").write_bytes(built("120f", files=1))
    (leaf / "sgl_deps.json").write_text("{}")
    aot = build / "flashinfer_aot/page"
    aot.mkdir(parents=True)
    (aot / "page.so").write_bytes(built("120f"))
    return build


def kernels(build: Path) -> tuple[Kernel, ...]:
    """Return what the builders would say of that folder."""
    oids = {path: blob_id(text.encode()) for path, text in SOURCES.items()}

    def found(folder: str) -> tuple[str, ...]:
        paths = (build / folder).rglob("*")
        return tuple(str(p.relative_to(build)) for p in paths if p.is_file() and " " not in p.name)

    digest, line = text_of(SOURCE, "scale")
    return (
        Kernel(
            family=Family.TRITON, id="1", name="sglang.kernels.ops.scale:scale", key="k1",
            files=found(f"triton/{HASHES[0]}"), phases=("decode",), why="gdn", cpu_s=1.5, shared=1024,
            parts={"text": digest, "line": line,
                   "calls": {"sglang.kernels.ops.scale:double": list(text_of(SOURCE, "double"))}},
            sources={OPS: oids[OPS]},
        ),
        Kernel(
            family=Family.TRITON, id="2", name="sglang.kernels.ops.scale:double", key="k2",
            files=found(f"triton/{HASHES[1]}"), shared=1024,
            parts=dict(zip(("text", "line"), text_of(SOURCE, "double"), strict=True)),
            sources={OPS: oids[OPS]},
        ),
        Kernel(
            family=Family.SGLANG_JIT, id="3", name="norm", key="build-1/deps-1",
            files=found("jit"), sources={CUDA: oids[CUDA]},
        ),
        Kernel(family=Family.FLASHINFER, id="4", name="page", key="p", files=found("flashinfer_aot")),
    )  # fmt: skip


def manifest(build: Path, **changes: object) -> Manifest:
    given = {
        "recipe": "elsa-test",
        "target": "sm_120",
        "tree": "0" * 40,
        "toolchain": TOOLS,
        "kernels": kernels(build),
    }
    return Manifest(**(given | changes))


def sealed(tmp: Path, name: str = "bundle", *, form: str = "120a", **changes: object) -> Bundle:
    """Build and seal a bundle below a folder; a second one is built somewhere else."""
    build = fill(tmp / f"build of {name}", form=form)
    return seal(build, tmp / name, manifest(build, **changes))
