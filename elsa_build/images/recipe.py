"""A recipe file says what one image is; reading it says everything that is wrong with it at once.

A version or a tag that YAML would take for a number must be quoted; a field that does not exist is
refused with the nearest one that does.
"""

import re
from pathlib import Path

from elsa_build.errors import ConfigError, UsageError
from elsa_build.images.reference import wrong_folder, wrong_pin, wrong_tag
from elsa_build.model import BuildOptions, Health, Interest, MemoryFacts, Point, Recipe
from elsa_build.strictyaml import Entry, Problems, Scalar, read
from elsa_build.yamlform import Check, Form, nearest

FOLDER = "recipes"
SGLANG_HEALTH_TIMEOUT_S = 20
"""How long `/health` itself may take to say no.

Source: sglang v0.5.23 srt/entrypoints/http_server.py, HEALTH_CHECK_TIMEOUT.
"""

_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_OURS = re.compile(r"org\.opencontainers\.image\.(revision|version|created|ref\.name|base\..*)")
_FROM_MODEL = ("model", "model-path")
_LOAD = ("begin_gb", "end_gb")


def load(path: Path) -> Recipe:
    """Return the recipe of a file in `recipes/`.

    Raises:
        ConfigError: Everything wrong with it, a line each, as `recipes/x.yaml:LINE: field: ...`.
    """
    root = path.parent.parent
    problems = Problems(f"{path.parent.name}/{path.name}")
    form = Form(read(path, problems.name), problems)
    if form.integer("version", 1) != 1:
        form.problem("version", "this elsa-build knows version 1")
    base, build, nightly = form.form("base"), form.form("build"), form.form("nightly")
    layout, bundle = base.text("layout", check=_plain), build.text("ca_bundle", check=_plain)
    env = _pairs(form.form("env"), r"[A-Za-z_][A-Za-z0-9_]*")
    recipe = Recipe(
        name=_name(form, path.stem),
        path=path,
        tag=form.text("tag", required=True, check=wrong_tag),
        model=form.text("model", required=True, check=_plain),
        arch=form.text("arch", required=True, check=_like(r"sm_\d{2,3}[af]?", "sm_120")),
        patchsets=_patchsets(form, root),
        python=form.text("python", "3.12", check=_like(r"3\.\d{1,2}", "3.12")),
        user=form.text("user", check=_like(r"[0-9]+(:[0-9]+)?", "1000:1000")) or None,
        flags=_flags(form.form("serve")),
        env=env,
        labels=_labels(form.form("labels")),
        base=base.text("image", check=wrong_pin) or None,
        package_dir=base.text("package_dir", check=wrong_folder) or None,
        base_layout=root / layout if layout else None,
        health=_health(form.form("health"), env),
        build=BuildOptions(
            network=build.text("network", "none", check=_one_of("none", "default", "host")),
            packages=build.texts("packages", check=_requirement),
            pip_args=build.texts("pip_args", check=_plain),
            ca_bundle=root / bundle if bundle else None,
        ),
        nightly=Interest(
            keywords=nightly.texts("keywords", check=_plain),
            paths=nightly.texts("paths", check=_plain),
            without=nightly.texts("without", check=_plain),
        ),
        memory=_memory(form.form("memory")),
    )
    for part in (base, build, nightly, form):
        part.close()
    problems.check()
    return recipe


def find(root: Path, *, tag: str | None = None, name: str | None = None) -> Recipe:
    """Return the recipe of this name, else the one whose tag this is, else the only one.

    Raises:
        ConfigError: There is no such recipe, no recipe at all, or two have the tag (exit 5).
        UsageError: There are several and nothing says which (exit 2).
    """
    paths = sorted((root / FOLDER).glob("*.yaml"))
    names = [path.stem for path in paths]
    if not paths:
        raise ConfigError(f"no recipe: {FOLDER}/ has no .yaml file")
    if name is not None:
        if name not in names:
            raise ConfigError(
                f"no recipe '{name}' in {FOLDER}/{nearest(name, names)}",
                hint=f"--recipe {' | '.join(names)}",
            )
        return load(root / FOLDER / f"{name}.yaml")
    recipes = [load(path) for path in paths]
    matching = [recipe for recipe in recipes if recipe.tag == tag]
    if len(matching) > 1:
        both = " and ".join(recipe.name for recipe in matching)
        raise ConfigError(f"tag '{tag}': two recipes have it, {both}")
    if len(matching or recipes) == 1:
        return (matching or recipes)[0]
    tags = ", ".join(f"{recipe.name} (tag {recipe.tag})" for recipe in recipes)
    raise UsageError(f"which recipe? {tags}", hint=f"--recipe {' | '.join(names)}")


# --- fields -----------------------------------------------------------------------------------


def _name(form: Form, stem: str) -> str:
    name = form.text("name", required=True, check=_like(r"[a-z0-9][a-z0-9._-]*", "elsa-1.7"))
    if name and name != stem:
        form.problem("name", f"'{name}' must be the file's name, '{stem}'")
    return name


def _patchsets(form: Form, root: Path) -> tuple[str, ...]:
    known = sorted(path.name for path in (root / "patchsets").glob("*/") if path.is_dir())

    def check(name: str) -> str | None:
        if name in known:
            return None
        return f"no patchset '{name}' in patchsets/{nearest(name, known)}"

    return form.texts("patchsets", required=True, check=check)


