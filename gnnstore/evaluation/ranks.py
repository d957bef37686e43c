"""Ranks of true edges among all nodes of a table that need not fit in memory, or among negatives.

A rank is 1 + ½ (#{others above} + #{others above or equal}): ties count half, so that a constant
model over K negatives ranks 1 + K/2. OGB (ogbl-citation2, ogbl-wikikg2) and TGB define it this way:
`mrr(ranks_among(positive, negative))` and `hits_at` are their MRR and hits@K. OGB's hits@K of
ogbl-collab, ppa and ddi is defined differently: `ogb_hits_at`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnnstore.budget.ledger import Ledger, Reservation
from gnnstore.budget.limits import MemoryBudget
from gnnstore.errors import InputError, NotFoundError, UsageError, check_choice, limits_named
from gnnstore.evaluation.answers import (
    BYTES_PER_LISTED_EDGE,
    PIECE_BYTES,
    Answers,
    KnownEdges,
    Queries,
)
from gnnstore.graph.arrays import EdgeSplit
from gnnstore.graph.store import GraphStore
from gnnstore.seeds.nodes import check_range
from gnnstore.threads import ordered_map

# The end that is replaced, by the option; the rows of a result in this order.
_SIDES = {"src": ("src",), "dst": ("dst",), "both": ("src", "dst")}

# Rows are read in blocks of about this many bytes, which makes the reads of any disk large.
_BLOCK_BYTES = 4 << 20
# Scores in memory at once, each with its comparisons, and candidates per call.
_SCORES, _BYTES_PER_SCORE, _LEAST_CANDIDATES = 1 << 22, 20, 16
# Rows and scores each take at most one such part of the budget.
_SHARE = 4
# Ids, orders and counts of a query.
_BYTES_PER_QUERY = 160
# Queries with targets that are scored in one call.
_OWN = 64

_QUERIES = "queries ranked together"


class LinkQueries(NamedTuple):
    """The queries of one call of a score function, as int64 tensors [q].

    Attributes
    ----------
    source, target : Tensor
        Ends of the true edges, one of which is asked for.
    relation : Tensor or None
        Relations, if the queries have them.
    side : "src" or "dst"
        The end that candidates replace.
    """

    source: Tensor
    target: Tensor
    relation: Tensor | None
    side: str


ScoreBlock = Callable[[Tensor, Tensor, LinkQueries], Tensor]


@torch.no_grad()
@limits_named("rank edges")
def link_ranks(
    score_block: ScoreBlock,
    queries: Any,
    table: Any,
    *,
    side: str = "dst",
    filter: Any = (),  # noqa: A002 - filtered ranks
    relation: str | None = None,
    memory: int | str | None = None,
) -> Tensor:
    """Rank the true end of each edge among all nodes: 1 is the best.

    A rank is 1 + ½ (#{others above} + #{others above or equal}). The table is read in order, once
    for each block of queries that fits the budget: ⌈Q / queries in a block⌉ reads of the table, and
    reads of the rows of the queries' own ends.

    Parameters
    ----------
    score_block : callable
        Called with the rows [q, ...] of the ends that are known, the rows [n, ...] of candidates
        for the other, and `LinkQueries`; returns scores [q, n], higher for likelier edges. For a
        dot product: `lambda known, rows, queries: known @ rows.T`.
    queries : edge split, pair or triple of arrays [Q], or array [2, Q]
        Sources and targets of true edges; or sources, relations and targets.
    table : Tensor, EmbeddingTable or ndarray
        A row for each of the N nodes: embeddings as `gnnstore.inference` writes them, an attribute
        of a store (`store.features`), a mapping, or a tensor; or embeddings that are learned, best
        in memory or as `export` writes them.
    side : "dst", "src" or "both"
        The end that is asked for.
    filter : GraphStore, edge split or arrays, or a sequence of such
        Known edges: other true answers than the edge's own end do not count as candidates. To be
        filtered as is usual, these are the edges of training, validation and test. A store's are
        read from its files: with "dst" and "both", once in order for each block of queries.
    relation : str, optional
        The attribute of edges in `filter`, and of queries that are an edge split, that holds the
        relation; another relation's edges are not answers.
    memory : int or str, optional
        Budget, as "4GB"; by default what is available. From the memory of `score_block`, only its
        result and rows as wide as its first argument are counted.

    Returns
    -------
    Tensor of float64 [Q]
        For "both" [2, Q]: of the sources, then of the targets.

    Raises
    ------
    UsageError, InputError
        If options or shapes do not fit, an id is not a row of the table, or a score no number.
    BudgetError
        If memory does not suffice for a single query; the message has the missing bytes.

    Examples
    --------
    >>> embeddings = gnnstore.inference(model, store, "embeddings")         # doctest: +SKIP
    >>> ranks = gnnstore.link_ranks(lambda known, rows, queries: known @ rows.T,
    ...                             store.edge_splits["test"], embeddings,
    ...                             filter=[store, *store.edge_splits.values()])  # doctest: +SKIP
    >>> gnnstore.evaluation.mrr(ranks)                                      # doctest: +SKIP
    """
    check_choice("side", side, _SIDES)
    rows = _Table(table)
    asked = _edges(queries, relation, rows.num_rows, "queries")
    if not len(asked):
        raise UsageError("queries has no edges; give at least one to rank")
    edges = [_known(each, relation, rows.num_rows) for each in _filters(filter)]
    if asked.relations is not None and any(
        (each.relations if isinstance(each, Queries) else relation) is None for each in edges
    ):
        raise UsageError(
            "queries have relations, and the relations of edges in filter are unknown; name the "
            "attribute that holds them (relation=), or give (sources, relations, targets)"
        )
    num_together, *sizes = _plan(rows, len(asked), edges, MemoryBudget.of(memory))
    known = [
        KnownEdges.of_list(each)
        if isinstance(each, Queries)
        else KnownEdges.of_store(each, relation)
        for each in edges
    ]
    found = []
    for first in range(0, len(asked), num_together):
        block = asked[first : first + num_together]
        ends = {"src": rows[block.sources], "dst": rows[block.targets]}
        answers = [Answers(each, block) for each in known]
        sides = [_Side(score_block, block, ends, replaced, answers) for replaced in _SIDES[side]]
        found.append(_pass(sides, rows, *sizes))
    ranks = torch.cat(found, dim=1)
    return ranks if side == "both" else ranks[0]


class _Table:
    """Rows by node: of a store, an array, a mapping or a tensor."""

    def __init__(self, table: Any) -> None:
        self._table = table
        shape = tuple(getattr(table, "shape", ()))
        if len(shape) < 2:
            raise UsageError(
                f"table is a {type(table).__name__} of shape {list(shape)}; expected a row for "
                "each node, [N, ...]: an attribute of a store, an array or a tensor"
            )
        self.num_rows: int = shape[0]
        self.row_bytes: int = max(1, math.prod(shape[1:]) * table.dtype.itemsize)  # in memory

    def __getitem__(self, rows: Any) -> Tensor:
        """Return the rows of a slice, or of an array of ids, in a few large reads each."""
        if isinstance(self._table, Tensor):
            return self._table[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
        found = self._table[rows]
        return found if isinstance(found, Tensor) else torch.from_numpy(np.array(found))


def _plan(
    rows: _Table, num_queries: int, known: Sequence[GraphStore | Queries], memory: MemoryBudget
) -> tuple[int, int, int]:
    """Return the most queries, rows, and candidates of each query that fit at once."""
    listed = sum(len(edges) for edges in known if isinstance(edges, Queries))
    # The rows of both ends, and as much again for the score function.
    each = 3 * rows.row_bytes + _LEAST_CANDIDATES * _BYTES_PER_SCORE + _BYTES_PER_QUERY
    for part in (memory.num_bytes // _SHARE, 0):  # the smallest blocks say what is missing
        most_rows = min(rows.num_rows, _BLOCK_BYTES // rows.row_bytes, part // rows.row_bytes)
        block_rows, scores = max(1, most_rows), max(1, min(_SCORES, part // _BYTES_PER_SCORE))
        fixed = (
            Reservation("rows of the table", 2 * block_rows * rows.row_bytes),  # and read ahead
            Reservation("scores", scores * _BYTES_PER_SCORE),
            Reservation("edges to filter by", PIECE_BYTES * bool(known)),
            Reservation("lists of edges to filter by", listed * BYTES_PER_LISTED_EDGE),
            Reservation("queries", per={_QUERIES: each}),
        )
        ledger = Ledger(memory.num_bytes, fixed, "ranking one query", memory.source)
        if ledger.left({_QUERIES: 1}) >= 0:
            break
    ledger.check({_QUERIES: 1}, "rank among given negatives (gnnstore.evaluation.ranks_among)")
    most = ledger.largest(_QUERIES, most=num_queries)
    blocks = -(-num_queries // most)
    together = -(-num_queries // blocks)
    return together, block_rows, max(_LEAST_CANDIDATES, scores // together)


def _pass(sides: Sequence[_Side], rows: _Table, block_rows: int, step: int) -> Tensor:
    """Return the ranks of one block of queries, [sides, q], in one pass over the table."""
    read_ahead = ordered_map(
        lambda first: (first, rows[first : min(first + block_rows, rows.num_rows)]),
        range(0, rows.num_rows, block_rows),
        num_threads=1,
        lookahead=lambda: 2,  # one block is compared while another is read
        describe="while reading block {} of the table".format,
    )
    with closing(read_ahead) as blocks:
        for first, block in blocks:
            for part in range(0, len(block), step):
                for side in sides:
                    side.compare(block[part : part + step], first + part)
            del block  # frees it before another block is read
    return torch.stack([side.ranks() for side in sides])


class _Side:
    """Queries whose end on one side is replaced, with the counts of their ranks so far."""

    def __init__(
        self,
        score_block: ScoreBlock,
        asked: Queries,
        ends: dict[str, Tensor],
        replaced: str,
        answers: Sequence[Answers],
    ) -> None:
        self._score_block = score_block
        self._known = ends["dst" if replaced == "src" else "src"]
        self._own = asked.sources if replaced == "src" else asked.targets
        self._answers = [a.sources if replaced == "src" else a.targets for a in answers]
        relations = None if asked.relations is None else torch.as_tensor(asked.relations)
        self._queries = LinkQueries(
            torch.from_numpy(asked.sources), torch.from_numpy(asked.targets), relations, replaced
        )
        # A few at a time: each query's own score is on the diagonal.
        own = [
            self._scores(ends[replaced][part], part).diagonal()
            for part in (slice(i, i + _OWN) for i in range(0, len(asked), _OWN))
        ]
        self._own_scores = torch.cat(own)[:, None]
        self._above = torch.zeros(len(asked), dtype=torch.int64, device=self._own_scores.device)

    def ranks(self) -> Tensor:
        """Return the ranks after all rows: float64 [q]."""
        return (1 + self._above.double() / 2).cpu()

    def compare(self, rows: Tensor, low: int) -> None:
        """Count which of some consecutive rows, from node `low` on, score higher."""
        high = low + len(rows)
        scores = self._scores(rows, slice(None))
        inside = np.flatnonzero((self._own >= low) & (self._own < high))
        # NaN is neither above nor equal.
        self._hide(scores, inside, self._own[inside] - low)
        for answers in self._answers:
            for numbers, nodes in answers(low, high):
                self._hide(scores, numbers, nodes - low)
        self._above += (scores > self._own_scores).sum(dim=1)
        self._above += (scores >= self._own_scores).sum(dim=1)

    def _hide(self, scores: Tensor, numbers: Any, places: Any) -> None:
        index = (torch.from_numpy(each).to(scores.device) for each in (numbers, places))
        scores[tuple(index)] = torch.nan

    def _scores(self, rows: Tensor, part: slice) -> Tensor:
        """Return the scores of candidates for some queries, as a copy."""
        source, target, relation, side = self._queries
        known = self._known[part]
        queries = LinkQueries(
            source[part], target[part], None if relation is None else relation[part], side
        )
        scores = self._score_block(known, rows, queries)
        shape = [len(known), len(rows)]
        if not isinstance(scores, Tensor) or list(scores.shape) != shape:
            found = list(getattr(scores, "shape", ())) or type(scores).__name__
            raise UsageError(
                f"score_block returned {found}; expected scores {shape}, such as known @ rows.T"
            )
        # A copy, in which known answers are hidden: this may be memory of the user's, or a view in
        # which several scores share one place.
        scores = scores.detach().to(scores.dtype if scores.is_floating_point() else torch.float64)
        scores = scores.clone(memory_format=torch.contiguous_format)
        if scores.isnan().any():
            query, place = scores.isnan().nonzero()[0].tolist()
            raise InputError(
                f"score_block returned NaN, which has no rank, for {queries.source[query]} -> "
                f"{queries.target[query]}, candidate {place} of {shape[1]}, side {side!r}"
            )
        return scores


def _filters(values: Any) -> list[Any]:
    """Return the edges to filter by, one or several."""
    whole = (GraphStore, EdgeSplit)
    if isinstance(values, (*whole, Tensor, np.ndarray)) or not isinstance(values, Iterable):
        return [values]
    values = list(values)
    is_one = (
        len(values) in (2, 3)  # sources, (relations) and targets
        and not any(isinstance(each, whole) for each in values)
        and np.ndim(values[0]) == 1
    )
    return [values] if is_one else values


def _known(given: Any, relation: str | None, num_nodes: int) -> GraphStore | Queries:
    """Return the known edges to filter by: a store, which is read in place, or a list."""
    if not isinstance(given, GraphStore):
        return _edges(given, relation, num_nodes, "filter")
    given.schema.refuse_types(given.path, "link_ranks")
    if given.num_nodes != num_nodes:
        raise UsageError(
            f"filter: {given.path} has {given.num_nodes} nodes, and the table {num_nodes} rows; "
            "give stores of the same nodes"
        )
    return given


def _edges(given: Any, relation: str | None, num_nodes: int, name: str) -> Queries:
    """Return the edges of a split, a pair or a triple of arrays, or an array [2, L]."""
    if isinstance(given, EdgeSplit):
        parts: list[Any] = list(given.ends(np.dtype(np.int64)))
        if relation is not None:
            if relation not in given.attributes:
                raise NotFoundError(
                    f"relation={relation!r}: {name} is an edge split with the attributes "
                    f"{', '.join(given.attributes) or 'none'}; name the one that holds relations"
                )
            parts.insert(1, given.attributes[relation].read())
    else:
        parts = list(given) if isinstance(given, Iterable) else []
    arrays = [np.asarray(part.cpu() if isinstance(part, Tensor) else part) for part in parts]
    arrays = [part.reshape(len(part)) if part.shape[1:] == (1,) else part for part in arrays]
    shapes = [list(part.shape) for part in arrays]
    if len(arrays) not in (2, 3) or any(len(s) != 1 or s != shapes[0] for s in shapes):
        raise UsageError(
            f"{name} is a {type(given).__name__} of parts of the shapes {shapes}; expected an edge "
            "split, (sources, targets) or (sources, relations, targets), vectors of one length"
        )
    for ends in (arrays[0], arrays[-1]):
        if ends.size and ends.dtype.kind not in "iu":
            raise InputError(f"{name} has ends of the element type {ends.dtype}; expected node ids")
        check_range(ends, num_nodes, f"{name}: node", "the table", "rows")
    source, target = (ends.astype(np.int64) for ends in (arrays[0], arrays[-1]))
    return Queries(source, target, arrays[1] if len(arrays) == 3 else None)


def ranks_among(positive: Any, negative: Any) -> Tensor:
    """Return the rank of each positive among its own negatives: float64 [Q].

    Parameters
    ----------
    positive : tensor or array [Q]
        Scores of true edges.
    negative : tensor or array [Q, A]
        Scores of the negatives of each; [A] is one list for all.

    Raises
    ------
    UsageError, InputError
        If shapes do not fit, there is nothing to rank, or a score is not a number.
    """
    positive, negative = _both(positive, negative, (1, 2))
    if negative.dim() == 2 and len(negative) != len(positive):
        raise UsageError(
            f"negative has {len(negative)} rows for {len(positive)} positives; give [Q, A] scores, "
            "or one list [A] for all"
        )
    positive = positive[:, None]
    above: Tensor = (negative > positive).sum(dim=1) + (negative >= positive).sum(dim=1)
    return 1 + above.double() / 2


def mrr(ranks: Any) -> float:
    """Return the mean reciprocal rank."""
    return float((1 / _ranks(ranks)).mean())


def mean_rank(ranks: Any) -> float:
    """Return the mean of the ranks."""
    return float(_ranks(ranks).mean())


def hits_at(ranks: Any, k: int) -> float:
    """Return the share of ranks that are at most k."""
    return float((_ranks(ranks) <= _count(k)).double().mean())


def ogb_hits_at(positive: Any, negative: Any, k: int) -> float:
    """Return OGB's hits@K of ogbl-collab, ogbl-ppa and ogbl-ddi.

    It is the share of positives [P] above the k-th best of one list of negatives [M], which all
    positives share; 1.0 if there are fewer than k.
    """
    positive, negative = _both(positive, negative)
    if len(negative) < _count(k):
        return 1.0
    return float((positive > negative.topk(k).values[-1]).double().mean())


def auc(positive: Any, negative: Any) -> float:
    """Return the area under the ROC curve.

    It is the probability that a positive [P] scores above a negative [M], ties counting half.
    """
    positive, negative = _both(positive, negative)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive).double()
    below_or_equal = torch.searchsorted(ordered, positive, right=True).double()
    return float((below + below_or_equal).mean() / (2 * len(ordered)))


def _both(positive: Any, negative: Any, dims: tuple[int, ...] = (1,)) -> tuple[Tensor, Tensor]:
    """Return positives [P], and negatives, in one type."""
    scores = _scores(positive, "positive", (1,)), _scores(negative, "negative", dims)
    if scores[0].dtype != scores[1].dtype:
        return scores[0].double(), scores[1].double()
    return scores


def _scores(values: Any, name: str, dims: tuple[int, ...]) -> Tensor:
    try:
        scores = torch.as_tensor(values).detach()
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{name}: expected scores, real numbers; {error}") from None
    if scores.dim() not in dims or not scores.numel() or scores.is_complex():
        expected = " or ".join("[Q, A]" if dim == 2 else "[Q]" for dim in dims)
        raise InputError(
            f"{name} is {scores.dtype} of the shape {list(scores.shape)}; expected scores, real "
            f"numbers {expected}, at least one"
        )
    if scores.isnan().any():
        place = scores.isnan().nonzero()[0].tolist()
        raise InputError(f"{name}{place} is not a number (NaN), which has no rank")
    return scores if scores.is_floating_point() else scores.double()


def _ranks(values: Any) -> Tensor:
    ranks = torch.as_tensor(values).detach().double()
    if not ranks.numel() or not bool((ranks >= 1).all()):
        raise UsageError("expected ranks, at least one, and none below 1; got none, or scores")
    return ranks


def _count(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UsageError(f"k={k!r}: expected a whole number, at least 1")
    return k
