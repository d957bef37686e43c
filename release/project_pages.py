"""Fills in what a package's page shows: addresses in the repository, and README.md with such links.

scikit-build-core calls `dynamic_metadata` when it builds an archive, by `pyproject.toml`, where the
address of the repository stands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# A page's code, whose brackets are not links; and the place that a link or a picture names.
_CODE = re.compile(r"(^```.*?^```$)", re.M | re.S)
_PLACE = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<place>[^)\s]+)\)")


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields `readme` and `urls` of the package's metadata."""
    repository, version = settings["repository"], project["version"]
    files = f"{repository}/blob/v{version}"
    return {
        "readme": {
            "content-type": "text/markdown",
            "text": with_absolute_links((ROOT / "README.md").read_text(), repository, version),
        },
        "urls": {
            "Source": repository,
            "Documentation": f"{files}/docs/README.md",
            "Changelog": f"{files}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        },
    }


def with_absolute_links(page: str, repository: str, version: str) -> str:
    """Return a page of the repository's root for readers elsewhere."""

    def absolute(match: re.Match[str]) -> str:
        place = match["place"]
        if place.startswith("#"):
            place = f"{repository}{place}"
        elif not re.match(r"[a-z]+:", place):
            folder = "raw" if match["picture"] else "blob"
            place = f"{repository}/{folder}/v{version}/{place}"
        return f"{match['picture']}[{match['text']}]({place})"

    parts = _CODE.split(page)
    parts[::2] = [_PLACE.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)
