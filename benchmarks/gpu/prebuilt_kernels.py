"""A bundle that was compiled with no GPU, in use on one: what is found, what is compiled, numbers.

    PYTHONPATH=.:SITE python benchmarks/gpu/prebuilt_kernels.py --tree TREE --bundle DIR --plan DIR

TREE holds python/sglang with the recipe's patches. The bundle has Triton's and FlashInfer's
kernels for this card, compiled and sealed elsewhere (`elsa-build kernels build --arch sm_90 --only
triton --only flashinfer --first-config`); --plan is the folder of the same plan's files. Modules of
SGLang's own JIT are built here, with the GPU hidden, into a bundle of their own: their keys hold
this machine's compilers. Both bundles are unpacked at another place than they were sealed for, and
what they were built in is deleted.

Then `kernel_launches.py` beside this is booted through the gate (`elsa_build.kernels.gate`), which
refuses to compile: on each bundle; on both, on a mount that cannot be written; and on a tree with
one line added at the top of one kernel's file, which must be a miss with that cause. Last comes the
control: the same program with empty caches, which has to compile everything. `ready_s` is from the
start of a process to the end of its last first launch.

Triton 3.6 also compiles C for the host (a launcher a signature, `cuda_utils`) into its cache; no
GPU code is in it, and it is counted apart, as `host_modules`. The first boot makes them; a recorded
boot harvests them into a bundle of its own, on which the program starts where there is no C
compiler and no cache can be written. The control is the same start without what was harvested.

Needs root for the mount. Prints one JSON document; exit code 1 if something was not reached.
"""

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elsa_build.kernels import (
    bundle,
    gate,
    harvest,
    nvcc_jobs,
    pool,
    recorder,
    sealing,
    toolchain,
    unpacking,
)
from elsa_build.kernels.booting import Watch
from elsa_build.kernels.bundle import Bundle, Kernel, Manifest
from elsa_build.kernels.gate import Gated
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.target import target
from elsa_build.kernels.toolchain import Toolchain
from elsa_build.kernels.workers import WorkerStart

