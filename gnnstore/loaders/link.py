"""`LinkNeighborLoader`: PyG's loader of the same name, over a store on disk.

Batches start from edges and the negatives drawn for them (`seeds/links.py`). The rest is as
in any loader that samples (`sampled`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NumNeighbors, SamplerOutput
from torch_geometric.sampler.base import SubgraphType

from gnnstore.errors import (
    NotFoundError,
    UsageError,
    as_plain,
    check_choice,
    did_you_mean,
    limits_named,
    truth,
    whole_number,
)
from gnnstore.formats.store.schema import EdgeType, EdgeTypeSpec, NodeTypeSpec
from gnnstore.graph.arrays import EdgeSplits
from gnnstore.graph.decoding import Decode
from gnnstore.graph.store import GraphStore
from gnnstore.loaders.options import LoaderOptions, call
from gnnstore.loaders.sampled import SampledLoader, StoreSampler
from gnnstore.partitions.policy import PartitionPolicy, ResidentTable
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.sampling.sampled_graph import reverse_of
from gnnstore.seeds.links import (
    GivenEdges,
    Links,
    check_ids_are_dense,
    edge_of,
    resolve_edges,
    resolve_labels,
)
from gnnstore.seeds.negatives import MODES, SIDES, Negatives, NodeTimes, cumulative_weights
from gnnstore.seeds.nodes import in_unit_of_store, whole_numbers
from gnnstore.strategies.loader_spec import EdgeIds


class LinkNeighborLoader(SampledLoader, PygLinkNeighborLoader):  # type: ignore[misc]
    """Mini-batches around seed edges, for link prediction, as PyG's `Data` or `HeteroData`.

    A drop-in for `torch_geometric.loader.LinkNeighborLoader`: the same
    parameters in the same order, the same batches. A batch is the sampled neighbourhood of the
    endpoints of some seed edges and of the negatives drawn for them. Negatives, like everything
    else in a batch, depend only on the store, the options, the seed, the epoch and the number of
    the batch, and not on threads, strategy or machine.

    Parameters
    ----------
    data : GraphStore, str or Path
        An open store, or the path of one. PyG's pair (feature store, graph store) is
        accepted where both are the same `GraphStore`.
    num_neighbors : list of int, dict by edge type, or NumNeighbors
        Fan-out per hop, for each edge type that leads to a node; -1 takes all neighbours; with [],
        a batch has only endpoints.
    edge_label_index : None, str, tensor, array or pair of vectors, optional
        Seed edges, sources and targets [2, L], which need not be edges of the graph. None: all
        edges of the graph, in the order of the store (by target, then source); they are not
        copied, and `input_id` has their ids. A name: an edge split of the store, in its order;
        if the store was made by splitting, "train" is all edges of its graph. If nodes have types,
        an edge type (or its source and target), or a pair of it and any of these. The store may
        have no edges of a type that comes with sources and targets.
    edge_label : tensor or array [L, ...], optional
        Labels by position in `edge_label_index`; without it, by edge id.
    edge_label_time : tensor or array of int64 or datetime64 [L], optional
        Time of each seed edge, as `edge_label`; set if and only if `time_attr` is. If nodes have
        the times, a negative exists at the time of its positive; if edges have them, negatives are
        drawn from all nodes.
    time_attr, temporal_strategy, time_window, weight_attr
        As for `NeighborLoader`.
    neighbor_sampler
        PyG's; refused, since batches are prepared ahead with the store's own sampler.
    replace : bool
        Sample neighbours with replacement.
    subgraph_type : str or SubgraphType
        "directional", "bidirectional" or "induced".
    disjoint : bool
        One subgraph per endpoint; `batch` has the positive to which each node belongs, negative j
        to positive j mod P.
    neg_sampling : NegativeSampling, str or dict, optional
        "binary": pairs of random nodes, `amount` per positive. "triplet": `amount` targets for
        each source. Drawn uniformly, or by `src_weight` and `dst_weight` [N].
    neg_sampling_ratio : float, optional
        PyG's deprecated name of the amount of binary negatives.
    transform, transform_sampler_output : callable, optional
        Called in the consumer's thread, in the order of the batches.
    is_sorted : bool
        PyG's; a store's columns always are.
    filter_per_worker : bool, optional
        Whether `collate_fn` returns finished batches (default) or sampler output.
    directed : bool
        PyG's deprecated name of `subgraph_type="induced"` (when False).
    exclude_edges : "self" or "reverse", optional
        Exclude the seed edges of a batch from its `edge_index` ("self"), and their reverses as
        well ("reverse", for undirected graphs; edges of the reverse edge type), since they give the
        answer away. They are excluded before neighbours are drawn, so that fan-outs stay full.
    reverse_types : dict of edge type to edge type, optional
        With "reverse": the type that has the reverses of a type's edges, which may be the type
        itself. By default the type called "rev_NAME", or the only one that can have them.
    strict_negatives : bool
        Redraw negatives that are edges of the graph, self-loops or the positive itself, up to 16
        times; `stats().negatives_kept` counts those that still are.
    neg_side : "dst", "src" or "both"
        The endpoint of a positive that negatives of triplets replace; with "src" and "both" a
        batch has `src_neg_index`.
    negative_chunks : int, optional
        Number of chunks into which a batch is divided; the triplets of a chunk share `amount`
        negatives, so that a batch of C chunks has at most C x amount negative nodes for each side.
    degree_fraction : float
        Fraction of the negatives of triplets that are endpoints of other positives in the batch (of
        other chunks), and therefore drawn in proportion to degree.
    edge_label_attrs : sequence of str
        Attributes of the graph's edges, or of the split's; the batch has them for its seed
        edges as `label_NAME`.
    input_id : tensor of int64 [L], optional
        The value of `batch.input_id` for each seed edge, by position; for all edges, by edge id.
    custom_cls : type, optional
        Class of the batches, derived from `Data`, or from `HeteroData` if nodes have types.
    attributes : sequence of str, optional
        Names of the attributes of nodes and edges that batches have; no others are read, but that
        `partitions` have all attributes of their nodes. By default all.
    partitions : PartitionPolicy, optional
        Hold some partitions of the store in memory at a time (`gnnstore partition`), which changes
        batches: each edge is trained once an epoch while both endpoints are in memory, and
        neighbours and negatives are drawn from the nodes in memory. Kind "two-level".
    strategy, memory, seed, num_threads, prefetch_batches, topology, io_engine, cache, \
