"""The pinned release for tests marked `wheel`, from the package index or from a cache.

`ELSA_BUILD_TEST_CACHE` may name a folder that is used as elsa-build's cache, so that the release is
downloaded once and not once a run.
"""

import os
from pathlib import Path

from elsa_build.model import Pin
from elsa_build.upstream.pip import Target
from elsa_build.upstream.release_source import ReleaseSource

VERSION = "0.5.23"


def fetch(tmp: Path, python: str = "3.12") -> tuple[Pin, Path, ReleaseSource]:
    """Return the release's pin, its wheel for a Python, and the source that has its tree."""
    cache = Path(os.environ.get("ELSA_BUILD_TEST_CACHE") or tmp)
    source = ReleaseSource(url="sglang", cache=cache, target=Target(python=python))
    pin = source.resolve(VERSION)
    return pin, source.wheel(pin), source
