"""Imports the plug-ins of installed packages, so that the command line has what they register."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

_LOG = logging.getLogger(__name__)

GROUP = "gnnstore.plugins"
_loaded: set[str] = set()  # entry points, which are imported once


def load_plugins() -> None:
    """Import the modules that entry points name; one that fails is named and skipped."""
    for plugin in entry_points(group=GROUP):
        if plugin.value in _loaded:
            continue
        _loaded.add(plugin.value)
        try:
            plugin.load()
        except Exception as error:  # whatever its author has done
            _LOG.warning(
                "the plug-in %s (%s) cannot be imported and is left out: %s: %s",
                plugin.name,
                plugin.value,
                type(error).__name__,
                error,
            )
