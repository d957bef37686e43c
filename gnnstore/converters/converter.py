"""The decorator of all converters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from gnnstore.errors import limits_named

P = ParamSpec("P")


def converter(convert: Callable[P, Path]) -> Callable[P, Path]:
    """Let a converter's errors name the limit of the system, such as memory, that it met."""
    return limits_named("convert")(convert)
