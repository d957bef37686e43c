"""Sorts the texts of nodes by their new numbers, in two sequential passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.converters.spill_files import SpillDirectory, by_key
from gnnstore.converters.stores.copy import texts_of
from gnnstore.converters.stores.graph import StoreInput
from gnnstore.formats.store.schema import TextSpec

# Text takes several times its size as Python's objects.
_MEMORY_SHARE = 32
_MAX_RANGE_BYTES = 2**26
_AT_ONCE = 2**14


def texts_in_order(
    graph: StoreInput,
    text: TextSpec,
    places: npt.NDArray[Any],
    directory: Path,
    memory_bytes: int | None,
) -> Iterator[list[bytes]]:
    """Yield the texts of nodes in the order of their new numbers, in lists."""
    num_bytes = text.bytes.num_rows + 16 * len(places)
    limit = _MAX_RANGE_BYTES if memory_bytes is None else memory_bytes // _MEMORY_SHARE
    num_ranges = -(-num_bytes // max(1, min(limit, _MAX_RANGE_BYTES)))
    range_nodes = max(1, -(-len(places) // max(1, num_ranges)))
    files = SpillDirectory(directory, "names to put in order")
    try:
        first = 0
        for names in texts_of(graph, text):
            numbers = places[first : first + len(names)].astype(np.int64)
            first += len(names)
            for own, chosen in by_key(numbers // range_nodes):
                some = [names[i] for i in chosen]
                lengths = np.fromiter(map(len, some), np.int64, len(some))
                files.append(f"{own:06d}.nodes", np.stack([numbers[chosen], lengths], axis=1))
                files.append(f"{own:06d}.names", b"".join(some))
        for own in range(-(-len(places) // range_nodes)):
            yield from _ordered(files, own)
    finally:
        files.close()


def _ordered(files: SpillDirectory, own: int) -> Iterator[list[bytes]]:
    name = f"{own:06d}.nodes"
    nodes = files.read(name, np.int64, 0, files.size_bytes(name) // 8).reshape(-1, 2)
    names = f"{own:06d}.names"
    letters = files.read(names, np.uint8, 0, files.size_bytes(names)).tobytes()
    ends = np.cumsum(nodes[:, 1])
    begins = ends - nodes[:, 1]
    order = np.argsort(nodes[:, 0])
    for first in range(0, len(order), _AT_ONCE):
        chosen = order[first : first + _AT_ONCE]
        bounds = zip(begins[chosen].tolist(), ends[chosen].tolist(), strict=True)
        yield [letters[i:j] for i, j in bounds]
