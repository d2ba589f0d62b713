"""What was found out once about bytes that cannot change, kept in the cache for the next run.

A look into a base reads some gigabytes to say the same every time. A note is found by everything
that decides it; deleting one costs a look, nothing else.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from elsa_build.images.oci.layout import to_json
from elsa_build.images.oci.store import digest_of, disk_trouble, write_whole

Found = TypeVar("Found")
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook(Generic[Found]):
    """Notes of one subject. `load` may raise what Python raises on data of another shape.

    `edition` is part of every key: raise it when the same bytes shall give another finding.
    """

    subject: str
    edition: int
    dump: Callable[[Found], Fields]
    load: Callable[[Fields], Found]

    def look_up(self, cache: Path, key: Fields, find: Callable[[], Found]) -> Found:
        """Return what is noted for a key, else find it and note it.

        Args:
            cache: The folder of the blob store.
            key: Everything that decides the finding, as plain data.
            find: Called when there is no note that can be read.

        Raises:
            ToolError: The cache is not writable.
        """
        name = digest_of(to_json({"edition": self.edition, **key})).removeprefix("sha256:")
        path = cache / "notes" / f"{self.subject}-{name}.json"
        try:
            return self.load(json.loads(path.read_bytes()))
        except (OSError, KeyError, TypeError, ValueError, AttributeError):
            found = find()
        with disk_trouble(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(self.dump(found), sort_keys=True))
        return found
