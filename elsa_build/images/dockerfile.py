"""A recipe and a template become a Dockerfile, in which no value of the recipe can become syntax.

The template belongs to the project, so it may be edited; an undefined name in it is an error.
"""

import glob
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from elsa_build.errors import ConfigError
from elsa_build.images import serving
from elsa_build.images.oci.store import disk_trouble, write_whole
from elsa_build.images.reference import check_reference, wrong_folder
from elsa_build.model import Recipe

TEMPLATE = "Dockerfile.j2"
STALE = "/opt/elsa/stale"
"""The overlay's list of what must go from the base, made by `stale_list`."""
CA_BUNDLE = "ca-bundle.pem"
"""The name of the recipe's CA bundle in the build context."""


def render(
    recipe: Recipe,
    template: Path,
    *,
    overlay: str | None = None,
    base: str | None = None,
    package_dir: str | None = None,
    overlay_dir: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> str:
    """Return the Dockerfile that puts an overlay on a base.

    Args:
        recipe: What the image is.
        template: The project's `Dockerfile.j2`.
        overlay: Default of the build argument OVERLAY; None leaves it to the person who builds.
        base: Default of the build argument BASE, instead of the recipe's.
        package_dir: Where the base keeps `sglang/`, instead of the recipe's.
        overlay_dir: Where the overlay keeps it (default: at the same place).
        labels: True facts about this build; they win over the recipe's.

    Raises:
        ConfigError: The template is missing or wrong, a reference is none, or nothing says where
            the base keeps the package (exit 5).
    """
    import jinja2  # noqa: PLC0415 - keeps --help fast

    where = package_dir or recipe.package_dir
    if where is None:
        raise ConfigError(
            f"{recipe.path.parent.name}/{recipe.path.name}: base.package_dir: is missing, and "
            "nothing looked into the base",
            hint="elsa-build dockerfile --package-dir DIR",
        )
    for folder in (where, overlay_dir):
        wrong = wrong_folder(folder) if folder else None
        if wrong:
            raise ConfigError(f"package_dir: {wrong}")
    references = [check_reference(text) if text else "" for text in (base or recipe.base, overlay)]
    environment = serving.environment(recipe)
    # A Dockerfile is no HTML: autoescape would turn quotes into entities.
    jinja = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters.update(sh=quote, json=json_array, arguments=_arguments)
    try:
        text = jinja.from_string(template.read_text(encoding="utf-8")).render(
            recipe=recipe,
            source=f"{recipe.path.parent.name}/{recipe.path.name}",
            base=references[0],
            overlay=references[1],
            package_dir=where,
            overlay_dir=overlay_dir or where,
            cache=serving.CACHE,
            stale=STALE,
            ca_bundle=CA_BUNDLE,
            environment=list(environment.items()),
            labels=list(_labels(recipe, base or recipe.base, labels or {}).items()),
            port=dict(recipe.flags).get("port") or serving.PORT,
            health_command=serving.health_command(recipe),
            command=serving.command(recipe),
        )
    except OSError as e:
        raise ConfigError(f"{template.name}: cannot read: {e.strerror}") from e
    except jinja2.TemplateSyntaxError as e:
        raise ConfigError(f"{template.name}:{e.lineno}: {e.message}") from e
    except jinja2.UndefinedError as e:
        raise ConfigError(f"{template.name}:{_line_of(e)}: {e.message}") from e
    return re.sub(r"\n{3,}", "\n\n", text)


def stale_list(
    changed: Iterable[str], deleted: Iterable[str], emptied: Iterable[str] = ()
) -> bytes:
    """Return the overlay's list of what must go from the base before the overlay is copied in.

    Args:
        changed: Paths that the overlay writes, relative to the package's folder (`sglang/...`).
        deleted: Paths that the series deletes, likewise.
        emptied: Folders of which nothing is left; an empty one would still import.

    Returns:
        Shell patterns relative to that folder, one a line: what is deleted, and the compiled copies
        of every touched module. Put it into the overlay as `STALE`; an empty list is an empty file.
    """
    gone = set(deleted)
    patterns = {glob.escape(path) for path in (*gone, *emptied)}
    for path in gone | set(changed):
        folder, _, name = path.rpartition("/")
        if name.endswith(".py"):
            stem = name.removesuffix(".py")
            patterns.add(glob.escape(f"{folder}/__pycache__/{stem}") + ".*.pyc")
            patterns.add(glob.escape(f"{folder}/{stem}.pyc"))
    if any("\n" in pattern for pattern in patterns):
        raise ConfigError("a path with a line break cannot be in an overlay")
    return "".join(f"{pattern}\n" for pattern in sorted(patterns)).encode()


def quote(value: str) -> str:
    """Return a value as one word for a shell and for ENV and LABEL alike, with nothing expanded.

    Raises:
        ConfigError: It holds a control character, which no Dockerfile line can carry (exit 5).
    """
    _check_line(value)
    return shlex.quote(value)


def json_array(words: Iterable[str]) -> str:
    """Return an argument list in exec form, which no shell reads."""
    return json.dumps([_check_line(word) for word in words], ensure_ascii=False)


def _arguments(words: tuple[str, ...]) -> str:
    """Return CMD in exec form, one option with its value a line."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(json.dumps(_check_line(word), ensure_ascii=False))
    return "CMD [" + ", \\\n     ".join(", ".join(line) for line in lines) + "]"


def _check_line(value: str) -> str:
    bad = re.search(r"[\x00-\x1f\x7f\u0085\u2028\u2029]", value)
    if bad:
        raise ConfigError(f"{value!r}: character U+{ord(bad[0]):04X} cannot be in a Dockerfile")
    return value


def _labels(recipe: Recipe, base: str | None, facts: Mapping[str, str]) -> dict[str, str]:
    """Return the recipe's labels and the facts, the facts last so that they win."""
    ours = {"org.opencontainers.image.version": recipe.tag}
    if base:
        name, _, digest = base.partition("@")
        ours["org.opencontainers.image.base.name"] = name
        if digest:
            ours["org.opencontainers.image.base.digest"] = digest
    return dict(recipe.labels) | ours | dict(facts)


def _line_of(e: BaseException) -> int:
    """Return the template's line in which an exception arose; jinja gives frames of that name."""
    line, trace = 1, e.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def write(path: Path, text: str) -> None:
    """Put a Dockerfile at a path at once, so that nobody reads half of it.

    Raises:
        ToolError: The folder is missing, not writable, or the disk is full (exit 6).
    """
    with disk_trouble(path):
        write_whole(path, text)
