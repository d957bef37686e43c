"""`NeighborLoader`: PyG's loader of the same name, over a store on disk.

Most users meet only this class, so it keeps PyG's signature, batches and habits, and only finds the
nodes that its options name (`pipeline.seeds`). The rest is as in any loader that samples from a
store (`sampled`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.sampler import NodeSamplerInput, NumNeighbors, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from gnnstore.errors import UsageError, limits_named
from gnnstore.graph.decoding import Decode
from gnnstore.graph.store import GraphStore
from gnnstore.loaders.options import LoaderOptions
from gnnstore.loaders.sampled import SampledLoader, StoreSampler
from gnnstore.partitions.policy import PartitionPolicy, ResidentTable
from gnnstore.seeds.nodes import InputNodes, in_unit_of_store, resolve_input_nodes
from gnnstore.strategies.loader_spec import EdgeIds


class NeighborLoader(SampledLoader, PygNeighborLoader):  # type: ignore[misc]
    """Mini-batches of sampled neighbourhoods, as PyG's `Data` or `HeteroData`.

    A drop-in for `torch_geometric.loader.NeighborLoader`: the same
    parameters in the same order, the same batches. Batches are prepared ahead by threads;
    no process is started. Batch k of epoch e depends on the store, the input nodes, the
    sampling options, the seed, e and k, and on nothing else: not on threads, strategy or
    machine.

    Parameters
    ----------
    data : GraphStore, str or Path
        An open store, or the path of one. PyG's pair (feature store, graph store) is
        accepted where both are the same `GraphStore`.
    num_neighbors : list of int, dict by edge type, or NumNeighbors
        Fan-out per hop, for each edge type that leads to a node; -1 takes all neighbours.
    input_nodes : None, str, tensor, array or sequence, optional
        Seed nodes: all, the name of a split ("train", "valid", "test") or of a mask among the
        node attributes ("train_mask"), a mask [N], or node ids. If nodes have types:
        ("paper", any of these), "paper" for all papers, or a dict of several types, whose seeds
        are mixed.
    input_time : tensor or array of int64 or datetime64, optional
        Time of each input node, in place of its own: in the unit of the attribute, which
        datetime64 is rounded down to.
    replace : bool
        Sample neighbours with replacement.
    subgraph_type : str or SubgraphType
        "directional", "bidirectional" or "induced".
    disjoint : bool
        One subgraph per seed; batches get the vector `batch`.
    temporal_strategy : "uniform" or "last"
        With `time_attr`: choose any of the edges that a seed may see, or the latest.
    time_attr : str, optional
        The attribute, of nodes or of edges, with their times: a subgraph has nothing that is later
        than its seed, at any hop. Needs an order by time in the store (`gnnstore convert
        --time-attr`, `gnnstore add-order`). Implies `disjoint`.
    weight_attr : str, optional
        The attribute of edges in proportion to which neighbours are chosen. Needs sums of weights
        in the store (`gnnstore convert --weight-attr`, `gnnstore add-order`).
    transform, transform_sampler_output : callable, optional
        Called in the consumer's thread, in the order of the batches, so that random numbers
        they draw are reproducible.
    is_sorted : bool
        PyG's; a store's columns always are.
    filter_per_worker : bool, optional
        Whether `collate_fn` returns finished batches (default) or sampler output; for
        PyG's `ZipLoader`.
    neighbor_sampler
        PyG's; refused, since batches are prepared ahead with the store's own sampler.
    directed : bool
        PyG's deprecated name of `subgraph_type="induced"` (when False).
    time_window : int, optional
        With `time_attr`: edges of (t - time_window, t] only, t being the time of their seed.
    strategy : str
        How attributes are read. "memory" loads everything into memory; "mmap" maps the files.
        "static" reads rows from disk, except for a fixed set of cached rows, by frequency or as
        `cache` names; "static-degree" and "static-frequency" are the same with `cache` in the name,
        and "direct" without a cache. "belady" samples ahead and caches the rows that are needed
        again soonest; "packed" also gathers the rows that this cache misses ahead, in one pass over
        the table. "auto" is "memory" if everything fits, else the strategy that is predicted to be
        fastest within `memory` and `disk`, for which the disk is measured once.
    memory : int or str, optional
        Limit for everything that the loader holds, such as "8GB", or "10%" of what the store's
        topology and attributes take in memory. "auto": three quarters of the free memory of the
        machine or its cgroup; by default all of its free memory.
    seed : int, optional
        Key of sampling and shuffling. By default drawn at the first use from `generator`
        or torch's default generator, so that `torch.manual_seed` reproduces a run.
    num_threads : int, optional
        Threads that prepare batches; by default `num_workers` if given, else one per usable
        core, and one more if rows are read from disk. 0 prepares in the consumer's thread.
    prefetch_batches : int, optional
        The most batches prepared ahead; by default two per thread, or `prefetch_factor` with
        `num_workers`.
    topology : "auto", "memory", "mmap" or "disk"
        Where the graph's topology lies: in memory; mapped; or on disk, with `indptr` and a
        cache of in-neighbours in memory. "auto": in memory if it fits, else mapped with
        strategy "mmap" and on disk with the others, or mapped if `indptr` does not fit either.
    io_engine : "io_uring", "pread" or "mmap", optional
        The engine that reads rows from disk; by default from the environment variable
        GNNSTORE_IO_ENGINE, else the first that works.
    cache : "degree" or "frequency", optional
        Which rows a fixed cache holds: rows of the nodes with the highest out-degree, or (the
        default of "static") of the nodes that most sampled batches need. With "direct" it
        means "static"; with "packed", these rows stay cached and all others are packed (as in
        DiskGNN).
    cache_bytes : int or str, optional
        Memory for the cache; by default what `memory` leaves, or half of what is available.
    superbatch : int or "auto", optional
        Number of batches that are sampled and planned together; by default an epoch of up to
        1,024, two or four epochs if rows are packed and the tables are large, or as many as
        memory or disk have room for. Two superbatches exist at a time.
    spill_dir : str or Path, optional
        Directory for packed rows, and for subgraphs that do not fit in memory, while they are
        needed; by default the store's.
    disk : int or str, optional
        Limit for what "packed" and "belady" keep in `spill_dir`; by default half of the free space.
    packed : str or Path, optional
        Packed epochs of `gnnstore pack` to read, by their name in the store or by their path.
    rank, world_size : int, optional
        For one of several processes that train together: this one takes every `world_size`-th
        batch of the epoch of a single process, beginning with batch number `rank`. All
        processes take equally many: if batches do not suffice for all at the end, the first
        ones of the epoch are repeated, or the last ones left out if `drop_last` is set. Needs
        `seed`, the same in all processes.
    local_world_size : int, optional
        Number of these processes on this machine, which share one copy of what they load whole
        (topology, tables in memory, fixed caches): each counts its share in `memory`. By default
        LOCAL_WORLD_SIZE of the environment, as torchrun sets it, else 1. Later loaders on the same
        store object share too.
    seeds_of : str or Path, optional
        An assignment of the input nodes to K parts (`gnnstore assign`), by its name in the store or
        its path, which changes batches: batch n of an epoch has seeds of part n mod K. With as many
        ranks as parts, or a divisor or a multiple of their number, a rank needs fewer rows.
    input_id : tensor of int64, optional
        The value of `batch.input_id` for each input node; a dict if `input_nodes` is one.
    custom_cls : type, optional
        Class of the batches, derived from `Data`, or from `HeteroData` if nodes have types.
    attributes : sequence of str, optional
        Names of the attributes of nodes and edges that batches have; no others are read. By default
        all. `attributes=["y"]` reads no features; with `partitions`, which have all attributes of
        their nodes, they are read and left out.
    edge_format : "coo" or "csr"
        Edges of the batches: `edge_index`, or `adj_t`, a `gnnstore.nn.AdjT`, which layers of PyG
        take in its place, and some in one fused product. Edges of each type have their own.
        Types with names have no "csr" with `subgraph_type="bidirectional"`.
    adj_value : str, optional
        Name of the edge attribute, one number an edge, that the values of `adj_t` are; batches do
        not have it under its name then. Edge types without the attribute have no values.
    edge_ids : "input", "store" or None
        What `e_id` of batches is. "input": the place of each edge in the input, as in PyG, which
        takes memory or reads (`stats().reason` has the bytes). "store": its position in the store,
        of which `store.original_edge_ids` has the place in the input. None: batches have no `e_id`.
        In a store that is reordered or split, both are positions.
    decode : "opened", "input", "float16", "bfloat16", "float32", None or a dict of these
        The types of node attributes of int8 whose columns have scales, as in `gnnstore.open`;
        "opened": as the store was opened.
    device : str or torch.device, optional
        Where the tensors of batches are, such as "cuda" or "cuda:1", for NVIDIA and AMD, or "xpu",
        for Intel: copied while the batches before are trained on, and ready on the current stream
        when a batch comes. `transform` has them there. Without a number it is torch's current
        device when the first iteration begins. None, or "cpu": in host memory, which alone
        `memory` counts.
    device_cache : int or str
        Memory of `device` for rows that stay there, such as "2GB": of the nodes that most sampled
        batches need, or as `cache` names them, of all types together. They are neither cached in
        host memory nor read, nor copied again. Batches stay as they are. Loaders of a store object
        share them; with a device "cpu" they are part of `memory`. "auto": what the first step of
        training leaves free, but for a GiB.
    reorder : int, optional
        With `device`: batches of a window. Rows that the batch before has had are used again there,
        and not copied to it anew. 1: batches come in their order. From 2 on, strategies that sample
        ahead also put the batches of each window in an order in which neighbours share rows
        (FastGL): a batch keeps its content and comes in another place, so with `shuffle=False`
        predictions do not come in the order of the seeds, but with the batch's `input_id`. The
        work of ordering grows with the square of a window; 16 to 64 batches are useful.
    partitions : PartitionPolicy, optional
        Hold some partitions of the store in memory at a time (`gnnstore partition`), and sample
        from these alone, which changes batches; kind "dispersed" or "sequential", though
        "two-level" works too. Each input node is trained once an epoch. `len(loader)` is the
        length of the next epoch.
    tables : sequence of EmbeddingTable
        Tables whose partitions are swapped along with the loader's; `commit` of a table
        records the position of the loader.
    progress : bool, optional
        Whether to show a progress bar on stderr when the caller waits longer than two seconds,
        as for sampling ahead of the first batch. None: on a terminal, by the first of several
        processes; never in worker processes.
    **kwargs
        As for `torch.utils.data.DataLoader`: `batch_size`, `shuffle`, `sampler`,
        `batch_sampler`, `drop_last`, `num_workers` (threads here), `pin_memory`,
        `generator`, `timeout` and others. Samplers give positions in `input_nodes` and run
        in the consumer's thread. `persistent_workers`, which torch takes with `num_workers`
        only, and `in_order` change nothing.

    Attributes
    ----------
    epoch : int
        Number of the epoch that the next iteration will be; counts up by itself.

    Raises
    ------
    UsageError
        If options contradict one another or are not supported, or an engine is forced that
        is not available, or torch has no such device.
    ResourceError
        While iterating: if memory of the device does not suffice for a batch, or for the rows that
        are to stay there.
    InputError
        If a seed is not a node of the graph.
    BudgetError
        If `memory` is too small; the message has the least bytes to raise it by. If rows are read
        from disk, it must also hold two batches, whose size is estimated by sampling a few. When
        the first iteration begins: if `device_cache` and batches are more than is free on the
        device.

    Examples
    --------
    >>> loader = NeighborLoader("cora.gnn", [10, 10], "train", batch_size=64, shuffle=True,
    ...                         seed=0)                            # doctest: +SKIP
    >>> for batch in loader:                                       # doctest: +SKIP
    ...     out = model(batch.x, batch.edge_index)[:batch.batch_size]
    """

    @limits_named("prepare to load batches")
    def __init__(  # noqa: PLR0917 - PyG's parameters, in PyG's order
        self,
        data: GraphStore | str | Path | tuple[Any, Any],
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]] | NumNeighbors,
        input_nodes: npt.ArrayLike | tuple[str, Any] | Mapping[str, Any] | None = None,
        input_time: npt.ArrayLike | Mapping[str, Any] | None = None,
        replace: bool = False,
        subgraph_type: str | SubgraphType = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Data], Any] | None = None,
        transform_sampler_output: Callable[[SamplerOutput], SamplerOutput] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: Any = None,
        directed: bool = True,
        *,
        time_window: int | None = None,
        strategy: str = "auto",
        memory: int | str | None = None,
        seed: int | None = None,
        num_threads: int | None = None,
        prefetch_batches: int | None = None,
        topology: str = "auto",
        io_engine: str | None = None,
        cache: str | None = None,
        cache_bytes: int | str | None = None,
        superbatch: int | str | None = None,
        spill_dir: str | Path | None = None,
        disk: int | str | None = None,
        packed: str | Path | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        local_world_size: int | None = None,
        seeds_of: str | Path | None = None,
        input_id: npt.ArrayLike | Mapping[str, Any] | None = None,
        custom_cls: type[Data] | None = None,
        attributes: Sequence[str] | None = None,
        edge_format: str = "coo",
        adj_value: str | None = None,
        edge_ids: EdgeIds | None = "input",
        decode: Decode | Literal["opened"] = "opened",
        device: str | torch.device | None = None,
        device_cache: int | str = 0,
        reorder: int | None = None,
        partitions: PartitionPolicy | None = None,
        tables: Sequence[ResidentTable] = (),
        progress: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if links := [name for name in kwargs if name.startswith(("edge_label", "neg_sampling"))]:
            raise UsageError(
                f"{links[0]} is an option of LinkNeighborLoader, whose batches start from edges; "
                "NeighborLoader's start from nodes"
            )
        options = LoaderOptions.of(locals())
        # Seeds are kept once: the loader's tensors share the memory of the source of seeds.
        named = options.store.schema, options.config.time_attr
        input_time = in_unit_of_store(*named, input_time, "input_time")
        seeds = resolve_input_nodes(options.store, input_nodes, input_id, input_time)
        options.check_times(seeds.parts, input_time)
        if seeds.is_typed:
            options.warn_of_seeds_alone(seeds.parts)
        super().__init__(options, seeds, **_kept(seeds))

    @property
    def input_offsets(self) -> dict[str, tuple[int, int]]:
        """The first position and the end of the seeds of each node type."""
        return dict(self._seeds.offsets)

    @property
    def input_data(self) -> NodeSamplerInput:
        """The seed nodes as PyG's samplers take them; node ids are copied.

        Raises
        ------
        UsageError
            If they are of several node types, which PyG's samplers do not take.
        """
        seeds = self._seeds
        if len(seeds.parts) > 1:
            raise UsageError(
                f"input_data: the seeds are of the node types {list(seeds.parts)}, and PyG's "
                "samplers take one; make a loader for each type"
            )
        ((node_type, own),) = seeds.parts.items()
        nodes, labels, _ = own.at(np.arange(len(own)))
        return NodeSamplerInput(
            input_id=None if own.ids is None else labels.input_id,
            node=torch.from_numpy(nodes),
            time=labels.seed_time,
            input_type=node_type if seeds.is_typed else None,
        )

    @property
    def node_sampler(self) -> StoreSampler:
        """The sampler behind the loader, for loaders of PyG's."""
        self._draw_seed()
        return StoreSampler(self._source.sampler, self.data.schema, self._sources.edge_ids)


def _kept(seeds: InputNodes) -> dict[str, Any]:
    """Return the options in place of the user's arrays, which a loader does not keep."""
    nodes: dict[str, Any] = {}
    ids, times = {}, {}
    for node_type, part in seeds.parts.items():
        is_named = part.name is not None
        nodes[node_type] = None if part.nodes is None else part.name
        if part.nodes is not None and not is_named:
            nodes[node_type] = torch.from_numpy(part.nodes)
        if part.ids is not None and not (is_named and part.ids is part.nodes):
            ids[node_type] = torch.from_numpy(part.ids)
        if part.times is not None:
            times[node_type] = torch.from_numpy(part.times)
    kept: dict[str, Any] = {"input_nodes": nodes, "input_id": ids, "input_time": times}
    if seeds.is_typed:
        return {name: values or None for name, values in kept.items()}
    return {name: next(iter(values.values()), None) for name, values in kept.items()}