PROGRAM = Path(__file__).with_name("kernel_launches.py")
JIT_CASES = ("clamp_position",)
OTHER_CASES = (
    "copy_slots",
    "sparse_verification",
    "gdn_prefill",
    "packed_decode",
    "gated_norm",
    "fused_slots",
    "flashinfer_norm",
)
OURS = (
    "sglang.kernels.ops.kvcache.copy_slots:_copy_slots_kernel",
    "sglang.srt.speculative.sparse_topk_verify:_block_maxima_kernel",
    "sglang.srt.speculative.sparse_topk_verify:_verify_rows_kernel",
)
MOVED = "sglang/kernels/ops/attention/fla/l2norm.py"
MOVED_KERNEL = "sglang.kernels.ops.attention.fla.l2norm:l2norm_fwd_kernel"
WITHIN_S = 240.0
NO_COMPILER = {"CC": "/nonexistent/cc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What one boot of the program came to: its gate's findings, and its own document."""

    gated: Gated
    said: Mapping[str, Any] = field(default_factory=dict)

    def names(self, what: str, family: Family | None = None) -> list[str]:
        """Return the kernels of which an event of this kind was told, each time that it was."""
        events = self.gated.booted.heard.of(what)
        return [one.name for one in events if family in (None, one.family)]

    @property
    def host_modules(self) -> list[str]:
        """Return the names of the C modules that were compiled for the host."""
        return sorted(one.path.name for one in self.gated.written if one.for_the_host)

    @property
    def clean(self) -> bool:
        """Return whether nothing was compiled, missed or timed, and every number was right."""
        return not (self.gated.blamed or self.names("bench")) and self.right

    @property
    def right(self) -> bool:
        """Return whether every case ran and computed what torch does."""
        cases = self.said.get("cases", {})
        return bool(cases) and not self.said["failed"] and all(c["right"] for c in cases.values())

    @property
    def causes(self) -> list[dict[str, Any]]:
        """Return what was refused, and why it was not found."""
        return [
            {"kernel": one.name, "causes": list(one.causes)}
            for one in self.gated.misses
            if one.what != "compiled"
        ]

    def document(self) -> dict[str, Any]:
        """Return what is reported of it."""
        hits = Counter(event.family for event in self.gated.booted.heard.of("hit"))
        return {
            "exit": self.gated.booted.boot.exit,
            "compiled": len(self.names("compiled")),
            "missed": len(self.names("missed")),
            "benches": len(self.names("bench")),
            "choices_found": sum(
                bool(event.said.get("hit")) for event in self.gated.booted.heard.of("tuned")
            ),
            "hits": dict(sorted(hits.items())),
            "host_modules": len(self.host_modules),
            "causes": self.causes,
            "imported_s": self.said.get("imported_s"),
            "ready_s": self.said.get("ready_s"),
            "took_s": self.said.get("took_s"),
            "writable": self.said.get("writable"),
        }


class Bench:
    """The tree, its program, and the folder of this run."""

    def __init__(self, tree: Path, work: Path) -> None:
        self.tree, self.work = tree, work
        self.python = os.environ.get("PYTHONPATH", "")
        self.target = target("sm_90")

    def environ(self, tree: Path | None = None, more: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - dict of str
        """Return the environment of a boot: this one's, the tree first, as the image sets it."""
        more = more or {}
        path = (str((tree or self.tree) / "python"), more.get("PYTHONPATH", ""), self.python)
        return {
            **os.environ,
            **more,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TRITON_CACHE_AUTOTUNING": "1",
            "FLASHINFER_CUDA_ARCH_LIST": self.target.flashinfer,
        }

    def boot(
        self,
        name: str,
        found: Bundle | None,
        environ: Mapping[str, str],
        cases: Sequence[str],
        *,
        wrapper: Sequence[str] = (),
        keep_going: bool = False,
    ) -> Boot:
        """Boot the program through the gate on some cases."""
        said = self.work / f"{name}.json"
        command = [sys.executable, str(PROGRAM), "-o", str(said)]
        command += [part for case in cases for part in ("--case", case)]
        (gated,) = gate.gate(
            [*wrapper, shlex.join(command)] if wrapper else command,
            found,
            environ,
            Watch(within_s=WITHIN_S),
            self.work / f"boots-{name}",
            keep_going=keep_going,
        )
        sys.stderr.write(f"{name}: exit {gated.booted.boot.exit}\n")
        if not said.is_file():
            sys.stderr.write("\n".join(gated.booted.boot.last) + "\n")
        return Boot(gated=gated, said=json.loads(said.read_text()) if said.is_file() else {})

    def jit_bundle(self, plan: Path, like: Manifest) -> Bundle:
        """Build modules of SGLang's JIT with the GPU hidden, and seal them."""
        build, folder = self.work / "jit" / "build", self.work / "jit"
        build.mkdir(parents=True)
        lines = (plan / "sglang-jit.jsonl").read_text(encoding="utf-8").splitlines()
        planned = [{"family": Family.SGLANG_JIT, **json.loads(line)} for line in lines]
        wanted = [one for one in planned if any(case in one["name"] for case in JIT_CASES)]
        tools = Toolchain(
            python=Path(sys.executable),
            source=self.tree / "python",
            scratch=folder / "scratch",
            cuda_home=Path(os.environ["CUDA_HOME"]),
        )
        env = tools.environment(build, os.environ)
        env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], self.python))
        outcomes = pool.run(
            nvcc_jobs.sglang_jobs(wanted),
            start=WorkerStart(
                command=tools.command("worker"),
                env=env,
                setup={"target": self.target.document()},
            ),
            workers=os.cpu_count() or 1,
            memory_mib=32_000,
            journal=folder / "journal.jsonl",
            build=build,
        )
        kernels = []
        for one, outcome in zip(wanted, outcomes, strict=True):
            if outcome.error:
                raise SystemExit(f"{one['name']}: {outcome.error}")
            kernels += [
                Kernel(
                    family=Family.SGLANG_JIT,
                    id=one["id"],
                    name=module["name"],
                    key=module["key"],
                    files=tuple(module["files"]),
                )
                for module in outcome.found["modules"]
            ]
        manifest = Manifest(
            recipe=like.recipe,
            target=like.target,
            tree=like.tree,
            toolchain=toolchain.ask(tools.command("fingerprint"), {}, env),
            kernels=tuple(kernels),
        )
        sealed = sealing.seal(build, folder / "sealed", manifest)
        shutil.rmtree(build)
        return sealed

    def harvested(self, there: Bundle, environ: Mapping[str, str]) -> Bundle:
        """Record a boot on a copy of a bundle; return one that has what it harvested as well."""
        copy = unpacking.unpack(there, self.work / "recorded" / "kernels")
        caches = {"TRITON_CACHE_DIR": str(copy.folder / "triton")}
        path = os.pathsep.join((str(copy.folder / "python"), environ["PYTHONPATH"]))
        cases = [part for case in OTHER_CASES for part in ("--case", case)]
        done = recorder.record(
            [sys.executable, str(PROGRAM), "-o", str(self.work / "recorded.json"), *cases],
            {**environ, **caches, "PYTHONPATH": path},
            Watch(within_s=WITHIN_S),
            self.work / "plan",
            self.work / "boots-recorded",
            times=1,
        )
        if done.harvest is None:
            raise SystemExit("the recorded boot failed")
        made = harvest.for_bundle(done.harvest, there.manifest.files)
        manifest = replace(there.manifest, harvested=made)
        return sealing.seal(there.folder, self.work / "both", manifest, done.harvest.folder)

    def with_a_line(self) -> Path:
        """Return a copy of the tree with one line more at the top of a kernel's file."""
        copy = self.work / "moved"
        shutil.copytree(self.tree / "python", copy / "python", copy_function=os.link)
        path = copy / "python" / MOVED
        text = path.read_text(encoding="utf-8")
        path.unlink()
        path.write_text(f"# one line more\n{text}", encoding="utf-8")
        return copy


