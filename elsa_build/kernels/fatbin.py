"""Reads which GPU's machine code a file holds, from headers alone, so that gigabytes take seconds.

Two containers hold such code: a *fat binary* (a section of a host library, or a file of its own)
with an entry per architecture and form, and a *cubin*, an ELF file for one architecture. No
payload is read or decompressed. Nothing in the file is trusted: what does not add up becomes a
problem in words, and every loop moves forward through the file.

The layouts are not documented by NVIDIA; the fields here were found on nvcc 13.0 and ptxas 12.9 and
13.3, and the counts agree with cuobjdump 13.5 (`benchmarks/coverage.py`). Code that a library keeps
in a form of its own (cuFFT's `.ldata`) and static archives (`.a`) are not seen.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Protocol

ELF = b"\x7fELF"
FATBIN = 0xBA55ED50
LINKED, RELOCATABLE = b".nv_fatbin\0", b"__nv_relfatbin\0"
"""What nvcc calls the sections: of code that can be loaded, and of what nvlink makes it from."""
LIMIT = 1 << 20
"""More sections or entries than this in one file are an attack; the largest seen has 8,000."""

_EM_CUDA = 190
_NOBITS = 8
_OLD_ABI = 7
_SECTION, _ENTRY, _HEADER = 64, 64, 16
_SUFFIX = ("", "a", "f", "?")
_GAP = 1 << 20


class Kind(StrEnum):
    """What an entry holds: only `sass` runs as it is; `other` is of a kind that we do not know."""

    SASS = "sass"
    PTX = "ptx"
    LTO = "lto"
    OTHER = "other"


_KINDS = {1: Kind.PTX, 2: Kind.SASS, 8: Kind.LTO}


class Readable(Protocol):
    """Bytes at any place; fewer than asked for where the file ends."""

    @property
    def size(self) -> int:
        """Return the number of bytes."""

    def at(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset`."""


@dataclass(frozen=True, slots=True)
class Code:
    """One entry: `form` is the architecture with its letter (`120`, `120a`), `size` in bytes."""

    kind: Kind
    form: str
    size: int
    compressed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCode:
    """What one file holds: a tuple of entries per fat binary, or one entry when it is a cubin.

    `unlinked` is what nvlink made the loaded code from and left in the library (NCCL, NVSHMEM): it
    is not loaded, and cuobjdump does not list it either. In an object file it is all there is.
    """

    containers: tuple[tuple[Code, ...], ...]
    unlinked: tuple[tuple[Code, ...], ...] = ()
    problems: tuple[str, ...] = ()
    cubin: bool = False


def read(file: Readable) -> GpuCode | None:
    """Return the GPU code of a file, or None when it holds none.

    A file that cannot be read as what it claims to be gives problems, and no error.
    """
    head = file.at(0, _SECTION)
    if head[:4] == FATBIN.to_bytes(4, "little"):
        reader = _Reader(file)
        containers = tuple(reader.containers(0, file.size))
        return GpuCode(containers=containers, problems=tuple(reader.problems))
    if head[:4] != ELF or head[4:6] != b"\2\1":  # 64 bits, little-endian
        return None
    if len(head) < _SECTION:
        return GpuCode(containers=(), problems=("cut short: ends inside the ELF header",))
    reader = _Reader(file)
    if struct.unpack_from("<H", head, 18)[0] == _EM_CUDA:
        code = reader.cubin(head)
        return GpuCode(containers=((code,),), problems=tuple(reader.problems), cubin=True)
    found: dict[bytes, list[tuple[Code, ...]]] = {LINKED: [], RELOCATABLE: []}
    seen = 0
    for name, start, size in sorted(reader.sections(head, tuple(found)), key=itemgetter(1)):
        # No byte is read twice, or sections on top of each other could cost hours.
        end = reader.end(start, size)
        found[name].extend(reader.containers(max(start, seen), end))
        seen = max(seen, end)
    linked, unlinked = tuple(found[LINKED]), tuple(found[RELOCATABLE])
    if not (linked or unlinked or reader.problems):
        return None
    return GpuCode(
        containers=linked or unlinked,
        unlinked=unlinked if linked else (),
        problems=tuple(reader.problems),
    )


