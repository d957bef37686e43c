"""Edges sorted on disk: the kernels, the budget, resuming, and what can go wrong."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gnnstore import _core
from gnnstore.converters.edges import builder as spill
from gnnstore.converters.edges.buffer import EdgeBuffer
from gnnstore.converters.edges.builder import MIN_SPILL_BYTES, EdgeBuilder
from gnnstore.converters.edges.columns import BuiltEdges, estimate_peak_bytes
from gnnstore.converters.edges.merge import SpilledEdges
from gnnstore.converters.edges.rules import EdgeRules
from gnnstore.converters.edges.runs import plan_ranges, record_dtype, write_part
from gnnstore.errors import BudgetError, CorruptStoreError, InputError, NoSpaceError, StorageError
from gnnstore.formats.arrays.journal import Journal
from gnnstore.testing.graphs import random_graph
from tests.support.effort import choose
from tests.support.graphs import pair_weights

CHUNK = 5_000


def columns(built: BuiltEdges) -> dict[str, npt.NDArray[Any]]:
    """Read everything that a finished adjacency says into arrays."""
    chunks = list(built.chunks())
    found = {
        "indptr": np.concatenate([c.indptr for c in chunks]),
        "indices": np.concatenate([c.indices for c in chunks]),
        "edge_id": np.concatenate(
            [np.empty(0)] + [c.edge_id for c in chunks if c.edge_id is not None]
        ),
    }
    for name in chunks[0].attributes:
        found[name] = np.concatenate([c.attributes[name] for c in chunks])
    assert len(found["indices"]) == built.num_edges
    return found


def feed(builder: Any, edges: npt.NDArray[Any], *, attributes: bool = True) -> None:
    weights = np.arange(edges.shape[1], dtype=np.float32)
    if builder._rules.undirected:
        weights = pair_weights(edges)
    for begin in range(0, edges.shape[1], CHUNK):
        part = slice(begin, begin + CHUNK)
        rows = {"w": weights[part]} if attributes else {}
        builder.add(edges[0, part], edges[1, part], rows, "test")


def in_memory(
    edges: npt.NDArray[Any], rules: EdgeRules, num_nodes: int, *, attributes: bool = True
) -> dict[str, npt.NDArray[Any]]:
    builder = EdgeBuilder(rules, num_nodes=num_nodes)
    feed(builder, edges, attributes=attributes)
    return columns(builder.build(num_nodes))


def check_equal(found: dict[str, npt.NDArray[Any]], expected: dict[str, npt.NDArray[Any]]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.fixture
def small_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let budgets of a few kilobytes be sorted with."""
    monkeypatch.setattr(spill, "MIN_SPILL_BYTES", 2**12)
    monkeypatch.setattr(spill, "_MIN_PIECE_EDGES", 1000)


# ---- kernels


@pytest.mark.parametrize(
    ("record_bytes", "skew", "num_threads"), [(12, 1, 3), (24, 6, 3), (24, 1, 1)]
)
@pytest.mark.parametrize("num_edges", [0, 1, 150, 1000, 200_000])
def test_sorting_equals_lexsort(
    record_bytes: int, skew: int, num_edges: int, num_threads: int
) -> None:
    rng = np.random.default_rng(num_edges)
    top = 2**31 if record_bytes == 12 else 2**47
    ends = (rng.random((2, num_edges)) ** skew * (top if skew == 1 else 3000)).astype(np.int64)
    records, scratch = (_core.pool_empty(num_edges * record_bytes) for _ in range(2))
    middle = num_edges // 2
    for part in (slice(0, middle), slice(middle, None)):
        sources, targets = ends[:, part]
        count = _core.pack_edges(sources, targets, records, record_bytes, part.start, part.start)
        assert count == len(sources)
    assert (
        _core.sort_edges(records, scratch, record_bytes, num_edges, num_threads=num_threads)
        == num_edges
    )
    found = records.view(record_dtype(record_bytes))
    order = np.lexsort(ends)
    np.testing.assert_array_equal(found["position"], order)
    np.testing.assert_array_equal(found["source"], ends[0, order])
    np.testing.assert_array_equal(found["target"], ends[1, order])
    # In order already: nothing moves.
    again = records.copy()
    _core.sort_edges(records, scratch, record_bytes, num_edges)
    np.testing.assert_array_equal(records, again)