def prove(tree: Path, sealed: Path, plan: Path, work: Path) -> tuple[dict[str, Any], bool]:
    """Run everything; return the document and whether all was reached."""
    bench = Bench(tree, work)
    there = bundle.read(sealed)
    jit = bench.jit_bundle(plan, there.manifest)
    kernels = unpacking.unpack(there, work / "elsewhere" / "kernels", target="sm_90")
    modules = unpacking.unpack(jit, work / "elsewhere" / "modules", target="sm_90")
    shutil.rmtree(jit.folder)

    more = bench.harvested(there, bench.environ())
    with_host = unpacking.unpack(more, work / "harvested" / "kernels", target="sm_90")
    without = unpacking.unpack(there, work / "unharvested" / "kernels", target="sm_90")

    boots = {
        "bundled": bench.boot("bundled", kernels, bench.environ(), OTHER_CASES),
        "bundled_jit": bench.boot("bundled_jit", modules, bench.environ(), JIT_CASES),
        "read_only": bench.boot(
            "read_only",
            None,
            bench.environ(more=in_image(work, kernels.folder, modules.folder)),
            (*OTHER_CASES, *JIT_CASES),
            wrapper=read_only(work / "elsewhere"),
        ),
        "no_c_compiler": bench.boot(
            "no_c_compiler",
            None,
            bench.environ(more=in_image(work, with_host.folder, modules.folder) | NO_COMPILER),
            (*OTHER_CASES, *JIT_CASES),
            wrapper=read_only(work / "harvested"),
        ),
        "no_c_compiler_and_nothing_harvested": bench.boot(
            "unharvested",
            None,
            bench.environ(more=in_image(work, without.folder, modules.folder) | NO_COMPILER),
            ["copy_slots"],
            wrapper=read_only(work / "unharvested"),
        ),
        "moved_line": bench.boot(
            "moved_line", kernels, bench.environ(bench.with_a_line()), ["gdn_prefill"]
        ),
        "cold": bench.boot(
            "cold",
            None,
            bench.environ(more=empty(work / "empty")),
            (*OTHER_CASES, *JIT_CASES),
            keep_going=True,
        ),
    }
    reached = reaches(boots)
    return {
        "what": "kernels compiled with no GPU, launched on one through the gate",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "card": boots["read_only"].said.get("card"),
        "machine": machine(),
        "bundles": [described(there), described(jit)],
        "harvested": more.manifest.harvests(),
        "boots": {name: one.document() for name, one in boots.items()},
        "numbers": boots["read_only"].said.get("cases"),
        "kernels": kernel_table(boots["read_only"], boots["cold"]),
        "ready_s": {
            "cold": boots["cold"].said.get("ready_s"),
            "bundled": boots["read_only"].said.get("ready_s"),
        },
        "reached": reached,
    }, all(reached.values())


def in_image(work: Path, kernels: Path, modules: Path) -> dict[str, str]:
    """Return the variables that name both bundles' caches, as an image has them."""
    base = work / "writable"
    base.mkdir(exist_ok=True)
    return {
        "SGLANG_CACHE_DIR": str(base),
        "FLASHINFER_WORKSPACE_BASE": str(base),
        "TRITON_CACHE_DIR": str(kernels / "triton"),
        "SGLANG_JIT_CACHE_DIR": str(modules / "jit"),
        "PYTHONPATH": str(kernels / "python"),
    }


