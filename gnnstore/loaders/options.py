"""The loader's options, read once: their meaning here, or the error if they are not supported.

An option of PyG's that would change batches is never ignored: it either works or is refused, with
the reason and the way out.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, SupportsIndex, cast, get_args

import torch
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info
from torch_geometric.sampler.base import NumNeighbors

from gnnstore.budget.limits import is_automatic, memory_of
from gnnstore.caching.policies import MAX_PLANNED
from gnnstore.caching.scores import SCORES, Score
from gnnstore.disk.engines import ENGINES
from gnnstore.errors import (
    NotFoundError,
    UsageError,
    as_whole_number,
    check_choice,
    did_you_mean,
    refuse_unknown,
    truth,
    whole_number,
)
from gnnstore.features.held import ChosenRows
from gnnstore.formats.packed import PackedParts
from gnnstore.formats.store.schema import Schema
from gnnstore.graph.store import GraphStore
from gnnstore.graph.store import open as open_store
from gnnstore.loaders.device import checked_device
from gnnstore.loaders.pinning import can_pin
from gnnstore.machine import PRIVATE, Machine, SharedMachine
from gnnstore.partitions.policy import PartitionPolicy, ResidentTable
from gnnstore.pipeline.ranks import RankShard
from gnnstore.progress import WaitProgress, is_terminal, open_progress
from gnnstore.sampling.neighbor import SamplingConfig, TemporalStrategy
from gnnstore.sampling.sampled_graph import columns_needed
from gnnstore.strategies.base import Auto
from gnnstore.strategies.loader_spec import EdgeIds, ReadOptions
from gnnstore.strategies.options import CacheSettings, DeviceCache, PlannedSettings
from gnnstore.strategies.registry import STRATEGIES, find_strategy
from gnnstore.units import format_count, parse_share, parse_size

# Set for each process by torchrun, accelerate and Ray Train.
LOCAL_RANKS = "LOCAL_WORLD_SIZE"

# Options of torch's `DataLoader` by kind.
_TRUTHS = {"shuffle", "drop_last", "pin_memory", "persistent_workers"}
_KINDS: dict[str, tuple[Any, str]] = {
    "sampler": (Iterable, "an iterable over positions in input_nodes"),
    "batch_sampler": (Iterable, "an iterable over lists of positions in input_nodes"),
    "generator": (torch.Generator, "a torch.Generator"),
    "timeout": (int | float, "a number of seconds"),
}
_NOT_PARAMETERS = {"self", "kwargs", "__class__"}

_CACHE = ("cache", "cache_bytes")
_PLANNED = ("superbatch", "spill_dir", "disk")
# Options that are refused: with packed epochs, which fix them, and with partitions, which have
# neither times nor weights and are not shared among processes.
_NOT_WITH_PACKED = (
    *("strategy", "topology", *_CACHE, *_PLANNED, "attributes", "seeds_of"),
    *("device_cache", "reorder"),
)
_NOT_WITH_PARTITIONS = (
    *("time_attr", "weight_attr", "strategy", "topology", *_CACHE, *_PLANNED, "packed", "rank"),
    *("seeds_of", "device_cache"),
)


@dataclass(frozen=True, eq=False)
class LoaderOptions:
    """Options of a loader that samples from a store, checked."""

    given: dict[str, Any]  # the user's values, by parameter
    store: GraphStore
    seen: GraphStore  # the same store, with only the attributes that batches show
    config: SamplingConfig  # sampling options
    read: ReadOptions  # options of reading the store, or packed epochs in its place
    csr: CsrEdges | None  # None: batches have `edge_index`
    torch: dict[str, Any]  # keyword arguments of torch's `DataLoader`
    device: Any  # torch's, where batches are placed; None: in host memory
    reorder: int  # batches of a window in which they are put in order; 0: the option is not set
    # Node types whose nodes have times; None: sampling ignores times.
    timed_nodes: frozenset[str] | None = None

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> LoaderOptions:
        """Check the `locals()` of a loader's constructor; missing options have their defaults."""
        given = {name: v for name, v in parameters.items() if name not in _NOT_PARAMETERS}
        attributes = given.get("attributes")
        if isinstance(attributes, Iterable) and not isinstance(attributes, str):
            given["attributes"] = list(attributes)  # is read more than once
        torch_options = checked_torch(type(parameters["self"]), given, parameters["kwargs"])
        direction = torch_options.pop("sample_direction", "forward")  # of PyG's samplers
        device_cache = checked_device_cache(**given)
        if device_cache == 0:  # or text such as "0GB"
            given["device_cache"] = 0
        reorder = call(checked_reorder, given)
        given["reorder"] = reorder or None
        holds_rows = bool(device_cache != 0 or reorder)
        device = checked_device(given.get("device"), holds_rows=holds_rows)
        if device_cache is None and device is not None and device.type == "cpu":
            raise UsageError(
                "device_cache='auto' is what a step of training leaves of a GPU's memory; with "
                "device='cpu' give a number of bytes, or text such as '2GB'"
            )
        _refuse_unsupported(**given, sample_direction=direction)
        edge_ids = checked_edge_ids(given.get("edge_ids", "input"))
        read = call(read_options, {**given, "device": device})
        read = dataclasses.replace(read, edge_ids=edge_ids, reorder=reorder)
        _refuse_no_windows(read, given)
        store = as_store(given["data"])
        memory = memory_of(read.memory, store.reader.schema.bytes_in_memory)
        read = dataclasses.replace(read, memory=memory)
        config = call(sampling_config, {**given, "schema": store.schema})
        if not store.schema.is_homogeneous:
            call(_refuse_with_types, given)
        config.check_part(store.schema, store.path)
        by = config.time_attr, config.weight_attr
        timed_nodes, _ = columns_needed(store.schema, store.path, *by)
        times = None if config.time_attr is None else frozenset(timed_nodes)
        csr = CsrEdges.from_options(
            store.schema,
            given.get("edge_format", "coo"),
            given.get("adj_value"),
            config.subgraph_type,
        )
        if csr is None:
            warn_of_narrow_edges(store.schema)
        seen = _seen(store, given.get("attributes"), given.get("adj_value"))
        if (decode := given.get("decode", "opened")) != "opened":
            seen = seen.decoded(decode)
        return cls(given, store, seen, config, read, csr, torch_options, device, reorder, times)

    def check_times(self, seed_types: Iterable[str], input_time: Any) -> None:
        """Refuse seed nodes without times."""
        if self.timed_nodes is None or input_time is not None:
            return
        attribute = self.config.time_attr
        if missing := [node_type for node_type in seed_types if node_type not in self.timed_nodes]:
            whose = "edges have" if not self.timed_nodes else f"{[*self.timed_nodes]} have"
            raise UsageError(
                f"time_attr={attribute!r}: seed nodes of {', '.join(map(repr, missing))} have no "
                f"{attribute!r} of their own ({whose}); give times of the seeds: input_time="
            )

    def warn_of_seeds_alone(self, seed_types: Iterable[str]) -> None:
        """Warn of seed types that no edge leads to."""
        targets = {edge.target for edge in self.store.schema.edge_types}
        if alone := [node_type for node_type in seed_types if node_type not in targets]:
            warnings.warn(
                f"no edge type leads to {', '.join(map(repr, alone))}, so batches have nothing but "
                "these seeds; add edges in reverse ('gnnstore convert --reverse'), or choose seeds "
                "of another type",
                UserWarning,
                stacklevel=4,  # behind the loader's constructor
            )


