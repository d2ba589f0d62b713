"""Frozen values as JSON and back, nothing lost: the fields of a dataclass are the fields there.

Text that UTF-8 cannot hold (a path of raw bytes, a binary patch) is `{"base64": ...}`. What comes
back is checked field by field, since a saved review may be another version's or another tool's.
"""

import base64
import binascii
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_TEXT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {"base64": {"type": "string"}},
            "required": ["base64"],
            "additionalProperties": False,
        },
    ]
}


class MismatchError(ValueError):
    """A JSON value is not what its type asks for; the message begins with its place."""


def dump(value: object) -> Any:  # noqa: ANN401 - JSON values
    """Return a value of our dataclasses as JSON values."""
    match value:
        case None | bool() | int():
            return value
        case Path() | str():
            return _text(str(value))
        case bytes():
            return _bytes(value)
        case tuple():
            return [dump(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            return {f.name: dump(getattr(value, f.name)) for f in dataclasses.fields(value)}
        case _:
            raise TypeError(f"no JSON form for {type(value).__name__}")


def load(kind: type[T], value: object, place: str = "") -> T:
    """Return the value of a type that `dump` gave as JSON.

    Raises:
        MismatchError: A field is missing, unknown or of another type.
    """
    return typing.cast(T, _load(kind, value, place))  # noqa: TC006 - a name, not an expression


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what `dump` gives for a dataclass."""
    shared: dict[str, Any] = {}
    return {**_schema(kind, shared), "$defs": dict(sorted(shared.items()))}


# --- out --------------------------------------------------------------------------------------


def _text(text: str) -> object:
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"base64": base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()}
    return text


def _bytes(raw: bytes) -> object:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


# --- in ---------------------------------------------------------------------------------------


def _load(kind: Any, value: object, place: str) -> object:  # noqa: ANN401 - any annotation
    kind = _bare(kind)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _load(_present(kind), value, place)
    if origin is tuple:
        return _load_tuple(typing.get_args(kind), value, place)
    if dataclasses.is_dataclass(kind):
        return _load_fields(kind, value, place)
    if kind in (str, bytes, Path) or issubclass(kind, StrEnum):
        return _load_text(kind, value, place)
    if type(value) is not kind:
        raise MismatchError(f"{place}: must be {_NAMES[kind]}")
    return value


_NAMES = {bool: "true or false", int: "a whole number"}


def _load_tuple(inner: tuple[Any, ...], value: object, place: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise MismatchError(f"{place}: must be a list")
    kinds = [inner[0]] * len(value) if inner[-1:] == (...,) else list(inner)
    if len(kinds) != len(value):
        raise MismatchError(f"{place}: must have {len(kinds)} items")
    return tuple(
        _load(kind, item, f"{place}[{at}]")
        for at, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _load_fields(kind: Any, value: object, place: str) -> object:  # noqa: ANN401 - a dataclass
    if not isinstance(value, Mapping):
        raise MismatchError(f"{place or 'the document'}: must be an object")
    hints = _hints(kind)
    unknown = next((key for key in value if key not in hints), None)
    if unknown is not None:
        raise MismatchError(f"{_at(place, unknown)}: unknown field")
    for field in dataclasses.fields(kind):
        if field.name not in value and not _optional(field):
            raise MismatchError(f"{_at(place, field.name)}: missing")
    return kind(**{key: _load(hints[key], value[key], _at(place, key)) for key in value})


def _load_text(kind: type, value: object, place: str) -> object:
    raw = _raw(value, place)
    if kind is bytes:
        return raw
    text = raw.decode("utf-8", "surrogateescape")
    try:
        return kind(text)
    except ValueError as e:
        raise MismatchError(f"{place}: unknown word '{text}'") from e


def _raw(value: object, place: str) -> bytes:
    """Return the bytes of a text in either form."""
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"}:
            return base64.b64decode(value["base64"], validate=True)
    except (binascii.Error, TypeError) as e:
        raise MismatchError(f"{place}: is not base64") from e
    except UnicodeEncodeError as e:
        raise MismatchError(f"{place}: holds half a character") from e
    raise MismatchError(f"{place}: must be text")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _bare(kind: Any) -> Any:  # noqa: ANN401 - any annotation
    """Return what a `NewType` is made of."""
    return getattr(kind, "__supertype__", kind)


def _present(kind: Any) -> Any:  # noqa: ANN401 - any annotation
    """Return the other half of `X | None`."""
    return next(part for part in typing.get_args(kind) if part is not type(None))


def _optional(field: "dataclasses.Field[Any]") -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )


def _at(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


# --- the schema -------------------------------------------------------------------------------


def _schema(kind: Any, shared: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - same
    kind = _bare(kind)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(_present(kind), shared), {"type": "null"}]}
    if origin is tuple:
        inner = typing.get_args(kind)
        if inner[-1:] == (...,):
            return {"type": "array", "items": _schema(inner[0], shared)}
        parts = [_schema(part, shared) for part in inner]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    if dataclasses.is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in shared:
            shared[name] = {}
            shared[name] = _schema_of_fields(kind, shared)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(kind, StrEnum):
        return {"enum": [str(member) for member in kind]}
    return {bool: {"type": "boolean"}, int: {"type": "integer"}}.get(kind, _TEXT)


def _schema_of_fields(kind: Any, shared: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - same
    fields = dataclasses.fields(kind)
    hints = _hints(kind)
    return {
        "description": inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        "type": "object",
        "properties": {field.name: _schema(hints[field.name], shared) for field in fields},
        "required": [field.name for field in fields if not _optional(field)],
        "additionalProperties": False,
    }
