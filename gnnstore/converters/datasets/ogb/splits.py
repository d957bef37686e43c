"""OGB's splits in one file: `split_dict.pt`, or the same arrays as `split_dict.npz`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from gnnstore.budget.ledger import Ledger
from gnnstore.converters.inputs.npz import open_npz
from gnnstore.converters.inputs.pickled import Arrays, open_pickled
from gnnstore.converters.inputs.source import ArraySource
from gnnstore.converters.typed.inputs import NodeInput
from gnnstore.converters.writer.splits import SPLIT_KEYS
from gnnstore.errors import InputError

_LOG = logging.getLogger(__name__)

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


def open_splits(path: Path, memory: Ledger) -> dict[str, ArraySource]:
    """Open the splits of the nodes in a file, by their names in a store."""
    found = {}
    for name, ids in open_split_file(path, memory).items():
        if isinstance(ids, Mapping):
            raise InputError(f"{path}: {name} is a dict; expected the ids of nodes", path=path)
        found[SPLIT_KEYS.get(name, PARTS.get(name, name))] = ids
    return found


def warn_of_splits(directory: Path, nodes: NodeInput) -> None:
    """Warn if one of OGB's splits is not there."""
    sizes = {name: math.prod(ids.shape) for name, ids in nodes.splits.items()}
    missing = [name for name in SPLITS if name not in sizes]
    if missing:
        found = ", ".join(f"{name} has {size}" for name, size in sizes.items()) or "there is none"
        _LOG.warning(
            "%s: the split %s is not there (%s, of %d nodes); copy split/ of the data set too, or "
            "name the nodes to train on yourself",
            directory,
            ", ".join(missing),
            found,
            nodes.count,
        )
