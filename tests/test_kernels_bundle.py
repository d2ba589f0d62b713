import gzip
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from elsa_build.errors import ConfigError, StaleError, ToolError
from elsa_build.git.objects import blob_id
from elsa_build.kernels.bundle import DOCUMENT, PREFIX, Missing, parse, read, text
from elsa_build.kernels.bundle_verify import of_missing, of_sources, verify
from elsa_build.kernels.fitting import misfits
from elsa_build.kernels.jobs import Family
from elsa_build.kernels.sealing import seal
from elsa_build.kernels.staleness import Fate, changes, stale
from elsa_build.kernels.target import target
from elsa_build.kernels.unpacking import archive, opened, unpack
from tests.bundling import CUDA, HASHES, OPS, SOURCE, SOURCES, TOOLS, fill, manifest, sealed
from tests.gpucode import built, cubin

CARD = target("sm_120")
GROUP = f"triton/{HASHES[0]}/__grp__scale.json"
CUBIN = f"triton/{HASHES[0]}/scale.cubin"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")


def children(path: Path) -> dict[str, str]:
    return json.loads(path.read_text())["child_paths"]


def codes(found) -> list[str]:
    return [one.code for one in found]


def rewrite(bundle, change) -> None:
    """Edit a bundle's document and seal it again, as an attacker would."""
    edited = replace(bundle.manifest, **change)
    (bundle.folder / DOCUMENT).write_bytes(text(edited))


# --- sealing ----------------------------------------------------------------------------------


def test_a_sealed_bundle_reads_back_and_verifies(tmp_path):
    bundle = sealed(tmp_path)

    assert read(bundle.folder) == bundle
    assert verify(bundle, CARD) == ()
    assert [kernel.arch for kernel in bundle.manifest.kernels] == [
        "sm_120f",
        "sm_120f",
        "sm_120a",
        "sm_120a",
    ]
    assert bundle.manifest.counts() == {"triton": 2, "sglang-jit": 1, "flashinfer": 1}


