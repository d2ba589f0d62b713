"""Files between machines that share no disk: what a job made, and folders that it needs."""

import io
import os
import tarfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A file that a job made: where it belongs on the caller's machine, its mode and content."""

    path: str
    mode: int
    content: bytes

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file."""
        return cls(path=str(path), mode=path.stat().st_mode, content=path.read_bytes())

    def renamed(self, rename: Callable[[str], str]) -> Self:
        """Return it for another machine: in its path, and in its content when that is text.

        Triton's group files and the files of ninja name their own folder.
        """
        try:
            content = rename(self.content.decode()).encode()
        except UnicodeDecodeError:
            content = self.content
        return replace(self, path=rename(self.path), content=content)


def put(product: Product, path: Path) -> None:
    """Write a product, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        fresh.write_bytes(product.content)
        fresh.chmod(product.mode & 0o777)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def pack(folder: Path) -> bytes:
    """Return a folder as a compressed tar, links as links."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        tar.add(folder, ".")
    return packed.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Lay a packed folder out; a link that leads out of it is refused."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder, filter="data")
