"""The option `decode`: the types in which attributes of int8 with scales come out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from gnnstore.errors import UsageError, did_you_mean
from gnnstore.formats.arrays.spec import DECODED_DTYPES, DecodedDtype
from gnnstore.formats.store.scales import Scales
from gnnstore.formats.store.schema import Schema, scales_name

Decoded: TypeAlias = Literal["input", "float16", "bfloat16", "float32"] | None
Decode: TypeAlias = Decoded | Mapping[str, Decoded]
# The types by the paths of attributes that are not shown in the recorded one; None: int8.
Choices: TypeAlias = Mapping[str, DecodedDtype | None]

_DECODED = ("input", *DECODED_DTYPES, None)
_LARGEST_MULTIPLE = np.float32(127)
# The first numbers that are rounded to infinity.
_INFINITE = {"float16": 2.0**16 - 2.0**4, "bfloat16": 2.0**128 - 2.0**119}


def choices_of(
    decode: Decode, schema: Schema, scales: Mapping[str, Scales], label: object
) -> Choices:
    """Check the option, and return its value by attribute.

    Raises
    ------
    UsageError
        If a type or a key is unknown, or an attribute has no scales; if its values are too large
        for the type, naming the column; if something else has the name of scales.
    """
    if isinstance(decode, str) and decode == "input":
        return {}
    recorded = {spec.path: own.decoded for spec, own in schema.scaled_attributes()}
    found: dict[str, DecodedDtype | None] = {}
    taken = {spec.path: (spec, owner) for spec, owner in schema.taken_names()}
    for what, path, dtype in _asked(decode, schema, list(recorded), label):
        if not isinstance(dtype, str | None) or dtype not in _DECODED:
            known = ", ".join(map(repr, _DECODED[:-1]))
            raise UsageError(f"{what}: {dtype!r} is unknown; choose {known} or None")
        found[path] = recorded[path] if dtype == "input" else cast("DecodedDtype | None", dtype)
        if found[path] is None and path in taken:
            spec, owner = taken[path]
            raise UsageError(
                f"{what}: the scales of {path} would be {scales_name(spec.name)!r}, and there is "
                f"something of {owner} by that name; take decoded rows"
            )
        if found[path] != recorded[path]:
            _refuse_large(scales[path], found[path], f"{what}: {path}")
    return found


def _asked(
    decode: Any, schema: Schema, scaled: list[str], label: object
) -> list[tuple[str, str, Any]]:
    """Return the option for messages, a path and its type, for each attribute that is meant."""
    if not isinstance(decode, Mapping):
        what = f"decode={decode!r}"
        if not scaled:
            raise UsageError(
                f"{what}: {label} has no attribute of int8 whose columns have scales; leave the "
                "option out, or make such a store with 'gnnstore quantize'"
            )
        return [(what, path, decode) for path in scaled]
    paths: dict[str, list[str]] = {}
    for node in schema.node_types:
        for name, spec in node.attributes.items():
            paths.setdefault(name, []).append(spec.path)
            paths[f"{node.name}:{name}"] = [spec.path]
    found = []
    for key in sorted(decode, key=lambda key: ":" in str(key)):  # a type's own decides
        if key not in paths:
            names = [name for name in paths if ":" not in name or not schema.is_homogeneous]
            there = ", ".join(map(repr, names)) or "none"
            raise UsageError(
                f"decode: {label} has no node attribute {key!r}{did_you_mean(key, names)}; give "
                f"one of these: {there}"
            )
        own = [path for path in paths[key] if path in scaled]
        if not own:
            raise UsageError(
                f"decode: the columns of {key!r} have no scales, so that it comes as it is "
                "stored; leave it out"
            )
        found += [(f"decode, {key!r}", path, decode[key]) for path in own]
    return found


def _refuse_large(scales: Scales, dtype: DecodedDtype | None, what: str) -> None:
    """Refuse a type in which the largest multiple of a scale is infinite."""
    if dtype not in _INFINITE:
        return
    with np.errstate(over="ignore"):
        largest = scales * _LARGEST_MULTIPLE
    large = np.argwhere(largest >= _INFINITE[dtype])
    if len(large):
        place = tuple(map(int, large[0]))
        fits = dtype == "float16" and not (largest >= _INFINITE["bfloat16"]).any()
        others = "'bfloat16' or 'float32'" if fits else "'float32'"
        raise UsageError(
            f"{what}: column {', '.join(map(str, place))} has values up to {largest[place]!s}, "
            f"which {dtype} cannot hold; choose {others}"
        )