def test_two_builds_of_one_input_give_equal_bytes_wherever_they_were(tmp_path):
    one, two = sealed(tmp_path / "here"), sealed(tmp_path / "there/deeper")

    for ending in ("tar", "tar.gz"):
        archive(one, tmp_path / f"one.{ending}")
        archive(two, tmp_path / f"two.{ending}")
        packed = [(tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two")]
        assert packed[0] == packed[1]
    assert one.digest == two.digest


def test_group_files_name_their_children_where_a_server_will_see_them(tmp_path):
    bundle = sealed(tmp_path)

    assert children(bundle.folder / GROUP) == {
        f"scale.{ending}": f"{PREFIX}/triton/{HASHES[0]}/scale.{ending}"
        for ending in ("cubin", "json", "source")
    }


def test_flashinfer_is_told_where_its_libraries_will_be(tmp_path):
    bundle = sealed(tmp_path)

    provider = (bundle.folder / "python/flashinfer_jit_cache/__init__.py").read_text()

    assert f'Path("{PREFIX}/flashinfer_aot")' in provider
    assert '"0.7.2"' in provider
    assert "sm120f" in provider


def test_only_named_files_are_in_a_bundle_and_everyone_can_read_them(tmp_path):
    before = os.umask(0o077)

    try:
        bundle = sealed(tmp_path)
    finally:
        os.umask(before)

    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (bundle.folder, *bundle.folder.rglob("*"))}
    assert {modes[p] for p in modes if p.is_file()} == {0o644}
    assert {modes[p] for p in modes if p.is_dir()} == {0o755}
    assert not [p for p in modes if "killed" in p.name]


def test_sealing_again_replaces_the_bundle_and_leaves_nothing_beside_it(tmp_path):
    sealed(tmp_path)
    build = fill(tmp_path / "second", shared=2048)

    second = seal(build, tmp_path / "bundle", manifest(build))

    assert read(tmp_path / "bundle") == second
    assert sorted(p.name for p in tmp_path.iterdir()) == ["build of bundle", "bundle", "second"]


def test_a_file_that_a_kernel_names_and_no_builder_wrote_is_said(tmp_path):
    build = fill(tmp_path / "build")
    whole = manifest(build)
    (build / CUBIN).unlink()

    with pytest.raises(ToolError, match=r"scale\.cubin: a kernel names it, and it is not there"):
        seal(build, tmp_path / "bundle", whole)

    assert not (tmp_path / "bundle").exists()


def test_a_group_file_with_a_child_that_is_not_there_is_not_sealed(tmp_path):
    build = fill(tmp_path / "build")
    whole = manifest(build)
    (build / GROUP).write_text(json.dumps({"child_paths": {"scale.ptx": "/gone/scale.ptx"}}))

    with pytest.raises(ConfigError, match=r"__grp__scale\.json: names \['scale\.ptx'\]"):
        seal(build, tmp_path / "bundle", whole)


def test_a_symlink_in_a_build_folder_is_not_followed(tmp_path):
    build = fill(tmp_path / "build")
    whole = manifest(build)
    (build / CUBIN).unlink()
    (build / CUBIN).symlink_to("/etc/passwd")

    with pytest.raises(ToolError, match="it is not there"):
        seal(build, tmp_path / "bundle", whole)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a//b", "triton/../../x", "a\nb"])
def test_a_kernel_cannot_name_a_file_outside(tmp_path, path):
    build = fill(tmp_path / "build")
    whole = manifest(build)
    kernels = (replace(whole.kernels[0], files=(path,)),)

    with pytest.raises(ConfigError, match="is not a path inside a bundle"):
        seal(build, tmp_path / "bundle", replace(whole, kernels=kernels))


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    build = fill(tmp_path / "build")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter").write_text("dear")

    with pytest.raises(ToolError, match="is not a bundle, so it is not replaced"):
        seal(build, tmp_path / "home", manifest(build))

    assert (tmp_path / "home/letter").read_text() == "dear"


# --- reading what others may have changed -----------------------------------------------------


def test_a_document_that_is_cut_short_is_refused(tmp_path):
    bundle = sealed(tmp_path)
    path = bundle.folder / DOCUMENT
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(ConfigError, match="not a bundle of elsa-build"):
        read(bundle.folder)


def test_an_edited_document_is_refused(tmp_path):
    bundle = sealed(tmp_path)
    path = bundle.folder / DOCUMENT
    path.write_text(path.read_text().replace('"python": "3.12"', '"python": "3.11"'))

    with pytest.raises(ConfigError, match="its seal is that of another text"):
        read(bundle.folder)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"version": 1}', b"\xff\xfe", b"[" * 90000])
def test_a_document_of_something_else_is_refused(body):
    with pytest.raises(ConfigError, match="not a bundle of elsa-build"):
        parse(body, "bundle.json")


@pytest.mark.parametrize("version", [1, 3])
def test_a_document_of_another_version_is_refused(tmp_path, version):
    body = (sealed(tmp_path).folder / DOCUMENT).read_bytes()

    with pytest.raises(ConfigError, match=f"version: {version} is not 2"):
        parse(body.replace(b'"version": 2', b'"version": %d' % version), "bundle.json")


@pytest.mark.parametrize("path", ["../x", "/x", "a/./b", "bundle.json", ""])
def test_a_resealed_document_cannot_name_a_path_outside(tmp_path, path):
    bundle = sealed(tmp_path)
    files = {**bundle.manifest.files, path: bundle.manifest.files[CUBIN]}

    with pytest.raises(ConfigError, match="files: "):
        parse(text(replace(bundle.manifest, files=files)), "bundle.json")


@pytest.mark.parametrize("prefix", ["", "relative", "/", "/a/../b", "/a//b"])
def test_a_prefix_is_an_absolute_folder(tmp_path, prefix):
    bundle = sealed(tmp_path)

    with pytest.raises(ConfigError, match="prefix: "):
        parse(text(replace(bundle.manifest, prefix=prefix)), "bundle.json")


