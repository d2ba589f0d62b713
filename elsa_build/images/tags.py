"""`tags.lock`: which image a tag names, for good; a tag that can move proves nothing.

Every build enters its tag. The same image again is welcome; another one is refused. Whoever works
on an image and builds it again and again says `--replace-local`: it moves a tag whose present image
lies in the output folder, so was built here, but not one that came with the project.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elsa_build.errors import ConfigError, FailedError
from elsa_build.images.reference import wrong_reference, wrong_tag
from elsa_build.model import Digest, ImageRecord

FILENAME = "tags.lock"
REPOSITORY = "elsa"
"""What an image is called before the `:` when `--tag` gives no repository."""

_SUFFIXES = (".tar", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a tag names. `config` and `diff_ids` decide; `manifest` follows the compressor."""

    manifest: Digest
    config: Digest
    diff_ids: tuple[Digest, ...]


def claim_of(record: ImageRecord) -> Claim:
    """Return what a record's tag names."""
    return Claim(
        manifest=record.manifest,
        config=record.config,
        diff_ids=tuple(layer.diff_id for layer in record.layers),
    )


def split(text: str) -> tuple[str, str]:
    """Return repository and tag of `TAG` or `REPOSITORY:TAG`.

    Raises:
        ConfigError: docker would refuse it, or it clashes with the files of another tag.
    """
    repository, colon, tag = text.rpartition(":")
    repository = repository if colon else REPOSITORY
    wrong = wrong_tag(tag)
    if wrong:
        plain = re.sub(r"^[.-]+|[^A-Za-z0-9_.-]", "-", tag)[:128].lstrip(".-")
        raise ConfigError(wrong, hint=f"--tag {plain}" if plain else None)
    wrong = wrong_reference(f"{repository}:{tag}")
    if wrong:
        raise ConfigError(wrong, hint=f"--tag {text.lower()}" if text != text.lower() else None)
    if tag.endswith(_SUFFIXES):
        raise ConfigError(f"'{tag}' is no tag here: {tag} would be a file of another tag")
    return repository, tag


def parse(text: str, name: str) -> dict[str, Claim]:
    """Return the claims in the text of a lock; `name` is the file for messages.

    Raises:
        ConfigError: It is not what the tool wrote.
    """
    try:
        document = tomllib.loads(text)
        if document["version"] != 1:
            raise ConfigError(f"{name}: version: this elsa-build knows version 1")
        return {
            tag: Claim(
                manifest=Digest(entry["manifest"]),
                config=Digest(entry["config"]),
                diff_ids=tuple(Digest(diff_id) for diff_id in entry["diff_ids"]),
            )
            for tag, entry in document.get("tags", {}).items()
        }
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{name}: not TOML: {e}", hint=f"git checkout {FILENAME}") from e
    except (KeyError, TypeError, AttributeError) as e:
        raise ConfigError(f"{name}: {e}: missing or wrong", hint=f"git checkout {FILENAME}") from e


def read(path: Path) -> dict[str, Claim]:
    """Return the claims of a lock file; none when there is no file."""
    try:
        return parse(path.read_text(encoding="utf-8"), path.name)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot read: {e}") from e


def render(claims: Mapping[str, Claim]) -> str:
    """Return the text of a lock: tags sorted, one value a line so that merges read well."""
    lines = ["# made by elsa-build; do not edit", "version = 1"]
    for tag, claim in sorted(claims.items()):
        lines += ["", f"[tags.{json.dumps(tag)}]"]
        lines += [f'manifest = "{claim.manifest}"', f'config = "{claim.config}"', "diff_ids = ["]
        lines += [f'  "{diff_id}",' for diff_id in claim.diff_ids] + ["]"]
    return "\n".join(lines) + "\n"


def same(one: Claim, other: Claim) -> bool:
    """Say whether two claims are of one image, whatever compressed its layers."""
    return (one.config, one.diff_ids) == (other.config, other.diff_ids)


def settle(
    claims: Mapping[str, Claim], tag: str, new: Claim, *, here: Claim | None, replace_local: bool
) -> dict[str, Claim]:
    """Return the claims after a build.

    Args:
        claims: What the lock says.
        tag: The tag that was built.
        new: The image that was built.
        here: The image of that tag in the output folder, if there is one.
        replace_local: The person agreed to lose the image that is here.

    Raises:
        FailedError: The tag names another image (exit 7).
    """
    old = claims.get(tag, here)
    if old is None:
        return {**claims, tag: new}
    if same(old, new):
        # Another compressor made another manifest of the same image: the first one stays named.
        return {**claims, tag: old}
    ours = here is not None and same(old, here)
    if ours and replace_local:
        return {**claims, tag: new}
    how = "use another --tag"
    if ours:
        how += ", or --replace-local while nobody else has that image"
    elif replace_local:
        how += f"; its image is not here: free it in {FILENAME} if it was never published"
    raise FailedError(
        f"tag {tag} already names {old.config}, not {new.config}: tags do not move", hint=how
    )