def empty(base: Path) -> dict[str, str]:
    """Return the variables of caches that hold nothing."""
    base.mkdir()
    return {
        "SGLANG_CACHE_DIR": str(base),
        "FLASHINFER_WORKSPACE_BASE": str(base),
        "TRITON_CACHE_DIR": str(base / "triton"),
        "SGLANG_JIT_CACHE_DIR": str(base / "jit"),
    }


def read_only(folder: Path) -> tuple[str, ...]:
    """Return a shell that runs its argument where not even root can write a folder."""
    place = shlex.quote(str(folder))
    mount = f"mount --bind {place} {place} && mount -o remount,ro,bind {place}"
    return ("unshare", "-m", "sh", "-c", f'{mount} && exec sh -c "$0"')


def reaches(boots: Mapping[str, Boot]) -> dict[str, bool]:
    """Return what had to be shown, and whether it was."""
    locked, cold = boots["read_only"], boots["cold"]
    hits = set(locked.names("hit", Family.TRITON))
    compiled = set(cold.names("compiled", Family.TRITON))
    return {
        "nothing is compiled or timed on the bundles, and the numbers are right": all(
            boots[name].clean for name in ("bundled", "bundled_jit")
        ),
        "nor where the caches cannot be written": locked.clean
        and locked.said["writable"] == []
        and not locked.host_modules,
        "with what was harvested it starts without a C compiler": boots["no_c_compiler"].clean
        and not boots["no_c_compiler"].host_modules,
        "and without it, it does not": bool(
            boots["no_c_compiler_and_nothing_harvested"].gated.booted.boot.exit
        ),
        "our kernels are among them": hits.issuperset(OURS),
        "and five of upstream's or more": len(hits - set(OURS)) >= 5,
        "and a module of SGLang's JIT": bool(locked.names("hit", Family.SGLANG_JIT)),
        "and one of FlashInfer's": bool(locked.names("hit", Family.FLASHINFER)),
        "with empty caches the same kernels are compiled": compiled >= hits
        and cold.right
        and bool(cold.names("bench")),
        "a moved line is a miss with its cause": moved(boots["moved_line"]),
    }


def moved(boot: Boot) -> bool:
    """Say whether the one miss is that of the kernel whose line moved, for that reason."""
    found = [(one["kernel"], cause) for one in boot.causes for cause in one["causes"]]
    return len(found) == 1 and found[0][0] == MOVED_KERNEL and found[0][1].startswith("line: ")


def kernel_table(found: Boot, cold: Boot) -> dict[str, dict[str, Any]]:
    """Return, a kernel, how many of its variants were found, and what they cost with no bundle."""
    hits = Counter(found.names("hit"))
    table = {}
    for name in sorted(hits):
        events = [one for one in cold.gated.booted.heard.of("compiled") if one.name == name]
        table[name] = {
            "found": hits[name],
            "compiled_cold": len(events),
            "cold_s": round(sum(event.seconds for event in events), 2),
        }
    return table


def described(one: Bundle) -> dict[str, Any]:
    """Return what a bundle is."""
    manifest = one.manifest
    kept = ("python", "triton", "torch", "flashinfer", "tvm_ffi", "libtriton")
    return {
        "kernels": manifest.counts(),
        "files": len(manifest.files),
        "bytes": one.size,
        "arch": sorted({kernel.arch for kernel in manifest.kernels if kernel.arch}),
        "tree": manifest.tree,
        "made_with": {name: manifest.toolchain.get(name) for name in kept},
        "digest": one.digest,
    }


def machine() -> dict[str, Any]:
    """Return what runs here."""
    packages = ("torch", "triton", "apache-tvm-ffi", "flashinfer-python")
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def main() -> int:
    """Print the document; 1 when something was not reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", type=Path, required=True, help="folder that holds python/sglang")
    parser.add_argument("--bundle", type=Path, required=True, help="Triton's and FlashInfer's")
    parser.add_argument("--plan", type=Path, required=True, help="folder of the plan's files")
    parser.add_argument("-o", "--output", type=Path, help="write here as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = prove(options.tree.absolute(), options.bundle, options.plan, Path(work).absolute())
    text = json.dumps(found[0], indent=2) + "\n"
    if options.output:
        making = options.output.with_suffix(".new")
        making.write_text(text, encoding="utf-8")
        making.replace(options.output)
    sys.stdout.write(text)
    return 0 if found[1] else 1


if __name__ == "__main__":
    sys.exit(main())
