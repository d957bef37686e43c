"""A store whose nodes are numbered anew, made from an existing store.

Rows of features lie in pages, and a page is read for any of its rows: where nodes that batches need
are spread evenly over all pages, as most inputs number them, every page is read. Numbered by how
often they are needed, hot rows share pages with hot ones, and cold pages are passed over.

The numbers of N nodes are a permutation in memory, 4 bytes each below 2^31 nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from gnnstore import _core
from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.edges.columns import CARRIED_IDS
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.inputs.source import ArraySource, GeneratedRows, MappedRows
from gnnstore.converters.spill_files import RangeSort, in_order
from gnnstore.converters.stores.graph import (
    ColumnBlock,
    CopiedRows,
    StoreInput,
    copy_graph,
    copy_nodes,
    describe_edges,
    open_copy,
    texts_of,
)
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.node_arrays import MAX_COMPRESSED_BYTES
from gnnstore.converters.writer.options import (
    ConvertOptions,
    refuse_rules,
    single_options,
    with_orders,
)
from gnnstore.errors import UsageError, check_choice, limits_named
from gnnstore.formats.arrays.dtypes import id_dtype
from gnnstore.formats.arrays.spec import AttributeSpec
from gnnstore.formats.store.schema import TextSpec
from gnnstore.progress import Progress
from gnnstore.random_words import hash_pairs

_PIECE_EDGES = 2**20
_TRAINING, _OTHER = 2, 1  # ranks of the nodes of splits
# Label propagation (Raghavan, Albert and Kumara, Physical Review E 76, 2007), as a stream: a node
# takes the community of most of its in-neighbours, block of nodes by block, in the store's order.
# Communities are limited in size (Ugander and Backstrom, WSDM 2013): else most nodes of a graph
# with hubs end up in one.
_ROUNDS = 4
_SAMPLE_DEGREE = 32  # in-neighbours of a node whose communities are counted
_STEP_NODES = 2**14
# Most nodes of a community: this share of all, or this number if that is more. A disk reads pages,
# so that larger ones would gain nothing.
_MAX_SHARE, _MAX_NODES = 1 / 64, 2**10
_MIN_NODES = 64  # least nodes of a community: smaller ones do not fill pages
Order = Literal["degree", "frequency", "community"]
ORDERS: tuple[Order, ...] = get_args(Order)
_PIECE_BYTES = 2**23  # bytes of edge attributes in a piece; some copies exist at a time
# Bytes of a node: its scores, their order and what sorting takes, and a new number; the same by
# community, where ranking these takes the most; and of some pieces.
_NODE_BYTES, _COMMUNITY_BYTES, _PIECES_BYTES = 25, 50, 2**26
# An array is sorted in memory if two copies take at most this share of memory.
_MEMORY_SHARE = 8
_MAX_MEMORY_BYTES = 2**28
# Names that are put in order at a time: as Python's objects they take several times their size.
_TEXT_SHARE, _MAX_TEXT_BYTES = 32, 2**26


def places_by(scores: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the number of each node among all, by descending scores; of equals, by id."""
    num_nodes = len(scores[0])
    places = np.empty(num_nodes, id_dtype(num_nodes))
    # Sorted ascending and stably from the last node to the first, and then numbered from behind.
    order = np.lexsort([own[::-1] for own in reversed(scores)])
    places[::-1][order] = np.arange(num_nodes - 1, -1, -1, dtype=places.dtype)
    return places


def out_degrees(graph: StoreInput, progress: Progress) -> npt.NDArray[np.uint32]:
    """Return the number of in-neighbour lists that contain each node."""
    degrees = np.zeros(graph.num_nodes, np.uint32)
    with progress.phase("count degrees", graph.num_edges, "edges") as phase:
        for piece in graph.edge_pieces(_PIECE_EDGES):
            _core.count_ids(piece.sources, degrees)
            phase.advance(len(piece.sources))
    return degrees


