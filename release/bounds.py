"""Prints constraints for pip: the oldest versions that `pyproject.toml` allows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def oldest(pyproject: str) -> list[str]:
    """Return the lower bounds of what the package and its extras require, as exact versions."""
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(one for extra in extras for one in extra)]
    return [re.sub(r"\[.*\]", "", one).replace(">=", "==") for one in wanted]


if __name__ == "__main__":
    print(*oldest(Path("pyproject.toml").read_text()), sep="\n")