def test_a_file_that_is_cut_short_or_gone_is_refused_when_the_bundle_is_read(tmp_path):
    bundle = sealed(tmp_path)
    whole = (bundle.folder / CUBIN).read_bytes()

    (bundle.folder / CUBIN).write_bytes(whole[:-1])
    with pytest.raises(ConfigError, match=r"scale\.cubin: \d+ bytes, sealed with \d+"):
        read(bundle.folder)
    (bundle.folder / CUBIN).unlink()
    with pytest.raises(ConfigError, match=r"scale\.cubin: missing"):
        read(bundle.folder)


# --- verifying --------------------------------------------------------------------------------


def test_a_changed_byte_is_found_and_named(tmp_path):
    bundle = sealed(tmp_path)
    path = bundle.folder / f"triton/{HASHES[1]}/double.source"
    path.write_bytes(b"module {x\n")

    (found,) = verify(read(bundle.folder), CARD)

    assert (found.code, found.path) == ("E420", f"triton/{HASHES[1]}/double.source")


def test_a_file_that_no_kernel_brought_is_found(tmp_path):
    bundle = sealed(tmp_path)
    (bundle.folder / "triton/EXTRA").mkdir()
    (bundle.folder / "triton/EXTRA/x.cubin").write_bytes(cubin("120a"))

    (found,) = verify(bundle, CARD)

    assert (found.code, found.path) == ("E421", "triton/EXTRA/x.cubin")


def test_a_link_in_the_place_of_a_file_is_found(tmp_path):
    bundle = sealed(tmp_path)
    shutil.copy(bundle.folder / CUBIN, tmp_path / "elsewhere")
    (bundle.folder / CUBIN).unlink()
    (bundle.folder / CUBIN).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="missing, or not a file"):
        read(bundle.folder)
    assert "E420" in codes(verify(bundle, CARD))


@pytest.mark.parametrize("form", ["90a", "121a", "100f"])
def test_code_for_another_card_is_found_whatever_the_document_says(tmp_path, form):
    bundle = sealed(tmp_path, form=form)

    found = verify(bundle, CARD)

    assert set(codes(found)) == {"E422"}
    assert f"sm_{form}" in found[0].message


def test_a_library_for_another_card_is_found(tmp_path):
    build = fill(tmp_path / "build")
    (build / "flashinfer_aot/page/page.so").write_bytes(built("100f", "90a"))

    found = verify(seal(build, tmp_path / "bundle", manifest(build)), CARD)

    assert [(one.code, one.path) for one in found] == [("E422", "flashinfer_aot/page/page.so")]


def test_a_document_that_promises_another_arch_than_the_code_has_is_found(tmp_path):
    bundle = sealed(tmp_path)
    first, *others = bundle.manifest.kernels
    rewrite(bundle, {"kernels": (replace(first, arch="sm_120a"), *others)})

    (found,) = verify(read(bundle.folder), CARD)

    assert found.message == "page: the code is for sm_120f, sealed as sm_120a"


def test_a_cubin_that_is_none_is_found(tmp_path):
    build = fill(tmp_path / "build")
    (build / CUBIN).write_bytes(b"<html>not found</html>")

    found = verify(seal(build, tmp_path / "bundle", manifest(build)), CARD)

    assert any("is no cubin" in one.message for one in found)


def test_a_kernel_that_needs_more_shared_memory_than_a_block_may_have_is_found(tmp_path):
    build = fill(tmp_path / "build", shared=CARD.shared_bytes + 1)

    found = verify(seal(build, tmp_path / "bundle", manifest(build)), CARD)

    assert codes(found) == ["E423", "E423"]
    assert "101,377 bytes" in found[0].message


def test_a_group_file_that_leads_elsewhere_is_found(tmp_path):
    bundle = sealed(tmp_path)
    rewrite(bundle, {"prefix": "/somewhere/else"})

    found = verify(read(bundle.folder), CARD)

    assert codes(found) == ["E424", "E424"]
    assert "a lookup below /somewhere/else misses" in found[0].message


def test_a_bundle_for_another_target_is_one_finding(tmp_path):
    (found,) = verify(sealed(tmp_path), target("sm_90"))

    assert found.message == "is for sm_120, not for sm_90"


