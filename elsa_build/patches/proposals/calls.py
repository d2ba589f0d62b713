"""Calls that do not fit the function they call, as far as one file shows.

Upstream renames a parameter, the patch passes the old name: it compiles, and fails on the one path
that nobody tests.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signature:
    """What a function takes: names in order, how many must be given, and what is open-ended."""

    names: tuple[str, ...]
    positional: int
    required: frozenset[str]
    many: bool
    any_keyword: bool


def misfits(tree: ast.Module) -> frozenset[str]:
    """Return the calls in a module that its own functions and methods would refuse.

    Only plain functions that are defined once are looked at: a decorator may change what is taken.
    """
    found: set[str] = set()
    functions = dict(_defined(tree.body, method=False))
    for node in tree.body:
        methods: dict[str, _Signature] = {}
        if isinstance(node, ast.ClassDef):
            methods = dict(_defined(node.body, method=True))
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            match call.func:
                case ast.Name(id=name):
                    signature = functions.get(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    signature = methods.get(name)
                case _:
                    signature = None
            if signature is not None:
                found.update(
                    f"{ast.unparse(call.func)}: {why}" for why in _refused(call, signature)
                )
    return frozenset(found)


def _defined(body: list[ast.stmt], *, method: bool) -> Iterator[tuple[str, _Signature]]:
    seen: dict[str, list[ast.stmt]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            seen.setdefault(node.name, []).append(node)
    for name, nodes in seen.items():
        node = nodes[0]
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if len(nodes) == 1 and not node.decorator_list:
            yield name, _signature(node.args, skip=1 if method else 0)


def _signature(args: ast.arguments, *, skip: int) -> _Signature:
    plain = [arg.arg for arg in (*args.posonlyargs, *args.args)][skip:]
    given = len(args.defaults)
    required = set(plain[: len(plain) - given] if given else plain)
    only = [arg.arg for arg in args.kwonlyargs]
    required |= {
        name for name, default in zip(only, args.kw_defaults, strict=True) if default is None
    }
    return _Signature(
        names=(*plain, *only),
        positional=len(plain),
        required=frozenset(required),
        many=args.vararg is not None,
        any_keyword=args.kwarg is not None,
    )


def _refused(call: ast.Call, signature: _Signature) -> Iterator[str]:
    starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    open_ended = starred or any(keyword.arg is None for keyword in call.keywords)
    named = {keyword.arg for keyword in call.keywords if keyword.arg}
    for name in sorted(named - set(signature.names)):
        if not signature.any_keyword:
            yield f"takes no `{name}`"
    if not starred and not signature.many and len(call.args) > signature.positional:
        yield f"takes {signature.positional} arguments by position, is given {len(call.args)}"
    by_place = set(signature.names[: min(len(call.args), signature.positional)])
    for name in sorted(signature.required - named - by_place):
        if not open_ended:
            yield f"needs `{name}`"
