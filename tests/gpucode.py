"""GPU code for tests: fat binaries made by hand, byte by byte, and real ones made by nvcc."""

import os
import shutil
import struct
import subprocess
import sysconfig
import zipfile
from functools import cache
from pathlib import Path

import pytest

PTX, SASS, LTO = 1, 2, 8
LETTERS = {"": 0, "a": 0x100000, "f": 0x200000}
SOURCE = "__global__ void add(float* x, float y) { x[threadIdx.x] += y; }\n"


# --- by hand ------------------------------------------------------------------------------------


def entry(form: str, kind: int = SASS, *, payload: bytes = b"\xaa" * 40, header: int = 64) -> bytes:
    """Return an entry of a fat binary: `120a` is the number 120 with the flag for `a`."""
    number = form.rstrip("af")
    flags = 0x11 | LETTERS[form.removeprefix(number)]
    head = struct.pack("<HHIQ", kind, 0x101, header, len(payload)) + bytes(12)
    head += struct.pack("<I", int(number)) + bytes(8) + struct.pack("<Q", flags)
    return head.ljust(max(64, header), b"\0") + payload


def fat(*entries: bytes) -> bytes:
    """Return a fat binary of these entries."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def elf(
    sections: dict[str, bytes], *, machine: int = 62, flags: int = 0, abi: int = 0, kind: int = 1
) -> bytes:
    """Return an ELF file whose section table is at its end, as linkers write it."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    body, rows = b"", [bytes(64)]
    for name, content in {**sections, ".shstrtab": names}.items():
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        rows.append(
            struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(content), 0, 0, 8, 0)
        )
        body += content
    ident = b"\x7fELF\2\1\1" + bytes([0x41 if abi > 7 else 0x33 if abi else 0, abi]) + bytes(7)
    head = ident + struct.pack(
        "<HHIQQQIHHHHHH",
        *(3, machine, 1, 0, 0, 64 + len(body), flags, 64, 56, 0, 64, len(rows), len(rows) - 1),
    )
    return head + body + b"".join(rows)


def library(*containers: bytes, section: str = ".nv_fatbin") -> bytes:
    """Return a host library with these fat binaries."""
    return elf({".text": b"\x90" * 32, section: b"".join(containers)})


def built(*forms: str, files: int = 3, ptx: tuple[str, ...] = ()) -> bytes:
    """Return a library of some source files, each compiled for all these forms."""
    one = fat(*(entry(form) for form in forms), *(entry(form, PTX) for form in ptx))
    return library(*[one] * files)


def cubin(form: str, *, abi: int = 8, note: bool = True) -> bytes:
    """Return a cubin as ptxas 13 (`abi` 8) or one before it (7) writes it."""
    number = int(form.rstrip("af"))
    flags = 0x6000002 | number << 8 if abi == 8 else 0x500500 | number
    said = {".note.nv.tkinfo": f"ptxas\0-v  -arch sm_{form} -m 64 \0".encode()} if note else {}
    return elf(said, machine=190, flags=flags, abi=abi)


def wheel(path: Path, files: dict[str, bytes]) -> Path:
    """Write a wheel with these files, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(name, body)
    return path


class Body:
    """Bytes as the reader wants them, and how often it asked."""

    def __init__(self, body: bytes) -> None:
        self.body, self.asked = body, 0

    @property
    def size(self) -> int:
        return len(self.body)

    def at(self, offset: int, count: int) -> bytes:
        self.asked += 1
        return self.body[offset : offset + count]


# --- by nvcc ------------------------------------------------------------------------------------


@cache
def site_packages() -> Path | None:
    """Return the site-packages of the interpreter that has torch, if one is named."""
    python = os.environ.get("ELSA_KERNELS_PYTHON")
    if not python:
        return None
    scheme = sysconfig.get_preferred_scheme("prefix")
    code = f"import sysconfig; print(sysconfig.get_path('purelib', '{scheme}'))"
    return Path(subprocess.check_output([python, "-c", code], text=True).strip())


def nvcc() -> str:
    """Return an nvcc, or skip: of the machine, or of pip's toolkit in that interpreter."""
    site = site_packages()
    pip = [str(path) for path in site.glob("nvidia/cu*/bin/nvcc")] if site else []
    for found in (*pip, shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if found and Path(found).is_file():
            return found
    pytest.skip("no nvcc: set ELSA_KERNELS_PYTHON to an interpreter that has nvidia-cuda-nvcc")


class Compiled:
    """Kernels compiled when they are first asked for, once a session."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nvcc = folder, nvcc()
        (folder / "add.cu").write_text(SOURCE)

    def __call__(self, name: str, *options: str) -> Path:
        """Compile the kernel to a file of this name with these options of nvcc."""
        out = self.folder / name
        if not out.exists():
            command = [self.nvcc, "-cudart", "none", *options, "-o", str(out), "add.cu"]
            ran = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, check=False
            )
            if ran.returncode:
                wrong = f"nvcc cannot compile here: {(ran.stderr or ran.stdout).strip()[-300:]}"
                # Ours must be able to; another one may be too old for sm_120.
                pytest.fail(wrong) if site_packages() else pytest.skip(wrong)
        return out

    def library(self, name: str, *codes: str) -> Path:
        """Compile a shared library for some `-gencode` pairs, each `arch,code`."""
        pairs = [f"-gencode=arch={a},code={c}" for a, c in (code.split(",") for code in codes)]
        return self(name, "-shared", "-Xcompiler", "-fPIC", *pairs)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Return kernels that nvcc compiles."""
    return Compiled(tmp_path_factory.mktemp("compiled"))
