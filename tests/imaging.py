"""Small real inputs for images: a story with a package, a prepared build, a tiny base."""

import io
import json
import tarfile
from pathlib import Path

from elsa_build.images.build import Built, build
from elsa_build.images.ingredients import (
    AppliedPatch,
    Compiled,
    CompiledFile,
    Prepared,
    SourceTrees,
)
from elsa_build.images.oci.contents import visible
from elsa_build.images.oci.layout import OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, read_layout, to_json
from elsa_build.images.oci.store import digest_of
from elsa_build.images.oci.stored import FolderSource, StoredImage
from elsa_build.images.publish import Destination
from elsa_build.model import Artifact, Digest, Oid, Pin, Recipe, SourceKind

EPOCH = 1_700_000_000
WHERE = "/opt/packages"
POOL = "patches-18"
"""The layer that `sglang/pool.py` is in when a patch changes it."""
UPSTREAM = {
    "python/pyproject.toml": "[project]\n",
    "python/sglang/__init__.py": "",
    "python/sglang/pool.py": "SIZE = 1\n",
    "python/sglang/old/__init__.py": "",
    "python/sglang/old/thing.py": "THING = 1\n",
    "python/sglang/srt/engine.py": "def run():\n    return 'upstream'\n",
    "test/test_pool.py": "assert True\n",
}


def recipe(**changes) -> Recipe:
    given = {
        "name": "elsa-test",
        "path": Path("recipes/elsa-test.yaml"),
        "tag": "elsa-v1",
        "model": "/models/m",
        "arch": "sm_120",
        "patchsets": ("one",),
        "package_dir": WHERE,
    }
    return Recipe(**(given | changes))


def prepared(
    story, tmp: Path, patch: dict[str, str | bytes | None] | None = None, *, files=None, **changes
) -> Prepared:
    """Prepare an image of `UPSTREAM` with one patch on it; None as a text deletes the file."""
    base = story.commit(None, "upstream", UPSTREAM | (files or {}))
    touched = {"python/sglang/pool.py": "SIZE = 2\n"} if patch is None else patch
    head = story.commit(base, "ours", touched)
    git = story.git
    trees = SourceTrees(
        objects=git.objects, upstream=git.commit(base).tree, patched=git.commit(head).tree
    )
    applied = AppliedPatch(
        id="bigger-pool",
        patchset="one",
        kind="local",
        outcome="clean",
        tree=trees.patched,
        paths=tuple(sorted(touched)),
        sha256=digest_of(repr(sorted(touched.items())).encode()).removeprefix("sha256:"),
    )
    given = {
        "pin": Pin(
            source=SourceKind.RELEASE,
            url="sglang",
            ref="v0.5.23",
            commit=base,
            tree=trees.upstream,
            date="2023-11-14T22:13:20+00:00",
            artifacts=(Artifact(filename="sglang-0.5.23-cp312.whl", sha256="ab" * 32),),
            requires=("torch==2.14.1", "requests", "pytest; extra == 'test'"),
        ),
        "recipe": recipe(),
        "recipe_digest": Digest("sha256:" + "cd" * 32),
        "trees": trees,
        "head": Oid(head),
        "series": (applied,),
        "lock": b"# a lock\n",
        "epoch": EPOCH,
        "cache": tmp / "cache",
    }
    return Prepared(**(given | changes))


def compiled_file(path: str, body: bytes) -> Compiled:
    """Return what a wheel with one compiled file brings."""
    listed = CompiledFile(path=path, size=len(body), digest=digest_of(body))
    return Compiled(
        wheel="sglang-0.5.23-cp312.whl",
        wheel_sha256="ab" * 32,
        files=(listed,),
        read=lambda _: body,
    )


def destination(tmp: Path, **changes) -> Destination:
    tmp.mkdir(exist_ok=True, parents=True)
    return Destination(**({"output": tmp / "dist", "lock": tmp / "tags.lock"} | changes))


def built(ready: Prepared, tmp: Path, **changes) -> Built:
    return build(ready, destination(tmp), **changes)


def opened(layout: Path) -> StoredImage:
    return read_layout(FolderSource(layout))


def shown(image: StoredImage) -> dict[str, bytes]:
    """Return every file that an image shows, with its bytes."""

    class Everything:
        def __contains__(self, path):
            return True

    seen = visible(image, lambda _: True, keep=Everything())
    return {path: held.body for path, held in seen.items()}


def tar(files: dict[str, bytes | None]) -> bytes:
    """Return a plain tar as another tool writes it; None makes a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if body is None else tarfile.REGTYPE
            info.mode, info.size = 0o755 if body is None else 0o644, len(body or b"")
            archive.addfile(info, io.BytesIO(body or b""))
    return out.getvalue()


def write_base(
    folder: Path,
    layers: list[bytes],
    *,
    stored: list[bytes] | None = None,
    media_type: str = "application/vnd.oci.image.layer.v1.tar",
    config: dict | None = None,
) -> StoredImage:
    """Write a base layout from plain tars; `stored` are the same layers as they are kept."""
    kept = stored or layers
    document = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2020-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/bin", "KEPT=1"], "Labels": {"base.label": "kept"}},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
        "history": [{"created": "2020-01-01T00:00:00Z", "created_by": "base"} for _ in layers],
    } | (config or {})
    config_body = to_json(document)
    manifest = to_json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": descriptor(config_body, OCI_CONFIG),
            "layers": [descriptor(layer, media_type) for layer in kept],
        }
    )
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)
    for body in (*kept, config_body, manifest):
        (blobs / digest_of(body).removeprefix("sha256:")).write_bytes(body)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX}
    entry = descriptor(manifest, OCI_MANIFEST)
    (folder / "index.json").write_bytes(to_json(index | {"manifests": [entry]}))
    return opened(folder)


def descriptor(body: bytes, media_type: str) -> dict:
    return {"mediaType": media_type, "digest": digest_of(body), "size": len(body)}


def edit_json(path: Path, change) -> None:
    """Change a JSON file in place."""
    document = json.loads(path.read_bytes())
    change(document)
    path.chmod(0o644)
    path.write_text(json.dumps(document))