def test_repeated_edges_and_self_loops_go() -> None:
    sources = np.array([3, 1, 3, 2, 1], np.int32)
    targets = np.array([0, 1, 0, 0, 2], np.int32)
    records, scratch = _core.pool_empty(60), _core.pool_empty(60)
    count = _core.pack_edges(sources, targets, records, 12, 0, 0, drop_self_loops=True)
    count = _core.sort_edges(records, scratch, 12, count, unique=True)
    found = records.view(record_dtype(12))[:count]
    assert found.tolist() == [(0, 2, 3), (0, 3, 0), (2, 1, 4)]


def test_columns_and_ids_beyond_32_bits() -> None:
    far = 2**40
    slices = [
        np.array([(far, 7, 0), (far + 1, far, 4)], record_dtype(24)),
        np.array([(far, 7, 2), (far + 1, 5, 1)], record_dtype(24)),
    ]
    sources, ids, origins, counts, num_edges, num_added = _core.merge_edge_runs(
        np.concatenate(slices).view(np.uint8),
        np.array([2, 2]),
        np.array([24, 24]),
        np.array([2**35, 2**36]),
        first_column=far,
        num_columns=2,
        num_nodes=far + 2,
        with_origin=True,
        first_loop=far,
        end_loop=far + 2,
        first_loop_id=2**50,
    )
    assert (num_edges, num_added) == (6, 2)
    assert sources[:6].tolist() == [7, 7, far, 5, far, far + 1]
    assert ids is not None
    assert ids[:6].tolist() == [
        *(2**35, 2**36 + 2, 2**50),
        *(2**36 + 1, 2**35 + 4, 2**50 + 1),
    ]
    assert origins is not None
    assert origins[:6].tolist() == [0, 2, -1, 3, 1, -1]
    assert counts.tolist() == [3, 3]


# ---- the builder


