"""`NeighborLoader`: PyG's loader of the same name, over a store on disk.

It is the one class that users meet, so it keeps PyG's signature, batches and habits, and
leaves the work to its neighbours: what the options mean (`options`), which seeds when
(`seeds`), where data lies (`planning`), what is in a batch (`batch`), and preparing batches
ahead (`pipeline`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, SequentialSampler, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from gnnstore.errors import UsageError
from gnnstore.io.resident import residents_of
from gnnstore.loaders.batch import BatchBuilder, PreparedBatch
from gnnstore.loaders.options import refuse_unsupported, sampling_config
from gnnstore.loaders.pipeline import Lookahead, ordered_map
from gnnstore.loaders.seeds import (
    SeededShuffle,
    batches_in_order,
    epoch_permutation,
    resolve_input_nodes,
)
from gnnstore.loaders.stats import LoaderStats, peak_rss_bytes
from gnnstore.planning.placement import StoreSizes, place
from gnnstore.store import GraphStore
from gnnstore.store import open as open_store

if TYPE_CHECKING:
    from torch_geometric.sampler import SamplerOutput

_log = logging.getLogger(__name__)

# Epoch of batches that are asked for by index instead of by iterating; no run counts so far.
_ON_DEMAND_EPOCH = 2**63 - 1


class NeighborLoader(DataLoader[Any]):
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
        Seed nodes: all, a split's name ("train", "valid", "test"), a mask [N], or node ids.
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
    strategy : "auto", "memory" or "mmap"
        Whether attributes lie in memory or are mapped from disk.
    memory : int or str, optional
        Budget for everything the loader holds, such as "8GB".
    seed : int, optional
        Key of sampling and shuffling. By default drawn at the first use from `generator`
        or torch's default generator, so that `torch.manual_seed` reproduces a run.
    num_threads : int, optional
        Preparing threads; by default `num_workers` if given, else one per usable core.
        0 prepares in the consumer's thread.
    prefetch_batches : int, optional
        The most batches prepared ahead; by default `prefetch_factor` (2) per thread.
    topology : "auto", "memory" or "mmap"
        Where the graph's structure lies.
    input_id : tensor of int64, optional
        What `batch.input_id` shows for each input node.
    custom_cls : type, optional
        Class of the batches, derived from `Data`.
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
        If options contradict one another or are not supported.
    InputError
        If a seed is not a node of the graph.
    BudgetError
        If `memory` is too small for what must be held; says by how much.

    Examples
    --------
    >>> loader = NeighborLoader("cora.gnn", [10, 10], "train", batch_size=64, shuffle=True,
    ...                         seed=0)                            # doctest: +SKIP
    >>> for batch in loader:                                       # doctest: +SKIP
    ...     out = model(batch.x, batch.edge_index)[:batch.batch_size]
    """

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
        input_id: Any = None,
        custom_cls: type[Data] | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_unsupported(
            input_time=input_time,
            time_attr=time_attr,
            temporal_strategy=temporal_strategy,
            weight_attr=weight_attr,
            neighbor_sampler=neighbor_sampler,
        )
        self._config = sampling_config(
            num_neighbors,
            replace=replace,
            subgraph_type=subgraph_type,
            disjoint=disjoint,
            directed=directed,
            seed=0 if seed is None else seed,
        )
        # Under the names of the parameters, for PyG's users and for frameworks that build
        # a loader anew from the attributes of another.
        self.data = _as_store(data)
        self.num_neighbors = num_neighbors
        self.input_nodes = input_nodes
        self.input_time = input_time
        self.replace = replace
        self.subgraph_type = subgraph_type
        self.disjoint = disjoint
        self.temporal_strategy = temporal_strategy
        self.time_attr = time_attr
        self.weight_attr = weight_attr
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self.is_sorted = is_sorted
        self.filter_per_worker = True if filter_per_worker is None else filter_per_worker
        self.neighbor_sampler = neighbor_sampler
        self.directed = directed
        self.strategy = strategy
        self.memory = memory
        self.seed = seed
        self.topology = topology
        self.input_id = input_id
        self.custom_cls = custom_cls

        self._seeds = resolve_input_nodes(self.data, input_nodes, input_id)
        kwargs.pop("dataset", None)
        kwargs.pop("collate_fn", None)
        shuffled = bool(kwargs.get("shuffle")) and kwargs.get("sampler") is None
        if shuffled and kwargs.get("batch_sampler") is None:
            kwargs.update(shuffle=False, sampler=SeededShuffle(self._seeds.num_seeds))
        positions: Any = range(self._seeds.num_seeds)
        super().__init__(positions, collate_fn=self.collate_fn, **kwargs)
        self._warn_of_idle_options()

        self.num_threads = _thread_count(num_threads, self.num_workers)
        if prefetch_batches is None:
            prefetch_batches = max(1, self.num_threads) * (self.prefetch_factor or 2)
        if prefetch_batches < 1:
            raise UsageError(f"prefetch_batches={prefetch_batches}: at least 1 is needed")
        self.prefetch_batches = prefetch_batches
        self.epoch = 0
        self._calls = 0
        self._loader_cores: list[Any] | None = None

        self._placement = place(
            StoreSizes.of(self.data.schema),
            strategy=strategy,
            topology=topology,
            memory=memory,
            # Ids, what input_id shows, and the keys and order of a shuffle: 8 bytes each.
            seeds_bytes=8 * self._seeds.num_seeds * (4 if shuffled else 2),
            shared_bytes=residents_of(self.data).resident_bytes,
        )
        _log.info("%s: %s", self.data.path, self._placement.reason)
        self._builder = BatchBuilder(
            self.data, self._config, self._placement, max(1, self.num_threads), custom_cls or Data
        )
        self._stats = LoaderStats(
            strategy=self._placement.strategy,
            topology=self._placement.topology,
            reason=self._placement.reason,
            num_threads=self.num_threads,
            prefetch_batches=prefetch_batches,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    # What users call -------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that the next iteration will be."""
        if epoch < 0:
            raise UsageError(f"epoch={epoch} is negative; epochs count from 0")
        self.epoch = epoch

    def stats(self) -> LoaderStats:
        """Return what the loader has done since it was made; `since` subtracts a reading."""
        return replace_fields(self._stats, peak_rss_bytes=peak_rss_bytes())

    @property
    def input_data(self) -> NodeSamplerInput:
        """The seed nodes as PyG's samplers take them; node ids are copied."""
        seeds, input_id = self._seeds.select(range(self._seeds.num_seeds))
        return NodeSamplerInput(
            input_id=None if self._seeds.ids is None else torch.from_numpy(input_id),
            node=torch.from_numpy(seeds),
        )

    @property
    def node_sampler(self) -> Any:
        """The sampler behind the loader."""
        return self._drawn().sampler

    @contextmanager
    def enable_cpu_affinity(self, loader_cores: list[Any] | None = None) -> Iterator[None]:
        """Bind preparing threads that start within the context to cores.

        Parameters
        ----------
        loader_cores : list of int or list of list of int, optional
            Cores of each thread; by default one of the usable cores each.
        """
        usable = sorted(os.sched_getaffinity(0))
        wanted = [usable[i % len(usable)] for i in range(self.num_threads)]
        cores = wanted if loader_cores is None else list(loader_cores)
        if len(cores) != self.num_threads:
            raise UsageError(
                f"loader_cores names the cores of {len(cores)} threads, but the loader has "
                f"{self.num_threads}"
            )
        self._loader_cores = cores
        try:
            yield
        finally:
            self._loader_cores = None

    # Batches on demand -----------------------------------------------------------------

    def __call__(self, index: Any) -> Any:
        """Return the batch of some positions in `input_nodes`, prepared here and now."""
        output = self.collate_fn(index)
        return output if self.filter_per_worker else self.filter_fn(output)

    def collate_fn(self, index: Any) -> Any:
        """Sample a batch; join it with its attributes too if `filter_per_worker` is set.

        Parameters
        ----------
        index : list or tensor of int [B]
            Positions in `input_nodes`.

        Notes
        -----
        Every call draws anew. In a worker process of another loader (PyG's `ZipLoader`),
        torch's seed of that worker takes the place of the epoch.
        """
        seeds, input_id = self._seeds.select(index)
        worker = get_worker_info()
        epoch = _ON_DEMAND_EPOCH if worker is None else worker.seed
        call, self._calls = self._calls, self._calls + 1
        sampled = self._drawn().sample(seeds, input_id, epoch=epoch, batch=call)
        return self.filter_fn(sampled.output) if self.filter_per_worker else sampled.output

    def filter_fn(self, out: SamplerOutput) -> Any:
        """Join sampler output with its attributes, and apply the transforms."""
        if self.transform_sampler_output is not None:
            out = self.transform_sampler_output(out)
        data, _ = self._drawn().assemble(out)
        return data if self.transform is None else self.transform(data)

    # Iterating -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch names its own class
        """Start the next epoch."""
        return self._get_iterator()

    def _get_iterator(self) -> Generator[Any, None, None]:  # type: ignore[override]
        epoch, self.epoch = self.epoch, self.epoch + 1
        return self._batches(self._drawn(), epoch)

    def _batches(self, builder: BatchBuilder, epoch: int) -> Generator[Any, None, None]:
        def prepare(item: tuple[int, Any]) -> PreparedBatch:
            batch, index = item
            seeds, input_id = self._seeds.select(index)
            prepared = builder.sample(seeds, input_id, epoch=epoch, batch=batch)
            if self.transform_sampler_output is not None:
                return prepared
            prepared = builder.join(prepared)
            if self.pin_memory and self.transform is None:
                prepared = replace_fields(prepared, output=self._pinned(prepared.output))
            return prepared

        lookahead = Lookahead(self.prefetch_batches, self._placement.spare_bytes)
        batches = ordered_map(
            prepare,
            enumerate(self._positions(epoch)),
            num_threads=self.num_threads,
            lookahead=lookahead,
            timeout_seconds=self.timeout or None,
            initializer=self._thread_initializer(),
            describe=lambda k: f"while preparing batch {k} of epoch {epoch}",
        )
        with closing(batches):
            start = time.perf_counter()
            for prepared in batches:
                waited = time.perf_counter() - start
                lookahead.observe(prepared.num_bytes)
                yield self._finish(builder, prepared, waited)
                # Let go of it before the next is waited for: its buffers are recycled.
                del prepared
                start = time.perf_counter()

    def _positions(self, epoch: int) -> Iterator[Any]:
        """Return the positions in `input_nodes` of each batch."""
        order: Any = self.sampler
        if isinstance(order, SeededShuffle):
            order = epoch_permutation(self._seeds.num_seeds, self._config.seed, epoch)
        elif type(order) is SequentialSampler:
            order = range(len(order))
        if self.batch_sampler is None:  # batch_size=None: what the sampler gives are batches
            return iter(order)
        if self.batch_size is None or order is self.sampler:  # the user's own sampler
            return iter(self.batch_sampler)
        return batches_in_order(order, self.batch_size, drop_last=self.drop_last)

    def _finish(self, builder: BatchBuilder, prepared: PreparedBatch, waited: float) -> Any:
        """Do in the consumer's thread what must happen in the order of the batches."""
        start = time.perf_counter()
        gathering = 0.0
        if self.transform_sampler_output is not None:
            output = self.transform_sampler_output(prepared.output)
            prepared = builder.join(replace_fields(prepared, output=output))
            gathering = prepared.seconds_gathering
        batch = prepared.output if self.transform is None else self.transform(prepared.output)
        if self.pin_memory and (self.transform or self.transform_sampler_output):
            batch = self._pinned(batch)
        self._stats = self._stats.plus(
            batches=1,
            nodes=prepared.num_nodes,
            edges=prepared.num_edges,
            seconds_sampling=prepared.seconds_sampling,
            seconds_gathering=prepared.seconds_gathering,
            seconds_transforming=time.perf_counter() - start - gathering,
            seconds_waiting=waited + gathering,
            bytes_gathered=prepared.bytes_gathered,
        )
        return batch

    def _pinned(self, batch: Any) -> Any:
        """Return a copy that a GPU can fetch by itself; without a GPU, the batch."""
        if not torch.cuda.is_available():
            return batch
        return pin_memory(batch, self.pin_memory_device)

    def _drawn(self) -> BatchBuilder:
        """Return the batch builder; the first time, draw the seed that nobody gave."""
        if self.seed is None:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self.seed = int(drawn)
            self._config = replace_fields(self._config, seed=self.seed)
            self._builder = self._builder.with_config(self._config)
        return self._builder

    def _thread_initializer(self) -> Callable[[], None] | None:
        if self._loader_cores is None:
            return None
        cores, lock = list(self._loader_cores), threading.Lock()

        def bind() -> None:
            with lock:
                own = cores.pop(0)
            os.sched_setaffinity(0, own if isinstance(own, (list, tuple, set)) else [own])

        return bind

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch's check counts processes, and none are started."""

    def _warn_of_idle_options(self) -> None:
        idle = [
            name
            for name in ("worker_init_fn", "multiprocessing_context")
            if getattr(self, name) is not None
        ]
        if self.pin_memory and not torch.cuda.is_available():
            warnings.warn(
                "pin_memory=True, but no accelerator is found: batches are not pinned",
                UserWarning,
                stacklevel=3,
            )
        if idle:
            warnings.warn(
                f"{' and '.join(idle)} of NeighborLoader have nothing to apply to: batches are "
                "prepared by threads, not by worker processes",
                UserWarning,
                stacklevel=3,
            )


def _as_store(data: Any) -> GraphStore:
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


def _thread_count(num_threads: int | None, num_workers: int) -> int:
    if num_threads is None:
        return num_workers or len(os.sched_getaffinity(0))
    if num_threads < 0:
        raise UsageError(f"num_threads={num_threads} is negative; 0 prepares without threads")
    if num_workers and num_workers != num_threads:
        raise UsageError(
            f"num_workers={num_workers} and num_threads={num_threads} both name the number of "
            "preparing threads; give one of them"
        )
    return num_threads
