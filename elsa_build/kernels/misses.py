"""Says why a kernel was not found: which field of its key differs from the nearest in the bundle.

A key is a digest, and tells nothing. Its parts were kept when the kernel was built, and the process
that missed told its own; so a miss has a cause in words: a line that moved, a variable of the
environment, a constant that no plan had.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elsa_build.kernels.bundle import Kernel, Missing
from elsa_build.kernels.events import Event
from elsa_build.kernels.jobs import Family

Spec = Mapping[str, Any]

_OTHER_BUILD = "another version or build of Triton"
_ELSEWHERE = (
    "its key is in the bundle, but its files were not found: another cache folder was searched,"
    " or the bundle was moved without being unpacked"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Had:
    """What a bundle has: its kernels, what it lacks and why, and the specifications by plan id."""

    kernels: Sequence[Kernel] = ()
    missing: Sequence[Missing] = ()
    specs: Mapping[str, Spec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A kernel that was looked up and not found.

    `what` is what came of it (`compiled`, `missed`, `failed`); `causes` are the fields that differ
    from the nearest kernel of the bundle, in words; `times` counts the processes and launches that
    missed it.
    """

    family: str
    name: str
    key: str
    what: str
    phase: str
    causes: tuple[str, ...]
    times: int = 1
    seconds: float = 0.0
    error: str | None = None


def explain(event: Event, had: Had) -> tuple[str, ...]:
    """Return why the bundle does not have what an event missed; never empty."""
    lacking = [one.why for one in had.missing if _same(one, event)]
    kernels = [one for one in had.kernels if one.family == event.family]
    if event.said.get("key") in {one.key for one in kernels}:
        return (_ELSEWHERE,)
    if event.family == Family.TRITON:
        causes = _triton(event, kernels, had.specs)
    elif event.family in set(Family):
        causes = _module(event, kernels)
    else:
        causes = (f"no bundle has kernels of {event.family}: harvest its cache from a boot",)
    return tuple(f"planned, but not built: {why}" for why in lacking) or causes


def _same(one: Missing, event: Event) -> bool:
    return one.family == event.family and one.name == event.name


# --- Triton -----------------------------------------------------------------------------------


def _triton(event: Event, kernels: Sequence[Kernel], specs: Mapping[str, Spec]) -> tuple[str, ...]:
    named = [one for one in kernels if one.name == event.name]
    if not named:
        return (_nowhere(event.name, kernels),)
    parts = event.said.get("parts")
    if not parts:
        why = event.said.get("unrecorded", "the process told no parts of its key")
        return (f"unknown: {why}",)
    spec = event.said.get("spec") or {}
    every = [list(_differences(one, parts, spec, specs)) for one in named]
    nearest = min(every, key=len)
    # One with another specialisation says little about constants: all of them do.
    if all(one.parts.get("specialisation") != parts.get("specialisation") for one in named):
        others = [cause for cause in nearest if not cause.startswith("specialisation")]
        known = [specs[one.id] for one in named if one.id in specs]
        return (*others, *specialisation(spec, known))
    return tuple(nearest) or ("unknown: every part of its key that is kept is equal",)


def _nowhere(name: str, kernels: Iterable[Kernel]) -> str:
    """Return that a name is in no bundle, and where a function of that name is."""
    function = name.partition(":")[2]
    homes = sorted({one.name for one in kernels if one.name.partition(":")[2] == function})
    where = f"; the bundle has {', '.join(homes)}" if homes and function else ""
    return f"nothing with the name {name} is in the bundle{where}"


def _differences(
    kernel: Kernel, parts: Mapping[str, Any], spec: Spec, specs: Mapping[str, Spec]
) -> Iterator[str]:
    """Yield the fields in which a kernel of the bundle differs from one that was looked up."""
    old = kernel.parts
    if old.get("triton") != parts.get("triton"):
        yield f"triton: {_OTHER_BUILD}"
    if old.get("backend") != parts.get("backend"):
        yield f"backend: {old.get('backend')} -> {parts.get('backend')}"
    yield from _mapping("environment: {}", old.get("environment"), parts.get("environment"))
    same_text = old.get("text") == parts.get("text")
    if not same_text:
        yield "text: the function's source changed"
    yield from _line("line", old.get("line"), parts.get("line"), same_text=same_text)
    yield from _calls(old.get("calls") or {}, parts.get("calls") or {})
    yield from _mapping("global {}", old.get("globals"), parts.get("globals"))
    if old.get("specialisation") != parts.get("specialisation"):
        known = [specs[kernel.id]] if kernel.id in specs else []
        yield from specialisation(spec, known)
    alone = {"function"} == {
        name for name in old.keys() | parts.keys() if old.get(name) != parts.get(name)
    }
    if alone:
        yield "function: something else that Triton hashes with its source"


