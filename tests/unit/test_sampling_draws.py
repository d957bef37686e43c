"""The draws behind sampling: uniform at every degree, and a function of their key alone."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore import _core
from tests.support.effort import is_long
from tests.support.twins import sampling as reference

Positions = npt.NDArray[np.int64]


def choose(degree: int, k: int, *, replace: bool = False, **key: int) -> Positions:
    words = {"seed": 7, "epoch": 0, "batch": 0, "hop": 0, "node": 0, "tree": 0} | key
    return _core.choose_positions(degree, k, replace, **words)


def many(degree: int, k: int, num_nodes: int, *, replace: bool) -> Positions:
    """Return the choices of many nodes of one degree, shape [num_nodes, k]."""
    return np.stack([choose(degree, k, replace=replace, node=node) for node in range(num_nodes)])


def assert_uniform(counts: npt.NDArray[Any], variance: float | None = None) -> None:
    """Check counts of equally likely cells by chi-square.

    The variance of a count is its mean unless given. The statistic has n - 1 degrees of
    freedom; five standard deviations off is a chance of one in a million, and the draws
    are always the same.
    """
    mean = counts.mean()
    statistic = ((counts - mean) ** 2).sum() / (mean if variance is None else variance)
    freedom = len(counts) - 1
    assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom) + 3, (statistic, freedom)


@pytest.mark.parametrize("degree", [1, 3, 10, 11, *([2, 9, 100, 1000] if is_long() else [])])
def test_uniform_with_replacement(degree: int) -> None:
    positions = many(degree, 10, 4000, replace=True)
    assert_uniform(np.bincount(positions.ravel(), minlength=degree))
    # The draws of one node are independent: so are their pairs, cell by cell.
    if 1 < degree < 20:
        pairs = positions[:, 0] * degree + positions[:, 9]
        assert_uniform(np.bincount(pairs, minlength=degree**2))


@pytest.mark.parametrize("k", [10, 40])
@pytest.mark.parametrize("extra", [1, 30, *([2, 5, 990] if is_long() else [])])
def test_uniform_without_replacement(k: int, extra: int) -> None:
    degree, num_nodes = k + extra, 4000
    positions = many(degree, k, num_nodes, replace=False)
    assert all(len(set(row)) == k for row in positions.tolist())
    # A position is in a choice with probability k / degree, and choices exclude each other.
    variance = num_nodes * k * (degree - k) / (degree * (degree - 1))
    assert_uniform(np.bincount(positions.ravel(), minlength=degree), variance)


def test_all_subsets_are_equally_likely() -> None:
    subsets = {subset: i for i, subset in enumerate(combinations(range(6), 3))}
    rows = np.sort(many(6, 3, 8000, replace=False), axis=1)
    counts = np.bincount([subsets[a, b, c] for a, b, c in rows.tolist()], minlength=len(subsets))
    assert_uniform(counts)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [10, *([40] if is_long() else [])])
@pytest.mark.parametrize(
    "degree",
    [2**16, 2**31 + 1, 2**33, *([2**16 - 1, 2**31 - 1, 2**31] if is_long() else [])],
)
def test_uniform_at_great_degrees(degree: int, k: int, replace: bool) -> None:
    positions = many(degree, k, 2000, replace=replace).ravel()
    assert positions.min() >= 0
    assert positions.max() < degree
    # Fine and coarse: the low bits are as uniform as the high ones.
    assert_uniform(np.bincount(positions * 64 // degree, minlength=64))
    assert_uniform(np.bincount(positions % 64, minlength=64))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("k", [1, 4, 5, 31, 32, 33, 64, 500])
@pytest.mark.parametrize("extra", [1, 100, 2**33])
def test_draws_are_those_of_numpys_philox(k: int, extra: int, replace: bool) -> None:
    key = reference.DrawKey(seed=2**64 - 1, epoch=3, batch=2**40)
    got = choose(k + extra, k, replace=replace, node=99, hop=2, tree=5, **vars(key))
    want = reference.choose_positions(k + extra, k, replace, key, hop=2, node=99, tree=5)
    assert got.tolist() == want


def test_every_word_of_the_key_counts() -> None:
    base = choose(10**6, 16)
    words = ("seed", "epoch", "batch", "hop", "node", "tree")
    others = [
        choose(10**6, 16, replace=False, **{word: value}) for word in words for value in (1, 2**31)
    ]
    rows = [tuple(row.tolist()) for row in [base, *others]]
    assert len(set(rows)) == len(rows)


def test_batches_epochs_and_hops_are_uncorrelated() -> None:
    """Neighbouring keys give draws that meet no more often than by chance."""
    for word in ("batch", "epoch", "hop", "node"):
        rows = [
            set(choose(1000, 20, replace=False, **{word: value}).tolist()) for value in range(2000)
        ]
        shared = [len(a & b) for a, b in pairwise(rows)]
        # 20 * 20 / 1000 = 0.4 on average; the mean of 2000 has a deviation of 0.014.
        assert abs(np.mean(shared) - 0.4) < 0.07


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="degree must not be negative, got -1"):
        choose(-1, 1)
    with pytest.raises(ValueError, match=r"a fan-out must be -1 \(all\) or lie in \[0, 2\^31\)"):
        choose(1, -2)
