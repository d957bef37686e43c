"""What tests know of the inside of loaders: their threads, and the sizes that they go by."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from gnnstore import GraphStore
from gnnstore.features.planned import SlotCache
from gnnstore.graph.cache_owner import shared_caches
from gnnstore.partitions.seeds import PartitionOrder
from gnnstore.pipeline.lookahead.epochs import LookaheadEpochs
from gnnstore.threads import THREAD_NAME

Loader = TypeVar("Loader", bound=Any)


def threads_of_loaders() -> list[str]:
    """Return the names of the threads of loaders."""
    # Python goes on to list a thread whose start was interrupted before it began.
    return [
        t.name for t in threading.enumerate() if t.name.startswith(THREAD_NAME) and t.is_alive()
    ]


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_nothing_is_left(directory: Path) -> None:
    """Wait until loaders have no thread, and no file in a directory."""
    wait_for(lambda: not threads_of_loaders() and not any(directory.iterdir()))


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Keep the garbage collector from finding what is left of a loader."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def superbatches_of(loader: Any) -> LookaheadEpochs:
    """Return what a loader that plans ahead makes its superbatches by."""
    superbatches = loader._sources.superbatches
    assert isinstance(superbatches, LookaheadEpochs)
    return superbatches


def override_sizes(loader: Loader, **sizes: Any) -> Loader:
    """Have a loader of superbatches go by other sizes than those that its budget leads to."""
    job = superbatches_of(loader).job
    job.size = replace(job.size, **sizes)
    return loader


def slots_of(store: GraphStore) -> SlotCache:
    """Return the slots of the loader that planned for them last."""
    slots = shared_caches(store)._slots
    assert slots is not None
    return slots


def partition_order_of(loader: Any) -> PartitionOrder:
    """Return the order of a loader that goes from partition to partition."""
    assert isinstance(loader._order, PartitionOrder)
    return loader._order
