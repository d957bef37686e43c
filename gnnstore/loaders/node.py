"""`NeighborLoader`: PyG's loader of the same name, over a store on disk.

It is the one class that most users meet, so it keeps PyG's signature, batches and habits, and only
says which nodes its options name (`pipeline.seeds`). Everything else is that of any loader that
samples from a store (`sampled`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PygNeighborLoader
from torch_geometric.sampler import NodeSamplerInput

from gnnstore.errors import limits_named
from gnnstore.loaders.options import LoaderOptions
from gnnstore.loaders.pyg_sampler import StoreSampler
from gnnstore.loaders.sampled import SampledLoader
from gnnstore.pipeline.seeds.nodes import resolve_input_nodes

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

    from gnnstore.caching.partitions.policy import PartitionPolicy
    from gnnstore.embeddings.base import ResidentTable


class NeighborLoader(SampledLoader, PygNeighborLoader):  # type: ignore[misc]
    """Mini-batches of sampled neighbourhoods, as `torch_geometric.data.Data`.

    A drop-in for `torch_geometric.loader.NeighborLoader` on a homogeneous graph: the same
    parameters in the same order, the same batches. Batches are prepared ahead by threads;
    no process is started. Batch k of epoch e depends on the store, the input nodes, the
    sampling options, the seed, e and k, and on nothing else: not on threads, strategy or
    machine.

    Parameters
    ----------
    data : GraphStore, str or Path
        An open store, or the path of one. PyG's pair (feature store, graph store) is
        accepted where both are the same `GraphStore`.
    num_neighbors : list of int or NumNeighbors
        Fan-out per hop; -1 takes all neighbours.
    input_nodes : None, str, tensor, array or sequence, optional
        Seed nodes: all, the name of a split ("train", "valid", "test") or of a mask among the
        node attributes ("train_mask"), a mask [N], or node ids.
    input_time, time_attr, temporal_strategy, weight_attr, neighbor_sampler
        PyG's; temporal and weighted sampling and other samplers are refused for now.
    replace : bool
        Sample neighbours with replacement.
    subgraph_type : str or SubgraphType
        "directional", "bidirectional" or "induced".
    disjoint : bool
        One subgraph per seed; batches get the vector `batch`.
    transform, transform_sampler_output : callable, optional
        Called in the consumer's thread, in the order of the batches, so that random numbers
        they draw are reproducible.
    is_sorted : bool
        PyG's; a store's columns always are.
    filter_per_worker : bool, optional
        Whether `collate_fn` returns finished batches (default) or sampler output; for
        PyG's `ZipLoader`.
    directed : bool
        PyG's deprecated name of `subgraph_type="induced"` (when False).
    strategy : "auto", "memory", "mmap", "direct", "static", "belady" or "packed"
        Whether attributes lie in memory, are mapped from disk, are read from disk row by
        row, or are read but for those that a cache holds: the same always ("static"), or
        those needed again soonest, known by sampling ahead ("belady"). "packed": as "belady",
        and what is missed is collected ahead in one pass over the table. "direct" is "static"
        without a cache. "auto" is "memory" where everything fits, else what is predicted
        to be fastest within `memory` and `disk`; the disk is measured for it, once.
    memory : int or str, optional
        Budget for everything the loader holds, such as "8GB"; "auto": three quarters of what
        the machine or its cgroup has free.
    seed : int, optional
        Key of sampling and shuffling. By default drawn at the first use from `generator`
        or torch's default generator, so that `torch.manual_seed` reproduces a run.
    num_threads : int, optional
        Preparing threads; by default `num_workers` if given, else one per usable core, and
        one more where they wait for a disk. 0 prepares in the consumer's thread.
    prefetch_batches : int, optional
        The most batches prepared ahead; by default two per thread, or `prefetch_factor` with
        `num_workers`.
    topology : "auto", "memory", "mmap" or "disk"
        Where the graph's topology lies: in memory; mapped; or on disk but for `indptr` and
        in-neighbours that are needed often. "auto": in memory where it fits, else as attributes.
    io_engine : "io_uring", "pread" or "mmap", optional
        The engine that reads rows from disk; by default that of the environment variable
        GNNSTORE_IO_ENGINE, else the first that works.
    cache : "degree" or "frequency", optional
        Cache rows of the nodes with the highest out-degree, or (the default of "static") of
        those that sampled batches need most often. With "direct" it means "static"; with
        "packed", these stay cached, and all others are packed (as in DiskGNN).
    cache_bytes : int or str, optional
        Memory for the cache; by default what `memory` leaves, or half of what is available.
    superbatch : int or "auto", optional
        Batches that are sampled and planned at a time; by default an epoch of up to 1,024, two
        or four epochs where rows are packed and the tables are large, or what memory or disk
        have room for. Two superbatches are under way at once.
    tmpdir : str or Path, optional
        For subgraphs that the budget has no room for, and packed rows, while they are
        needed; by default the store's directory.
    disk : int or str, optional
        Budget for what "packed" and "belady" keep there; by default half of what is free.
    plan : str or Path, optional
        Read a plan that `gnnstore pack` has made, by its name in the store or as a path.
    rank, world_size : int, optional
        Of one of several processes that train together: it takes every `world_size`-th batch
        of the epoch of a single process, from the batch number `rank` on. All take equally
        many: where the last do not suffice for all, the first of the epoch come once more, or
        the last are left out if `drop_last` is set. Needs `seed`, the same on all.
    input_id : tensor of int64, optional
        What `batch.input_id` shows for each input node.
    custom_cls : type, optional
        Class of the batches, derived from `Data`.
    partitions : PartitionPolicy, optional
        Hold some partitions of the store in memory at a time (`gnnstore partition`), and sample
        from these alone, which changes batches; kind "dispersed" or "sequential". Each input node
        is trained once an epoch. `len(loader)` is that of the epoch to come.
    tables : sequence of EmbeddingTable
        Tables that follow the loader: with `partitions`, rows of the partitions in memory are in
        memory; `commit` of a table notes where the loader stands.
    progress : bool, optional
        Whether what the caller waits for longer than two seconds, such as sampling ahead of the
        first batch, is displayed on stderr. None: on a terminal, and by the first of several
        processes; never in worker processes.
    **kwargs
        Of `torch.utils.data.DataLoader`: `batch_size`, `shuffle`, `sampler`,
        `batch_sampler`, `drop_last`, `num_workers` (threads here), `pin_memory`,
        `generator`, `timeout` and others. Samplers give positions in `input_nodes` and run
        in the consumer's thread. `persistent_workers` and `in_order` change nothing.

    Attributes
    ----------
    epoch : int
        Number of the epoch that the next iteration will be; counts up by itself.

    Raises
    ------
    UsageError
        If options contradict one another or are not supported, or an engine is forced that
        is not available.
    InputError
        If a seed is not a node of the graph.
    BudgetError
        If `memory` is too small for what must be held; says by how much. Where rows are
        read from disk that includes two batches, whose size is found by sampling a few.

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
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
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
        tmpdir: str | Path | None = None,
        disk: int | str | None = None,
        plan: str | Path | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        input_id: Any = None,
        custom_cls: type[Data] | None = None,
        partitions: PartitionPolicy | None = None,
        tables: Sequence[ResidentTable] = (),
        progress: bool | None = None,
        **kwargs: Any,
    ) -> None:
        options = LoaderOptions.of(locals())
        seeds = resolve_input_nodes(options.store, input_nodes, input_id)
        # What was copied is kept once.
        kept: dict[str, Any] = {}
        if not isinstance(input_nodes, str) and seeds.nodes is not None:
            kept["input_nodes"] = torch.from_numpy(seeds.nodes)
            kept["input_id"] = None if seeds.ids is None else torch.from_numpy(seeds.ids)
        super().__init__(options, seeds, **kept)

    @property
    def input_data(self) -> NodeSamplerInput:
        """The seed nodes as PyG's samplers take them; node ids are copied."""
        seeds = self._seeds.select(range(len(self._seeds)))
        return NodeSamplerInput(
            input_id=None if self._seeds.ids is None else seeds.labels.input_id,
            node=torch.from_numpy(seeds.nodes),
        )

    @property
    def node_sampler(self) -> StoreSampler:
        """The sampler behind the loader, for loaders of PyG's."""
        self._draw_seed()
        return StoreSampler(self._source.sampler, self._sources.edge_ids)