def _flags(form: Form) -> tuple[tuple[str, str | None], ...]:
    """Return the server's arguments; `true` is a switch, a number stays as typed."""
    flags: list[tuple[str, str | None]] = []
    for entry in form.pairs():
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", entry.key):
            spelt = entry.key.lstrip("-").replace("_", "-")
            form.problem(entry.key, f"flags are written without --, with -: '{spelt}'")
        elif entry.key in _FROM_MODEL:
            form.problem(entry.key, "comes from 'model'")
        elif isinstance(entry.value, Scalar) and _typed(entry.value, "true"):
            flags.append((entry.key, None))
        elif isinstance(entry.value, Scalar) and _typed(entry.value, "false"):
            form.problem(entry.key, "leave a switch out instead of false")
        else:
            flags.append((entry.key, _value(form, entry)))
    port = dict(flags).get("port", "0")
    if not (port and re.fullmatch(r"[0-9]{1,5}", port) and int(port) <= 65535):
        form.problem("port", "must be a port number")
    return tuple(flags)


def _pairs(form: Form, pattern: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for entry in form.pairs():
        if not re.fullmatch(pattern, entry.key):
            form.problem(entry.key, f"a name must look like {pattern}")
        else:
            pairs.append((entry.key, _value(form, entry)))
    return tuple(pairs)


def _labels(form: Form) -> tuple[tuple[str, str], ...]:
    labels = _pairs(form, r"[a-z0-9]+([._-][a-z0-9]+)*")
    for key, _ in labels:
        if _OURS.fullmatch(key):
            form.problem(key, "is written by elsa-build, from what is in the image")
    return labels


def _health(form: Form, env: tuple[tuple[str, str], ...]) -> Health:
    usual = Health()
    health = Health(
        interval_s=form.integer("interval_s", usual.interval_s, minimum=1),
        timeout_s=form.integer("timeout_s", usual.timeout_s),
        # A first boot takes two minutes with prebuilt kernels; failures before that do not count.
        start_period_s=form.integer("start_period_s", usual.start_period_s, minimum=120),
        retries=form.integer("retries", usual.retries, minimum=3),
    )
    own = dict(env).get("SGLANG_HEALTH_CHECK_TIMEOUT", "")
    own_s = int(own) if own.isdecimal() else SGLANG_HEALTH_TIMEOUT_S
    # One second for the probe itself, which gives up before docker kills it.
    if health.timeout_s < own_s + 2:
        form.problem(
            "timeout_s",
            f"{health.timeout_s} does not outlast SGLang's own {own_s} s; use {own_s + 2} or more",
        )
    form.close()
    return health


def _memory(form: Form) -> MemoryFacts:
    load = form.form("load")
    found = [load.text(key, check=_like(r"[0-9]+(\.[0-9]+)?", '"31.20"')) for key in _LOAD]
    begin, end = (float(text) if text else None for text in found)
    load.close()
    if (begin is None) != (end is None):
        form.problem("load", f"needs both {' and '.join(_LOAD)}")
    points = []
    for entry in form.forms("points"):
        for key in ("requests", "kv_tokens"):
            entry.entry(key, required=True)
        free = entry.integer("free_at_worst_mib", 0)
        points.append(
            Point(
                requests=entry.integer("requests", 1, minimum=1),
                kv_tokens=entry.integer("kv_tokens", 1, minimum=1),
                free_at_worst_mib=free if entry.entry("free_at_worst_mib") else None,
            )
        )
        entry.close()
    budget = form.integer("budget_mib", 0, minimum=1) if form.entry("budget_mib") else None
    facts = MemoryFacts(
        model=form.text("model", check=_plain) or None,
        card=form.text("card", check=_plain) or None,
        budget_mib=budget,
        load_gb=None if begin is None or end is None else (begin, end),
        points=tuple(points),
    )
    form.close()
    return facts


def _typed(scalar: Scalar, word: str) -> bool:
    return not scalar.quoted and scalar.text == word


def _value(form: Form, entry: Entry) -> str:
    """Return one value as typed; what YAML guesses must be quoted, but for a plain decimal."""
    scalar = entry.value
    if not isinstance(scalar, Scalar):
        form.problem(entry.key, "must be one value")
        return ""
    if scalar.implicit and not _DECIMAL.fullmatch(scalar.text):
        form.problem(
            entry.key, f"{scalar.text or 'the value'} is {scalar.implicit} to YAML; quote it"
        )
    wrong = _plain(scalar.text) if scalar.text else None
    if wrong:
        form.problem(entry.key, wrong)
    return scalar.text


# --- checks -----------------------------------------------------------------------------------


def _plain(text: str) -> str | None:
    if not text:
        return "must not be empty"
    bad = re.search(r"[\x00-\x1f\x7f\u0085\u2028\u2029]", text)
    return f"character U+{ord(bad[0]):04X} is not allowed" if bad else None


def _like(pattern: str, example: str) -> Check:
    def check(text: str) -> str | None:
        return None if re.fullmatch(pattern, text) else f"'{text}' must look like {example}"

    return check


def _one_of(*words: str) -> Check:
    def check(text: str) -> str | None:
        return None if text in words else f"'{text}' is none of {', '.join(words)}"

    return check


def _requirement(text: str) -> str | None:
    from packaging.requirements import (  # noqa: PLC0415 - only a recipe with packages needs it
        InvalidRequirement,
        Requirement,
    )

    try:
        pinned = [part.operator for part in Requirement(text).specifier] == ["=="]
    except InvalidRequirement:
        return f"'{text}' is no requirement (name==version)"
    return None if pinned else f"'{text}' can move: name one version (name==version)"