@pytest.mark.usefixtures("small_floor")
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("self_loops", ["keep", "drop", "add"])
def test_what_memory_cannot_hold_goes_to_the_disk(
    tmp_path: Path, undirected: bool, self_loops: Any
) -> None:
    graph = random_graph(1500, choose(3_000, 10_000), seed=2, skew=2)
    rules = EdgeRules(undirected, self_loops)
    need = estimate_peak_bytes(rules, graph.num_edges, 1500, 4)
    builder = EdgeBuilder(rules, tmp_path / "s", num_nodes=1500, memory_bytes=need // 4)
    feed(builder, graph.edge_index)
    assert builder._parts
    built = builder.build(1500)
    assert isinstance(built, SpilledEdges)
    check_equal(columns(built), in_memory(graph.edge_index, rules, 1500))
    built.close()
    assert list((tmp_path / "s").iterdir()) == []


@pytest.mark.usefixtures("small_floor")
def test_a_column_longer_than_the_budget(tmp_path: Path) -> None:
    """A star: all edges have one target, many also one source."""
    rng = np.random.default_rng(0)
    edges = np.zeros((2, choose(6_000, 15_000)), np.int64)
    edges[0] = rng.integers(0, 5000, edges.shape[1]) ** 2 // 5000
    builder = EdgeBuilder(EdgeRules(), tmp_path / "s", memory_bytes=40_000)
    feed(builder, edges)
    built = builder.build(5000)
    check_equal(columns(built), in_memory(edges, EdgeRules(), 5000))
    built.close()


def test_a_long_column_sends_the_last_step_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edges that fit, but for what sorting their longest column takes."""
    monkeypatch.setattr(spill, "MIN_SPILL_BYTES", 2**12)
    others = np.arange(5000)
    edges = np.stack([others, np.zeros_like(others)])
    budget = estimate_peak_bytes(EdgeRules(), 5000, 5000, 4)
    builder = EdgeBuilder(EdgeRules(), tmp_path / "s", memory_bytes=budget)
    feed(builder, edges)
    assert not builder._parts
    built = builder.build(5000)
    assert builder._parts
    check_equal(columns(built), in_memory(edges, EdgeRules(), 5000))


def spilled(directory: Path, edges: npt.NDArray[Any], num_parts: int) -> list[Any]:
    parts = []
    buffer = EdgeBuffer()
    for number, part in enumerate(np.array_split(edges, num_parts, axis=1)):
        buffer.append(part[0], part[1], {}, "test")
        parts.append(write_part(directory / str(number), buffer, part.shape[1], EdgeRules(), 2))
        buffer.drop(part.shape[1])
    return parts


def test_ids_of_edges_beyond_32_bits(tmp_path: Path) -> None:
    """Positions past 2^32 without as many edges: the runs say where they begin."""
    edges = random_graph(100, 3000, seed=1).edge_index
    parts = spilled(tmp_path, edges, 3)
    far = 2**33
    parts = [
        replace(
            part,
            num_edges=part.num_edges + (far if number == 0 else 0),
            runs=tuple(replace(r, first_position=r.first_position + far) for r in part.runs),
        )
        for number, part in enumerate(parts)
    ]
    rules = EdgeRules(self_loops="add")
    built = SpilledEdges(
        parts,
        rules,
        101,
        memory_bytes=10**7,
        num_threads=2,
        directory=tmp_path,
        journal=None,
    )
    assert built.edge_id_dtype == np.int64
    found = columns(built)
    expected = in_memory(edges, rules, 101, attributes=False)
    added = expected["edge_id"] >= 3000
    assert added.any()
    np.testing.assert_array_equal(found["indices"], expected["indices"])
    np.testing.assert_array_equal(found["edge_id"], expected["edge_id"] + far)


def test_ranges_keep_their_limits(tmp_path: Path) -> None:
    edges = random_graph(50_000, 100_000, seed=1, skew=3).edge_index
    runs = [run for part in spilled(tmp_path, edges, 4) for run in part.runs]
    ranges = list(plan_ranges(runs, 50_000, 5000, 2000))
    assert len(ranges) > 20
    assert max(piece.num_records for piece in ranges) <= 5000
    assert max(piece.end.target - piece.begin.target for piece in ranges) <= 2000
    assert sum(piece.num_records for piece in ranges) == 100_000
    assert ranges[0].begin.target == 0
    assert ranges[-1].end.target == 50_000
    for before, after in pairwise(ranges):
        assert before.end == after.begin
    # Few are small: a range costs reads in every run.
    large = Counter(piece.num_records > 1000 for piece in ranges)
    assert large[True] > len(ranges) / 2


# ---- budgets and space


def test_expecting_what_fits_nowhere_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.base.files.free_bytes", lambda _: 10**9)
    builder = EdgeBuilder(
        EdgeRules(undirected=True), tmp_path / "s", num_nodes=1000, memory_bytes=2 * 10**7
    )
    builder.expect(10**7)
    with pytest.raises(
        NoSpaceError,
        match=r"cannot sort 1000000000 edges on disk: no space left for .*/s: about 24 GB are "
        r"needed, and 1 GB are free\. Free 23 GB, or choose a directory on another disk",
    ):
        builder.expect(10**9)
    assert not (tmp_path / "s").exists()


def test_space_is_checked_before_a_run_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnstore.formats.base.files.free_bytes", lambda _: 10**5)
    builder = EdgeBuilder(EdgeRules(), tmp_path / "s", memory_bytes=MIN_SPILL_BYTES)
    with pytest.raises(NoSpaceError, match=r"left for .*/s: .* 100 kB are free\. Free"):
        feed(builder, np.zeros((2, 2_000_000), np.int64), attributes=False)
    assert not (tmp_path / "s").exists()


def test_a_budget_too_small_for_either(tmp_path: Path) -> None:
    builder = EdgeBuilder(EdgeRules(), tmp_path / "s", memory_bytes=100_000)
    message = r"(?s)needs 16777216 bytes.* on disk.*raise memory_bytes= by at least 16.7 MB"
    with pytest.raises(BudgetError, match=message):
        builder.expect(1_000_000)
    # More edges may come: what these take in memory would not be enough.
    with pytest.raises(BudgetError, match=message):
        feed(builder, np.zeros((2, 20_000), np.int64), attributes=False)
    few = EdgeBuilder(EdgeRules(), tmp_path / "s", memory_bytes=100_000)
    with pytest.raises(
        BudgetError, match=r"(?s)needs 1\d{5} bytes.* 1\d\d kB of ids.* of 5,000 edges"
    ):
        few._fits(5_000, 5_000)


_MEASURE = """
    import sys
    from pathlib import Path
    import numpy as np
    from gnnstore.converters.edges.rules import EdgeRules
    from gnnstore.converters.edges.builder import EdgeBuilder

    def resident(field):
        for line in open("/proc/self/status"):
            if line.startswith(field):
                return int(line.split()[1]) * 1024

    budget, num_nodes, num_edges, chunk = 25_000_000, 100_000, 1_000_000, 50_000
    rules = EdgeRules(undirected=sys.argv[2] == "undirected")
    rng = np.random.default_rng(0)
    def build(count, memory):
        builder = EdgeBuilder(
            rules, Path(sys.argv[1]), num_nodes=num_nodes, memory_bytes=memory
        )
        for _ in range(count // chunk):
            ends = rng.integers(0, num_nodes, (2, chunk))
            builder.add(ends[0], ends[1], {"w": np.zeros((chunk, 2), np.float32)}, "test")
        built = builder.build(num_nodes)
        for piece in built.chunks():
            pass
        built.close()
        assert builder._parts

    build(300_000, 2**24)  # what is loaded and started once is not counted
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    build(num_edges, budget)
    print(resident("VmHWM") - before, budget)
"""


@pytest.mark.long("test_convert_wide_edges sorts on disk too")
@pytest.mark.parametrize("direction", choose(["undirected"], ["directed", "undirected"]))
def test_the_budget_is_kept(tmp_path: Path, direction: str) -> None:
    script = tmp_path / "measure.py"
    script.write_text(textwrap.dedent(_MEASURE))
    done = subprocess.run(
        [sys.executable, script, tmp_path / "spill", direction],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, budget = map(int, done.stdout.split())
    # In memory it would be about 30 or 50 MB.
    # Buffers come in steps of 2 MiB, and chunks on their way are not counted.
    assert grown <= budget + 8e6
    assert list((tmp_path / "spill").iterdir()) == []


# ---- resuming, and files that are not what they were


def journal_of(directory: Path) -> Journal:
    found = Journal.read(directory, to_continue=True)
    if found is None:
        found = Journal.create(directory, {"test": 1}, {})
    return found


@pytest.mark.usefixtures("small_floor")
@pytest.mark.parametrize("undirected", choose([False], [False, True]))
def test_going_on_after_an_interruption(tmp_path: Path, undirected: bool) -> None:
    graph = random_graph(2000, 12_000, seed=4)
    rules = EdgeRules(undirected=undirected)

    def begin(memory_bytes: int) -> EdgeBuilder:
        journal = journal_of(tmp_path)
        return EdgeBuilder(
            rules,
            journal.spill_directory,
            num_nodes=2000,
            memory_bytes=memory_bytes,
            journal=journal,
        )

    feed(begin(75_000), graph.edge_index[:, :7_000])
    first = {
        name: Path(name).stat().st_mtime_ns
        for run in journal_of(tmp_path).runs()
        for name in run["files"]
    }
    assert first
    # Another budget, another chunking: nothing that is there is written again.
    builder = begin(60_000)
    assert builder._parts
    feed(builder, graph.edge_index)
    assert {name: Path(name).stat().st_mtime_ns for name in first} == first
    runs = [name for run in journal_of(tmp_path).runs() for name in run["files"]]
    assert set(runs) > set(first)
    built = builder.build(2000)
    check_equal(columns(built), in_memory(graph.edge_index, rules, 2000))
    # Interrupted while it was written: the runs are there still.
    again = begin(10**9)
    feed(again, graph.edge_index)
    built = again.build(2000)
    check_equal(columns(built), in_memory(graph.edge_index, rules, 2000))
    built.close()
    assert journal_of(tmp_path).runs() == []
    assert list(journal_of(tmp_path).spill_directory.iterdir()) == []


@pytest.mark.usefixtures("small_floor")
@pytest.mark.parametrize("ending", choose(["edges"], ["edges", "index", "attr0"]))
def test_a_run_that_changed_is_written_again(tmp_path: Path, ending: str) -> None:
    edges = random_graph(200, 6_000).edge_index

    def begin() -> EdgeBuilder:
        journal = journal_of(tmp_path)
        return EdgeBuilder(
            EdgeRules(), journal.spill_directory, memory_bytes=25_000, journal=journal
        )

    feed(begin(), edges)
    (name,) = [f for f in journal_of(tmp_path).runs()[2]["files"] if f.endswith(ending)]
    data = bytearray(Path(name).read_bytes())
    data[-3] ^= 1
    Path(name).write_bytes(data)
    builder = begin()
    feed(builder, edges)
    built = builder.build(200)
    check_equal(columns(built), in_memory(edges, EdgeRules(), 200))


@pytest.mark.usefixtures("small_floor")
def test_an_input_that_lost_edges_since(tmp_path: Path) -> None:
    edges = random_graph(200, 10_000).edge_index
    journal = journal_of(tmp_path)

    def begin() -> EdgeBuilder:
        return EdgeBuilder(
            EdgeRules(), journal.spill_directory, memory_bytes=25_000, journal=journal
        )

    feed(begin(), edges)
    builder = begin()
    feed(builder, edges[:, :100])
    with pytest.raises(InputError, match=r"has 100 edges, but had at least .* without resume=True"):
        builder.build(200)


def test_an_id_that_no_node_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "MIN_SPILL_BYTES", 0)
    builder = EdgeBuilder(EdgeRules(), tmp_path / "s", memory_bytes=1)
    builder.add(np.array([1, 7]), np.array([2, 0]), {}, "test")
    assert builder._parts
    with pytest.raises(InputError, match=r"node id 7 is outside \[0, 5\): there are 5 nodes"):
        builder.build(5)


@pytest.mark.parametrize("damage", ["swapped", "short", "gone"])
def test_runs_that_were_damaged(tmp_path: Path, damage: str) -> None:
    parts = spilled(tmp_path, random_graph(100, 3000).edge_index, 2)
    path = Path(parts[1].runs[0].path("edges"))
    data = path.read_bytes()
    if damage == "swapped":
        path.write_bytes(data[1200:2400] + data[:1200] + data[2400:])
    elif damage == "short":
        path.write_bytes(data[:-12])
    else:
        path.unlink()
    error = StorageError if damage == "gone" else CorruptStoreError
    message = {
        "swapped": "a sorted run of edges is damaged .*without resume=True",
        "short": "ends at byte 17988: it was truncated; .* or convert again",
        "gone": "cannot read a sorted run of edges: .*: No such file",
    }[damage]
    with pytest.raises(error, match=message):
        columns(
            SpilledEdges(
                parts,
                EdgeRules(),
                100,
                memory_bytes=10**6,
                num_threads=1,
                directory=tmp_path,
                journal=None,
            )
        )
