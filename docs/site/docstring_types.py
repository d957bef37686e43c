"""Read types in docstrings as prose: where they are no Python, griffe would take them for it."""

from __future__ import annotations

import re
from typing import Any

import griffe

_TYPE = re.compile(r"^( *[*\w, ]+ : )(.*)$", re.MULTILINE)


def _prose(match: re.Match[str]) -> str:
    """Keep "path-like" from being a difference, and "optional" from being a type."""
    kind = match[2].replace("path-like", "PathLike").removesuffix(", optional")
    return match[1] + kind


class DocstringTypes(griffe.Extension):
    """Rewrite the types of every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite those of one object."""
        if obj.docstring is not None:
            obj.docstring.value = _TYPE.sub(_prose, obj.docstring.value)
