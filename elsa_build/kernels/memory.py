"""How much memory there is to build in: what the machine has, and what a container may take of it.

`os.cpu_count` and MemAvailable know nothing of a container's limit, and a build that is planned on
them is killed there.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_ROOT = Path("/")
# The names of the limit, the use, and the part of the use that is cache, in cgroup v2 and v1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_total_mib(root: Path = _ROOT) -> int:
    """Return the memory that this process may ever have, MiB: the machine's, or its cgroup's."""
    limits = [limit for limit, _ in _cgroups(root)]
    return min([_meminfo(root)["MemTotal"] >> 10, *(limit >> 20 for limit in limits)])


def memory_available_mib(root: Path = _ROOT) -> int:
    """Return the memory that can be used now, MiB; page cache that can be dropped is free.

    Args:
        root: Where `proc` and `sys` are; another folder in tests.

    Source: Linux Documentation/filesystems/proc.rst, admin-guide/cgroup-v2.rst and cgroup-v1.
    """
    rooms = [max(0, limit - used) for limit, used in _cgroups(root)]
    return min([_meminfo(root)["MemAvailable"] >> 10, *(room >> 20 for room in rooms)])


def _meminfo(root: Path) -> Mapping[str, int]:
    text = (root / "proc/meminfo").read_text()
    return {name: int(kib) for name, kib in re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)}


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use, bytes, of every cgroup with a limit that this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts, names = ["sys/fs/cgroup", "sys/fs/cgroup/unified"], _V2
        elif "memory" in controllers.split(","):
            mounts, names = ["sys/fs/cgroup/memory"], _V1
        else:
            continue
        for mount in mounts:
            yield from _levels(root / mount, path, names)


def _levels(mount: Path, path: str, names: tuple[str, str, str]) -> Iterator[tuple[int, int]]:
    """Yield limit and use at each level; in a container upper ones may not be visible."""
    place = mount / path.strip("/")
    for folder in (place, *place.parents):
        if not folder.is_relative_to(mount):
            return
        try:
            limit, used = ((folder / name).read_text().strip() for name in names[:2])
            stat = (folder / "memory.stat").read_text()
        except OSError:
            continue
        cache = re.search(rf"^{names[2]} (\d+)$", stat, re.MULTILINE)
        if limit.isdigit():
            yield int(limit), int(used) - (int(cache[1]) if cache else 0)
