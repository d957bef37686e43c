"""Values of Python as values of JSON: tuples, and dictionaries by anything but text, have marks.

`{"$tuple": [...]}` is a tuple and `{"$dict": [[key, value], ...]}` a dictionary. A dictionary of
the user's own with such a key is written in the second form.
"""

from __future__ import annotations

from typing import Any

_TUPLE, _DICT = "$tuple", "$dict"


def encode_value(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, tuple):
        return {_TUPLE: [encode_value(item) for item in value]}
    if isinstance(value, list):
        return [encode_value(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and key not in (_TUPLE, _DICT) for key in value):
            return {key: encode_value(item) for key, item in value.items()}
        return {_DICT: [[encode_value(key), encode_value(item)] for key, item in value.items()]}
    return value


def decode_value(value: Any) -> Any:
    """Return a copy of a value that `encode_value` made."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if isinstance(value, dict):
        if isinstance(value.get(_TUPLE), list):
            return tuple(decode_value(value[_TUPLE]))
        pairs = value.get(_DICT)
        if isinstance(pairs, list):
            return {decode_value(key): decode_value(item) for key, item in pairs}
        return {key: decode_value(item) for key, item in value.items()}
    return value
