"""The decorator of all converters; converters of plug-ins, by the names of `gnnstore convert`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from gnnstore.converters.writer.options import ConvertOptions
from gnnstore.errors import limits_named
from gnnstore.formats import StoreManifest
from gnnstore.formats.container.transaction import check_final
from gnnstore.registry import Registry

P = ParamSpec("P")


def converter(convert: Callable[P, Path]) -> Callable[P, Path]:
    """Take single options, refuse an output that exists, and let errors name a system's limit."""
    signature = inspect.signature(convert)
    single = {field.name for field in fields(ConvertOptions)} - signature.parameters.keys()

    @wraps(convert)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Path:
        if "options" in signature.parameters and kwargs.keys() & single:
            more: dict[str, Any] = {name: kwargs.pop(name) for name in kwargs.keys() & single}
            options: Any = kwargs.get("options") or ConvertOptions()
            kwargs["options"] = replace(options, **more)
        given = signature.bind(*args, **kwargs).arguments
        options = given.get("options") or ConvertOptions()
        if "output" in given and not (options.overwrite or options.resume):
            final = Path(os.path.abspath(given["output"]))  # noqa: PTH100 - links stay
            check_final(final, StoreManifest, overwrite=False)
        return convert(*args, **kwargs)

    return limits_named("convert")(checked)


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
