"""Bases made by hand: OCI layouts of a few small layers, plain or compressed, whiteouts and all."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

Content = bytes | str | tuple[int, int, int] | None
"""A file's bytes; `-> target` a symbolic link, `=> target` a hard link; None a folder of mode 755
and root, `(mode, uid, gid)` another one."""


def layer(files: dict[str, Content]) -> bytes:
    """Return a layer's tar; names are as given, so `./a` and `a/.wh.b` are possible."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if content is None or isinstance(content, tuple):
                member.type = tarfile.DIRTYPE
                member.mode, member.uid, member.gid = content or (0o755, 0, 0)
                tar.addfile(member)
            elif isinstance(content, str):
                kind, _, member.linkname = content.partition(" ")
                member.type = tarfile.SYMTYPE if kind == "->" else tarfile.LNKTYPE
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def layout(folder: Path, layers: Sequence[bytes], *, zipped: bool = True, **config: object) -> Path:
    """Write layers, bottom first, as an OCI layout; `config` overrides fields of the config."""

    def blob(body: bytes) -> dict[str, object]:
        digest = hashlib.sha256(body).hexdigest()
        path = folder / "blobs" / "sha256" / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return {"digest": f"sha256:{digest}", "size": len(body)}

    def put(document: object) -> dict[str, object]:
        return blob(json.dumps(document).encode())

    diff_ids = [f"sha256:{hashlib.sha256(body).hexdigest()}" for body in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "config": {},
        **config,
    }
    kind = "application/vnd.oci.image"
    suffix = "+gzip" if zipped else ""
    manifest = put(
        {
            "schemaVersion": 2,
            "mediaType": f"{kind}.manifest.v1+json",
            "config": {"mediaType": f"{kind}.config.v1+json", **put(image)},
            "layers": [
                {
                    "mediaType": f"{kind}.layer.v1.tar{suffix}",
                    **blob(gzip.compress(body, mtime=0) if zipped else body),
                }
                for body in layers
            ],
        }
    )
    entry = {"mediaType": f"{kind}.manifest.v1+json", **manifest}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return folder
