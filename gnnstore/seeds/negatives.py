"""Draws negatives for batches of edges: pairs or nodes that are (mostly) not connected.

Draws are keyed, not streamed: each depends on (seed, epoch, batch) and on its own place in the
batch, so negatives are the same on any number of threads, under any strategy, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnstore import _core
from gnnstore.errors import InputError
from gnnstore.random_words import keyed, uniform
from gnnstore.sampling.sampled_graph import EdgeFinder
from gnnstore.seeds.base import BatchKey, Int64Array
from gnnstore.units import format_count

MODES = ("binary", "triplet")
SIDES = ("dst", "src", "both")
# Times that a negative is drawn again before one that is an edge is kept.
MAX_REDRAWS = 16

# The sampling kernel's counter is (block, node, hop and tree, batch). No hop has these numbers, so
# negatives never share a draw with a sample.
_STREAMS = {name: 2**64 - 1 - k for k, name in enumerate(("src", "dst", "src ends", "dst ends"))}


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """The times of the nodes of one type, for draws of nodes that exist at a time."""

    times: Int64Array  # int64 [N]

    @cached_property
    def oldest(self) -> int:
        """The node of the least time; of several the one of the lowest id."""
        return int(np.argmin(self.times))

    def are_later(self, nodes: Int64Array, times: Int64Array) -> npt.NDArray[np.bool_]:
        """Return whether nodes are later than times [n]."""
        found: npt.NDArray[np.bool_] = self.times[nodes] > times
        return found

    def existing(
        self, draw: Callable[[int], Int64Array], times: Int64Array, max_redraws: int
    ) -> Int64Array:
        """Return nodes not later than times [n]: drawn by attempt, at last the oldest one."""
        nodes = draw(0)
        for attempt in range(1, max_redraws + 1):
            later = self.are_later(nodes, times)
            if not later.any():
                return nodes
            nodes = np.where(later, draw(attempt), nodes)
        return np.where(self.are_later(nodes, times), self.oldest, nodes)


@dataclass(frozen=True, eq=False)
class Negatives:
    """Options of the negatives of a batch."""

    mode: str  # pairs of nodes, both ends drawn; or nodes in the place of a positive's end
    amount: float  # A, negatives per positive; a whole number for triplets
    # N nodes, from 0 on, are drawn as sources, and as targets.
    num_sources: int
    num_targets: int
    # float64 [N] or None: cumulative sums of the nodes' weights as sources and as targets; None:
    # uniform.
    src_weights: npt.NDArray[np.float64] | None = None
    dst_weights: npt.NDArray[np.float64] | None = None
    side: str = "dst"  # which end of a positive the negatives of triplets replace
    # Chunks of a batch whose positives share A negatives; None: each positive has its own.
    num_chunks: int | None = None
    # Share of the negatives of triplets that are ends of other positives of the batch.
    degree_fraction: float = 0.0
    # Whether negatives that are edges, loops or the positive itself are drawn again, up to
    # `MAX_REDRAWS` times.
    is_strict: bool = False
    # Whether sources and targets are of one type, so that equal ids are a loop.
    has_loops: bool = True
    # Times of the nodes that are drawn as sources, and as targets; None: they exist at any time.
    src_times: NodeTimes | None = None
    dst_times: NodeTimes | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights and of the times."""
        times = {id(t): t.times for t in (self.src_times, self.dst_times) if t is not None}
        arrays = (self.src_weights, self.dst_weights, *times.values())
        return sum(0 if array is None else array.nbytes for array in arrays)

    def fingerprint(self) -> dict[str, Any]:
        """Return the values that draws depend on besides the key, plain and by name."""
        return {
            "neg_sampling": self.mode,
            "amount": self.amount,
            "crc32c of src_weight": _crc(self.src_weights),
            "crc32c of dst_weight": _crc(self.dst_weights),
            "neg_side": self.side,
            "negative_chunks": self.num_chunks,
            "degree_fraction": self.degree_fraction,
            "strict_negatives": self.is_strict,
        }

    def pairs(
        self,
        key: BatchKey,
        num_positives: int,
        finder: EdgeFinder,
        times: Int64Array | None = None,
    ) -> tuple[Int64Array, Int64Array, int]:
        """Return the sources and targets [⌈P·A⌉] of negative pairs, and how many are edges.

        Pair j exists at the time of positive j mod P, if positives have times [P].
        """
        count = math.ceil(num_positives * self.amount)
        limits = None if times is None else np.resize(times, count)

        def draw(attempt: int) -> Int64Array:
            ends = [self._nodes(key, side, attempt, (count,), limits) for side in ("src", "dst")]
            return np.stack(ends, axis=1)

        def collide(pairs: Int64Array) -> npt.NDArray[np.bool_]:
            sources, targets = pairs.T
            found = finder.are_edges(sources, targets)
            if self.has_loops:
                found |= sources == targets
            return found

        drawn, num_edges = self._drawn(draw, collide)
        return drawn[:, 0], drawn[:, 1], num_edges

    def ends(
        self,
        key: BatchKey,
        positives: tuple[Int64Array, Int64Array],
        side: str,
        finder: EdgeFinder,
        times: Int64Array | None = None,
    ) -> tuple[Int64Array, Int64Array, int]:
        """Draw nodes in the place of one end of each positive, which may have times [P]."""
        own = positives[0 if side == "src" else 1]
        num_positives, amount = len(own), int(self.amount)
        num_chunks = min(self.num_chunks or num_positives, num_positives)
        chunks = np.arange(num_positives, dtype=np.int64)
        if num_chunks < num_positives:
            chunks = chunks * num_chunks // num_positives
        shape = (num_chunks, amount)
        from_ends = round(self.degree_fraction * amount) if num_chunks > 1 else 0
        limits = None
        if times is not None:  # of a chunk the earliest
            firsts = np.flatnonzero(np.diff(chunks, prepend=-1))
            limits = (
                np.minimum.reduceat(times, firsts)[:, None] if num_positives else times[:, None]
            )
            limits = np.broadcast_to(limits, shape)

        def draw(attempt: int) -> Int64Array:
            nodes = self._nodes(key, side, attempt, shape, limits)
            if from_ends:
                ends = _other_ends(_uniform(key, f"{side} ends", attempt, shape), own, chunks)
                some, taken = ends[:, :from_ends], nodes[:, :from_ends]
                if limits is not None and (known := self._times(side)) is not None:
                    later = known.are_later(some, limits[:, :from_ends])
                    some = np.where(later, taken, some)
                nodes[:, :from_ends] = some
            return nodes

        def collide(drawn: Int64Array) -> npt.NDArray[np.bool_]:
            return _collide(finder, drawn, chunks, positives, side, has_loops=self.has_loops)

        nodes, num_edges = self._drawn(draw, collide)
        return nodes, chunks, num_edges

    def _drawn(
        self,
        draw: Callable[[int], Int64Array],
        collide: Callable[[Int64Array], npt.NDArray[np.bool_]],
    ) -> tuple[Int64Array, int]:
        """Draw, and draw collisions again if that is asked for; return the remaining ones, too."""
        drawn = draw(0)
        if not self.is_strict:
            return drawn, 0
        for attempt in range(1, MAX_REDRAWS + 1):
            edges = collide(drawn)
            if not edges.any():
                return drawn, 0
            drawn[edges] = draw(attempt)[edges]
        return drawn, int(collide(drawn).sum())

    def _times(self, side: str) -> NodeTimes | None:
        return self.src_times if side == "src" else self.dst_times

    def _nodes(
        self,
        key: BatchKey,
        side: str,
        attempt: int,
        shape: tuple[int, ...],
        limits: Int64Array | None = None,
    ) -> Int64Array:
        """Draw nodes; with times, such that exist at the limits, or the oldest."""
        if limits is None or (times := self._times(side)) is None:
            return self._any_nodes(key, side, attempt, shape)
        # Attempts of strict negatives and these have numbers of their own.
        return times.existing(
            lambda again: self._any_nodes(key, side, attempt + again * (MAX_REDRAWS + 1), shape),
            limits,
            MAX_REDRAWS,
        )

    def _any_nodes(
        self, key: BatchKey, side: str, attempt: int, shape: tuple[int, ...]
    ) -> Int64Array:
        drawn = _uniform(key, side, attempt, shape)
        is_source = side == "src"
        weights = self.src_weights if is_source else self.dst_weights
        if weights is None:
            return (drawn * (self.num_sources if is_source else self.num_targets)).astype(np.int64)
        # A draw is below 1, and its product below the sum: nodes of weight 0 are never found.
        nodes: Int64Array = np.searchsorted(weights, drawn * weights[-1], side="right")
        return nodes


