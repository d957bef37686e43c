"""The loader's options, read once: their meaning here, or the error if they are not supported.

An option of PyG's that would change batches is never ignored: it either works or is refused, with
the reason and the way out.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from gnnstore.caching.scores import SCORES
from gnnstore.disk.engines import ENGINES
from gnnstore.errors import UsageError, as_whole_number, check_choice
from gnnstore.graph.store import GraphStore
from gnnstore.graph.store import open as open_store
from gnnstore.loaders.assemble.adjacency import CsrEdges
from gnnstore.partitions.followers import ResidentTable
from gnnstore.partitions.policy import PartitionPolicy
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.strategies.base import Auto
from gnnstore.strategies.builtin import STRATEGIES, find_strategy
from gnnstore.strategies.loader_spec import ReadOptions
from gnnstore.strategies.sizes.settings import CacheSettings, PlannedSettings
from gnnstore.units import parse_size

_TEMPORAL_STRATEGIES = ("uniform", "last")
_USE_PYG = "use torch_geometric.loader.NeighborLoader on the graph in memory for it"
_NOT_PARAMETERS = {"self", "kwargs", "__class__"}


@dataclass(frozen=True, eq=False)
class LoaderOptions:
    """Options of a loader that samples from a store, checked."""

    given: dict[str, Any]  # the user's values, by parameter
    store: GraphStore
    config: SamplingConfig  # sampling options
    read: ReadOptions  # options of reading the store, or packed epochs in its place
    csr: CsrEdges | None  # None: batches have `edge_index`
    torch: dict[str, Any]  # keyword arguments of torch's `DataLoader`

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> LoaderOptions:
        """Check the `locals()` of a loader's constructor; missing options have their defaults."""
        given = {name: v for name, v in parameters.items() if name not in _NOT_PARAMETERS}
        if "plan" in parameters["kwargs"]:
            raise UsageError(
                f"plan= is called packed=; write packed={parameters['kwargs']['plan']!r}"
            )
        _call(_refuse_unsupported, given)
        if given.get("partitions") is not None:
            _call(_refuse_with_partitions, given)
        _call(_refuse_no_tables, given)
        config = _call(sampling_config, given)
        read = _call(read_options, given)
        store = as_store(given["data"])
        edges = (given.get("edge_format", "coo"), given.get("adj_value"))
        csr = CsrEdges.of(store.schema, *edges)
        return cls(given, store, config, read, csr, parameters["kwargs"])


