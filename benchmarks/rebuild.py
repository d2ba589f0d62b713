"""How long it takes to make an image, and what moves, when one patch or nothing changed.

    python benchmarks/rebuild.py                 # this checkout's HEAD, the release from the index
    python benchmarks/rebuild.py --runs 5 --out benchmarks/results/rebuild.json

Two clones at different paths run `make image` with caches of their own: the first downloads the
release, the second has the download but makes every layer again. Then, in the command line as a
person types it: all layers made anew, nothing changed, one line of a patch edited; and the same
edit on a base with the release's wheel installed. Medians of `--runs`; `cpu_s` counts what a busy
machine does not, `wall_s` is what a person waits. Tools that are not installed are `null`. Prints
one JSON document.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from elsa_build.images.oci.layer import Compressor, File, write_layer
from elsa_build.images.oci.layout import Assembled, manifest_of, to_json, write_layout
from elsa_build.images.oci.store import BlobStore
from elsa_build.model import Digest, Layer

TAG = "elsa-v1.7"
PATCH = "chunked-state-copy"
EDITED = "python/sglang/srt/mem_cache/bounded_slot_copy.py"
SITE = "usr/local/lib/python3.12/site-packages"
LIMIT_S, LIMIT_BYTES = 2.0, 100_000

Document = Mapping[str, Any]


class Took(NamedTuple):
    """Seconds of one command: as a person waits, and of the processor."""

    wall_s: float
    cpu_s: float


def clock() -> Took:
    """Return now, and the processor time of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(time.monotonic(), used.ru_utime + used.ru_stime)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """One clone of the project, with a cache of its own."""

    root: Path
    cache: Path

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of its commands."""
        return {**os.environ, "ELSA_BUILD_CACHE": str(self.cache)}

    def make(self) -> float:
        """Run `make image` and return its seconds."""
        start = time.monotonic()
        done = subprocess.run(
            ["make", "image"], cwd=self.root, env=self.env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"make image in {self.root} failed:\n{done.stderr}")
        return time.monotonic() - start

    def run(self, *words: str) -> tuple[Document, Took]:
        """Run a command of elsa-build and return its `data` and what it took."""
        start = clock()
        done = subprocess.run(
            [".venv/bin/elsa-build", *words, "--json", "--no-progress"], cwd=self.root,
            env=self.env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        took = Took(*(after - before for before, after in zip(start, clock(), strict=True)))
        if done.returncode:
            sys.exit(f"elsa-build {' '.join(words)}: exit {done.returncode}\n{done.stderr}")
        document: Document = json.loads(done.stdout)["data"]
        return document, took

    def image(self, *words: str) -> tuple[Document, Took]:
        """Build the image in the place of the one before it."""
        return self.run("image", "--tag", TAG, "--replace-local", *words)

    @property
    def record(self) -> Document:
        """Return the record of the image that is there."""
        found: Document = json.loads((self.root / "dist" / f"{TAG}.json").read_text())
        return found


def clone(source: Path, root: Path, cache: Path) -> Clone:
    """Clone a checkout's HEAD, as a person would."""
    subprocess.run(["git", "clone", "--quiet", str(source), str(root)], check=True)
    return Clone(root=root, cache=cache)


def identity(record: Document) -> dict[str, Any]:
    """Return what must be equal when two people build the same input."""
    return {
        "diff_ids": [layer["diff_id"] for layer in record["layers"]],
        "config": record["config"],
        "manifest": record["manifest"],
    }


# --- two clones ---------------------------------------------------------------------------------


def two_clones(source: Path, work: Path) -> tuple[Clone, Document]:
    """Make the image at two places and times, touch every date, and compare."""
    one = clone(source, work / "one", work / "cache-one")
    two = clone(source, work / "elsewhere" / "two", work / "cache-two")
    fresh_s = one.make()
    # The download is shared; every layer is made again.
    shutil.copytree(one.cache, two.cache, ignore=shutil.ignore_patterns("images"))
    second_s = two.make()
    first, second = identity(one.record), identity(two.record)
    for path in two.root.rglob("*"):
        if not {".venv", ".git"} & set(path.relative_to(two.root).parts) and path.is_file():
            os.utime(path, (1_000_000_000, 1_000_000_000))
    shutil.rmtree(two.cache / "images")
    touched_s = two.make()
    return one, {
        "make_image_in_a_fresh_clone_s": round(fresh_s, 1),
        "make_image_in_the_second_clone_s": round(second_s, 1),
        "make_image_with_every_date_touched_s": round(touched_s, 1),
        "equal_in_both": first == second,
        "equal_when_touched": identity(two.record) == first,
        **first,
    }


# --- rebuilds -----------------------------------------------------------------------------------


def edit(project: Clone, work: Path, number: int) -> None:
    """Change one line of the patch through a work tree, as a person does."""
    tree = work / f"tree-{number}"
    project.run("apply", "--to", str(tree))
    with (tree / EDITED).open("a") as out:
        out.write(f"# benchmark {number}\n")
    project.run("patch", "refresh", PATCH, "--work-tree", str(tree))


def timed(action: Callable[[], Took], runs: int) -> Took:
    """Return the medians of some runs."""
    rows = [action() for _ in range(runs)]
    return Took(*(round(statistics.median(column), 2) for column in zip(*rows, strict=True)))


