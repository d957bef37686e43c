"""Edges sorted on disk equal edges sorted in memory, bit for bit, whatever the rules."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnstore.converters.edges import buffer as edge_buffer
from gnnstore.converters.edges import columns as edges_module
from gnnstore.converters.edges import merge as spill_merge
from gnnstore.converters.edges import runs as spill_runs
from gnnstore.converters.edges.builder import EdgeBuilder
from gnnstore.converters.edges.columns import BuiltEdges
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.errors import InputError
from tests.support.effort import choose
from tests.support.strategies import edge_indices

RULES = st.builds(
    EdgeRules,
    undirected=st.booleans(),
    self_loops=st.sampled_from(("keep", "drop", "add")),
    keep_ids=st.booleans(),
)

ATTRIBUTES = st.lists(
    st.tuples(
        st.sampled_from([np.float32, np.float16, np.int64, np.bool_, np.uint8]),
        st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
    ),
    max_size=2,
)


@dataclass(frozen=True)
class Columns:
    """Everything that a finished adjacency says."""

    num_nodes: int
    num_edges: int
    index_dtype: np.dtype[Any]
    edge_id_dtype: np.dtype[Any] | None
    arrays: dict[str, npt.NDArray[Any] | None]


def read(built: BuiltEdges) -> Columns:
    chunks = list(built.chunks())
    names = chunks[0].attributes.keys()
    arrays: dict[str, npt.NDArray[Any] | None] = {
        "indptr": np.concatenate([c.indptr for c in chunks]),
        "indices": np.concatenate([c.indices for c in chunks]),
        "edge_id": None,
        "added": None,
    }
    for key, parts in (
        ("edge_id", [c.edge_id for c in chunks]),
        ("added", [c.added for c in chunks]),
    ):
        found = [part for part in parts if part is not None]
        assert len(found) in (0, len(chunks))
        if found:
            arrays[key] = np.concatenate(found)
    arrays |= {f"attr {n}": np.concatenate([c.attributes[n] for c in chunks]) for n in names}
    result = Columns(
        built.num_nodes, built.num_edges, built.index_dtype, built.edge_id_dtype, arrays
    )
    built.close()
    return result


def outcome(builder: EdgeBuilder, num_nodes: int | None) -> Columns | str:
    """Return the adjacency, or why it was refused: undirected edges that differ in an attribute."""
    try:
        return read(builder.build(num_nodes))
    except InputError as error:
        return str(error)


def check_equal(found: Columns, expected: Columns) -> None:
    assert found.arrays.keys() == expected.arrays.keys()
    assert (found.num_nodes, found.num_edges) == (expected.num_nodes, expected.num_edges)
    assert found.index_dtype == expected.index_dtype
    assert found.edge_id_dtype == expected.edge_id_dtype
    for name, array in expected.arrays.items():
        other = found.arrays[name]
        if array is None or other is None:
            assert array is other, name
        else:
            assert array.dtype == other.dtype, name
            np.testing.assert_array_equal(other, array, err_msg=name)


def draw_attributes(
    kinds: list[tuple[Any, tuple[int, ...]]], edges: npt.NDArray[Any], *, by_pair: bool
) -> dict[str, npt.NDArray[Any]]:
    """Return random rows, one for each edge or (`by_pair`) one for each pair of nodes."""
    num_edges = edges.shape[1]
    rng = np.random.default_rng(num_edges)
    rows = np.unique(np.sort(edges, axis=0), axis=1, return_inverse=True)[1].reshape(num_edges)
    return {
        f"a{k}": rng.integers(0, 2 if dtype is np.bool_ else 200, (num_edges, *shape)).astype(
            dtype
        )[rows if by_pair else slice(None)]
        for k, (dtype, shape) in enumerate(kinds)
    }


def feed(builder: Any, edges: npt.NDArray[Any], attributes: Any, chunk: int) -> None:
    for begin in range(0, max(1, edges.shape[1]), chunk):
        part = slice(begin, begin + chunk)
        rows = {name: values[part] for name, values in attributes.items()}
        builder.add(edges[0, part], edges[1, part], rows, "test")


class AlwaysSpills(EdgeBuilder):
    """Writes a run after every so many chunks, whatever the budget says."""

    every = 1

    def _take(self, *arguments: Any) -> None:
        self._chunks = getattr(self, "_chunks", 0) + 1
        self.buffer.append(*arguments)
        if self._chunks % self.every == 0:
            self._spill()

    def build(self, num_nodes: int | None) -> BuiltEdges:
        self._spill()
        return super().build(num_nodes)


class Widths:
    """Says how wide the records of the next run are, whatever its ids."""

    def __init__(self, widths: list[int]) -> None:
        self._widths = cycle(widths)

    def __call__(self, _: int) -> int:
        return next(self._widths)


@settings(max_examples=choose(12, 400), deadline=None)
@given(data=st.data())
def test_every_rule_and_any_runs(data: st.DataObject) -> None:
    num_nodes = data.draw(st.integers(1, 12))
    edges = data.draw(edge_indices(num_nodes))
    if data.draw(st.booleans()):
        edges = edges[:, np.lexsort(edges)]  # sorted by target already
    rules = data.draw(RULES)
    attributes = draw_attributes(data.draw(ATTRIBUTES), edges, by_pair=data.draw(st.booleans()))
    chunk = data.draw(st.integers(1, 15))
    known = data.draw(st.sampled_from([num_nodes, None]))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):  # as if there were 2^31 nodes
            for module in (edge_buffer, edges_module, spill_merge):
                patch.setattr(module, "id_dtype", lambda _: np.dtype(np.int64))
        # Runs with wide records among others: an id beyond 2^32 may come at any time.
        widths = data.draw(st.lists(st.sampled_from([12, 24]), min_size=1, max_size=4))
        expected = EdgeBuilder(rules, num_nodes=known)
        feed(expected, edges, attributes, chunk)
        # Ranges of a few records, boundaries found in windows of one.
        patch.setattr(spill_runs, "INDEX_STEP", data.draw(st.integers(1, 3)))
        patch.setattr(spill_runs, "WINDOW_RECORDS", data.draw(st.integers(0, 2)))
        patch.setattr(spill_merge, "MAX_RANGE_RECORDS", data.draw(st.integers(1, 20)))
        patch.setattr(spill_merge, "MIN_RANGE_RECORDS", 1)
        builder = AlwaysSpills(rules, Path(place) / "spill", num_nodes=known)
        builder.every = data.draw(st.integers(1, 3))
        patch.setattr(spill_runs, "record_bytes_for", Widths(widths))
        feed(builder, edges, attributes, chunk)
        found, wanted = outcome(builder, known), outcome(expected, known)
        if isinstance(found, Columns) and isinstance(wanted, Columns):
            assert not builder._parts or list((Path(place) / "spill").iterdir()) == []
            check_equal(found, wanted)
        else:
            assert found == wanted
