"""JSON from an untrusted file: no duplicate keys, typed access.

A store may come from anywhere, and everything else is computed from its metadata, so
nothing is taken from a document before its type and range have been checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from gnnstore.errors import CorruptStoreError

T = TypeVar("T")


def parse_object(text: bytes, *, path: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate keys and numbers that float64 cannot hold."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError(f"a key appears twice among {', '.join(result)[:80]}")
        return result

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number[:40]} is not a number of JSON, or too large")
        return value

    hooks: Any = {"object_pairs_hook": unique, "parse_constant": finite, "parse_float": finite}
    try:
        document = json.loads(text.decode(), **hooks)
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(
            f"{path}: malformed metadata: not JSON ({error})", path=path
        ) from None
    Fields(document, path)
    found: dict[str, Any] = document
    return found


def to_json(value: Any, base: Any = ()) -> Any:
    """Return a dataclass as JSON values, which `Fields.parse` reads, without a base class's.

    Fields that the class names in `OMITTED` are left out where they are empty.
    """
    if is_dataclass(value):
        omitted = getattr(value, "OMITTED", ())
        return {
            each.metadata.get("key", each.name): to_json(getattr(value, each.name))
            for each in _own(value, base)
            if each.name not in omitted or getattr(value, each.name)
        }
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def _own(kind: Any, base: Any) -> list[Field[Any]]:
    inherited = {each.name for each in fields(base)} if base else ()
    return [each for each in fields(kind) if each.name not in inherited]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


class Fields:
    """Typed access to the fields of a parsed object; errors name file and field."""

    def __init__(self, document: Any, path: str, where: str = "") -> None:
        if not isinstance(document, Mapping):
            raise CorruptStoreError(
                f"{path}: malformed metadata: {where or 'the document'} should be an object, "
                f"found {type(document).__name__}",
                path=path,
            )
        self.document = document
        self.path = path
        self.where = where

    def fail(self, key: str, expected: str) -> CorruptStoreError:
        """Return the error that names a field's expected and actual value."""
        field = f"{self.where}.{key}" if self.where else key
        found = repr(self.document[key])[:80] if key in self.document else "nothing"
        return CorruptStoreError(
            f"{self.path}: malformed metadata: {field}: expected {expected}, found {found}",
            path=self.path,
        )

    def _get(self, key: str, kind: type[T], expected: str) -> T:
        value = self.document.get(key)
        # bool is an int in Python, never in a store.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.fail(key, expected)
        return value

    def integer(self, key: str, low: int = 0, high: int = 2**62) -> int:
        """Return an integer field within [low, high]."""
        value = self._get(key, int, "an integer")
        if not low <= value <= high:
            raise self.fail(key, f"an integer between {low} and {high}")
        return value

    def text(self, key: str) -> str:
        """Return a string field."""
        return self._get(key, str, "a string")

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return a string field that must be one of `choices`."""
        value = self.text(key)
        if value not in choices:
            raise self.fail(key, f"one of {', '.join(choices)}")
        return value

    def array(self, key: str) -> list[Any]:
        """Return a list field."""
        return self._get(key, list, "a list")

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.array(key)
        if not all(isinstance(value, str) for value in values):
            raise self.fail(key, "a list of strings")
        return tuple(values)

    def integers(self, key: str, low: int = 0, high: int = 2**62) -> tuple[int, ...]:
        """Return a list of integers, each within [low, high]."""
        values = self.array(key)
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise self.fail(key, f"a list of integers between {low} and {high}")
        return tuple(values)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return an object field as a plain dict."""
        return dict(self._get(key, dict, "an object"))

    def fields(self, key: str) -> Fields:
        """Return an object field with typed access."""
        return Fields(self.mapping(key), self.path, f"{self.where}.{key}" if self.where else key)

    def children(self, key: str) -> list[Fields]:
        """Return a list of objects, each with typed access."""
        place = f"{self.where}.{key}" if self.where else key
        return [Fields(item, self.path, f"{place}[{i}]") for i, item in enumerate(self.array(key))]

    def parse(self, kind: type[T]) -> T:
        """Return a dataclass, by its own `from_json` if it has one; each field by its type."""
        parse = getattr(kind, "from_json", None)
        return parse(self) if parse is not None else kind(**self.values(kind))

    def values(self, kind: type, base: Any = ()) -> dict[str, Any]:
        """Return the fields of a dataclass, without a base class's, checked by type."""
        found, omitted = {}, getattr(kind, "OMITTED", ())
        for each in _own(kind, base):
            key = each.metadata.get("key", each.name)
            may_miss = each.default is not MISSING or each.name in omitted
            if self.has(key) or not may_miss:
                found[each.name] = self._value(key, _hints(kind)[each.name])
        return found

    def _value(self, key: str, hint: Any) -> Any:  # noqa: PLR0911 - a line for each type
        """Return a field of a type; `Annotated[int, 1, 9]` is an integer of a range."""
        origin, given = get_origin(hint), get_args(hint)
        is_kind, is_of_kinds = is_dataclass(hint), origin is tuple and is_dataclass(given[0])
        if origin is Annotated:
            return self.integer(key, *given[1:])
        if origin is UnionType:
            return self._value(key, given[0]) if self.has(key) else None
        if origin is Literal:
            return self.choice(key, given)
        if is_of_kinds:
            return tuple(item.parse(given[0]) for item in self.children(key))
        if origin is tuple:
            limits = get_args(given[0])[1:]
            return self.texts(key) if given[0] is str else self.integers(key, *limits)
        if origin is Mapping and given[1] is not Any:
            group = self.fields(key)
            return {name: group._value(name, given[1]) for name in group.document}
        if is_kind:
            return self.fields(key).parse(hint)
        if hint is int:
            return self.integer(key)
        kinds = {str: "a string", bool: "true or false", float: "a number", Mapping: "an object"}
        return self._get(key, dict if origin is Mapping else hint, kinds[origin or hint])

    def has(self, key: str) -> bool:
        """Whether the field is present and not null."""
        return self.document.get(key) is not None