def _line(field_name: str, old: object, new: object, *, same_text: bool) -> Iterator[str]:
    if old != new:
        why = " (text equal: the function only moved)" if same_text else ""
        yield f"{field_name}: {old} -> {new}{why}"


def _calls(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Yield how the functions differ that a kernel calls: each is `[digest of the text, line]`."""
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"calls {name}: no longer"
        elif name not in old:
            yield f"calls {name}: new"
        elif old[name][0] != new[name][0]:
            yield f"calls {name}: its source changed"
        else:
            yield from _line(f"calls {name}: line", old[name][1], new[name][1], same_text=True)


def _mapping(words: str, old: object, new: object) -> Iterator[str]:
    before = old if isinstance(old, Mapping) else {}
    after = new if isinstance(new, Mapping) else {}
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            was, now = (_value(side, name) for side in (before, after))
            yield f"{words.format(name)}: {was} -> {now}"


def _value(side: Mapping[str, Any], name: str) -> str:
    return str(side[name]) or "''" if name in side else "unset"


def specialisation(spec: Spec, known: Sequence[Spec]) -> tuple[str, ...]:
    """Return what no specialisation of the bundle has, by argument, constant and option.

    Args:
        spec: What was looked up, as `capture.portable` leaves it.
        known: Those of the same function in the bundle.
    """
    if not known or not spec:
        return ("specialisation: not in the bundle",)
    new, old = fields(spec), [fields(one) for one in known]
    found = []
    for name, value in new.items():
        values = list(dict.fromkeys(one.get(name, "unset") for one in old))
        if value not in values:
            had = ", ".join(values)
            found.append(f"specialisation: {name} {value} not in the bundle (it has {had})")
    pairs = "specialisation: each of its values is in the bundle, but not all in one kernel"
    return tuple(found) or (pairs,)


def fields(spec: Spec) -> dict[str, str]:
    """Return a specialisation field by field, each in the words of a person.

    >>> fields({"signature": {"x": "*fp32", "BT": "constexpr"}, "constant_keys": [[1]],
    ...         "constant_vals": [16], "options": {"num_warps": 4}})
    {'argument x': '*fp32', 'constant BT': '16', 'option num_warps': '4'}
    """
    names = list(spec.get("signature", {}))
    found = {f"argument {name}": str(kind) for name, kind in spec.get("signature", {}).items()}
    for place, value in _pairs(spec, "constant"):
        found.pop(f"argument {_place(names, place)}", None)
        found[f"constant {_place(names, place)}"] = str(value)
    for place, value in _pairs(spec, "attrs"):
        if value:
            traits = " ".join(f"{trait}={amount}" for trait, amount in value)
            found[f"argument {_place(names, place)}"] = (
                f"{found.get(f'argument {_place(names, place)}', '')} {traits}".strip()
            )
    found |= {f"option {name}": str(value) for name, value in spec.get("options", {}).items()}
    return found


def _pairs(spec: Spec, kind: str) -> Iterator[tuple[Sequence[int], Any]]:
    yield from zip(spec.get(f"{kind}_keys", ()), spec.get(f"{kind}_vals", ()), strict=False)


def _place(names: Sequence[str], place: Sequence[int]) -> str:
    """Return the argument at a path of positions: the second field of `x` is `x.1`."""
    first, *rest = place
    name = names[first] if first < len(names) else str(first)
    return ".".join([name, *map(str, rest)])


# --- modules ----------------------------------------------------------------------------------


def _module(event: Event, kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Return why a module of SGLang's JIT or of FlashInfer was not found."""
    named = [one for one in kernels if one.name == event.name or event.name in _modules(one)]
    if not named:
        return (_nowhere(event.name, kernels),)
    if event.family == Family.FLASHINFER:
        return ("it is in the bundle, but FlashInfer was not told of its folder, or is another",)
    asked = event.said.get("key")
    builds = sorted({build for one in named for build in _builds(one)})
    if asked in builds:
        return ("a header that it includes is another than at build time",)
    keys = f"build key: {', '.join(builds)} -> {asked}"
    return (f"{keys}: its sources, flags, compilers, or a version (torch, tvm-ffi) differ",)


def _modules(kernel: Kernel) -> set[str]:
    """Return the names of the modules whose libraries a kernel of the bundle has."""
    return {
        path.rpartition("/")[2].removesuffix(".so") for path in kernel.files if path.endswith(".so")
    }


def _builds(kernel: Kernel) -> set[str]:
    """Return the build keys that a kernel's files lie below."""
    return {part for path in kernel.files for part in path.split("/") if part.startswith("build-")}
