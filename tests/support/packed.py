"""Packs epochs of small graphs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gnnstore.formats.packed import PACKED
from gnnstore.formats.store.units import make_units_directory, unit_path
from gnnstore.graph.store import open as open_store
from gnnstore.packing.job import EpochPacker
from gnnstore.packing.sampling import PackSettings
from gnnstore.sampling.neighbor import SamplingConfig


def pack(
    store: Path,
    fanouts: Iterable[int],
    input_nodes: Any = "train",
    *,
    output: Path | None = None,
    resume: bool = False,
    seed: int = 3,
    epochs: int = 2,
    batch_size: int = 50,
    replace: bool = False,
    subgraph_type: Any = "directional",
    disjoint: bool = False,
    cache_bytes: int | str | None = "100kB",
    superbatch: int | None = 5,
    num_threads: int = 2,
    **settings: Any,
) -> Path:
    """Pack epochs and return their path: `output`, or "base" in the store."""
    if output is None:
        make_units_directory(PACKED, store)
    packer = EpochPacker(
        open_store(store),
        PackSettings(
            SamplingConfig(tuple(fanouts), replace, subgraph_type, disjoint, seed),
            input_nodes,
            batch_size,
            epochs,
            cache_bytes=cache_bytes,
            superbatch=superbatch,
            num_threads=num_threads,
            **settings,
        ),
    )
    try:
        return packer.pack(output or unit_path(PACKED, store, "base"), resume=resume)
    finally:
        packer.close()