def ranks_at_rest(graph: StoreInput) -> npt.NDArray[np.uint8]:
    """Return the rank of nodes that are never drawn: training nodes first, isolated ones last."""
    ranks = np.zeros(graph.num_nodes, np.uint8)
    for name in graph.nodes.splits:
        ids = graph.split(name)
        ranks[ids] = np.maximum(ranks[ids], _TRAINING if name == "train" else _OTHER)
    ranks *= 2
    first = 0
    for degrees in graph.degree_blocks():
        ranks[first : first + len(degrees)] += degrees > 0
        first += len(degrees)
    return ranks


def find_communities(graph: StoreInput, seed: int, progress: Progress) -> npt.NDArray[Any]:
    """Return the community of each node, [N] of the type of node ids: the id of some node."""
    num_nodes = graph.num_nodes
    labels = np.arange(num_nodes, dtype=id_dtype(num_nodes))
    sizes = np.ones(num_nodes, np.int32)
    limit = max(_MAX_NODES, int(_MAX_SHARE * num_nodes))
    # A step decides on some nodes at once, which must not all rush to one community.
    step = max(1, min(_STEP_NODES, num_nodes // 64))
    with progress.phase("find communities", _ROUNDS * num_nodes, "nodes") as phase:
        for _ in range(_ROUNDS):
            for block in graph.column_blocks(step, _SAMPLE_DEGREE):
                _choose(block, labels, sizes, limit, seed)
                phase.advance(len(block.degrees))
    return labels


def _choose(
    block: ColumnBlock,
    labels: npt.NDArray[Any],
    sizes: npt.NDArray[np.int32],
    limit: int,
    seed: int,
) -> None:
    """Let the nodes of a block choose their communities; `labels` and `sizes` change."""
    if not len(block.sources):
        return
    pairs = np.stack((block.targets - block.first, labels[block.sources]), axis=1)
    keys = pairs[:, 0] * np.int64(len(labels)) + pairs[:, 1]
    keys, votes = np.unique(keys, return_counts=True)
    nodes, wanted = np.divmod(keys, np.int64(len(labels)))
    own = wanted == labels[block.first + nodes]
    has_room = own | (sizes[wanted] < limit)
    nodes, wanted, votes, own = (a[has_room] for a in (nodes, wanted, votes, own))
    if not len(nodes):
        return
    # The community with most votes; of equals the node's own, then one by lot.
    lots = (hash_pairs(seed, wanted, wanted) >> np.uint64(40)).astype(np.int64)
    order = np.lexsort((lots, own, votes, nodes))
    best = order[np.append(np.flatnonzero(np.diff(nodes[order])), len(order) - 1)]
    nodes, wanted = block.first + nodes[best], wanted[best]
    np.subtract.at(sizes, labels[nodes], 1)
    np.add.at(sizes, wanted, 1)
    labels[nodes] = wanted


def rank_communities(
    labels: npt.NDArray[Any], degrees: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Return a rank for each node: higher where the nodes of its community are drawn more often."""
    sizes = np.bincount(labels, minlength=len(labels))
    small = sizes[labels] < _MIN_NODES
    joined = np.where(small, labels[0] if len(labels) else 0, labels)
    drawn = np.bincount(joined, degrees, len(labels))
    counts = np.bincount(joined, minlength=len(labels))
    present = np.flatnonzero(counts)
    ranks = np.zeros(len(labels), np.uint32)
    ranks[present[np.argsort(drawn[present] / counts[present], kind="stable")]] = np.arange(
        len(present), dtype=np.uint32
    )
    return ranks[joined]


@limits_named("reorder")
@single_options
def reorder(
    store: PathLike,
    output: PathLike,
    order: Order = "degree",
    *,
    scores: npt.NDArray[Any] | None = None,
    seed: int = 0,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a store again with its nodes numbered so that rows needed often lie together.

    Node ids change: in the arrays of nodes, in edges, splits and edge splits. `e_id` of batches are
    the edges' positions in the new store. `GraphStore.original_ids` and
    `GraphStore.original_edge_ids` lead from new ids of nodes and edges to their ids in the original
    data, and `GraphStore.ids_of` leads nodes back.

    Parameters
    ----------
    store : path-like
        The store.
    order : "degree", "frequency" or "community"
        "degree": by out-degree, how many lists of in-neighbours a node is in. "frequency": by
        `scores`, then by out-degree. "community": communities whose nodes are drawn most come
        first, and in each the nodes of high out-degree; nodes that are never drawn come last.
        Among nodes that are equal by that, nodes of splits come first, "train" before others, and
        isolated ones last; then the lower id.
    scores : ndarray of unsigned integers [N], optional
        Number of batches that need each node, as `gnnstore reorder --order frequency` samples it.
    seed : int
        With "community": which of communities that are equally good a node joins.
    output, options, progress
        See `gnnstore.converters`; single options as well, such as `overwrite=True`. The rules for
        edges and features are not for stores.

    Raises
    ------
    UsageError
        If options are out of range, or the store is heterogeneous.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read.
    """
    options = options or ConvertOptions()
    refuse_rules(options, "reordering a store")
    parameters: dict[str, Any] = {"order": order}
    if order == "community":
        parameters["seed"] = seed
    graph = StoreInput(store, "gnnstore reorder")
    check_choice("order", order, ORDERS)
    if (order == "frequency") != (scores is not None):
        raise UsageError("scores: go with order='frequency', which needs them; see the how-to")
    if scores is not None:
        if scores.shape != (graph.num_nodes,) or scores.dtype.kind != "u":
            raise UsageError(
                f"scores are {scores.dtype} {list(scores.shape)}, expected unsigned integers "
                f"[{graph.num_nodes}]: one for each node"
            )
        parameters["scores_crc"] = _core.crc32c(np.ascontiguousarray(scores).view(np.uint8))
    options = with_orders(options, graph.edges)
    dtype = None if options.edge_ids is False else graph.edge_id_dtype
    with open_copy(
        graph,
        output,
        parameters,
        kind="reorder",
        options=options,
        edge_ids=False,
        progress=progress,
        workload=graph.workload(id_bytes=0 if dtype is None else dtype.itemsize),
    ) as writer:
        graph.check_carried(options.memory_bytes)
        if dtype is not None:
            writer.carry_edge_ids(dtype)
        describe_edges(writer, graph.edges.attributes)
        places = _find_places(graph, writer, order, scores, seed)
        _write_in_order(graph, writer, places)
        return writer.commit()


def _find_places(
    graph: StoreInput,
    writer: GraphWriter,
    order: Order,
    scores: npt.NDArray[Any] | None,
    seed: int,
) -> npt.NDArray[Any]:
    """Return the new number of each node, and set the writer's memory to the rest."""
    memory = memory_ledger("numbering the nodes", writer.options.memory_bytes)
    is_by_community = order == "community"
    node_bytes = _COMMUNITY_BYTES if is_by_community else _NODE_BYTES
    if scores is not None:
        node_bytes += 2 * scores.itemsize
    node_bytes *= graph.num_nodes
    memory.add(
        Reservation("new numbers and degrees of nodes", node_bytes),
        Reservation("pieces", min(_PIECES_BYTES, memory.limit // 2)),
    ).check(None)
    writer.reserve_memory(id_dtype(graph.num_nodes).itemsize * graph.num_nodes)  # of the result
    writer.expect_edges(graph.num_edges)  # before any work: refused if memory is too small for them
    degrees = out_degrees(graph, writer.progress)
    if is_by_community:
        labels = find_communities(graph, seed, writer.progress)
        ranks = rank_communities(labels, degrees)
    with writer.progress.phase("number nodes", unit="nodes"):
        first: list[npt.NDArray[Any]] = [] if scores is None else [scores]
        if is_by_community:
            first = [degrees > 0, ranks]
        return places_by([*first, degrees, ranks_at_rest(graph)])


def _write_in_order(graph: StoreInput, writer: GraphWriter, places: npt.NDArray[Any]) -> None:
    if not writer.has_edges:
        _add_edges(graph, writer, places)
    writer.finish_edges()
    nodes = graph.nodes
    limit = memory_ledger("reordering", writer.options.memory_bytes).limit
    ordered = partial(
        in_order,
        places=places,
        directory=writer.spill_directory / "rows",
        memory_bytes=writer.options.memory_bytes,
        at_once=min(limit // (2 * _MEMORY_SHARE), _MAX_MEMORY_BYTES),
    )
    copy_nodes(writer, graph, ordered, places)
    _write_edge_splits(graph, writer, places)
    original: ArraySource = GeneratedRows("the ids", (graph.num_nodes,), np.int64, np.arange)
    if nodes.original_id is not None:
        original = CopiedRows(graph, nodes.original_id)
    with ordered(original) as rows:
        is_small = 8 * graph.num_nodes <= MAX_COMPRESSED_BYTES
        writer.set_original_ids(rows.read() if is_small else rows)
    if nodes.original_name is not None:
        text = nodes.original_name
        names = _names_in_order(graph, text, writer, places)
        writer.set_original_names(names, graph.num_nodes, text.bytes.num_rows)
    copy_graph(writer, graph, find_nodes=partial(np.argsort, places))


def _add_edges(graph: StoreInput, writer: GraphWriter, places: npt.NDArray[Any]) -> None:
    step = max(1, min(_PIECE_EDGES, _PIECE_BYTES // max(1, graph.edge_row_bytes)))

    def attributes(first: int, last: int) -> dict[str, npt.NDArray[Any]]:
        found = graph.edge_rows(first, last)
        if writer.options.edge_ids is not False:
            found[CARRIED_IDS] = graph.edge_ids(first, last)
        return found

    with writer.progress.phase("renumber edges", graph.num_edges, "edges") as phase:
        for piece in graph.edge_pieces(step):
            count = len(piece.sources)
            more = attributes(piece.first, piece.first + count)
            writer.add_edges(places[piece.sources], places[piece.targets], more)
            phase.advance(count)
    if not graph.num_edges:  # the attributes' types still have to be known
        none = np.empty(0, np.int64)
        writer.add_edges(none, none, attributes(0, 0))


def _names_in_order(
    graph: StoreInput, text: TextSpec, writer: GraphWriter, places: npt.NDArray[Any]
) -> Iterator[list[bytes]]:
    """Yield the names of nodes in the order of their new numbers, in lists."""
    limit = memory_ledger("reordering", writer.options.memory_bytes).limit
    limit = min(limit // _TEXT_SHARE, _MAX_TEXT_BYTES)
    num_bytes = text.bytes.num_rows + 16 * len(places)
    range_nodes = max(1, int(len(places) * limit / max(1, num_bytes)))
    with closing(RangeSort(writer.spill_directory / "names", "names to put in order")) as files:
        first = 0
        for names in texts_of(graph, text):
            numbers = places[first : first + len(names)].astype(np.int64)
            files.add(numbers // range_nodes, nodes=numbers, names=names)
            first += len(names)
        for own in range(-(-len(places) // range_nodes)):
            names = files.texts(own, "names")
            yield [names[i] for i in np.argsort(files.column(own, "nodes", np.int64)).tolist()]


def _write_edge_splits(graph: StoreInput, writer: GraphWriter, places: npt.NDArray[Any]) -> None:
    def renumbered(spec: AttributeSpec) -> ArraySource:
        rows = CopiedRows(graph, spec)
        return MappedRows(
            rows, lambda ids, _: places[graph.checked_ids(spec, ids)], dtype=places.dtype
        )

    for name, split in graph.edges.splits.items():
        parts: dict[str, Any] = {
            part: renumbered(spec)
            for part in ("source", "target", "source_negatives", "target_negatives")
            if (spec := getattr(split, part)) is not None
        }
        negative_edges = None
        if split.negative_source is not None and split.negative_target is not None:
            negative_edges = renumbered(split.negative_source), renumbered(split.negative_target)
        describe_edges(writer, split.attributes)
        writer.set_edge_split(
            name,
            **parts,
            edge_id=None if split.edge_id is None else CopiedRows(graph, split.edge_id),
            negative_edges=negative_edges,
            attributes={own: CopiedRows(graph, spec) for own, spec in split.attributes.items()},
            where=f"{graph.reader.path}: the edge split {name!r}",
        )
