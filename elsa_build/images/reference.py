"""How images and their folders may be named: checked first, since each tool has its own "no".

A PEP 440 local version (`1.7+cu130`) is no legal tag, an upper-case repository is refused by every
registry. Source: the distribution project's reference grammar.
"""

import re

from elsa_build.errors import ConfigError

_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9-]+)*(?::[0-9]+)?"
_WORD = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = rf"(?:{_HOST}/)?{_WORD}(?:/{_WORD})*"
_DIGEST = r"sha256:[0-9a-f]{64}"
_REFERENCE = re.compile(rf"{_NAME}(?::{_TAG})?(?:@{_DIGEST})?")
_PINNED = re.compile(rf"{_NAME}(?::{_TAG})?@{_DIGEST}")


def wrong_tag(text: str) -> str | None:
    """Say what keeps a text from being the tag of an image, or return None."""
    if re.fullmatch(_TAG, text):
        return None
    if len(text) > 128:
        return f"'{text}' is no image tag: {len(text)} characters, at most 128"
    bad = sorted(set(re.findall(r"[^A-Za-z0-9_.-]", text)))
    if bad:
        return f"'{text}' is no image tag: {' '.join(map(repr, bad))} not allowed"
    return f"'{text}' is no image tag: it must begin with a letter, a digit or _"


def wrong_reference(text: str) -> str | None:
    """Say what keeps a text from being an image reference (`name[:tag][@digest]`), or None."""
    if _REFERENCE.fullmatch(text):
        name = re.split(r"@|:(?!.*/)", text)[0]
        return None if len(name) <= 255 else f"'{text}' is no image reference: longer than 255"
    if _REFERENCE.fullmatch(text.lower()) and "@" not in text:
        return f"'{text}' is no image reference: the name must be lower case"
    return f"'{text}' is no image reference (name[:tag][@sha256:...])"


def wrong_pin(text: str) -> str | None:
    """Say what keeps a text from naming one image for ever (`name@sha256:...`), or None."""
    if _PINNED.fullmatch(text):
        return None
    wrong = wrong_reference(text)
    return wrong or f"'{text}' can move: name it by digest (name@sha256:...)"


def wrong_folder(text: str) -> str | None:
    """Say what keeps a text from being a folder of an image, or return None."""
    if re.fullmatch(r"(/[A-Za-z0-9._+-]+)+", text) and not {".", ".."} & set(text.split("/")):
        return None
    return f"'{text}' must be an absolute folder of letters, digits and ._+-, without .. or final /"


def check_reference(text: str) -> str:
    """Return a reference unchanged.

    Raises:
        ConfigError: It is not one that docker would take (exit 5).
    """
    wrong = wrong_reference(text)
    if wrong:
        raise ConfigError(wrong)
    return text