def _call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with its parameters among the given options."""
    names = inspect.signature(function).parameters
    return function(**{name: given[name] for name in names if name in given})


def sampling_config(
    num_neighbors: Any,
    *,
    replace: bool = False,
    subgraph_type: Any = "directional",
    disjoint: bool = False,
    directed: bool = True,
    seed: int | None = None,
) -> SamplingConfig:
    """Check the options of sampling."""
    if not directed:
        warnings.warn(
            "directed=False is deprecated; write subgraph_type='induced'",
            UserWarning,  # PyG's category: people filter by it
            stacklevel=6,  # behind the loader's constructor
        )
        subgraph_type = "induced"
    kind = subgraph_type.value if isinstance(subgraph_type, Enum) else subgraph_type
    return SamplingConfig(
        fanouts=_fanouts(num_neighbors),
        replace=replace,
        subgraph_type=kind,
        disjoint=disjoint,
        seed=0 if seed is None else seed,
    )


def _fanouts(num_neighbors: Any) -> tuple[int, ...]:
    values = getattr(num_neighbors, "values", num_neighbors)  # NumNeighbors
    if isinstance(num_neighbors, Mapping) or isinstance(values, Mapping):
        raise UsageError(
            "num_neighbors gives fan-outs by edge type, but heterogeneous graphs are not "
            "supported yet; give one list of fan-outs, such as [10, 10]"
        )
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise UsageError(
            f"num_neighbors={num_neighbors!r} is not a list of fan-outs; give one integer per "
            "hop, such as [10, 10], -1 for all neighbours"
        )
    return tuple(values)


def read_options(
    *,
    strategy: str = "auto",
    topology: str = "auto",
    memory: int | str | None = None,
    io_engine: str | None = None,
    cache: str | None = None,
    cache_bytes: int | str | None = None,
    superbatch: int | str | None = None,
    tmpdir: Any = None,
    disk: int | str | None = None,
    packed: Any = None,
) -> ReadOptions:
    """Check the options of reading the store."""
    if io_engine is not None:
        check_choice("io_engine", io_engine, ENGINES)
    if memory is not None and memory != "auto":
        parse_size(memory, name="memory")
    chosen = find_strategy(strategy)
    if io_engine is not None and not chosen.reads_disk:
        raise UsageError(
            f"strategy={strategy!r} has no use for io_engine={io_engine!r}: no engine reads its "
            "rows; choose strategy='direct' or 'static', or leave the option out"
        )
    if packed is not None:
        if not isinstance(packed, str | os.PathLike):
            raise UsageError(f"packed={packed!r}: expected a name of packed epochs, or their path")
        _refuse_with_packed(
            strategy=None if isinstance(chosen, Auto) or chosen.packs else strategy,
            topology=None if topology == "auto" else topology,
            cache=cache,
            cache_bytes=cache_bytes,
            superbatch=superbatch,
            tmpdir=tmpdir,
            disk=disk,
        )
        return ReadOptions(chosen, memory=memory, io_engine=io_engine, packed=os.fspath(packed))
    if isinstance(chosen, Auto):
        _refuse_planning(strategy, superbatch)
        # For a strategy that samples ahead, if one is chosen.
        planned = _planned_settings(tmpdir=tmpdir, disk=disk)
        settings = _cache_settings(cache, cache_bytes)
        return ReadOptions(chosen, topology, memory, io_engine, settings, planned)
    if chosen.plans:
        planned = _planned_settings(cache_bytes, superbatch, tmpdir, disk)
        if cache is not None and not chosen.takes_cache:
            raise UsageError(
                f"strategy={strategy!r} has no use for cache={cache!r}: it decides by itself "
                "which rows to cache; choose strategy='static' or 'packed', or leave the option out"
            )
        return ReadOptions(chosen, topology, memory, io_engine, _cache_settings(cache), planned)
    _refuse_planning(strategy, superbatch, tmpdir, disk)
    settings = _cache_settings(cache, cache_bytes)
    if settings is not None and not chosen.reads_disk:
        given = f"cache={cache!r}" if cache is not None else f"cache_bytes={cache_bytes!r}"
        raise UsageError(
            f"strategy={strategy!r} has no use for {given}: its rows are in memory or in the "
            "system's page cache; choose strategy='static', or leave the option out"
        )
    if settings is None:
        settings = CacheSettings() if chosen.caches else None
    elif not chosen.caches:  # an alias without a cache, with options that ask for one
        chosen = STRATEGIES[chosen.alias_of]
    return ReadOptions(chosen, topology, memory, io_engine, settings)


def _cache_settings(
    cache: str | None, cache_bytes: int | str | None = None
) -> CacheSettings | None:
    """Parse the options `cache` and `cache_bytes`; None if neither is given."""
    if cache is not None and cache not in SCORES:
        raise UsageError(f"cache={cache!r} is unknown; choose one of {', '.join(SCORES)}")
    num_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
    if cache is None and num_bytes is None:
        return None
    return CacheSettings(cache or "frequency", num_bytes)


def _planned_settings(
    cache_bytes: int | str | None = None,
    superbatch: int | str | None = None,
    tmpdir: Any = None,
    disk: int | str | None = None,
) -> PlannedSettings:
    """Parse the options of a strategy that samples and plans ahead."""
    num_batches = None
    if superbatch is not None and superbatch != "auto":
        num_batches = as_whole_number(superbatch)
        if num_batches is None or num_batches < 1:
            raise UsageError(
                f"superbatch={superbatch!r}: expected a number of batches, at least 1, or 'auto'"
            )
    return PlannedSettings(
        None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes"),
        num_batches,
        None if tmpdir is None else str(tmpdir),
        None if disk is None else parse_size(disk, name="disk"),
    )


def _refuse_planning(
    strategy: str,
    superbatch: int | str | None,
    tmpdir: Any = None,
    disk: int | str | None = None,
) -> None:
    """Refuse options of strategies that sample and plan ahead, for one that does not."""
    if disk is not None:
        raise UsageError(
            f"strategy={strategy!r} has no use for disk={disk!r}: it keeps nothing there; "
            "choose strategy='packed' or 'belady', or leave the option out"
        )
    for name, value in (("superbatch", superbatch), ("tmpdir", tmpdir)):
        if value is not None:
            raise UsageError(
                f"strategy={strategy!r} has no use for {name}={value!r}: it plans no "
                "superbatches; choose strategy='belady', or leave the option out"
            )


def _refuse_with_packed(**options: Any) -> None:
    """Refuse options of sampling and caching, which were decided when the epochs were packed."""
    given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            f"packed= has no use for {' and '.join(given)}: the cached rows, and where batches are "
            "read, were decided when the epochs were packed; leave it out"
        )


def _refuse_no_tables(tables: Any = None) -> None:
    """Refuse a value that is no sequence of tables; a table alone would count as its rows."""
    is_sequence = isinstance(tables, list | tuple | None)
    if not is_sequence or not all(isinstance(table, ResidentTable) for table in tables or ()):
        raise UsageError(f"tables={tables!r}: expected a list of gnnstore.EmbeddingTable")


def _refuse_with_partitions(
    partitions: Any,
    *,
    strategy: str = "auto",
    topology: str = "auto",
    cache: str | None = None,
    cache_bytes: int | str | None = None,
    superbatch: int | str | None = None,
    tmpdir: Any = None,
    disk: int | str | None = None,
    packed: Any = None,
    rank: int | None = None,
) -> None:
    """Refuse options of where rows lie, which partitions decide."""
    options = {
        "strategy": None if strategy == "auto" else strategy,
        "topology": None if topology == "auto" else topology,
        "cache": cache,
        "cache_bytes": cache_bytes,
        "superbatch": superbatch,
        "tmpdir": tmpdir,
        "disk": disk,
        "packed": packed,
    }
    given = [f"{name}={value!r}" for name, value in options.items() if value is not None]
    if given:
        raise UsageError(
            f"partitions= has no use for {' and '.join(given)}: rows and edges of the partitions "
            "in memory are in memory, and all others are read when their turn comes; leave it out"
        )
    if not isinstance(partitions, PartitionPolicy):
        raise UsageError(
            f"partitions={partitions!r}: expected a gnnstore.PartitionPolicy, as "
            "PartitionPolicy('dispersed', capacity=0.5, name='random-8')"
        )
    if rank is not None:
        raise UsageError(
            f"partitions= and rank={rank}: partitions are not shared among processes yet; train "
            "with one process, or leave out partitions="
        )


def _refuse_unsupported(
    *,
    input_time: Any = None,
    edge_label_time: Any = None,
    time_attr: str | None = None,
    temporal_strategy: str = "uniform",
    weight_attr: str | None = None,
    neighbor_sampler: Any = None,
) -> None:
    """Refuse options of PyG that would change batches in ways that are not built yet."""
    for name, times in (("input_time", input_time), ("edge_label_time", edge_label_time)):
        if times is not None and time_attr is None:
            raise UsageError(f"{name} is set while time_attr is not; leave {name} out")
    if time_attr is not None:
        raise UsageError(
            f"time_attr={time_attr!r}: temporal sampling is not supported yet; {_USE_PYG}"
        )
    check_choice("temporal_strategy", temporal_strategy, _TEMPORAL_STRATEGIES)
    if weight_attr is not None:
        raise UsageError(
            f"weight_attr={weight_attr!r}: weighted sampling is not supported yet; {_USE_PYG}"
        )
    if neighbor_sampler is not None:
        raise UsageError(
            "neighbor_sampler: gnnstore samples with its own kernel, so that batches can be "
            "prepared ahead; leave the option out, or pass the store to "
            "torch_geometric.loader.NodeLoader together with the sampler"
        )


def as_store(data: Any) -> GraphStore:
    """Return the store that a loader was given: open, as a path, or as PyG's pair."""
    if isinstance(data, (str, Path)):
        return open_store(data)
    if isinstance(data, (tuple, list)) and len(data) == 2 and data[0] is data[1]:
        data = data[0]
    if not isinstance(data, GraphStore):
        raise UsageError(
            f"data is a {type(data).__module__}.{type(data).__name__}; expected a "
            "gnnstore.GraphStore or the path of a store. Convert a PyG graph once with "
            "gnnstore.converters.from_pyg(data, path)"
        )
    return data