cache_bytes, superbatch, spill_dir, disk, packed, rank, world_size, \
local_world_size, edge_format, adj_value, edge_ids, decode, device, device_cache, reorder, tables, \
progress
        As for `NeighborLoader`.
    **kwargs
        As for `torch.utils.data.DataLoader`: `batch_size`, `shuffle` and others. More than 2^22
        edges are shuffled without an array of their order.

    Raises
    ------
    UsageError
        If options contradict one another or are not supported.
    InputError
        If an endpoint is not a node of the graph, or labels or weights do not fit.
    NotFoundError
        If there is no such split (`NoSplitError`) or attribute.
    BudgetError
        If `memory` is too small; the message has the least bytes to raise it by.

    Examples
    --------
    >>> loader = LinkNeighborLoader("cora.gnn", [10, 10], batch_size=256, shuffle=True, seed=0,
    ...                             neg_sampling="binary",
    ...                             exclude_edges="reverse")       # doctest: +SKIP
    >>> for batch in loader:                                       # doctest: +SKIP
    ...     h = model(batch.x, batch.edge_index)
    ...     source, target = batch.edge_label_index
    ...     score = (h[source] * h[target]).sum(dim=-1)
    ...     loss = binary_cross_entropy_with_logits(score, batch.edge_label)
    """

    @limits_named("prepare to load batches")
    def __init__(  # noqa: PLR0917 - PyG's parameters, in PyG's order
        self,
        data: GraphStore | str | Path | tuple[Any, Any],
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]] | NumNeighbors,
        edge_label_index: npt.ArrayLike | tuple[Any, ...] | None = None,
        edge_label: npt.ArrayLike | None = None,
        edge_label_time: npt.ArrayLike | None = None,
        replace: bool = False,
        subgraph_type: str | SubgraphType = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: NegativeSampling | str | Mapping[str, Any] | None = None,
        neg_sampling_ratio: float | None = None,
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
        exclude_edges: str | None = None,
        reverse_types: Mapping[Any, Any] | None = None,
        strict_negatives: bool = False,
        neg_side: str = "dst",
        negative_chunks: int | None = None,
        degree_fraction: float = 0.0,
        edge_label_attrs: Sequence[str] = (),
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
        input_id: npt.ArrayLike | None = None,
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
        if "seeds_of" in kwargs:
            raise UsageError(
                f"seeds_of={kwargs['seeds_of']!r} has the parts of seed nodes, and "
                "LinkNeighborLoader's batches start from edges; leave it out, or give partitions="
            )
        if "input_nodes" in kwargs:
            raise UsageError(
                "input_nodes is an option of NeighborLoader, whose batches start from nodes; "
                "LinkNeighborLoader's start from edges: edge_label_index"
            )
        ratio = as_plain(neg_sampling_ratio)
        if not isinstance(ratio, int | float | None) or ratio:
            if neg_sampling is not None:
                raise UsageError(
                    f"neg_sampling={neg_sampling!r} and neg_sampling_ratio={neg_sampling_ratio}: "
                    "give one of them"
                )
            neg_sampling = ("binary", neg_sampling_ratio)
        if isinstance(edge_label_attrs, Iterable) and not isinstance(edge_label_attrs, str):
            edge_label_attrs = tuple(edge_label_attrs)
        if (edge_label_time is None) != (time_attr is None):
            names = ("edge_label_time", "time_attr")
            missing, there = names if edge_label_time is None else names[::-1]
            raise UsageError(
                f"'{missing}' is not set while '{there}' is set: temporal sampling needs the "
                "attribute with the times, and the time of each seed edge; give both, or none"
            )
        options = LoaderOptions.of(locals())
        options.store.schema.refuse_part(options.store.path, "LinkNeighborLoader")
        seeds: Links = call(
            resolve_links, {**options.given, "store": options.store, "config": options.config}
        )
        if _shows_answers(seeds, options.config):
            warnings.warn(
                f"edge_label_time of some seed edges is at or after their own {time_attr!r}, so "
                "that batches have them among their edges, and a model sees its answers: give "
                'exclude_edges="self", or "reverse" where the graph has the reverses, too; or an '
                "earlier edge_label_time, such as the time of each edge - 1",
                UserWarning,
                stacklevel=3,  # behind the decorator
            )
        kept: dict[str, Any] = {
            "neg_sampling": NegativeSampling.cast(neg_sampling),
            "neg_sampling_ratio": None,
            "edge_label": seeds.edge_label,
            "input_id": None if seeds.ids is None else torch.from_numpy(seeds.ids),
        }
        if seeds.times is not None:
            kept["edge_label_time"] = torch.from_numpy(seeds.times)
        if seeds.edges is not None and seeds.split is None:
            ends = torch.from_numpy(seeds.edges)
            is_typed = not options.store.schema.is_homogeneous
            kept["edge_label_index"] = (seeds.edge_type, ends) if is_typed else ends
        super().__init__(options, seeds, **kept)

    @property
    def input_data(self) -> EdgeSamplerInput:
        """The seed edges as PyG's samplers take them; they are copied."""
        seeds: Links = self._seeds.over(self.data.topology_at_hand())
        positions = np.arange(len(seeds))
        sources, targets = seeds.ends(positions)
        ids = positions if seeds.edges is not None else seeds.edge_ids(positions)
        is_default = seeds.ids is None and seeds.edges is not None
        shown = ids if seeds.ids is None else seeds.ids[ids]
        return EdgeSamplerInput(
            input_id=None if is_default else torch.from_numpy(shown),
            row=torch.from_numpy(sources),
            col=torch.from_numpy(targets),
            label=None if seeds.edge_label is None else seeds.edge_label[ids],
            time=None if seeds.times is None else torch.from_numpy(seeds.times[ids]),
            input_type=None if self.data.schema.is_homogeneous else seeds.edge_type,
        )

    @property
    def link_sampler(self) -> StoreSampler:
        """The sampler behind the loader, for loaders of PyG's; PyG's own negatives come with it.

        Raises
        ------
        UsageError
            If seed edges are excluded, which PyG's loaders would not pass on.
        """
        if self._seeds.exclude_edges is not None:
            raise UsageError(
                "link_sampler: a loader of PyG's would not exclude seed edges; make the loader "
                "without exclude_edges, or take its own batches"
            )
        self._draw_seed()
        return StoreSampler(self._source.sampler, self.data.schema, self._sources.edge_ids)


