"""From a decoder's complaint to an ``ApiError`` that names the field in the caller's words.

msgspec says ``Expected `int | null`, got `bool` - at `$.messages[0].n` ``. Here that becomes the path
``messages[0].n`` and a sentence; names nobody knows get the nearest known one, and enumerations list their values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_type_hints

import msgspec
from msgspec import inspect

from headrace.api.errors import ApiError, bad_request, unsupported

_AT = re.compile(r"\A(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_UNKNOWN = re.compile(r"\AObject contains unknown field `(?P<name>.*)`\Z", re.DOTALL)
_MISSING = re.compile(r"\AObject missing required field `(?P<name>[^`]*)`\Z")
_INVALID = re.compile(r"\AInvalid (?:enum )?value ", re.DOTALL)
_EXPECTED = re.compile(r"\AExpected `(?P<types>[^`]*)`(?P<rest>.*)\Z", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])")
OTHER_MEDIA = ("image_url", "input_audio", "file", "input_image", "input_file", "image", "document", "search_result")
_WORDS = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "a boolean", "object": "an object",
    "array": "an array", "null": "null",
}  # fmt: skip


class UnknownField(ApiError):
    """A 400 for a field that nobody knows.

    Args:
        path: Path of the object that holds it, as keys and indices.
        name: The field's name.
        nearest: The nearest known name.
    """

    def __init__(self, path: tuple[str | int, ...], name: str, nearest: str | None) -> None:
        hint = f" Did you mean '{nearest}'?" if nearest else ""
        param = render((*path, name)) or name
        super().__init__(400, f"Unknown field '{param[:200]}'.{hint}", param=param[:200], code="unknown_field")
        self.path = path
        self.name = name
        self.nearest = nearest


def blame(error: msgspec.ValidationError, tree: Any, root: type[msgspec.Struct]) -> ApiError:
    """The 400 for a body that is JSON and not a ``root``.

    Args:
        error: What the decoder said.
        tree: The body as plain data.
        root: The type that was asked for.
    """
    match = _AT.match(str(error))
    what, steps = (match["what"], match["path"] or "") if match else (str(error), "")
    path = _resolve(_parse(steps), tree, root)
    if problem := _other_kind(path, tree, root):
        return problem
    if found := _UNKNOWN.match(what):
        known = sorted({name for struct in _structs(_types_at(root, tree, path)) for name in _names(struct)})
        nearest = difflib.get_close_matches(found["name"][:100], known, n=1)
        return UnknownField(path, found["name"], nearest[0] if nearest else None)
    if found := _MISSING.match(what):
        param = render((*path, found["name"]))
        return bad_request(f"Missing required field '{param}'.", param=param, code="missing_required_parameter")
    param = render(path)
    message = _sentence(what, list(_allowed(_types_at(root, tree, path[:-1]), path)))
    if param is None:
        return bad_request(f"The body {message}", code="invalid_type")
    return bad_request(f"'{param}' {message}", param=param, code="invalid_value")


def _other_kind(path: tuple[str | int, ...], tree: Any, root: type[msgspec.Struct]) -> ApiError | None:
    """The 400 for content or a tool of a kind that is known elsewhere, whatever else is wrong with it."""
    at = path if path[-1:] == ("type",) else (*path, "type")
    while len(at) > 2:
        kind = _value_at(tree, at)
        allowed = list(_allowed(_types_at(root, tree, at[:-1]), at)) if isinstance(kind, str) else []
        if allowed and kind not in allowed:
            if kind in OTHER_MEDIA:
                message = f"Content of type '{kind}' is not supported: this server takes text only."
                return unsupported(render(at) or "", message)
            if at[0] == "tools":
                message = f"Tools of type '{kind[:100]}' are not supported: this server takes functions that you run."
                return unsupported(render(at) or "", message)
        at = (*at[:-2], "type")
    return None


def render(path: tuple[str | int, ...]) -> str | None:
    """A path as the caller would write it: ``messages[0].content``; None for the body itself."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or None


def _sentence(what: str, allowed: list[str]) -> str:
    if allowed and _INVALID.match(what):
        return f"must be {'one of ' if len(allowed) > 1 else ''}{', '.join(map(repr, allowed))}."
    expected = _EXPECTED.match(what)
    if expected is None:
        return f"cannot be used: {what[:1].lower()}{what[1:]}."
    kinds = [_WORDS.get(kind, kind) for kind in expected["types"].split(" | ")]
    rest = re.sub(r"`([a-z]+)`", lambda m: _WORDS.get(m[1], m[1]), expected["rest"])
    return f"must be {' or '.join(kind for kind in kinds if kind != 'null') or 'null'}{rest}."


def _parse(steps: str) -> tuple[str | int | None, ...]:
    """``.messages[0].content`` to ``("messages", 0, "content")``; None stands for an unnamed key."""
    return tuple(int(index) if index else (None if unnamed else name) for name, index, unnamed in _STEP.findall(steps))


def _resolve(path: tuple[str | int | None, ...], tree: Any, root: type[msgspec.Struct]) -> tuple[str | int, ...]:
    """The path with unnamed keys replaced by the first key whose value does not fit."""
    known: list[str | int] = []
    for step in path:
        if step is not None:
            known.append(step)
            continue
        # Only fields of the request itself hold free mappings, so the field's own type can judge each entry.
        hint = get_type_hints(root, include_extras=True).get(str(known[0])) if len(known) == 1 else None
        entries = _value_at(tree, tuple(known))
        for key, value in entries.items() if hint and isinstance(entries, dict) else ():
            if not _fits({key: value}, hint):
                known.append(key[:100])
                break
        else:
            break
    return tuple(known)


def _fits(value: Any, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _value_at(tree: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


@cache
def _info(root: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(root)


def _names(struct: inspect.StructType) -> list[str]:
    tag = [struct.tag_field] if struct.tag_field else []
    return tag + [field.encode_name for field in struct.fields]


def _flat(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield from _flat(info.type)
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _flat(member)
    else:
        yield info


def _types_at(root: type[msgspec.Struct], tree: Any, path: tuple[str | int, ...]) -> list[inspect.Type]:
    """The alternatives that the type has at a path; a tagged object's tag narrows them down."""
    types = _narrow(list(_flat(_info(root))), tree)
    for step in path:
        tree = _value_at(tree, (step,))
        below: list[inspect.Type] = []
        for info in types:
            if isinstance(info, inspect.StructType):
                below += [t for field in info.fields if field.encode_name == step for t in _flat(field.type)]
            elif isinstance(info, inspect.DictType):
                below += _flat(info.value_type)
            elif isinstance(info, inspect.ListType):
                below += _flat(info.item_type)
        types = _narrow(below, tree)
    return types


def _narrow(types: list[inspect.Type], tree: Any) -> list[inspect.Type]:
    if not isinstance(tree, dict):
        return types
    exact = [t for t in _structs(types) if t.tag_field and tree.get(t.tag_field) == t.tag]
    return list(exact) or types


def _structs(types: list[inspect.Type]) -> list[inspect.StructType]:
    return [info for info in types if isinstance(info, inspect.StructType)]


def _allowed(parents: list[inspect.Type], path: tuple[str | int, ...]) -> Iterator[str]:
    """The values of an enumeration, or the tags of a union."""
    for struct in _structs(parents):
        if path and path[-1] == struct.tag_field:
            yield str(struct.tag)
        for field in struct.fields:
            if path and field.encode_name == path[-1]:
                for info in _flat(field.type):
                    if isinstance(info, inspect.LiteralType):
                        yield from (str(value) for value in info.values)