def _other_ends(drawn: npt.NDArray[np.float64], own: Int64Array, chunks: Int64Array) -> Int64Array:
    """Return ends of positives that are in other chunks, by numbers in [0, 1): [C, A]."""
    sizes = np.bincount(chunks, minlength=len(drawn))[:, None]
    firsts = np.cumsum(sizes, axis=0) - sizes
    places = (drawn * (len(own) - sizes)).astype(np.int64)
    return own[np.where(places >= firsts, places + sizes, places)]


def _collide(
    finder: EdgeFinder,
    nodes: Int64Array,
    chunks: Int64Array,
    positives: tuple[Int64Array, Int64Array],
    side: str,
    *,
    has_loops: bool,
) -> npt.NDArray[np.bool_]:
    """Tell for each negative [C, A] whether it makes an edge, a loop or a positive."""
    own, kept = positives if side == "src" else positives[::-1]
    drawn = nodes[chunks]  # [P, A]
    others = np.broadcast_to(kept[:, None], drawn.shape)
    ends = (drawn, others) if side == "src" else (others, drawn)
    found = finder.are_edges(ends[0].ravel(), ends[1].ravel()).reshape(drawn.shape)
    found |= drawn == own[:, None]
    if has_loops:
        found |= drawn == others
    if len(nodes) == len(chunks):
        return found
    firsts = np.flatnonzero(np.diff(chunks, prepend=-1))
    return np.logical_or.reduceat(found, firsts, axis=0)