def test_what_was_planned_and_is_not_there_is_a_warning(tmp_path):
    lost = (Missing(family=Family.FLASHINFER, name="fused_moe_120", why="no time"),)

    (found,) = of_missing(sealed(tmp_path, missing=lost).manifest)

    assert (found.code, str(found.severity)) == ("E426", "warning")
    assert "fused_moe_120" in found.message


# --- unpacking --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_an_unpacked_bundle_leads_to_itself_when_the_old_place_is_gone(tmp_path, ending):
    packed = tmp_path / f"kernels.{ending}"
    bundle = sealed(tmp_path)
    archive(bundle, packed)
    shutil.rmtree(bundle.folder)

    with opened(packed) as found:
        moved = unpack(found, tmp_path / "new place", target="sm_120", toolchain=TOOLS)

    groups = list(moved.folder.rglob("__grp__*"))
    assert len(groups) == 2
    assert all(Path(child).is_file() for group in groups for child in children(group).values())
    provider = (moved.folder / "python/flashinfer_jit_cache/__init__.py").read_text()
    assert str(moved.folder / "flashinfer_aot") in provider
    assert verify(read(moved.folder), CARD) == ()


def test_a_container_sees_a_bundle_at_another_path_than_its_host(tmp_path):
    moved = unpack(sealed(tmp_path), tmp_path / "volume", prefix="/kernels")

    path = f"/kernels/triton/{HASHES[0]}/scale.cubin"
    assert children(moved.folder / GROUP)["scale.cubin"] == path


def test_moving_there_and_back_gives_the_same_bundle(tmp_path):
    bundle = sealed(tmp_path)

    moved = unpack(bundle, tmp_path / "away")
    back = unpack(moved, tmp_path / "back", prefix=PREFIX)

    assert moved.digest != bundle.digest
    assert back.digest == bundle.digest


@pytest.mark.parametrize(
    ("field", "value", "families"),
    [
        ("python", "3.11", ["triton"]),
        ("libtriton", "bb", ["triton"]),
        ("nvcc", "12.9.86", ["sglang-jit"]),
        ("cxx", "c++ (Debian 12.2.0-14+deb12u1) 12.2.1", ["sglang-jit"]),
        ("cuda_home", "/usr/local/cuda", ["sglang-jit"]),
        ("torch", "2.11.0+cu130", ["sglang-jit"]),
        ("torch", "2.14.1+cu129", ["sglang-jit"]),
        ("deep_gemm", "2.1", ["sglang-jit"]),
        ("tvm_ffi", "0.1.12", ["flashinfer", "sglang-jit"]),
        ("flashinfer", "0.7.4", ["flashinfer", "sglang-jit"]),
        ("cuda", "12.9", ["flashinfer"]),
        ("driver", "999", []),
    ],
)
def test_each_family_insists_on_what_its_key_or_its_binary_holds(tmp_path, field, value, families):
    found = misfits(sealed(tmp_path).manifest, target="sm_120", toolchain=TOOLS | {field: value})

    assert sorted({str(one.family) for one in found}) == families
    assert all(one.field == field for one in found)


def test_patch_levels_of_python_and_local_versions_do_not_matter(tmp_path):
    here = TOOLS | {"python": "3.12.11", "torch": "2.14.1", "cuda": "13.3"}

    assert misfits(sealed(tmp_path).manifest, toolchain=here) == ()


def test_a_bundle_for_another_card_or_python_is_not_unpacked(tmp_path):
    bundle = sealed(tmp_path)

    with pytest.raises(StaleError, match="flashinfer, sglang-jit, triton kernels are not for this"):
        unpack(bundle, tmp_path / "new", target="sm_90")
    with pytest.raises(
        StaleError, match=r"triton: python is 3\.11 here, the kernels are for 3\.12"
    ):
        unpack(bundle, tmp_path / "new", toolchain={"python": "3.11.7"})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("path", [CUBIN, GROUP])
def test_a_file_that_was_changed_after_sealing_is_not_unpacked(tmp_path, path):
    bundle = sealed(tmp_path)
    body = bytearray((bundle.folder / path).read_bytes())
    body[-2] ^= 1
    (bundle.folder / path).write_bytes(body)

    with pytest.raises(ConfigError, match="is not what was sealed"):
        unpack(bundle, tmp_path / "new")

    assert not (tmp_path / "new").exists()


