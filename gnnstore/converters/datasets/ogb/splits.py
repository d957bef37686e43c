"""Splits that OGB keeps in one file: `split_dict.pt`, or the same arrays as `split_dict.npz`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gnnstore.converters.arrays.npz import open_npz
from gnnstore.converters.arrays.pickled import read_split_dict
from gnnstore.converters.arrays.source import ArraySource
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.splits import SPLIT_KEYS

_NAMES = ("split_dict.pt", "split_dict.npz")
# The test papers of MAG240M: all of them, and the two parts that contests use.
_PARTS = {"test-whole": "test", "test-dev": "test_dev", "test-challenge": "test_challenge"}


def split_file(directory: Path) -> Path | None:
    """Return the file of a directory that has all splits in it, if there is one."""
    return next((directory / name for name in _NAMES if (directory / name).exists()), None)


def set_splits(writer: GraphWriter, path: Path) -> None:
    """Read all splits of a file into a writer.

    Raises
    ------
    InputError
        If the file holds anything but arrays of integers, or they name no nodes.
    """
    splits: Mapping[str, ArraySource | npt.NDArray[Any]]
    splits = open_npz(path) if path.suffix == ".npz" else read_split_dict(path)
    for name, ids in splits.items():
        split = SPLIT_KEYS.get(name, _PARTS.get(name, name))
        writer.set_split(split, ids, where=f"{path}: {name}")
