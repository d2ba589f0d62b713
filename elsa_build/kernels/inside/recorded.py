"""Says what has become of the functions that a boot recorded, in the tree that is there now.

Run as a program: one JSON document on stdin (`target`, `names`), one on stdout: `texts`, the digest
of each function's text by `module:qualname`, None for one that is gone. `recording.aged` compares.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterable

from elsa_build.kernels.inside import gpu
from elsa_build.kernels.inside.triton import find


def texts(names: Iterable[str]) -> dict[str, str | None]:
    """Return the digest of each function's text, as the hook took it; None when it is gone."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            source = find(name).src
        except LookupError:
            found[name] = None
        else:
            found[name] = hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()
    return found


def main() -> None:
    """Read the request, answer it; whatever libraries print goes to stderr."""
    answer_to = os.dup(1)
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    gpu.install(request["target"])
    answer = {"texts": texts(request["names"])}
    with os.fdopen(answer_to, "w", encoding="utf-8") as out:
        json.dump(answer, out)


if __name__ == "__main__":
    main()