def resolve_links(
    store: GraphStore,
    config: SamplingConfig,
    edge_label_index: Any = None,
    *,
    edge_label: Any = None,
    edge_label_time: Any = None,
    input_id: Any = None,
    neg_sampling: Any = None,
    exclude_edges: str | None = None,
    reverse_types: Mapping[Any, Any] | None = None,
    strict_negatives: bool = False,
    neg_side: str = "dst",
    negative_chunks: int | None = None,
    degree_fraction: float = 0.0,
    edge_label_attrs: Sequence[str] = (),
) -> Links:
    """Turn options of `LinkNeighborLoader` into the seed edges of a loader that samples."""
    if not isinstance(edge_label_attrs, tuple):
        raise UsageError(
            f"edge_label_attrs={edge_label_attrs!r}: expected a list of names, such as ['time']"
        )
    given = resolve_edges(store, edge_label_index)
    num_edges = given.edge.num_edges if given.ends is None else given.ends.shape[1]
    negatives = _negatives(
        store,
        given.edge,
        neg_sampling,
        strict=strict_negatives,
        side=neg_side,
        num_chunks=negative_chunks,
        degree_fraction=degree_fraction,
        time_attr=config.time_attr,
    )
    _check_attributes(store, given, edge_label_attrs)
    by_id = (edge_label, input_id, edge_label_time)
    if given.ends is None and any(each is not None for each in by_id):
        check_ids_are_dense(store, given.edge)
    times = None
    if edge_label_time is not None:
        named = store.schema, config.time_attr
        edge_label_time = in_unit_of_store(*named, edge_label_time, "edge_label_time")
        times = whole_numbers(edge_label_time, "edge_label_time", num_edges, "edges")
    return Links(
        store,
        given,
        times=times,
        ids=None if input_id is None else whole_numbers(input_id, "input_id", num_edges, "edges"),
        edge_label=_labels(edge_label, num_edges, negatives),
        negatives=negatives,
        disjoint=config.disjoint,
        attributes=edge_label_attrs,
        exclude_edges=exclude_edges,
        excluded=_exclusion(store, given, exclude_edges, reverse_types, config.subgraph_type),
    )


