"""Fat binaries and cubins are read right, from real compilers, and never trusted."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elsa_build.kernels.fatbin import Kind, read
from elsa_build.kernels.members import members
from tests.gpucode import LTO, PTX, Body, compiled, cubin, elf, entry, fat, library

__all__ = ["compiled"]


def codes(body: bytes) -> list[list[tuple[str, str]]]:
    found = read(Body(body))
    assert found is not None
    assert not found.problems
    return [[(str(code.kind), code.form) for code in container] for container in found.containers]


def problems(body: bytes) -> str:
    found = read(Body(body))
    return "; ".join(found.problems) if found else ""


# --- by hand ----------------------------------------------------------------------------------


def test_the_three_forms_of_one_architecture_are_told_apart():
    body = library(fat(entry("120"), entry("120a"), entry("120f"), entry("90")))

    assert codes(body) == [[("sass", "120"), ("sass", "120a"), ("sass", "120f"), ("sass", "90")]]


def test_kinds_are_told_apart_and_an_unknown_one_is_no_damage():
    body = library(fat(entry("120", PTX), entry("120", LTO), entry("120", 77), entry("120")))

    assert codes(body) == [[("ptx", "120"), ("lto", "120"), ("other", "120"), ("sass", "120")]]


def test_every_fat_binary_counts_and_an_unknown_section_does_not():
    body = elf(
        {
            ".nv_fatbin": fat(entry("90")) + fat(entry("120a")),
            ".nvFatBinSegment": bytes(48),
            ".nv_fatbin_of_tomorrow": fat(entry("80")),
        }
    )

    assert codes(body) == [[("sass", "90")], [("sass", "120a")]]


def test_what_nvlink_left_over_is_kept_apart_and_alone_it_counts():
    left = fat(entry("100f"))

    beside = read(Body(elf({"__nv_relfatbin": left, ".nv_fatbin": fat(entry("120a"))})))
    alone = read(Body(elf({"__nv_relfatbin": left})))

    assert [code.form for (code,) in beside.containers] == ["120a"]
    assert [code.form for (code,) in beside.unlinked] == ["100f"]
    assert [code.form for (code,) in alone.containers] == ["100f"]


def test_padding_between_fat_binaries_is_skipped():
    body = library(fat(entry("90")), bytes(40), fat(entry("120")), bytes(8))

    assert codes(body) == [[("sass", "90")], [("sass", "120")]]


def test_other_bytes_between_fat_binaries_are_named_and_the_rest_is_read():
    body = library(fat(entry("90")), b"?" * 24, fat(entry("120")))

    found = read(Body(body))

    assert len(found.containers) == 2
    assert "24 bytes at 0x" in found.problems[0]
    assert "are no fat binary" in found.problems[0]


@pytest.mark.parametrize("form", ["120", "120a", "120f", "121a", "90a", "80"])
def test_a_cubins_letter_is_read_from_its_compilers_note(form):
    assert codes(cubin(form)) == [[("sass", form)]]


def test_a_cubin_of_an_older_compiler_has_its_letter_in_the_flags():
    plain = elf({}, machine=190, flags=0x5A055A, abi=7)
    accelerated = elf({}, machine=190, flags=0x5A0D5A, abi=7)
    blackwell = elf({}, machine=190, flags=0x600780A, abi=8)

    assert codes(plain) == [[("sass", "90")]]
    assert codes(accelerated) == [[("sass", "90a")]]
    assert codes(blackwell) == [[("sass", "120a")]]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x7fELF",
        b"#!/bin/sh\n" * 20,
        elf({".text": b"\x90" * 64}),
        b"\x7fELF\1\1\1" + bytes(60),
        elf({".nv_fatbin": fat(entry("120"))}, kind=8),
    ],
    ids=["empty", "four bytes", "script", "no CUDA", "32 bits", "debug file without content"],
)
def test_what_holds_no_gpu_code_is_none_of_it(body):
    assert read(Body(body)) is None


# --- not to be trusted --------------------------------------------------------------------------


def test_a_library_cut_short_anywhere_is_never_taken_for_whole():
    body = library(fat(entry("90"), entry("120a")), fat(entry("120a")))

    for size in range(64, len(body)):
        assert "cut short" in problems(body[:size]), size


def test_a_fat_binary_file_cut_short_says_where():
    whole = fat(entry("90"), entry("120a", payload=bytes(100)))

    found = read(Body(whole[:-1]))

    assert [code.form for code in found.containers[0]] == ["90"]
    assert "163 are left" in "; ".join(found.problems)


def test_a_cubin_cut_short_is_named():
    assert "cut short" in problems(cubin("120a")[:-10])


def test_an_entry_with_no_header_does_not_loop():
    hostile = bytearray(entry("120"))
    struct.pack_into("<I", hostile, 4, 0)

    assert "has a header of 0 bytes" in problems(library(fat(bytes(hostile))))


def test_a_fat_binary_with_no_header_does_not_loop():
    hostile = bytearray(fat(entry("120")))
    struct.pack_into("<HQ", hostile, 6, 0, 0)

    assert "has a header of 0 bytes" in problems(library(bytes(hostile)))


@pytest.mark.parametrize("size", [1 << 31, 1 << 62, (1 << 64) - 1])
def test_sizes_past_the_end_are_refused(size):
    in_entry = bytearray(fat(entry("120")))
    struct.pack_into("<Q", in_entry, 16 + 8, size)
    in_fat = bytearray(fat(entry("120")))
    struct.pack_into("<Q", in_fat, 8, size)
    in_elf = bytearray(library(fat(entry("120"))))
    struct.pack_into("<Q", in_elf, 40, size)

    for body in (library(bytes(in_entry)), library(bytes(in_fat)), bytes(in_elf)):
        assert "cut short" in problems(body)


def test_a_section_past_the_end_is_refused():
    body = bytearray(library(fat(entry("120"))))
    (table,) = struct.unpack_from("<Q", body, 40)
    struct.pack_into("<Q", body, table + 2 * 64 + 32, 1 << 40)

    assert "cut short: the section at" in problems(bytes(body))


def test_sections_on_top_of_each_other_are_read_once():
    body = bytearray(elf({f"s{i}": b"" for i in range(500)} | {".nv_fatbin": fat(entry("120"))}))
    (table,) = struct.unpack_from("<Q", body, 40)
    row = body[table + 501 * 64 : table + 502 * 64]
    for i in range(1, 501):
        body[table + i * 64 : table + (i + 1) * 64] = row

    assert codes(bytes(body)) == [[("sass", "120")]]


def test_a_file_of_empty_fat_binaries_ends_at_the_limit(monkeypatch):
    monkeypatch.setattr("elsa_build.kernels.fatbin.LIMIT", 100)

    assert "more than 100 entries" in problems(fat() * 200)


def test_thousands_of_sections_are_counted_as_the_specification_says():
    body = bytearray(library(fat(entry("120"))))
    (table,) = struct.unpack_from("<Q", body, 40)
    count, names = struct.unpack_from("<HH", body, 60)
    struct.pack_into("<HH", body, 60, 0, 0xFFFF)
    struct.pack_into("<Q", body, table + 32, count)
    struct.pack_into("<I", body, table + 40, names)

    assert codes(bytes(body)) == [[("sass", "120")]]


REAL = library(fat(entry("90"), entry("120a", PTX)), bytes(8), fat(entry("120f", payload=b"x" * 9)))


@given(
    st.lists(
        st.tuples(st.integers(0, len(REAL) - 1), st.binary(min_size=1, max_size=9)), max_size=6
    ),
    st.integers(0, len(REAL)),
)
@settings(deadline=None, max_examples=400)
def test_no_bytes_at_all_make_it_fail_or_read_without_end(changes, size):
    body = bytearray(REAL)
    for at, text in changes:
        body[at : at + len(text)] = text
    file = Body(bytes(body[:size]))

    read(file)

    assert file.asked < 2 * len(REAL)


@given(st.integers(0, len(cubin("120a")) - 1), st.binary(min_size=1, max_size=9))
@settings(deadline=None, max_examples=200)
def test_no_damaged_cubin_makes_it_fail(at, text):
    body = bytearray(cubin("120a"))
    body[at : at + len(text)] = text

    read(Body(bytes(body)))


# --- from real compilers ------------------------------------------------------------------------


def of(path: Path) -> list[list[tuple[str, str]]]:
    return codes(path.read_bytes())


@pytest.mark.kernels
@pytest.mark.parametrize("form", ["120", "120a", "120f", "121a"])
def test_nvcc_cubins_are_told_apart(compiled, form):
    assert of(compiled(f"{form}.cubin", "-cubin", f"-arch=sm_{form}")) == [[("sass", form)]]


@pytest.mark.kernels
def test_an_nvcc_library_is_read(compiled):
    made = compiled.library(
        "mixed.so",
        "compute_120a,sm_120a",
        "compute_120f,sm_120f",
        "compute_90a,sm_90a",
        "compute_80,compute_80",
    )

    assert [sorted(one) for one in of(made)] == [
        [("ptx", "80"), ("sass", "120a"), ("sass", "120f"), ("sass", "90a")]
    ]


@pytest.mark.kernels
def test_compressed_code_is_read_without_decompressing(compiled):
    pair = "-gencode=arch=compute_120f,code=[sm_120f,compute_120f]"
    packed = compiled("packed.fatbin", "-fatbin", "--compress-mode=size", pair)
    plain = compiled("plain.fatbin", "-fatbin", "-no-compress", pair)

    for made in (packed, plain):
        assert [sorted(one) for one in of(made)] == [[("ptx", "120f"), ("sass", "120f")]]
    assert all(code.compressed for code in read(Body(packed.read_bytes())).containers[0])
    assert not any(code.compressed for code in read(Body(plain.read_bytes())).containers[0])


@pytest.mark.kernels
def test_relocatable_device_code_is_read(compiled):
    made = compiled("rdc.o", "-dc", "-gencode=arch=compute_120a,code=sm_120a")

    assert of(made) == [[("sass", "120a")]]


@pytest.mark.kernels
def test_a_library_of_relocatable_code_only_is_read(compiled):
    pair = "-gencode=arch=compute_120a,code=sm_120a"
    made = compiled("rdc.so", "-shared", "-rdc=true", "-Xcompiler", "-fPIC", pair)

    assert ("sass", "120a") in of(made)[0]


@pytest.mark.kernels
def test_link_time_code_is_no_machine_code(compiled):
    made = compiled("lto.fatbin", "-fatbin", "-dc", "-gencode=arch=compute_120,code=lto_120")

    assert of(made) == [[("lto", "120")]]


@pytest.mark.kernels
def test_a_real_library_cut_short_is_never_taken_for_whole(compiled):
    body = compiled.library("short.so", "compute_120a,sm_120a").read_bytes()

    for size in range(64, len(body), 97):
        assert "cut short" in problems(body[:size]), size


@pytest.mark.kernels
def test_the_code_of_a_file_on_disk_is_the_same(compiled):
    made = compiled.library("disk.so", "compute_120a,sm_120a")
    (member,) = members(made)

    with member.open() as file:
        found = read(file)

    assert [code.kind for code in found.containers[0]] == [Kind.SASS]