class _Reader:
    """Walks one file and notes what is wrong with it."""

    def __init__(self, file: Readable) -> None:
        self.file = file
        self.problems: list[str] = []
        self._left = LIMIT

    def end(self, start: int, size: int) -> int:
        """Return where a section ends, not past the file."""
        if start + size > self.file.size:
            self.problems.append(
                f"cut short: the section at {start:#x} has {size} bytes,"
                f" the file ends after {max(0, self.file.size - start)}"
            )
        return min(start + size, self.file.size)

    # --- ELF ----------------------------------------------------------------------------------

    def sections(self, head: bytes, wanted: tuple[bytes, ...]) -> Iterator[tuple[bytes, int, int]]:
        """Yield name, offset and size of the sections with these names (each ends with NUL)."""
        programs, table = struct.unpack_from("<QQ", head, 32)
        width, of_programs, row, count, names = struct.unpack_from("<5H", head, 54)
        if table == 0:
            return
        if row != _SECTION:
            self.problems.append(f"section headers of {row} bytes instead of {_SECTION}")
            return
        first = self.file.at(table, _SECTION)
        if len(first) == _SECTION:
            # Too many for 16 bits: then the first row has them. Source: ELF specification.
            count = count or struct.unpack_from("<Q", first, 32)[0]
            names = struct.unpack_from("<I", first, 40)[0] if names == 0xFFFF else names
        last = max(table + count * _SECTION, programs + of_programs * width)
        if last > self.file.size:
            self.problems.append(
                f"cut short: its headers end at {last:#x}, the file at {self.file.size:#x}"
            )
        if count > LIMIT:
            self.problems.append(f"{count} sections; only {LIMIT} are looked at")
        rows = self.file.at(table, min(count, LIMIT) * _SECTION)
        whole = len(rows) // _SECTION
        if names >= whole:
            return
        (text,) = struct.unpack_from("<Q", rows, names * _SECTION + 24)
        longest = max(map(len, wanted))
        for at in range(0, whole * _SECTION, _SECTION):
            name, kind, _, _, offset, size = struct.unpack_from("<IIQQQQ", rows, at)
            read = self.file.at(text + name, longest)
            match = next((one for one in wanted if read.startswith(one)), None)
            if match and kind != _NOBITS and size:
                yield match, offset, size

    def cubin(self, head: bytes) -> Code:
        """Return what a cubin is for; only a note of its compiler tells 120f from 120."""
        (flags,) = struct.unpack_from("<I", head, 48)
        if head[8] <= _OLD_ABI:  # ptxas before 13.0, up to sm_90
            number, letter = flags & 0xFF, "a" if flags & 0x800 else ""
        else:
            number, letter = flags >> 8 & 0xFF, "a" if flags & 0x8 else ""
        for _, start, size in self.sections(head, (b".note.nv.tkinfo\0",)):
            note = self.file.at(start, min(size, 1 << 16))
            for said in re.finditer(rb"-arch[ =]*sm_(\d{1,4})([af]?)\b", note):
                if int(said[1]) == number:
                    letter = said[2].decode()
        return Code(Kind.SASS, f"{number}{letter}", self.file.size)

    # --- fat binaries -------------------------------------------------------------------------

    def containers(self, start: int, end: int) -> Iterator[tuple[Code, ...]]:
        """Yield the entries of each fat binary of a section."""
        at = start
        while at + _HEADER <= end and self._spend():
            raw = self.file.at(at, _HEADER)
            if len(raw) < _HEADER:
                self.problems.append(f"cut short: became smaller at {at:#x}")
                return
            magic, _, header, payload = struct.unpack("<IHHQ", raw)
            if magic != FATBIN:
                at = self._next(at, end)
                continue
            if header < _HEADER:
                self.problems.append(f"the fat binary at {at:#x} has a header of {header} bytes")
                at += _HEADER
                continue
            stop = at + header + payload
            if stop > end:
                self.problems.append(
                    f"cut short: the fat binary at {at:#x} has {header + payload} bytes,"
                    f" {end - at} are left"
                )
            yield tuple(self.entries(at + header, min(stop, end)))
            at = stop

    def _next(self, at: int, end: int) -> int:
        """Return where the next fat binary begins (or `end`); other bytes than zeros are noted."""
        magic = FATBIN.to_bytes(4, "little")
        start, padding = at, True
        while at < end:
            piece = self.file.at(at, min(_GAP, end - at))
            found = piece.find(magic)
            skipped = piece if found < 0 else piece[:found]
            padding = padding and not skipped.strip(b"\0")
            if found >= 0:
                at += found
                break
            # The magic may lie across two pieces; the last piece ends the search.
            at = end if len(piece) < _GAP or at + len(piece) >= end else at + len(piece) - 3
        if not padding:
            self.problems.append(f"{at - start} bytes at {start:#x} are no fat binary")
        return at

    def entries(self, at: int, end: int) -> Iterator[Code]:
        """Yield the entries of one fat binary; one that is cut short is not there."""
        while at < end and self._spend():
            raw = self.file.at(at, min(_ENTRY, end - at))
            if len(raw) < _ENTRY:
                self.problems.append(f"cut short: the entry at {at:#x} ends inside its header")
                return
            kind, _, header, payload = struct.unpack_from("<HHIQ", raw)
            number, flags = struct.unpack_from("<I8xQ", raw, 28)
            if header < _ENTRY:
                self.problems.append(f"the entry at {at:#x} has a header of {header} bytes")
                return
            size = header + payload
            if at + size > end:
                self.problems.append(
                    f"cut short: the entry at {at:#x} has {size} bytes, {end - at} are left"
                )
                return
            letter = _SUFFIX[flags >> 20 & 3]
            compressed = bool(flags & 0xA000)  # 0x8000, and 0x2000 of older compilers
            yield Code(_KINDS.get(kind, Kind.OTHER), f"{number}{letter}", size, compressed)
            at += size

    def _spend(self) -> bool:
        """Count one step; say whether more may follow."""
        self._left -= 1
        if self._left == 0:
            self.problems.append(f"more than {LIMIT} entries; the rest is not looked at")
        return self._left > 0
