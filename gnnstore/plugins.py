"""What plug-ins are made of: their authors import from here, and from nowhere deeper.

- A kind of seeds: a `SeedSource` gives `Seeds` with `SeedLabels`, a `SampledLoader` reads the
  options. `SEED_KINDS` registers the labels, so that packed epochs can hold them.
- A cache policy: a `CachePolicy` makes a `Planner`, which turns a `Trace` into a `CachePlan`.
  `POLICIES` registers it, and a `LookaheadStrategy` that names it loads by it.
- A strategy: a `Strategy` reserves memory for a loader, predicts an epoch and opens an `OpenStore`.
  `STRATEGIES` registers it.
- Rows by id: a `RowSource`, or a `Tier` in front of another source.
  `shared_tables(store).add_tier` puts it in front of a store's tables.
- The order of an epoch: an `EpochOrder` says which positions make up each batch. A `BatchLoader`
  takes it as `own_order=`.
- A converter: a function that drives a `GraphWriter`, decorated with `converter`. `CONVERTERS`
  registers a `Converter`, so that `gnnstore convert` has it.
- A source of batches: a `BatchSource` gives the batches of an epoch and prepares them, as
  `SamplingSource` does. `OpenStore.batches` makes it.

docs/extending.md shows the smallest of each of the first four, and of a converter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gnnstore._core import ReadCounts
from gnnstore.budget.ledger import Reservation
from gnnstore.caching.belady import POLICIES
from gnnstore.caching.plan import CachePlan, PlannedStep, Trace
from gnnstore.caching.policies import CachePolicy, Planner, PlanningBytes
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import RowSink
from gnnstore.converters.writer.options import CONVERTERS, Converter, ConvertOptions, converter
from gnnstore.features.source import RowRequest, Rows, RowSource, RowSpec, Tier
from gnnstore.formats.store.schema import NODE_TYPE
from gnnstore.graph.cache_owner import CacheKey, SharedCache, shared_caches
from gnnstore.graph.table_registry import shared_tables
from gnnstore.pipeline.batch import Batch, BatchSource, EpochRun, SamplingSource
from gnnstore.pipeline.order import EpochOrder, Position
from gnnstore.seeds.base import BatchKey, SeedLabels, Seeds, SeedSource
from gnnstore.strategies.base import OpenStore, RowCache, Strategy
from gnnstore.strategies.loader_spec import LoaderSpec
from gnnstore.strategies.lookahead import LookaheadStrategy
from gnnstore.strategies.placement import Placement, check_two_batches
from gnnstore.strategies.prediction import EpochCosts, Prediction, Resources
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.strategies.sampled_epoch import SampledEpoch
from gnnstore.strategies.workload import ReadTotals

if TYPE_CHECKING:
    from gnnstore.loaders.base import BatchLoader
    from gnnstore.loaders.options import LoaderOptions
    from gnnstore.loaders.sampled import SampledLoader
    from gnnstore.seeds.labels import SEED_KINDS

# What needs torch is imported when it is first used.
_HOMES = {
    "SEED_KINDS": "gnnstore.seeds.labels",
    "BatchLoader": "gnnstore.loaders.base",
    "LoaderOptions": "gnnstore.loaders.options",
    "SampledLoader": "gnnstore.loaders.sampled",
}

__all__ = [
    "CONVERTERS",
    "NODE_TYPE",
    "POLICIES",
    "SEED_KINDS",
    "STRATEGIES",
    "Batch",
    "BatchKey",
    "BatchLoader",
    "BatchSource",
    "CacheKey",
    "CachePlan",
    "CachePolicy",
    "ConvertOptions",
    "Converter",
    "EpochCosts",
    "EpochOrder",
    "EpochRun",
    "GraphWriter",
    "LoaderOptions",
    "LoaderSpec",
    "LookaheadStrategy",
    "OpenStore",
    "Placement",
    "PlannedStep",
    "Planner",
    "PlanningBytes",
    "Position",
    "Prediction",
    "ReadCounts",
    "ReadTotals",
    "Reservation",
    "Resources",
    "RowCache",
    "RowRequest",
    "RowSink",
    "RowSource",
    "RowSpec",
    "Rows",
    "SampledEpoch",
    "SampledLoader",
    "SamplingSource",
    "SeedLabels",
    "SeedSource",
    "Seeds",
    "SharedCache",
    "Strategy",
    "Tier",
    "Trace",
    "check_two_batches",
    "converter",
    "shared_caches",
    "shared_tables",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
