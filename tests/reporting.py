"""What the tests of reports share: the example review, and reviews full of somebody's text."""

import dataclasses
import functools
import importlib.util
import tempfile
from enum import StrEnum
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


@functools.cache
def script(name):
    """Return a module of docs/examples."""
    spec = importlib.util.spec_from_file_location(f"examples_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def example():
    """Return the review of docs/examples, made now."""
    with tempfile.TemporaryDirectory() as folder:
        return script("story").told(Path(folder) / "kiln.git")


def filled(value, text, *, keep=()):
    """Return a value in which every text is `text`; fields in `keep` stay as they are."""
    if dataclasses.is_dataclass(value):
        fields = {
            f.name: getattr(value, f.name)
            if f.name in keep
            else filled(getattr(value, f.name), text, keep=keep)
            for f in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple):
        return tuple(filled(item, text, keep=keep) for item in value)
    if isinstance(value, str) and not isinstance(value, StrEnum):
        return text
    return value
