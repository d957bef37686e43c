"""OGB's splits in one file: `split_dict.pt`, or the same arrays as `split_dict.npz`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gnnstore.budget.ledger import Ledger
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.pickled import Arrays, open_pickled
from gnnstore.converters.memory import memory_ledger
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError

SPLITS = ("train", "valid", "test")
_NAMES = ("split_dict.pt", "split_dict.npz")
# The test papers of MAG240M: all papers, and the two parts that contests use.
PARTS = {"test-whole": "test", "test-dev": "test_dev", "test-challenge": "test_challenge"}


def split_file(directory: Path) -> Path | None:
    """Return the file with all splits in a directory, if there is one."""
    return next((directory / name for name in _NAMES if (directory / name).exists()), None)


def open_split_file(path: Path, memory: Ledger) -> Arrays:
    """Open the arrays of a file of splits: written by `torch.save`, or as `.npz`."""
    return open_npz(path) if path.suffix == ".npz" else open_pickled(path, "the splits", memory)


def set_splits(writer: GraphWriter, path: Path) -> None:
    """Read all splits of a file into a writer."""
    memory = memory_ledger("reading the splits", writer.options.memory_bytes)
    for name, ids in open_split_file(path, memory).items():
        if isinstance(ids, Mapping):
            raise InputError(f"{path}: {name} is a dict; expected the ids of nodes", path=path)
        split = SPLIT_KEYS.get(name, PARTS.get(name, name))
        writer.set_split(split, ids, where=f"{path}: {name}")
