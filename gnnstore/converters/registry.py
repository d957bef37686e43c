"""Converters of plug-ins, by the names that `gnnstore convert` gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gnnstore.registry import Registry


@dataclass(frozen=True)
class Converter:
    """A converter of a plug-in, for `gnnstore convert NAME INPUT OUTPUT`.

    Attributes
    ----------
    name : str
        The command's word.
    convert : callable
        Called as `convert(input, output, options=ConvertOptions, progress=Progress)`, as
        functions decorated with `gnnstore.plugins.converter` can be; returns the store's path.
    summary : str
        One sentence for `--help`.
    """

    name: str
    convert: Callable[..., Path]
    summary: str


CONVERTERS: Registry[Converter] = Registry()
