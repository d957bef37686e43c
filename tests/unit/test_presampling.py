"""Batches sampled before a run: which seeds they take, what they count, how large they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnstore
from gnnstore.converters import quantize
from gnnstore.pipeline.lookahead import presample as presampling
from gnnstore.pipeline.lookahead.presample import Presampler
from gnnstore.sampling.neighbor import SamplingConfig
from gnnstore.seeds.nodes import resolve_input_nodes
from gnnstore.testing.graphs import random_graph
from gnnstore.threads import Lookahead

N, E = 400, 3000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> gnnstore.GraphStore:
    graph = random_graph(N, E, feature_dim=25, edge_feature_dim=3, num_classes=4, skew=2.0)
    return gnnstore.open(graph.write(tmp_path_factory.mktemp("presampling") / "s.gnn"))


def presampler(
    store: gnnstore.GraphStore,
    fanouts: tuple[int, ...] = (3, 3),
    nodes: Any = None,
    *,
    batch_size: int = 20,
    in_order: bool = False,
    **config: Any,
) -> Presampler:
    seeds = resolve_input_nodes(store, nodes)
    return Presampler.from_store(
        store, SamplingConfig(fanouts, **config), seeds, batch_size, in_order
    )


def test_it_knows_what_a_batch_brings(store: gnnstore.GraphStore) -> None:
    found = presampler(store)
    assert tuple(found.value_bytes.values()) == (100 + 8, 12)


def test_nodes_that_are_looked_for_in_the_batch_before_take_more(
    store: gnnstore.GraphStore,
) -> None:
    """Their table has up to four slots of 8 bytes for each of them."""
    topology, one = store.topology(), presampler(store, (-1,), batch_size=N)
    plain, matched = one.run(topology, 1), replace(one, matches=True).run(topology, 1)
    assert matched.num_nodes == plain.num_nodes
    assert matched.largest_bytes - plain.largest_bytes == N * (4 * 8 + 4 + 1 + 2 * 4)


def test_rows_that_a_device_decodes_stay_int8_on_the_host(
    store: gnnstore.GraphStore, tmp_path: Path
) -> None:
    narrow = gnnstore.open(quantize(store.path, tmp_path / "int8.gnn", allow_error=True))
    seeds, config = resolve_input_nodes(narrow, None), SamplingConfig((-1,))
    here, there = (
        Presampler.from_store(narrow, config, seeds, N, False, decodes=decodes)
        .run(narrow.topology(), 1)
        .largest_bytes
        for decodes in (True, False)
    )
    assert here - there == N * (25 * 4 - 25 // 2)


def test_samples_stay_within_the_memory_for_batches(
    store: gnnstore.GraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many threads draw them; which are drawn does not depend on it."""
    ahead: list[int] = []

    class Watched(Lookahead):
        def __call__(self) -> int:
            ahead.append(super().__call__())
            return ahead[-1]

    monkeypatch.setattr(presampling, "Lookahead", Watched)
    topology, one = store.topology(), presampler(store, (-1,), batch_size=N)
    sampled = one.run(topology, 1)
    ids_bytes = sampled.largest_bytes - N * (108 + 8) - E * (12 + 8)
    most: dict[int | None, int] = {}
    for spare_bytes in (None, 5 * ids_bytes, 2 * ids_bytes, 1):
        ahead.clear()
        counts = np.zeros(N, np.uint8)
        assert one.run(topology, 8, counts, spare_bytes) == sampled
        assert counts.max() == counts.min() == sampled.num_batches
        most[spare_bytes] = max(ahead)
    assert list(most.values()) == [16, 4, 1, 1]


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    graph = random_graph(50, 200)
    store = gnnstore.open(graph.write(tmp_path / "s.gnn"))
    topology = store.topology()
    topology.columns().indices[:] = 50
    with pytest.raises(gnnstore.CorruptStoreError) as caught:
        presampler(store, (2,)).run(topology, 2)
    assert caught.value.__notes__ == ["while sampling batch 0 beforehand"]
