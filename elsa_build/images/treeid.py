"""The id that git would give to a set of files, computed without a repository.

An image has no repository in it; so its package can be compared with the patched tree's id, which
the labels name. Source: git's tree object format, and gitformat-index(5) for the order of entries.
"""

from collections.abc import Mapping

from elsa_build.git.objects import TREE, Entry, encode
from elsa_build.model import Oid


def tree_id(files: Mapping[str, Entry]) -> Oid:
    """Return the id of the tree with these files; paths have `/` and no leading one."""
    here: dict[str, Entry] = {}
    below: dict[str, dict[str, Entry]] = {}
    for path, entry in files.items():
        name, slash, rest = path.partition("/")
        if slash:
            below.setdefault(name, {})[rest] = entry
        else:
            here[name] = entry
    here |= {name: Entry(TREE, tree_id(inner)) for name, inner in below.items()}
    ordered = sorted(here.items(), key=lambda kv: _raw(kv[0] + "/" * (kv[1].mode == TREE)))
    body = b"".join(
        b"%s %s\0%s" % (entry.mode.lstrip("0").encode(), _raw(name), bytes.fromhex(entry.oid))
        for name, entry in ordered
    )
    return encode("tree", body)[0]


def _raw(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
