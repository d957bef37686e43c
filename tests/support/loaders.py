"""What tests know of the inside of loaders: their threads, and the sizes that they go by."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, TypeVar

from gnnstore import GraphStore
from gnnstore.features.planned import SlotCache
from gnnstore.graph.shared import shared_tables
from gnnstore.partitions.order import PartitionOrder
from gnnstore.threads import THREAD_NAME

Loader = TypeVar("Loader", bound=Any)


def threads_of_loaders() -> list[str]:
    """Return the names of the threads of loaders."""
    # Python goes on to list a thread whose start was interrupted before it began.
    return [
        t.name for t in threading.enumerate() if t.name.startswith(THREAD_NAME) and t.is_alive()
    ]


def override_sizes(loader: Loader, **sizes: Any) -> Loader:
    """Have a loader of superbatches go by other sizes than those that its budget leads to."""
    superbatches = loader._sources.superbatches
    assert superbatches is not None
    superbatches.job.size = replace(superbatches.job.size, **sizes)
    return loader


def slots_of(store: GraphStore) -> SlotCache:
    """Return the slots of the loader that planned for them last."""
    slots = shared_tables(store)._slots
    assert slots is not None
    return slots


def partition_order_of(loader: Any) -> PartitionOrder:
    """Return the order of a loader that goes from partition to partition."""
    assert isinstance(loader._order, PartitionOrder)
    return loader._order