def rebuilds(project: Clone, work: Path, runs: int, *options: str) -> Document:
    """Time a whole build, a build of nothing new, and one after an edit; say what moved."""
    before = work / "before.tar"

    def whole() -> Took:
        shutil.rmtree(project.cache / "images", ignore_errors=True)
        return project.image(*options)[1]

    def nothing() -> Took:
        return project.image(*options)[1]

    edits: list[Document] = []

    def edited() -> Took:
        # Every edit is another one, in any part of this run: else its layer would be known.
        edit(project, work, len(list(work.glob("tree-*"))))
        shutil.copy(project.root / "dist" / f"{TAG}.tar", before)
        built, took = project.image(*options)
        moved = project.run("image-diff", str(before), f"dist/{TAG}")[0]
        edits.append(
            {
                "wall_s": round(took.wall_s, 2),
                "cpu_s": round(took.cpu_s, 2),
                "layers_made": [layer["name"] for layer in built["layers"] if layer["made"]],
                "layers_moved": [
                    layer["name"] for layer in moved["layers"] if layer["moved_bytes"]
                ],
                "moved_bytes": moved["moved_bytes"],
            }
        )
        return took

    made, unchanged, rebuilt = (timed(run, runs) for run in (whole, nothing, edited))
    size = sum(layer["size"] for layer in project.record["layers"])
    moved_bytes = max(entry["moved_bytes"] for entry in edits)
    return {
        "whole": made._asdict(),
        "nothing_changed": unchanged._asdict(),
        "patch_edited": rebuilt._asdict(),
        "whole_to_patch_edited": round(made.cpu_s / rebuilt.cpu_s, 1),
        "image_bytes": size,
        "moved_bytes": moved_bytes,
        "image_to_moved": round(size / moved_bytes),
        "edits": edits,
        "reached": rebuilt.wall_s < LIMIT_S and moved_bytes < LIMIT_BYTES,
    }


def base_with_wheel(project: Clone, folder: Path) -> Path:
    """Write a base whose one layer is the pinned wheel as an installation unpacks it."""
    (wheel,) = (project.cache / "wheels").glob("*/*cp312*.whl")
    store = BlobStore(folder / "store")
    with zipfile.ZipFile(wheel) as archive:
        members = [
            File(path=f"{SITE}/{name}", body=partial(archive.read, name))
            for name in archive.namelist()
            if not name.endswith("/")
        ]
        blob = store.add(
            lambda out: write_layer(members, out, mtime=0, compressor=Compressor(level=1))
        )
    layer = Layer(
        name="base", key=Digest(blob.digest), digest=blob.digest, diff_id=blob.diff_id,
        size=blob.size, media_type=blob.media_type,
    )  # fmt: skip
    rootfs = {"type": "layers", "diff_ids": [blob.diff_id]}
    config = to_json({"os": "linux", "architecture": "amd64", "config": {}, "rootfs": rootfs})
    image = Assembled(
        tag="base", name="base:base", config=config, manifest=manifest_of(config, [layer], {}),
        platform="linux/amd64", layers=(blob.digest,),
        blobs={blob.digest: store.path(blob.digest)},
    )  # fmt: skip
    write_layout(folder / "base", image)
    return folder / "base"


# --- other tools --------------------------------------------------------------------------------


def read_by_others(project: Clone) -> Document:
    """Have other tools read the image; null where one is not installed or no daemon answers."""
    layout, record = project.root / "dist" / TAG, project.record
    skopeo = ask("skopeo", "inspect", f"oci:{layout}:{TAG}")
    umoci = ask("umoci", "stat", "--image", f"{layout}:{TAG}", "--json")
    docker = ask("docker", "load", "--quiet", "--input", f"{layout}.tar")
    found: dict[str, Any] = {
        "skopeo inspect": skopeo and json.loads(skopeo)["Digest"] == record["manifest"],
        "umoci stat": umoci and len(json.loads(umoci)["history"]) == len(record["layers"]),
        "docker load": docker and record["name"] in docker,
        "verify of the loaded image": None,
    }
    if docker:
        loaded, _ = project.run("verify", f"docker-daemon:{record['name']}")
        found["verify of the loaded image"] = loaded["config"] == record["config"]
        ask("docker", "rmi", record["name"])
    return found


def ask(program: str, *words: str) -> str | None:
    """Return what a tool prints, or None when it is not there or says no."""
    if shutil.which(program) is None:
        return None
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{program}: {done.stderr}")
        return None
    return done.stdout


def main() -> None:
    """Make the clones, run every build, print the document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--source", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the document there as well")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elsa-rebuild-") as folder:
        work = Path(folder).resolve()
        project, clones = two_clones(asked.source.resolve(), work)
        others = read_by_others(project)
        alone = rebuilds(project, work, asked.runs)
        on_base = rebuilds(
            project, work, asked.runs, "--base", str(base_with_wheel(project, work / "wheel"))
        )
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "runs": asked.runs,
        "two_clones": clones,
        "read_by_others": others,
        "overlay": alone,
        "on_a_base_with_the_wheel": on_base,
    }
    text = json.dumps(result, indent=2) + "\n"
    if asked.out:
        asked.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