def cumulative_weights(weights: Any, num_nodes: int, name: str) -> npt.NDArray[np.float64] | None:
    """Return the cumulative sums of the weights of all nodes; None for None."""
    if weights is None:
        return None
    if isinstance(weights, torch.Tensor):
        weights = weights.detach().cpu().double()
    values = np.asarray(weights)
    if values.shape != (num_nodes,):
        raise InputError(
            f"{name} has the shape {list(values.shape)}; expected a weight for each of the "
            f"{format_count(num_nodes, 'node')}"
        )
    if values.dtype.kind not in "fiub":
        raise InputError(f"{name} has the element type {values.dtype}; expected numbers")
    with np.errstate(over="ignore"):
        sums: npt.NDArray[np.float64] = np.cumsum(values, dtype=np.float64)
    is_good = np.isfinite(values).all() and (values >= 0).all()
    if not is_good or not np.finfo(np.float64).tiny <= sums[-1] < np.inf:
        raise InputError(
            f"{name}: expected finite weights, 0 or more, not all 0; they are {values.min()} to "
            f"{values.max()} and add up to {sums[-1]}"
        )
    return sums


def _uniform(
    key: BatchKey, stream: str, attempt: int, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) of 53 random bits each, by key and place."""
    generator = keyed((key.seed, key.epoch), (0, attempt, _STREAMS[stream], key.batch))
    return uniform(generator.random_raw(math.prod(shape))).reshape(shape)


def _crc(values: npt.NDArray[Any] | None) -> str | None:
    return None if values is None else f"{_core.crc32c(values.view(np.uint8)):08x}"
