"""A store with edges that are split for link prediction, made from one with unsplit edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gnnstore.converters.edges.columns import SortedEdges
from gnnstore.converters.edges.split import PIECE_EDGES, SplitRule
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.stores.graph import (
    StoreInput,
    copy_graph,
    copy_nodes,
    describe_edges,
    is_made,
    open_copy,
    texts_of,
)
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import (
    ConvertOptions,
    refuse_rules,
    single_options,
    with_orders,
)
from gnnstore.errors import UsageError, limits_named
from gnnstore.progress import Progress

KIND = "split-edges"
_PIECE_BYTES = 2**23  # bytes of attributes in a piece; some copies exist at a time


@limits_named("split the edges")
@single_options
def split_edges(
    store: PathLike,
    output: PathLike,
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    *,
    seed: int = 0,
    num_negatives: int = 0,
    strict: bool = False,
    test_messages: PathLike | None = None,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Split the edges of a store into edges of a new store's graph and edges to predict.

    Shares of the edges become the graph of the new store, "train", by which messages pass, and its
    edge splits "valid" and "test". All copies of an edge, and its reverse, are in the same split.
    In an undirected graph (each edge has its reverse, as often as itself), "valid" and "test" have
    the edges with source <= target. Nodes, their attributes, splits and original ids come from
    the store. `e_id` of batches are the edges' positions in the new store, and
    `GraphStore.original_edge_ids` leads to their ids in the original data, which edge splits have.

    Parameters
    ----------
    store : path-like
        The store.
    fractions : (float, float, float)
        Shares of train, valid and test. The remaining share is in none, and not in the store.
    seed : int
        Which edges fall into which split; in [0, 2**64).
    num_negatives : int
        Fixed negatives of each edge to predict: nodes drawn to replace its target.
    strict : bool
        Draw negatives that are edges of the graph, loops or the edge itself again, up to 16 times.
    test_messages : path-like, optional
        A second store to write, for the evaluation on "test": messages pass by the edges of train
        and of valid.
    output, options, progress
        See `gnnstore.converters`; single options as well, such as `overwrite=True`. The rules for
        edges and features are not for stores.

    Raises
    ------
    UsageError
        If shares or options are out of range, the store has edge splits already, or it is
        heterogeneous.
    InputError
        If a split would be empty.
    NotFoundError, CorruptStoreError, StorageError
        If the store cannot be read.
    """
    options = options or ConvertOptions()
    rule = SplitRule(tuple(fractions), seed, num_negatives=num_negatives, strict_negatives=strict)
    refuse_rules(options, "splitting the edges of a store")
    graph = StoreInput(store, "gnnstore split-edges")
    options = with_orders(options, graph.edges)
    rules = [(output, rule)]
    _check(graph, [output] if test_messages is None else [output, test_messages])
    if test_messages is not None:
        if not all(fractions[1:]):
            raise UsageError("test_messages: needs edges in valid and in test; give them shares")
        own = replace(rule, messages=("train", "valid"))
        # The resumed attempt may have been killed between renaming the two stores.
        if not is_made(graph, test_messages, KIND, _parameters(own), options):
            rules.append((test_messages, own))
    with ExitStack() as stack:
        writers = []  # opened before any work: each refuses an output that it cannot write
        for path, own in rules:
            writer = open_copy(
                graph,
                path,
                _parameters(own),
                kind=KIND,
                options=options,
                progress=progress,
                # At least, if the graph is undirected.
                workload=graph.workload(edge_factor=sum(rule.fractions) / 2),
            )
            writers.append(stack.enter_context(writer))
        graph.check_carried(options.memory_bytes)
        for writer, (_, own) in zip(writers, rules, strict=True):
            _write(writer, graph, own)
        # Reversed, so that the requested store appears last.
        return [writer.commit() for writer in reversed(writers)][-1]


def _parameters(rule: SplitRule) -> dict[str, Any]:
    return {
        "messages": list(rule.messages),
        "fractions": list(rule.fractions),
        "seed": rule.seed,
        "num_negatives": rule.num_negatives,
        "strict": rule.strict_negatives,
    }


def _check(graph: StoreInput, outputs: Iterable[PathLike]) -> None:
    path = graph.reader.path
    if graph.edges.splits:
        raise UsageError(
            f"{path} has edge splits already: {', '.join(graph.edges.splits)}; split the store "
            "that it was made from"
        )
    places = [Path(output).resolve() for output in outputs]
    if len(set(places)) < len(places):
        raise UsageError(f"{places[0]} cannot hold both results; choose two places")


def _write(writer: GraphWriter, graph: StoreInput, rule: SplitRule) -> None:
    describe_edges(writer, graph.edges.attributes)
    writer.split_edges(partial(_sorted_edges, graph), rule, graph.edge_id_dtype)
    copy_nodes(writer, graph)
    copy_graph(writer, graph)
    nodes = graph.nodes
    if nodes.original_id is not None:
        writer.set_original_ids(graph.read(nodes.original_id))
    if (text := nodes.original_name) is not None:
        writer.set_original_names(texts_of(graph, text), graph.num_nodes, text.bytes.num_rows)


def _sorted_edges(graph: StoreInput, *, ends_only: bool = False) -> Iterator[SortedEdges]:
    row_bytes = 0 if ends_only else graph.edge_row_bytes
    for piece in graph.edge_pieces(max(1, min(PIECE_EDGES, _PIECE_BYTES // max(1, row_bytes)))):
        part = piece.first, piece.first + len(piece.sources)
        ids, rows = (None, {}) if ends_only else (graph.edge_ids(*part), graph.edge_rows(*part))
        yield SortedEdges(piece.sources, piece.targets, ids, rows)