def _negatives(
    store: GraphStore,
    edge: EdgeTypeSpec,
    neg_sampling: Any,
    *,
    strict: bool,
    side: str,
    num_chunks: int | None,
    degree_fraction: float,
    time_attr: str | None,
) -> Negatives | None:
    strict = truth("strict_negatives", strict)
    given = {
        "strict_negatives": strict,
        "neg_side": side != "dst",
        "negative_chunks": num_chunks is not None,
        "degree_fraction": degree_fraction != 0,
    }
    if neg_sampling is None:
        if unused := [name for name, is_given in given.items() if is_given]:
            raise UsageError(f"{' and '.join(unused)}: no negatives are drawn without neg_sampling")
        return None
    try:
        cast = NegativeSampling.cast(neg_sampling)
        if not math.isfinite(cast.amount):
            raise ValueError(f"the amount is {cast.amount}")
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        is_kind = isinstance(error, ValueError | OverflowError)
        why = " is not a kind of negatives" if not is_kind else f": {error}"
        raise UsageError(
            f"neg_sampling={neg_sampling!r}{why}; expected a mode ({' or '.join(MODES)}), a dict "
            "such as {'mode': 'binary', 'amount': 1}, or a "
            "torch_geometric.sampler.NegativeSampling of a positive amount"
        ) from None
    check_choice("neg_side", side, SIDES)
    if num_chunks is not None and (num_chunks := whole_number("negative_chunks", num_chunks)) < 1:
        raise UsageError(f"negative_chunks={num_chunks}: expected a number of chunks, at least 1")
    share = as_plain(degree_fraction)
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UsageError(f"degree_fraction={degree_fraction!r}: expected a share, 0 to 1")
    degree_fraction = float(share)
    is_binary = cast.is_binary()
    if is_binary and any(given[name] for name in given if name != "strict_negatives"):
        raise UsageError(
            "neg_side, negative_chunks and degree_fraction are only of use to "
            "neg_sampling='triplet'; binary negatives are pairs whose ends are both drawn"
        )
    source, target = (store.schema.node_of(name) for name in (edge.source, edge.target))
    src_times = _times_of(store, source, time_attr)
    return Negatives(
        "binary" if is_binary else "triplet",
        float(cast.amount) if is_binary else int(cast.amount),
        source.num_nodes,
        target.num_nodes,
        cumulative_weights(cast.src_weight, source.num_nodes, "src_weight"),
        cumulative_weights(cast.dst_weight, target.num_nodes, "dst_weight"),
        side,
        num_chunks,
        degree_fraction,
        strict,
        has_loops=source is target,
        src_times=src_times,
        dst_times=src_times if target is source else _times_of(store, target, time_attr),
    )


