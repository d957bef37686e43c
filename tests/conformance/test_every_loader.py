"""Every kind of loader gives the same batches: whoever prepares them, resumed, and by ranks."""

from __future__ import annotations

import gc
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore import shared_memory
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, paired
from tests.support.every_loader import CASES, WAYS, OpenStores, make, open_stores
from tests.support.loaders import threads_of_loaders

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is the reverse of"),
    pytest.mark.filterwarnings("ignore:edge_label_time of some seed edges:UserWarning"),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> OpenStores:
    """Write a graph of several types, and one without."""
    return open_stores(tmp_path_factory.mktemp("every"))


@pytest.fixture(scope="module")
def paths(stores: OpenStores) -> tuple[Path, Path]:
    """Return where the stores are, for ranks, which open them for themselves."""
    typed, plain = stores
    return typed.path, plain.path


@pytest.fixture(scope="module")
def expected(stores: OpenStores) -> dict[str, Batches]:
    """Return the batches of two epochs of each."""
    return {
        case: batches_of(make(stores, case, strategy="memory", num_threads=0), 2) for case in CASES
    }


@pytest.mark.parametrize(("way", "case"), paired(WAYS, CASES, 1), ids=str)
def test_every_way_gives_the_same_batches(
    stores: OpenStores, expected: dict[str, Batches], case: str, way: dict[str, Any]
) -> None:
    assert_same_batches(batches_of(make(stores, case, **way), 2), expected[case])


# In `make test` every sixth case, and in the next tests those between.
@pytest.mark.parametrize("case", choose(CASES[1::6], CASES))
def test_resuming(stores: OpenStores, expected: dict[str, Batches], case: str) -> None:
    """A state after a batch, through JSON, goes on in another way with those that remain."""
    first, then = (WAYS[(CASES.index(case) + k) % len(WAYS)] for k in (0, 7))
    loader, of_epoch = make(stores, case, **first), len(expected[case]) // 2
    states = [json.dumps(loader.state_dict())]
    states.extend(json.dumps(loader.state_dict()) for _ in loader)
    for stop in sorted({of_epoch // 2, *choose((), (0, of_epoch - 1))}):
        resumed = make(stores, case, **then)
        resumed.load_state_dict(json.loads(states[stop]))
        assert_same_batches(batches_of(resumed), expected[case][stop:of_epoch])


@pytest.mark.parametrize(("case", "way"), paired(choose(CASES[::6], CASES), WAYS, 1), ids=str)
def test_ranks_of_one_machine(
    paths: tuple[Path, Path],
    expected: dict[str, Batches],
    case: str,
    way: dict[str, Any],
    shares_all: None,
) -> None:
    """Batch k goes to rank k mod W; at the end the first ones repeat. They have one copy."""
    of_epoch, size = len(expected[case]) // 2, 2 + CASES.index(case) % 2
    loaders = [
        make(paths, case, rank=rank, world_size=size, local_world_size=size, **way)
        for rank in range(size)
    ]
    for rank, loader in enumerate(loaders):
        numbers = range(rank, -(-of_epoch // size) * size, size)
        assert_same_batches(batches_of(loader), [expected[case][k % of_epoch] for k in numbers])
    assert shared_memory.server.num_handed_on > 0


@pytest.mark.parametrize("case", choose(CASES[::4], CASES))
def test_a_round_trip_through_pygs_output(
    stores: OpenStores, expected: dict[str, Batches], case: str
) -> None:
    trip = make(stores, case, transform_sampler_output=lambda out: out)
    assert_same_batches(batches_of(trip, 2), expected[case])


@pytest.mark.parametrize("way", [WAYS[0], WAYS[7]], ids=str)
def test_loops_that_are_left_early(
    stores: OpenStores, expected: dict[str, Batches], way: dict[str, Any]
) -> None:
    """[I pyg#5348]: many of them, with more threads than node types."""
    case = "nodes, fan-outs by type"
    rng, loader = np.random.default_rng(0), make(stores, case, **way | {"num_threads": 8})
    whole, seen = expected[case][: len(loader)], 0
    while seen < choose(15, 10_000):
        loader.set_epoch(0)
        count = int(rng.integers(1, len(loader) + 1))
        batches = [batch.to_dict() for batch in islice(loader, count)]
        assert_same_batches(batches, whole[:count])
        seen += count
    loader.set_epoch(1)
    assert_same_batches(batches_of(loader), expected[case][len(loader) :])
    del loader
    gc.collect()
    assert threads_of_loaders() == []
