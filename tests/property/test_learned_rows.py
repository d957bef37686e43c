"""The kernels of learned rows equal their twins, bit by bit, for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from gnnstore import _core
from tests.support.effort import examples
from tests.support.twins import kernels as twins

# Floats of state for each row: so many, and so many for each column.
STATE_FLOATS = {"sgd": (0, 0), "rowwise_adagrad": (1, 0), "adagrad": (0, 1), "sparse_adam": (0, 2)}


@settings(max_examples=examples(40), deadline=None)
@given(
    st.sampled_from(sorted(STATE_FLOATS)),
    st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 5), st.integers(0, 600)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 7]),
)
def test_updates_equal_the_twin(
    rule: str, sizes: tuple[int, int, int, int], seed: int, threads: int
) -> None:
    dim, rows_per_slot, num_slots, n = sizes
    rng = np.random.default_rng(seed)
    state_floats = STATE_FLOATS[rule][0] + STATE_FLOATS[rule][1] * dim
    padding = int(rng.integers(0, 5))
    slot_floats = rows_per_slot * (dim + state_floats) + padding
    table = rng.standard_normal((num_slots, slot_floats)).astype(np.float32)
    ends = rows_per_slot * dim, rows_per_slot * (dim + state_floats)
    table[:, ends[0] : ends[1]] = np.abs(table[:, ends[0] : ends[1]])
    values = table[:, : ends[0]].reshape(-1, dim).copy()
    state = table[:, ends[0] : ends[1]].reshape(num_slots * rows_per_slot, state_floats).copy()
    rows = rng.integers(0, num_slots * rows_per_slot, n)
    gradients = rng.standard_normal((n, dim)).astype(np.float32)
    numbers = {"rate": 0.1, "eps": 1e-10, "beta1": 0.9, "beta2": 0.999}

    twins.update_rows(values, state, rows, gradients, rule=rule, **numbers)
    before = table.copy()
    _core.update_rows(
        table.reshape(-1),
        rows,
        gradients.reshape(-1),
        dim=dim,
        rows_per_slot=rows_per_slot,
        slot_floats=slot_floats,
        rule=rule,
        num_threads=threads,
        **numbers,
    )
    found = table[:, : ends[0]].reshape(-1, dim)
    np.testing.assert_array_equal(found, values)
    np.testing.assert_array_equal(table[:, ends[0] : ends[1]].reshape(state.shape), state)
    np.testing.assert_array_equal(table[:, ends[1] :], before[:, ends[1] :])
    others = np.setdiff1d(np.arange(len(values)), rows)
    np.testing.assert_array_equal(
        found[others], before[:, : ends[0]].reshape(-1, dim)[others], "an untouched row moved"
    )


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from(["uniform", "normal"]),
    st.integers(1, 30),
    st.lists(st.integers(0, 2**62), min_size=1, max_size=50),
    st.integers(0, 2**64 - 1),
)
def test_initial_rows_equal_the_twin(kind: str, dim: int, ids: list[int], seed: int) -> None:
    nodes = np.array(ids, np.int64)
    out = np.empty(len(nodes) * dim, np.float32)
    _core.initial_rows(nodes, out, dim=dim, distribution=kind, scale=0.3, seed=seed, num_threads=3)
    twin = twins.initial_rows(nodes, dim=dim, distribution=kind, scale=0.3, seed=seed)
    # Logarithms and angles may differ in the last bit between libraries.
    np.testing.assert_allclose(out.reshape(-1, dim), twin, rtol=0 if kind == "uniform" else 1e-6)


def test_initial_rows_have_their_distribution() -> None:
    ids = np.arange(20_000)
    for kind, deviation in (("uniform", 0.5 / 3**0.5), ("normal", 0.5)):
        out = np.empty(20_000 * 10, np.float32)
        _core.initial_rows(ids, out, dim=10, distribution=kind, scale=0.5, seed=1)
        assert abs(out.mean()) < 4 * deviation / len(out) ** 0.5
        assert out.std() == pytest.approx(deviation, rel=0.01)
        assert np.abs(np.corrcoef(out.reshape(-1, 10).T) - np.eye(10)).max() < 0.04


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.booleans(), st.integers(0, 2**32 - 1))
def test_resident_rows_are_found_by_partition(
    num_nodes: int, rows: int, placed: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    num_partitions = -(-num_nodes // rows)
    slots = np.where(rng.random(num_partitions) < 0.8, rng.permutation(num_partitions), -1)
    place: NDArray[np.int32] | NDArray[np.int64] | None = None
    if placed:
        places = rng.permutation(num_nodes)
        place = places.astype(np.int32) if seed % 2 else places
    ids = rng.integers(0, num_nodes, 30)
    row = ids if place is None else place[ids].astype(np.int64)
    slot = slots[row // rows]
    missing = np.flatnonzero(slot < 0)
    expected = int(missing[0]) if len(missing) else len(ids)
    out = np.empty(len(ids), np.int64)
    found = _core.resident_rows(ids, place, num_nodes, rows, slots.astype(np.int32), out)
    assert found == expected
    np.testing.assert_array_equal(out[:found], (slot * rows + row % rows)[:found])


def test_ids_and_sizes_are_checked() -> None:
    slots, out = np.zeros(2, np.int32), np.empty(1, np.int64)
    for bad in (-1, 4):
        with pytest.raises(IndexError, match="outside"):
            _core.resident_rows(np.array([bad]), None, 4, 2, slots, out)
    with pytest.raises(ValueError, match="beyond the partitions"):
        _core.resident_rows(np.array([0]), np.array([4, 1, 2, 3]), 4, 2, slots, out)
    table, gradient = np.zeros(6, np.float32), np.ones(2, np.float32)
    for row, gradients, rule, message in (
        (2, gradient, "sgd", "outside"),
        (0, gradient, "adagrad", "slots of at least 8"),
        (0, table, "sgd", "expected 1 gradients of 2 floats"),
    ):
        with pytest.raises((IndexError, ValueError), match=message):
            _core.update_rows(
                table,
                np.array([row]),
                gradients,
                dim=2,
                rows_per_slot=2,
                slot_floats=6,
                rule=rule,
                rate=1.0,
            )
    assert not table.any()