def _times_of(store: GraphStore, node: NodeTypeSpec, time_attr: str | None) -> NodeTimes | None:
    """Return the times of the nodes that negatives are drawn from; None: they have none."""
    spec = None if time_attr is None else node.attributes.get(time_attr)
    return None if spec is None else NodeTimes(store.reader.read(spec))


def _check_attributes(store: GraphStore, given: GivenEdges, names: Sequence[str]) -> None:
    edge, split = given.edge, given.split
    known = edge.attributes
    if split is not None:
        known = EdgeSplits(store.reader, edge)[split].attributes  # type: ignore[assignment]
    for name in names:
        if name not in known:
            what = f"edge type {edge.type}" if split is None else f"edge split {split!r}"
            raise NotFoundError(
                f"edge_label_attrs: the {what} of {store.path} has no attribute "
                f"{name!r}{did_you_mean(name, known)}; there are: {', '.join(known) or 'none'}",
                path=store.path,
            )


def _exclusion(
    store: GraphStore,
    given: GivenEdges,
    exclude_edges: str | None,
    reverse_types: Mapping[Any, Any] | None,
    subgraph_type: str,
) -> tuple[tuple[EdgeType, bool], ...]:
    """Return the edge types in which seed edges are excluded, and whether as their reverses."""
    schema, own = store.schema, given.edge.type
    if reverse_types is not None and (exclude_edges != "reverse" or schema.is_homogeneous):
        raise UsageError(
            "reverse_types= is of use with exclude_edges='reverse' on a store whose edge types "
            "have names; leave it out"
        )
    if not isinstance(reverse_types, Mapping | None):
        raise UsageError(
            f"reverse_types={reverse_types!r}: expected a dict of edge types, such as "
            "{'follows': 'followed_by'}"
        )
    if exclude_edges is None:
        return ()
    check_choice("exclude_edges", exclude_edges, ("self", "reverse"))
    if own not in store.edge_types:
        raise UsageError(
            f"exclude_edges={exclude_edges!r}: the store has no edges of {own} to leave out; leave "
            "the option out"
        )
    if exclude_edges == "self":
        if subgraph_type == "bidirectional":
            raise UsageError(
                "exclude_edges='self': the reverse of a sampled edge may be a seed edge, and "
                "subgraph_type='bidirectional' adds it; choose exclude_edges='reverse'"
            )
        return ((own, False),)
    if schema.is_homogeneous:
        return ((own, False), (own, True))
    known: dict[EdgeType, EdgeType] = {}
    for pair in (reverse_types or {}).items():
        # On the command line, types are in one word.
        named = (of.split("__") if isinstance(of, str) and "__" in of else of for of in pair)
        forward, backward = (edge_of(schema, each, "reverse_types").type for each in named)
        if (forward[0], forward[2]) != (backward[2], backward[0]):
            raise UsageError(
                f"reverse_types: {backward} is not the reverse of {forward}: it does not lead from "
                f"{forward[2]!r} to {forward[0]!r}"
            )
        known |= {forward: backward, backward: known.get(backward, forward)}
    found = [(own, False), (_reverse_type(own, store.edge_types, known), True)]
    if subgraph_type == "bidirectional":  # adds the reverses of sampled edges, as PyG finds them
        for of, is_reverse in tuple(found):
            if (added := reverse_of(of, store.edge_types)) is not None:
                found.append((added, not is_reverse))
    return tuple(dict.fromkeys(found))


