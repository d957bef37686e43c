"""Sampling in proportion to weights is successive sampling: each edge is drawn among those left."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch_geometric.data import Data

from gnnstore.converters import from_pyg
from gnnstore.errors import CorruptStoreError
from gnnstore.formats.store.by_column import integer_weights, sums_by_column
from gnnstore.formats.store.store import Csc
from gnnstore.graph.store import GraphStore
from gnnstore.sampling.neighbor import NeighborSampler, Sample, SamplingConfig, only
from gnnstore.sampling.sampled_graph import SampledTypes
from tests.support.effort import choose

NODE, EDGE = "node", ("node", "to", "node")
DECADES = [1e-6, 1e-3, 1.0, 1e3, 1e6]


def star(weights: Any, num_targets: int = 1) -> SampledTypes:
    """Return a graph in which each of the last nodes has edges of these weights."""
    own = np.array(weights, np.float64)
    count = len(own)
    num_nodes = count + num_targets
    indptr = np.zeros(num_nodes + 1, np.int64)
    indptr[count + 1 :] = count * np.arange(1, num_targets + 1)
    indices = np.tile(np.arange(count, dtype=np.int32), num_targets)
    counts = np.diff(indptr)
    sums = sums_by_column(integer_weights(np.tile(own, num_targets), counts), counts)
    csc = Csc(indptr, indices, num_nodes, "g")
    return SampledTypes({NODE: num_nodes}, {EDGE: csc}, "g", weight_sums={EDGE: sums})


def sampled(types: SampledTypes, k: int, seeds: Any = None, **options: Any) -> Sample:
    """Return a sample of one hop from all targets."""
    config = SamplingConfig((k,), weight_attr="w", **options)
    if seeds is None:
        seeds = np.flatnonzero(np.diff(types.edges[EDGE].indptr))
    return NeighborSampler(types, config).sample(seeds, epoch=0, batch=0)


def choices(types: SampledTypes, k: int, **options: Any) -> list[tuple[int, ...]]:
    """Return the places that each target takes, in the order drawn."""
    sample = sampled(types, k, **options)
    degree = int(np.diff(types.edges[EDGE].indptr).max())
    places, (_, targets) = sample.edge_pos % degree, sample.edge_index
    ends = np.cumsum(np.bincount(targets, minlength=sample.num_seeds))
    return [tuple(part.tolist()) for part in np.split(places, ends[:-1])]


def assert_likely(counts: Counter[Any], expected: dict[Any, float], total: int) -> None:
    """Compare counts with probabilities by chi-square; rare outcomes are one cell."""
    assert counts.keys() <= expected.keys()
    cells = [(counts[each], total * p) for each, p in expected.items() if total * p >= 5]
    rest = total - sum(want for _, want in cells)
    if rest > 1:
        cells.append((total - sum(got for got, _ in cells), rest))
    statistic = sum((got - want) ** 2 / want for got, want in cells)
    freedom = max(1, len(cells) - 1)
    assert statistic < freedom + 5 * np.sqrt(2 * freedom) + 3, (statistic, freedom)


def successive(weights: npt.NDArray[np.float64], k: int) -> dict[tuple[int, ...], float]:
    """Return the probability of each ordered choice of k places without replacement."""
    found = {}
    for chosen in permutations(range(len(weights)), k):
        left, probability = weights.sum(), 1.0
        for place in chosen:
            probability *= weights[place] / left
            left = max(left - weights[place], 1e-300)
        found[chosen] = probability
    return found


@pytest.mark.parametrize("weights", [[1, 2, 7], [5, 1, 1, 3], DECADES, [1, 1, 1, 1]])
def test_the_distribution(weights: list[float]) -> None:
    num_targets = choose(4_000, 100_000)
    types, own = star(weights, num_targets), np.array(weights, np.float64)
    for k in range(1, len(weights)):
        counts = Counter(choices(types, k))
        assert_likely(counts, successive(own, k), num_targets)
    drawn = Counter(place for each in choices(types, 3, replace=True) for place in each)
    assert_likely(drawn, dict(enumerate(own / own.sum())), 3 * num_targets)


def test_almost_all_of_the_mass_in_one_edge() -> None:
    types = star([1, 4e9, 3], 4_000)
    pairs = choices(types, 2)
    assert {first for first, _ in pairs} == {1}
    assert_likely(Counter(second for _, second in pairs), {0: 0.25, 2: 0.75}, 4_000)


def test_weights_of_zero() -> None:
    types = star([0, 3, 0, 2, 0], 300)
    for k in (1, 2, 3, 4):
        for chosen in choices(types, k):
            assert len(chosen) == min(k, 2)
            assert set(chosen) <= {1, 3}
    # Where all are taken they are in their own order; -1 takes those of weight 0, too.
    assert set(choices(types, 5)) == set(choices(types, 9)) == {(1, 3)}
    assert set(choices(types, -1)) == {(0, 1, 2, 3, 4)}
    assert all(set(each) <= {1, 3} and len(each) == 7 for each in choices(types, 7, replace=True))
    nothing = star([0, 0, 0], 3)
    for k, replace in ((1, False), (3, False), (2, True)):
        sample = sampled(nothing, k, replace=replace)
        assert sample.edge_index.shape == (2, 0)
        assert sample.hop_nodes is not None
        assert sample.hop_edges is not None
        assert (only(sample.hop_nodes), only(sample.hop_edges)) == ([3, 0], [0])
    assert len(sampled(nothing, -1).edge_pos) == 9


def test_types_without_weights_are_uniform() -> None:
    weighted = star([1, 1e9, 1], 500)
    plain = SampledTypes(weighted.num_nodes, weighted.edges, "g")
    uniform = Counter(place for (place,) in choices(plain, 1))
    assert_likely(uniform, dict.fromkeys(range(3), 1 / 3), 500)


def test_a_list_of_a_million_edges() -> None:
    degree = 1_000_000
    weights = np.ones(degree)
    weights[::2] = 0
    weights[-1] = degree / 2  # half of the mass
    types = star(weights)
    sample = sampled(types, 1000, seeds=[degree] * 4, disjoint=True)
    rows = sample.edge_pos.reshape(4, 1000)
    assert all(len(set(row)) == 1000 for row in rows.tolist())
    assert (rows % 2 == 1).all()
    assert (np.argmax(rows == degree - 1, axis=1) < 20).all()
    assert (rows == degree - 1).any(axis=1).all()
    assert abs(rows.mean() / degree - 0.5) < 0.02


@pytest.mark.parametrize("sums", [[5, 3, 3], [2**64 - 1, 3, 4]])
def test_sums_that_are_damaged(sums: list[int]) -> None:
    types = star([1, 1, 1], 50)
    types.weight_sums[EDGE][:] = np.tile(np.array(sums, np.uint64), 50)
    message = "the sums of weights of the in-neighbours of node .* do not ascend"
    with pytest.raises(CorruptStoreError, match=message):
        sampled(types, 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.float64])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_weights_of_any_type(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """From a conversion, also of shape [E, 1]."""
    weights = torch.tensor([1, 0, 7, 2] * 200, dtype=dtype)
    targets = torch.arange(200).repeat_interleave(4) + 4
    edge_index = torch.stack([torch.arange(4).repeat(200), targets])
    data = Data(edge_index=edge_index, w=weights.reshape(shape), num_nodes=204)
    store = GraphStore(from_pyg(data, tmp_path / "s.gnn", weight_attr=("w",)))
    sampler = store.topology("memory").sampler(SamplingConfig((2,), weight_attr="w"), "int64")
    sample = sampler.sample(np.arange(4, 204), epoch=0, batch=0)
    pairs = Counter(map(tuple, (sample.edge_pos % 4).reshape(-1, 2).tolist()))
    want = {
        tuple((0, 2, 3)[place] for place in each): p
        for each, p in successive(np.array([1.0, 7.0, 2.0]), 2).items()
    }
    assert_likely(pairs, want, 200)