# --- archives that someone made ---------------------------------------------------------------


def packed(tmp_path, change=None) -> Path:
    """Write a bundle's tar, each member as `change(name, info, body)` wants it."""
    bundle = sealed(tmp_path)
    out = tmp_path / "kernels.tar"
    archive(bundle, out)
    if change is None:
        return out
    made = io.BytesIO()
    with tarfile.open(out) as old, tarfile.open(fileobj=made, mode="w") as new:
        for info in old.getmembers():
            stream = old.extractfile(info)
            for member, body in change(info, stream.read()):
                member.size = len(body)
                new.addfile(member, io.BytesIO(body))
    out.write_bytes(made.getvalue())
    return out


def linked(info, body):
    if info.name == CUBIN:
        info.type, info.linkname, body = tarfile.SYMTYPE, "/etc/passwd", b""
    yield info, body


def climbing(info, body):
    yield info, body
    if info.name == CUBIN:
        yield tarfile.TarInfo("triton/../../outside"), b"x"


def twice(info, body):
    yield info, body
    if info.name == CUBIN:
        yield info, body


def swapped(info, body):
    yield info, bytes([*body[:-1], body[-1] ^ 1]) if info.name == CUBIN else body


def without(info, body):
    if info.name != CUBIN:
        yield info, body


def headless(info, body):
    if info.name != DOCUMENT:
        yield info, body


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (linked, "names no such file"),
        (climbing, r"'triton/../../outside': its document names no such file"),
        (twice, "names no such file"),
        (swapped, "is not what was sealed"),
        (without, "cut short: 1 files are missing"),
        (headless, "does not begin with bundle.json"),
    ],
)
def test_an_archive_that_someone_changed_is_refused(tmp_path, change, said):
    path = packed(tmp_path, change)

    with pytest.raises(ConfigError, match=said), opened(path):
        pass

    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.5, 1])
def test_an_archive_that_is_cut_short_is_refused(tmp_path, zipped, share):
    path = packed(tmp_path)
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    # What follows the last byte of the last file is padding.
    body = path.read_bytes()[: last.offset_data + last.size]
    body = gzip.compress(body) if zipped else body
    path.write_bytes(body[: int(len(body) * share) - 1])

    with pytest.raises(ConfigError), opened(path):
        pass


@pytest.mark.parametrize("body", [b"", b"hello", b"\x1f\x8bnope", b"\0" * 4096])
def test_a_file_of_something_else_is_no_bundle(tmp_path, body):
    (tmp_path / "x.tar").write_bytes(body)

    with pytest.raises(ConfigError), opened(tmp_path / "x.tar"):
        pass


def test_an_archive_of_another_kind_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match=r"an archive ends in \.tar"):
        archive(sealed(tmp_path), tmp_path / "kernels.zip")

    assert not list(tmp_path.glob("*.zip")) + list(tmp_path.glob(".*"))


# --- places that cannot take a bundle ---------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 KiB, another file system than the bundle's."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_old_bundle_and_nothing_else(tmp_path, small_disk):
    bundle = sealed(tmp_path)
    old = unpack(bundle, small_disk / "kernels")
    build = fill(tmp_path / "large")
    (build / "flashinfer_aot/page/page.so").write_bytes(built("120f", files=900))

    with pytest.raises(ToolError, match="No space left") as raised:
        seal(build, small_disk / "kernels", manifest(build))

    assert "free space" in raised.value.hint
    assert read(small_disk / "kernels") == old
    assert [p.name for p in small_disk.iterdir()] == ["kernels"]


def test_another_file_system_takes_a_bundle(tmp_path, small_disk):
    moved = unpack(sealed(tmp_path), small_disk / "kernels")

    assert verify(moved, CARD) == ()


def let_in(folder):
    """Let another user into a test's folder; with several test processes it lies a level deeper."""
    for one in (folder, *folder.parents):
        if "pytest-of" not in str(one):
            break
        one.chmod(0o755)