def _reverse_type(
    own: EdgeType, edge_types: Sequence[EdgeType], known: Mapping[EdgeType, EdgeType]
) -> EdgeType:
    """Return the type of the reverses of a type's edges: given, by its name, or the only one."""

    def reverse(of: EdgeType) -> EdgeType | None:
        source, relation, target = of
        names = f"rev_{relation}", relation.removeprefix("rev_")
        named = [(target, name, source) for name in names if name != relation]
        return known.get(of) or next((each for each in named if each in edge_types), None)

    if (found := reverse(own)) is not None:
        return found
    source, _, target = own
    others = [
        each
        for each in edge_types
        if each != own and {each[0], each[2]} == {source, target} and reverse(each) is None
    ]
    backward = [each for each in others if (each[0], each[2]) == (target, source)]
    if source == target and not others:
        return own
    if source != target and len(others) == len(backward) == 1:
        return backward[0]
    if not backward:
        raise UsageError(
            f"exclude_edges='reverse': no edge type is the reverse of {own}; choose "
            "exclude_edges='self'"
        )
    itself = own if source == target else backward[0]
    raise UsageError(
        f"exclude_edges='reverse': which edge type has the reverses of {own} is not known, as "
        f"{', '.join(map(str, others))} join the same node types; name it, as "
        f"reverse_types={{{own}: {itself}}}" + (", if it is its own" if itself == own else "")
    )


# Most seed edges with times that are compared before the first batch.
_COMPARED = 4096


def _shows_answers(links: Links, config: SamplingConfig) -> bool:
    """Whether seed edges, edges of the store, come no later than what batches may show."""
    edge, name, schema = links.given.edge, config.time_attr, links.store.schema
    if links.times is None or name is None or links.exclude_edges is not None:
        return False
    of_nodes = name not in edge.attributes
    specs = schema.node_of(edge.source).attributes if of_nodes else edge.attributes
    if name not in specs or not len(links) or not edge.num_edges:
        return False
    if not any(config.fanouts_of(edge.type)):
        return False
    positions = np.unique(np.linspace(0, len(links) - 1, _COMPARED).astype(np.int64))
    links = links.over(links.store.topology_at_hand())
    ends, given = links.ends(positions), links.times
    assert given is not None  # noqa: S101 - as before
    if links.edges is None:  # all of the store, by their positions in it
        shown, first, last = given[links.edge_ids(positions)], positions, positions + 1
    else:
        shown, (first, last) = given[positions], links.graph.finder.ranges(*ends)
    there = np.flatnonzero(first < last)
    if not there.size:
        return False
    if of_nodes:
        rows, starts = ends[0][there], np.arange(len(there))
    else:  # of copies of an edge the latest, as earlier ones may be shown
        counts = (last - first)[there]
        starts = np.cumsum(counts) - counts
        rows = np.repeat(first[there] - starts, counts) + np.arange(counts.sum())
    times = links.store.attribute_of(specs[name]).tensor(rows).reshape(-1).numpy()
    return bool((shown[there] >= np.maximum.reduceat(times, starts)).any())


def _labels(edge_label: Any, num_edges: int, negatives: Negatives | None) -> torch.Tensor | None:
    labels = resolve_labels(edge_label, num_edges)
    if labels is None or negatives is None:
        return labels
    if negatives.mode == "triplet":
        raise UsageError(
            "edge_label: triplets have no labels; leave it out, and tell positives from negatives "
            "by `src_index`, `dst_pos_index` and `dst_neg_index` of the batch"
        )
    return labels + 1 if labels.numel() and labels.min() == 0 else labels