def checked_torch(
    loader: type, given: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return options of torch's `DataLoader`; refuse unknown ones, and values of a wrong kind."""
    own = inspect.signature(DataLoader.__init__).parameters.keys() - _NOT_PARAMETERS
    names = {"sample_direction", *own}
    refuse_unknown(loader.__name__, options, sorted({*given, *names} - {"kwargs"}))
    found = dict(options)
    if found.get("batch_size") is not None:
        found["batch_size"] = size = whole_number("batch_size", found["batch_size"])
        if size < 1:
            raise UsageError(f"batch_size={size}: expected a number of seeds, at least 1")
    for name in _TRUTHS & found.keys():
        if found[name] is not None:
            found[name] = truth(name, found[name])
    if "num_workers" in found:
        found["num_workers"] = whole_number("num_workers", found["num_workers"])
    for name, (kind, expected) in _KINDS.items():
        if found.get(name) is not None and not isinstance(found[name], kind):
            raise UsageError(f"{name}={found[name]!r}: expected {expected}")
    for name in ("transform", "transform_sampler_output"):
        if given.get(name) is not None and not callable(given[name]):
            raise UsageError(f"{name}={given[name]!r}: expected a function that takes a batch")
    return found


def checked_reorder(
    reorder: Any = None, device: Any = None, transform_sampler_output: Any = None
) -> int:
    """Return the option `reorder`, 0 if it is not given, or refuse it."""
    if reorder is None:
        return 0
    number = None if isinstance(reorder, bool) else as_whole_number(reorder)
    if number is None or not 1 <= number <= MAX_PLANNED:
        raise UsageError(
            f"reorder={reorder!r}: expected the batches of a window, a whole number from 1 to "
            f"{MAX_PLANNED}; 1 keeps their order, and uses rows of the batch before again"
        )
    if device is None:
        raise UsageError(
            f"reorder={number}: rows of the batch before are used again on a device, and there is "
            'no device=; give it, such as device="cuda" (device="cpu" does the same in host '
            "memory), or leave reorder out"
        )
    if transform_sampler_output is not None:
        raise UsageError(
            f"reorder={number} with transform_sampler_output, which may change the nodes of a "
            "batch after it was sampled; leave one of them out"
        )
    return number


def _refuse_no_windows(read: ReadOptions, given: Mapping[str, Any]) -> None:
    """Refuse an order of batches that are not sampled ahead, or a superbatch with half a window."""
    window, strategy = read.reorder, read.strategy
    if window < 2:
        return
    planned = None if isinstance(strategy, Auto) or not strategy.plans else read.planned
    has_partitions = given.get("partitions") is not None
    if planned is None or has_partitions:
        with_what = "partitions=" if has_partitions else f"strategy={given['strategy']!r}"
        raise UsageError(
            f"reorder={window} puts batches in another order, and they are not sampled ahead with "
            f"{with_what}; choose "
            + ("" if has_partitions else 'strategy="packed" or "belady", or ')
            + "reorder=1"
        )
    count = planned.num_batches
    if count is not None and count % window:
        more = (count // window + 1) * window
        less = f"{more - window} or " if more > window else ""
        raise UsageError(
            f"superbatch={count} with reorder={window}: the batches of a window are planned "
            f"together; give superbatch={less}{more}, or leave it out"
        )


def checked_device_cache(
    *,
    device: Any = None,
    device_cache: Any = 0,
    transform_sampler_output: Any = None,
    **_: Any,
) -> int | None:
    """Return the bytes of the option `device_cache`, None for "auto", or refuse it."""
    if isinstance(device_cache, bool):
        raise UsageError(
            f"device_cache={device_cache!r} is not a size; write a number of bytes, or text such "
            "as '2GB'"
        )
    is_auto = device_cache == "auto"
    num_bytes = None if is_auto else parse_size(device_cache, name="device_cache")
    if num_bytes == 0:
        return 0
    if device is None:
        raise UsageError(
            f"device_cache={device_cache!r}: rows stay on the device that device= names, and there "
            'is none; give device=, such as "cuda" (or "cpu", where they stay in host memory), or '
            "leave it out"
        )
    if transform_sampler_output is not None:
        raise UsageError(
            f"device_cache={device_cache!r} with transform_sampler_output=: batches are joined "
            "whole once that has changed them, so that rows on the device have no use; leave one "
            "of them out"
        )
    return num_bytes


def checked_edge_ids(value: Any) -> EdgeIds | None:
    """Return the option `edge_ids`, or refuse it."""
    if value is not None and value not in ("input", "store"):
        raise UsageError(f"edge_ids={value!r} is unknown; choose one of 'input', 'store' or None")
    return cast("EdgeIds | None", value)


def _seen(store: GraphStore, attributes: Any, adj_value: str | None) -> GraphStore:
    """Return the store with the attributes that batches show, the values of `adj_t` included."""
    if adj_value is None or not isinstance(attributes, list):
        return store.select(attributes)
    return store.select([*attributes, adj_value])


def call(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function with the given options that it takes."""
    names = inspect.signature(function).parameters
    return function(**{name: given[name] for name in names if name in given})


def sampling_config(
    num_neighbors: Any,
    *,
    schema: Schema,
    replace: bool = False,
    subgraph_type: Any = "directional",
    disjoint: bool = False,
    directed: bool = True,
    seed: int | None = None,
    time_attr: str | None = None,
    temporal_strategy: Any = "uniform",
    time_window: int | None = None,
    weight_attr: str | None = None,
) -> SamplingConfig:
    """Check the options of sampling."""
    if not directed:
        warnings.warn(
            "directed=False is deprecated; write subgraph_type='induced'",
            UserWarning,  # PyG's category: people filter by it
            stacklevel=6,  # behind the loader's constructor
        )
        subgraph_type = "induced"
    check_choice("temporal_strategy", temporal_strategy, get_args(TemporalStrategy))
    kind = subgraph_type.value if isinstance(subgraph_type, Enum) else subgraph_type
    return SamplingConfig(
        fanouts=fanouts_of(num_neighbors, schema),
        replace=replace,
        subgraph_type=kind,
        disjoint=disjoint,
        seed=0 if seed is None else seed,
        time_attr=time_attr,
        # As in PyG, which ignores the strategy without times.
        temporal_strategy=temporal_strategy if time_attr is not None else "uniform",
        time_window=time_window,
        weight_attr=weight_attr,
    )


def fanouts_of(num_neighbors: Any, schema: Schema) -> Any:
    """Return the fan-outs of each hop; if they differ by edge type, for each type of the store."""
    is_pyg = isinstance(num_neighbors, NumNeighbors)
    values = num_neighbors.values if is_pyg else num_neighbors
    if not isinstance(values, Mapping):
        return values
    if schema.is_homogeneous:
        raise UsageError(
            "num_neighbors gives fan-outs by edge type, and the store's edges have no named types; "
            "give one list of fan-outs, such as [10, 10]"
        )
    for edge_type, fanouts in values.items():
        if isinstance(fanouts, SupportsIndex):
            raise UsageError(
                f"num_neighbors has {fanouts} for the edge type {edge_type}; give a list with a "
                f"fan-out for each hop, such as [{fanouts}]"
            )
    edge_types = [edge.type for edge in schema.edge_types]
    try:
        default = num_neighbors.default if is_pyg else None
        return NumNeighbors(dict(values), default).get_values(edge_types)
    except (ValueError, TypeError) as error:
        unknown = (did_you_mean(of, edge_types) for of in values if of not in edge_types)
        raise UsageError(
            f"num_neighbors: {error}{next(unknown, '')}; there are the edge types "
            f"{', '.join(map(str, edge_types))}. "
            "Give fan-outs of each, torch_geometric.sampler.NumNeighbors with a default, or one "
            "list for all"
        ) from None


def read_options(
    *,
    strategy: str = "auto",
    topology: str = "auto",
    memory: int | str | None = None,
    io_engine: str | None = None,
    cache: str | None = None,
    cache_bytes: int | str | None = None,
    superbatch: int | str | None = None,
    spill_dir: Any = None,
    disk: int | str | None = None,
    packed: Any = None,
    attributes: Any = None,
    seeds_of: Any = None,
    device: torch.device | None = None,
    device_cache: int | str = 0,
    reorder: int | None = None,
) -> ReadOptions:
    """Check the options of reading the store."""
    given = dict(locals())
    if io_engine is not None:
        check_choice("io_engine", io_engine, ENGINES)
    if (
        memory is not None
        and not is_automatic(memory)
        and parse_share(memory, name="memory") is None
    ):
        parse_size(memory, name="memory")
    chosen = find_strategy(strategy)
    is_auto = isinstance(chosen, Auto)
    if packed is not None:
        is_open = isinstance(getattr(packed, "reader", None), PackedParts)
        if not is_open and not isinstance(packed, str | os.PathLike):
            raise UsageError(
                f"packed={packed!r}: expected a name of packed epochs, their path or URL, or what "
                "open_packed returned"
            )
        named = None if is_auto or chosen.packs else strategy
        _refuse("packed=", _NOT_WITH_PACKED, {**given, "strategy": named})
        return ReadOptions(chosen, memory=memory, io_engine=io_engine, packed=packed)
    unused = [] if chosen.reads_disk else ["io_engine", *_CACHE]
    decides = not isinstance(chosen, Auto) and chosen.plans and not chosen.takes_cache
    if decides or chosen.score is not None:
        unused.append("cache")
    held = _rows_on_device(device_cache, device, chosen.score or cache, reorder)
    # Without another use, `cache` chooses the rows on the device.
    has_use = not device_cache or chosen.score is not None or "cache" not in unused
    given["cache"] = cache = cache if has_use else None
    if not chosen.plans:
        unused += ["superbatch"] if is_auto else _PLANNED
    _refuse(f"strategy={strategy!r}", unused, given)
    num_bytes = None if cache_bytes is None else parse_size(cache_bytes, name="cache_bytes")
    settings, planned = None, None
    if (score := chosen.score or cache) is not None:
        check_choice("cache", score, SCORES)
    if score is not None or (num_bytes is not None and not chosen.plans):
        settings = CacheSettings(
            cast("Score", score or "frequency"), None if chosen.plans else num_bytes
        )
    if chosen.plans or is_auto:  # "auto" may choose one that plans
        num_batches = as_whole_number(superbatch)
        if not (superbatch is None or is_automatic(superbatch)) and (
            num_batches is None or num_batches < 1
        ):
            raise UsageError(
                f"superbatch={superbatch!r}: expected a number of batches, at least 1, or 'auto'"
            )
        planned = PlannedSettings(
            None if is_auto else num_bytes,
            num_batches,
            None if spill_dir is None else str(spill_dir),
            None if disk is None else parse_size(disk, name="disk"),
        )
    elif settings is None:
        settings = CacheSettings() if chosen.caches else None
    elif not isinstance(chosen, Auto) and not chosen.caches:  # an alias without a cache
        chosen = STRATEGIES[chosen.alias_of]
    return ReadOptions(chosen, topology, memory, io_engine, settings, planned, device_cache=held)


def _rows_on_device(
    size: int | str, device: torch.device | None, score: str | None, reorder: int | None
) -> DeviceCache | None:
    if device is None:
        return None
    if not size:  # but perhaps rows of the batch before
        return DeviceCache(0, device=device.type) if reorder else None
    score = cast("Score", score or "frequency")
    check_choice("cache", score, SCORES)
    if size == "auto":
        return DeviceCache(None, score, str(device))
    return DeviceCache(parse_size(size, name="device_cache"), score, device.type)


def local_machine(
    *, rank: int | None = None, world_size: int | None = None, local_world_size: int | None = None
) -> Machine | None:
    """Return the place of arrays that are loaded whole, which ranks of one machine share.

    None: where earlier loaders on the same store put them.
    """
    name, found = "local_world_size", local_world_size
    if found is None and rank is not None and (text := os.environ.get(LOCAL_RANKS)) is not None:
        name, found = LOCAL_RANKS, int(text) if text.strip().isdecimal() else 0
        if not found:
            raise UsageError(
                f"{LOCAL_RANKS}={text!r} in the environment: expected the number of ranks on this "
                "machine, as torchrun sets it; correct it, or give local_world_size="
            )
        found = min(found, world_size or found)  # of another launcher, or for fewer ranks
    num_ranks = 1 if found is None else whole_number(name, found)
    if num_ranks < 1:
        raise UsageError(
            f"local_world_size={num_ranks}: expected the number of ranks on this machine, at least "
            "1, which shares nothing"
        )
    if num_ranks > 1 and rank is None:
        raise UsageError(
            f"local_world_size={num_ranks} counts the ranks of this machine that share one copy of "
            "what they load, and this loader has no rank=; give rank= and world_size= as well, or "
            "leave it out"
        )
    if world_size is not None and num_ranks > world_size:
        raise UsageError(
            f"local_world_size={num_ranks} counts the ranks of this machine, and "
            f"world_size={world_size} the ranks of all machines together; give at most as many"
        )
    if num_ranks > 1:
        return SharedMachine(num_ranks)
    return None if local_world_size is None else PRIVATE


def _refuse(who: str, names: Iterable[str], given: Mapping[str, Any]) -> None:
    """Refuse the given options among some that go unused."""
    defaults = {"strategy": "auto", "topology": "auto", "device_cache": 0}
    unused = [
        f"{name}={given[name]!r}"
        for name in names
        if given.get(name) is not None and given[name] != defaults.get(name)
    ]
    if unused:
        raise UsageError(f"{who} has no use for {' and '.join(unused)}; leave it out")


def without_decided(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a packed loader's options but for what packing has decided; refuse these if set."""
    _refuse("a loader of packed epochs", _NOT_WITH_PACKED, options)
    return {name: value for name, value in options.items() if name not in _NOT_WITH_PACKED}


def _refuse_with_types(partitions: Any = None, tables: Any = ()) -> None:
    """Refuse what works on one numbering of nodes, for a store whose types have names."""
    for name, value in (("partitions", partitions), ("tables", tables or None)):
        if value is not None:
            raise UsageError(
                f"{name}= works on stores whose nodes have one type without a name, and the types "
                "of this store have names; leave it out"
            )


def _refuse_unsupported(
    *,
    input_time: Any = None,
    time_attr: str | None = None,
    neighbor_sampler: Any = None,
    partitions: Any = None,
    tables: Any = None,
    sample_direction: Any = "forward",
    **given: Any,
) -> None:
    """Refuse options that contradict one another, or do not work here."""
    if input_time is not None and time_attr is None:
        raise UsageError(
            "input_time is set while time_attr is not; leave input_time out, or name the attribute "
            "that has the times of nodes or edges"
        )
    asked = None
    if sample_direction != "forward":
        asked = f"sample_direction={sample_direction!r}"
    elif type(neighbor_sampler).__name__ == "BidirectionalNeighborSampler":  # not in every PyG
        asked = "neighbor_sampler=BidirectionalNeighborSampler"
    if asked is not None:
        raise UsageError(
            f"{asked}: gnnstore samples along incoming edges; "
            "convert the graph with its edges reversed, or with reverse types (convert --reverse)"
        )
    if neighbor_sampler is not None:
        raise UsageError(
            "neighbor_sampler: gnnstore samples with its own kernel, so that batches can be "
            "prepared ahead; leave the option out, or pass the store to "
            "torch_geometric.loader.NodeLoader together with the sampler"
        )
    if partitions is not None:
        _refuse("partitions=", _NOT_WITH_PARTITIONS, {**given, "time_attr": time_attr})
        if not isinstance(partitions, PartitionPolicy):
            raise UsageError(
                f"partitions={partitions!r}: expected a gnnstore.PartitionPolicy, as "
                "PartitionPolicy('dispersed', capacity=0.5, name='random-8')"
            )
    is_sequence = isinstance(tables, list | tuple | None)  # a table alone counts as its rows
    if not is_sequence or not all(isinstance(table, ResidentTable) for table in tables or ()):
        raise UsageError(f"tables={tables!r}: expected a list of gnnstore.EmbeddingTable")


def as_store(data: Any, name: str = "data") -> GraphStore:
    """Return the store that a loader was given: open, as a path, or as PyG's pair."""
    if isinstance(data, (str, Path)):
        return open_store(data)
    if isinstance(data, (tuple, list)) and len(data) == 2 and data[0] is data[1]:
        data = data[0]
    if not isinstance(data, GraphStore):
        raise UsageError(
            f"{name} is a {type(data).__module__}.{type(data).__name__}; expected a "
            "gnnstore.GraphStore or the path of a store. Convert a PyG graph once with "
            "gnnstore.converters.from_pyg(data, path)"
        )
    return data


def threads_given(num_threads: int | None, num_workers: int) -> int | None:
    """Return the number of preparing threads that was asked for, if any."""
    if num_threads is None:
        return num_workers or None
    num_threads = whole_number("num_threads", num_threads)
    if num_threads < 0 or (num_workers and num_workers != num_threads):
        raise UsageError(
            f"num_threads={num_threads}: expected 0, for no threads, or more, and the number of "
            f"num_workers={num_workers} if both are given"
        )
    return num_threads


def warn_of_idle(loader: DataLoader[Any], *, is_placed: bool) -> None:
    """Warn of options that change nothing; `is_placed`: with a device."""
    names = ("worker_init_fn", "multiprocessing_context")
    idle = [name for name in names if getattr(loader, name) is not None]
    if loader.pin_memory and (is_placed or not can_pin()):
        idle.append("pin_memory=True")
    if idle:
        warnings.warn(
            f"{' and '.join(idle)} of {type(loader).__name__} have nothing to apply to: batches "
            "are prepared by threads, and pinned where there is an accelerator and no device=",
            UserWarning,
            stacklevel=6,  # behind the constructors
        )


def warn_of_no_rows(loader: DataLoader[Any], chosen: ChosenRows | None) -> None:
    """Warn of an option `device_cache` by which no rows stay on the device."""
    size: int | str = getattr(loader, "device_cache", 0)
    if not size or chosen is None or chosen.held.num_rows:
        return
    widths = sorted({width for width in chosen.tables.widths.values() if width})
    if not widths:
        why = "no attribute of nodes in these batches is stored in pages; leave it out"
    elif size != "auto":
        why = f"a row takes {' or '.join(map(str, widths))} bytes; raise it, or leave it out"
    else:
        return
    warnings.warn(
        f"device_cache={size!r} of {type(loader).__name__} keeps nothing on the device: {why}",
        UserWarning,
        stacklevel=5,  # behind the constructors
    )


def warn_of_narrow_edges(schema: Schema) -> None:
    """Warn of an `edge_index` that some layers of PyG take, and compute wrong gradients with."""
    if schema.index_dtype == "int32":
        warnings.warn(
            "edge_index of these batches is of int32, as the store was converted with index_dtype="
            '"int32": layers that gather with it, such as GATConv, have wrong gradients in some '
            'releases of torch, without an error. Convert with index_dtype="int64", or give layers '
            "batch.edge_index.long()",
            UserWarning,
            stacklevel=5,  # behind the loader's constructor
        )


def warn_of_no_batch(loader: DataLoader[Any], num_seeds: int, num_ranks: int) -> None:
    """Warn of `drop_last=True` where it drops all there is."""
    each = f", one for each of {num_ranks} ranks" if num_ranks > 1 else ""
    warnings.warn(
        f"drop_last=True of {type(loader).__name__} leaves no batch of "
        f"{format_count(num_seeds, 'seed')}: a batch has {loader.batch_size}{each}; "
        "choose smaller batches, or drop_last=False",
        UserWarning,
        stacklevel=6,  # behind the constructors
    )


def displayed(wanted: bool | None, shard: RankShard) -> WaitProgress:
    """Return the display of a loader's progress, if there is one."""
    if wanted is None:
        is_first = get_worker_info() is None and shard.rank == 0
        wanted = is_first and os.environ.get("RANK", "0") == "0" and is_terminal(sys.stderr)
    return WaitProgress(open_progress if wanted else None)


def forget_records_of_bases(loader: DataLoader[Any]) -> None:
    """Forget the arguments of a base, such as torch's, that Lightning would make a loader with."""
    record = vars(loader)
    record.pop("__pl_attrs_record", None)
    arguments, keywords = record.get("__pl_saved_args", ()), record.get("__pl_saved_kwargs", {})
    try:
        inspect.signature(type(loader)).bind(*arguments, **keywords)
    except TypeError:
        for name in [name for name in record if name.startswith("__pl_saved_")]:
            del record[name]


def is_called_by_lightning() -> bool:
    """Return whether Lightning called, whose states after an epoch's last batch are the next's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("gnnstore."):
        frame = frame.f_back
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in ("lightning", "pytorch_lightning")


EDGE_FORMATS = ("coo", "csr")


@dataclass(frozen=True)
class CsrEdges:
    """How batches show edges with `edge_format="csr"`."""

    value: str | None = None  # the edge attribute that the values are

    @classmethod
    def from_options(
        cls, schema: Schema, edge_format: str, adj_value: str | None, subgraph_type: str
    ) -> CsrEdges | None:
        """Check the options `edge_format` and `adj_value`; None for "coo"."""
        check_choice("edge_format", edge_format, EDGE_FORMATS)
        is_typed = not schema.is_homogeneous
        if edge_format == "csr" and is_typed and subgraph_type == "bidirectional":
            raise UsageError(
                'edge_format="csr" and subgraph_type="bidirectional": edges of a type that get '
                "edges of its reverse type are not sorted by target; make the loader with "
                'edge_format="coo", or choose another subgraph_type'
            )
        if adj_value is None:
            return None if edge_format == "coo" else cls()
        if edge_format == "coo":
            raise UsageError(
                f'adj_value={adj_value!r}: only a matrix has values; give edge_format="csr", or '
                "leave the option out"
            )
        with_it = [edge for edge in schema.edge_types if adj_value in edge.attributes]
        if not with_it:
            names = {name for edge in schema.edge_types for name in edge.attributes}
            known = ", ".join(sorted(names)) or "none"
            raise NotFoundError(
                f"adj_value={adj_value!r}: edges have no attribute of this name; they have: {known}"
            )
        for edge in with_it:
            spec = edge.attributes[adj_value]
            if spec.shape[1:] not in ((), (1,)) or spec.dtype.startswith("complex"):
                where = f" of {edge.type}" if is_typed else ""
                raise UsageError(
                    f"adj_value={adj_value!r}: a value of the matrix is one number, and this "
                    f"attribute{where} has {spec.dtype} of shape {list(spec.shape[1:])}; choose "
                    "another, or leave it out"
                )
        return cls(adj_value)

    def take_values(self, values: dict[str, Any]) -> Tensor | None:
        """Take the attribute out of a batch that is the values of its matrix."""
        if self.value is None:
            return None
        if self.value not in values:
            raise UsageError(
                f"adj_value={self.value!r}: the sampler output has no edge, so edges have no "
                "attributes; return it with edge, or leave the option out"
            )
        weights: Tensor = values.pop(self.value).reshape(-1).float()
        return weights