def as_nobody(work):
    """Do something in a process of another user and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            os.setgid(65534)
            os.setuid(65534)
            work()
            code = 0
        except ToolError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@ROOT_ONLY
@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_a_folder_that_is_read_only_or_another_persons_is_said(tmp_path, mode):
    bundle = sealed(tmp_path)
    place = tmp_path / "theirs"
    place.mkdir()
    place.chmod(mode)
    let_in(tmp_path)

    assert as_nobody(lambda: unpack(bundle, place / "kernels")) == 3
    assert list(place.iterdir()) == []


@ROOT_ONLY
def test_a_bundle_can_be_read_and_verified_by_another_user(tmp_path):
    bundle = sealed(tmp_path)
    let_in(tmp_path)

    assert as_nobody(lambda: verify(read(bundle.folder), CARD)) == 0


# --- sources ----------------------------------------------------------------------------------


def against(bundle, **texts):
    """Compare a bundle with a tree of these texts."""
    tree = {path: text.encode() for path, text in (SOURCES | texts).items() if text is not None}
    bodies = {blob_id(body): body for body in tree.values()}
    return stale(
        bundle.manifest, lambda p: blob_id(tree[p]) if p in tree else None, bodies.__getitem__
    )


def fates(found):
    return {one.kernel.name.rpartition(":")[2]: one.fate for one in found}


def test_a_bundle_is_fresh_for_the_tree_that_it_was_built_from(tmp_path):
    assert against(sealed(tmp_path)) == ()


def test_a_line_above_moves_a_kernel_and_a_line_below_does_not(tmp_path):
    bundle = sealed(tmp_path)

    above = against(bundle, **{OPS: "# A comment.\n" + SOURCE})
    below = against(bundle, **{OPS: SOURCE + "# A comment.\n"})

    assert fates(above) == {"scale": Fate.MOVED, "double": Fate.MOVED}
    assert fates(below) == {"scale": Fate.BESIDE, "double": Fate.BESIDE}


def test_a_change_in_a_called_function_changes_its_callers_too(tmp_path):
    found = against(sealed(tmp_path), **{OPS: SOURCE.replace("x + x", "x * 2")})

    assert fates(found) == {"scale": Fate.CHANGED, "double": Fate.CHANGED}


def test_a_line_between_two_functions_moves_the_second_and_what_calls_it(tmp_path):
    changed = SOURCE.replace("\n\n\n@triton.jit\ndef double", "\n\n\n\n@triton.jit\ndef double")

    found = against(sealed(tmp_path), **{OPS: changed})

    assert fates(found) == {"scale": Fate.MOVED, "double": Fate.MOVED}
    alone = [one for one in found if one.kernel.name.endswith(":double")]
    assert alone[0].paths == (OPS,)


def test_a_function_that_is_gone_and_a_file_that_is_gone_are_said(tmp_path):
    bundle = sealed(tmp_path)

    renamed = against(bundle, **{OPS: SOURCE.replace("def double", "def twice")})
    removed = against(bundle, **{OPS: None, CUDA: None})

    assert fates(renamed) == {"scale": Fate.GONE, "double": Fate.GONE}
    assert set(fates(removed).values()) == {Fate.GONE}
    assert len(removed) == 3


def test_a_changed_cuda_file_is_a_change_of_what_includes_it(tmp_path):
    found = against(sealed(tmp_path), **{CUDA: "__global__ void norm(int) {}\n"})

    assert fates(found) == {"norm": Fate.CHANGED}


def test_a_constant_that_a_kernel_reads_is_not_called_untouched(tmp_path):
    bundle = sealed(tmp_path)
    kernels = [
        replace(k, parts={**k.parts, "globals": {"N": "4"}}) for k in bundle.manifest.kernels
    ]
    reading = replace(bundle, manifest=replace(bundle.manifest, kernels=tuple(kernels)))

    found = against(reading, **{OPS: SOURCE + "N = 8\n"})

    assert set(fates(found).values()) == {Fate.CHANGED}


def test_a_file_that_no_longer_parses_has_lost_its_kernels(tmp_path):
    found = against(sealed(tmp_path), **{OPS: "def scale(:\n"})

    assert set(fates(found).values()) == {Fate.GONE}


def test_stale_sources_are_said_file_by_file_with_the_kernels_they_feed(tmp_path):
    found = against(sealed(tmp_path), **{OPS: "# A comment.\n" + SOURCE})

    (said,) = of_sources(found, "elsa-test")

    assert (said.code, said.path) == ("E425", OPS)
    assert "same text, moved: sglang.kernels.ops.scale:double" in said.message
    assert said.hint == "elsa-build kernels build --recipe elsa-test"


def test_two_bundles_say_why_each_kernel_was_compiled_again(tmp_path):
    old = sealed(tmp_path).manifest
    by_id = {kernel.id: kernel for kernel in old.kernels}
    moved = replace(by_id["2"], key="n2", parts={**by_id["2"].parts, "line": 99, "function": "x"})
    changed = replace(by_id["1"], key="n1", parts={**by_id["1"].parts, "triton": "3.9.0"})
    added = replace(by_id["3"], id="9")
    new = replace(old, kernels=(changed, moved, added, by_id["4"]))

    found = {one.kernel.id: (one.what, one.why) for one in changes(old, new)}

    assert found == {
        "1": ("changed", ("triton",)),
        "2": ("moved", ("function", "line")),
        "3": ("gone", ()),
        "9": ("new", ()),
    }


# --- real ones --------------------------------------------------------------------------------

COMPILE = """
import json, os, sys
import triton, triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add(x, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

hits = []
knobs.compilation.listener = lambda **event: hits.append(event["cache_hit"])
source = ASTSource(add, {"x": "*fp32", "n": "i32", "B": "constexpr"}, {"B": 128})
kernel = triton.compile(source, target=GPUTarget("cuda", 120, 32))
print(json.dumps({"hit": hits, "hash": kernel.hash, "paths": sorted(kernel.metadata_group.values())}))
"""
LOOK = """
from flashinfer.jit import env
print(env.get_aot_path("page"))
"""


def kernels_python() -> str:
    python = os.environ.get("ELSA_KERNELS_PYTHON")
    if not python:
        pytest.skip("ELSA_KERNELS_PYTHON names no interpreter with Triton and FlashInfer")
    return python


def ran(program: Path, **env: str) -> str:
    """Run a program with the packages of the image and return what it says last."""
    done = subprocess.run(
        [kernels_python(), str(program)],
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.kernels
def test_triton_hits_in_an_unpacked_bundle_and_misses_in_a_plain_copy(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(COMPILE)
    build = tmp_path / "build"
    first = json.loads(ran(program, TRITON_CACHE_DIR=str(build / "triton")))
    files = Path(first["paths"][0]).parent.iterdir()
    kernel = replace(
        manifest(fill(tmp_path / "unused")).kernels[0],
        key=first["hash"],
        files=tuple(str(file.relative_to(build)) for file in files),
    )
    bundle = seal(build, tmp_path / "bundle", manifest(build, kernels=(kernel,)))
    moved = unpack(bundle, tmp_path / "moved")
    shutil.copytree(build, tmp_path / "copy")
    shutil.rmtree(build)

    found = {
        name: json.loads(ran(program, TRITON_CACHE_DIR=str(tmp_path / name / "triton")))
        for name in ("moved", "copy")
    }

    assert (first["hit"], found["moved"]["hit"], found["copy"]["hit"]) == ([False], [True], [False])
    assert found["moved"]["hash"] == first["hash"]
    assert verify(moved, CARD) == ()
    assert moved.manifest.kernels[0].arch == "sm_120a"


@pytest.mark.kernels
def test_flashinfer_finds_its_libraries_in_an_unpacked_bundle(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LOOK)
    moved = unpack(sealed(tmp_path), tmp_path / "moved").folder

    said = ran(
        program,
        PYTHONPATH=str(moved / "python"),
        FLASHINFER_WORKSPACE_BASE=str(tmp_path / "workspace"),
        FLASHINFER_CUDA_ARCH_LIST="12.0f",
    )

    assert said == str(moved / "flashinfer_aot/page/page.so")
