"""Wrong seeds, options and topologies: an error that says what and where, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gnnstore import _core
from gnnstore.errors import CorruptStoreError, InputError, UsageError
from gnnstore.formats.store.store import Csc
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig

CSC = Csc(np.array([0, 2, 3, 3]), np.array([1, 2, 0]), num_src=3, label="the/store")


def sample(
    csc: Csc = CSC, seeds: Any = (0,), epoch: int = 0, batch: int = 0, **options: Any
) -> Any:
    config = SamplingConfig(**({"fanouts": (2, 2)} | options))
    return NeighborSampler(csc, config).sample(seeds, epoch=epoch, batch=batch)


@pytest.mark.parametrize("seed", [-1, 3, 2**40, -(2**63)])
def test_a_seed_that_is_no_node(seed: int) -> None:
    message = rf"cannot sample from the/store: seed {seed} at position 2 is outside \[0, 3\)"
    with pytest.raises(InputError, match=message):
        sample(seeds=[0, 1, seed])


@pytest.mark.parametrize("seeds", [[0.5], [True], [[0, 1]], 3, ["a"], np.array([2**63], np.uint64)])
def test_seeds_that_are_no_vector_of_integers(seeds: Any) -> None:
    with pytest.raises(UsageError, match="seeds must be a vector of integer node ids"):
        sample(seeds=seeds)


@pytest.mark.parametrize(
    ("indptr", "message"),
    [
        ([0, -1, 3, 3], r"node 0 stand at \[0, -1\), which is not a range within \[0, 3\)"),
        ([2, 1, 3, 3], r"node 0 stand at \[2, 1\)"),
        ([-1, 2, 3, 3], r"node 0 stand at \[-1, 2\)"),
        ([0, 2, 4, 4], r"node 1 stand at \[2, 4\)"),
        ([0, 2, 2**62, 3], r"node 1 stand at \[2, 4611686018427387904\)"),
        ([-(2**63), 2**63 - 1, 3, 3], r"node 0 stand at"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}])
def test_corrupt_indptr(indptr: list[int], message: str, options: dict[str, Any]) -> None:
    csc = Csc(np.array(indptr), CSC.indices, num_src=3, label="the/store")
    with pytest.raises(CorruptStoreError, match=message) as caught:
        sample(csc, **options)
    assert "gnnstore verify" in str(caught.value)
    assert caught.value.path == "the/store"


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("neighbor", [-1, 3, 2**31 - 1, -(2**31)])
def test_corrupt_indices(neighbor: int, dtype: str) -> None:
    indices = np.array([1, neighbor, 0], dtype=dtype)
    csc = Csc(CSC.indptr, indices, num_src=3, label="the/store")
    message = rf"indices: the node id {neighbor} at position 1 is outside \[0, 3\)"
    for options in ({}, {"disjoint": True}, {"subgraph_type": "induced", "fanouts": ()}):
        with pytest.raises(CorruptStoreError, match=message):
            sample(csc, **options)


def test_what_the_batch_does_not_touch_is_not_looked_at() -> None:
    csc = Csc(CSC.indptr, np.array([1, 2, -5]), num_src=3)
    assert sample(csc, fanouts=(2,)).n_id.tolist() == [0, 1, 2]


def test_a_source_without_a_column_cannot_be_expanded() -> None:
    csc = Csc(np.array([0, 1]), np.array([7]), num_src=8)
    assert sample(csc, fanouts=(1,)).n_id.tolist() == [0, 7]
    with pytest.raises(CorruptStoreError, match=r"node 7 is to be expanded, but only nodes in"):
        sample(csc, fanouts=(1, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fanouts": (10, -2)}, "the fan-out of hop 1 is -2; it must be -1"),
        ({"fanouts": (2**31,)}, "the fan-out of hop 0 is 2147483648"),
        ({"fanouts": (1.5,)}, r"num_neighbors=\(1.5,\) is not a list of fan-outs"),
        ({"fanouts": 10}, "num_neighbors=10 is not a list of fan-outs"),
        ({"subgraph_type": "all"}, "subgraph_type='all' is unknown; choose one of directional, bi"),
        ({"disjoint": True, "subgraph_type": "induced"}, "exclude each other"),
        ({"seed": -1}, r"seed must be in \[0, 2\^64\); got -1"),
        ({"seed": 2**64}, r"seed must be in \[0, 2\^64\)"),
        ({"epoch": -1}, r"epoch must be in \[0, 2\^64\); got -1"),
        ({"batch": 2**64}, r"batch must be in \[0, 2\^64\)"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sample(**options)
    assert issubclass(UsageError, ValueError)


def test_ids_that_do_not_fit_in_int32() -> None:
    csc = Csc(CSC.indptr, CSC.indices, num_src=2**31 + 1, label="the/store")
    with pytest.raises(UsageError, match=r"the/store .* do not fit in int32; use index_dtype="):
        NeighborSampler(csc, SamplingConfig((1,)), "int32")
    NeighborSampler(Csc(CSC.indptr, CSC.indices, 2**31), SamplingConfig((1,)), "int32")
    with pytest.raises(UsageError, match="index_dtype='int16' is unknown; choose one of int64, i"):
        NeighborSampler(csc, SamplingConfig((1,)), "int16")  # type: ignore[arg-type]


def test_a_batch_too_large_to_number() -> None:
    # With replacement, a billion draws of each node: refused before memory is asked for.
    with pytest.raises(UsageError, match=r"nodes cannot be sampled; the limit is .* fewer seeds"):
        sample(seeds=[0, 1] * 8, fanouts=(10**9,), replace=True, disjoint=True)


def test_random_reads() -> None:
    table, positions = np.arange(100, dtype=np.int32), np.array([3, 99, 3])
    assert _core.random_reads(table, positions) == 105
    with pytest.raises(IndexError, match=r"position 100 at 1 is outside \[0, 100\)"):
        _core.random_reads(table, np.array([0, 100]))
