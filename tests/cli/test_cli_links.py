"""Batches that start from edges, on the command line: `pack`, `predict` and `bench load`."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import gnnstore
from gnnstore.converters import from_pyg
from gnnstore.testing.graphs import random_graph
from gnnstore.tools.bench import harness
from gnnstore.tools.bench.harness import DeviceLimits, Task
from gnnstore.tools.bench.worker import perform
from tests.support.batches import assert_same_batches, batches_of
from tests.support.effort import choose

N, NUM_EDGES, BATCH = 600, 2300, ("--num-neighbors", "4,3", "--batch-size", "90")
LOADER: dict[str, Any] = {"batch_size": 90, "shuffle": True, "seed": 7}
EXTENSIONS: dict[str, Any] = {
    "neg_sampling": {"mode": "triplet", "amount": 4},
    "neg_side": "both",
    "negative_chunks": 3,
    "degree_fraction": 0.5,
    "strict_negatives": True,
    "exclude_edges": "reverse",
}
ONE = ("--strategies", "direct")  # where none of them is compared
ASKED = (
    *("--negatives", "triplet:4", "--neg-side", "both", "--negative-chunks", "3"),
    *("--degree-fraction", "0.5", "--strict-negatives", "--exclude-edges", "reverse"),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, NUM_EDGES, seed=5, feature_dim=100, num_classes=7, edge_feature_dim=3)
    return graph.write(tmp_path_factory.mktemp("links") / "s.gnn")


@pytest.fixture(scope="module")
def edges(store: Path) -> torch.Tensor:
    """Return edges that need not be edges of the graph, which also lie beside the store."""
    drawn = np.random.default_rng(0).integers(0, N, (2, 300))
    np.save(store.with_name("edges.npy"), drawn)
    return torch.from_numpy(drawn)


def pack(run: Any, store: Path, name: str, *options: object) -> Any:
    where = (
        "--name",
        name,
        "--seed",
        "7",
        "--superbatch",
        "3",
        "--cache-bytes",
        "50kB",
        "--overwrite",
    )
    return run("pack", store, *where, *BATCH, *options, "--json")


def test_packed_epochs_of_all_edges_with_every_extension(run: Any, store: Path) -> None:
    packed = pack(run, store, "all", "--links", "all", *ASKED, "--edge-label-attrs", "edge_attr")
    assert packed.status == 0
    assert packed.document["batches_per_epoch"] == 26
    assert (packed.document["seeds"], packed.document["num_seeds"]) == ("links", NUM_EDGES)
    assert "2,300 links, triplet negatives" in run("inspect", packed.document["path"]).stdout
    options = {**LOADER, **EXTENSIONS, "edge_label_attrs": ["edge_attr"]}
    expected = batches_of(gnnstore.LinkNeighborLoader(store, [4, 3], **options))
    assert {"src_neg_index", "dst_neg_index", "label_edge_attr"} <= expected[0].keys()
    planned = gnnstore.LinkNeighborLoader(store, [4, 3], packed="all", **options)
    assert_same_batches(batches_of(planned), expected)
    alone = gnnstore.open_packed(packed.document["path"]).loader()
    assert_same_batches(batches_of(alone), expected)
    # And no other loader's.
    refused: list[tuple[dict[str, Any], str]] = [
        ({"neg_sampling": ("triplet", 2)}, "amount: expected 2, found 4"),
        ({"exclude_edges": None}, "exclude_edges: expected None, found 'reverse'"),
        ({"edge_label_index": [[0, 1], [2, 3]]}, "crc32c of edge_label_index"),
        ({"seed": 8}, "seed: expected 8, found 7"),
    ]
    for other, named in refused:
        with pytest.raises(gnnstore.UsageError, match=re.escape(named)):
            gnnstore.LinkNeighborLoader(store, [4, 3], packed="all", **options | other)


def test_packed_epochs_of_given_edges(run: Any, store: Path, edges: torch.Tensor) -> None:
    """With labels and weights, each a file."""
    label, weight = torch.arange(300) % 4, torch.arange(float(N))
    files = {"label": label, "weight": weight}
    for name, values in files.items():
        np.save(store.with_name(f"{name}.npy"), values.numpy())
    asked: tuple[object, ...] = ("--links", store.with_name("edges.npy"))
    asked += ("--negatives", "binary:0.5")
    asked += ("--edge-label", store.with_name("label.npy"))
    asked += ("--dst-weight", store.with_name("weight.npy"))
    assert pack(run, store, "given", *asked).status == 0
    options = {**LOADER, "neg_sampling": ("binary", 0.5, None, weight)}
    loader = gnnstore.LinkNeighborLoader(store, [4, 3], edges, label, packed="given", **options)
    expected = gnnstore.LinkNeighborLoader(store, [4, 3], edges, label, **options)
    assert_same_batches(batches_of(loader), batches_of(expected))


def test_packed_epochs_of_an_edge_split(run: Any, store: Path, tmp_path: Path) -> None:
    links = tmp_path / "links.gnn"
    assert run("split-edges", store, links).status == 0
    packed = pack(run, links, "base", "--links", "valid", "--negatives", "binary:1")
    assert packed.status == 0
    options = {**LOADER, "neg_sampling": "binary"}
    expected = batches_of(gnnstore.LinkNeighborLoader(links, [4, 3], "valid", **options))
    loader = gnnstore.LinkNeighborLoader(links, [4, 3], "valid", packed="base", **options)
    assert_same_batches(batches_of(loader), expected)
    for split in ("test", "train"):
        with pytest.raises(gnnstore.UsageError, match="edge_label_index"):
            gnnstore.LinkNeighborLoader(links, [4, 3], split, packed="base", **options)


def test_plan_samples_what_a_link_loader_does(run: Any, store: Path) -> None:
    done = run("predict", store, *BATCH, "--links", "all", *ASKED, "--batches", "5", *ONE, "--json")
    assert done.status == 0
    document = done.document
    assert (document["links"], document["input_nodes"]) == ("all", None)
    assert (document["num_input_nodes"], document["epoch_batches"]) == (NUM_EDGES, 26)
    options = {"batch_size": 90, "shuffle": True, "seed": 0, **EXTENSIONS}
    batches = iter(gnnstore.LinkNeighborLoader(store, [4, 3], **options))
    assert document["rows_needed"] == sum(next(batches).num_nodes for _ in range(5))


@pytest.mark.usefixtures("timed_in_forks")
@pytest.mark.parametrize("num_batches", choose([4], [None, 4]))
def test_bench_times_link_loaders(run: Any, store: Path, num_batches: int | None) -> None:
    shorter = () if num_batches is None else ("--batches", num_batches)
    asked = ("--links", "all", *ASKED, "--strategies", "numpy-mmap,memory", "--no-limit", *shorter)
    done = run("bench", "load", store, *BATCH, *asked, "--json")
    assert done.status == 0
    document = done.document
    assert (document["links"], document["input_nodes"]) == ("all", None)
    assert document["epoch_batches"] == (num_batches or 25)
    mapped, memory = document["strategies"]
    assert mapped["problem"] is memory["problem"] is None
    # Sampled by hand for the mapping, and by the loader: the same nodes.
    assert mapped["batches"] == (num_batches or 24)
    if num_batches is not None:
        assert mapped["rounds"][0]["nodes"] == memory["rounds"][0]["nodes"]


def test_what_is_refused(run: Any, store: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.npy"
    np.save(weights, np.ones(3))
    for options, status, message in (
        (["--negatives", "binary"], 2, "give these with --links"),
        (
            ["--links", "all", "--input-nodes", "train"],
            2,
            "batches start from edges, or",
        ),
        (["--links", "all", "--negatives", "triplet:0.5"], 2, "not a kind of negatives"),
        (["--links", "all", "--negatives", "other:1"], 2, "not a kind of negatives"),
        (["--links", "all", "--negatives", "binary:many"], 2, "not a kind of negatives"),
        (
            ["--links", "all", "--src-weight", weights],
            2,
            "weights are for --negatives, which are not given",
        ),
        (["--links", "all", "--neg-side", "src"], 2, "no negatives are drawn"),
        (["--links", "nowhere.npy"], 3, "nowhere.npy"),
        (["--links", "nothing"], 3, "no edge split 'nothing'"),
        (["--edge-label-attrs", "edge_attr"], 2, "edge_label_attrs: only of use with links"),
        (["--links", "all", "--src-weight", "w.npy"], 3, "w.npy"),
    ):
        done = run("pack", store, "--name", "refused", *BATCH, *options)
        assert (done.status, message in done.stderr) == (status, True), (options, done.stderr)


@pytest.fixture
def timed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `gnnstore bench load` time its tasks in this process, and not measure the disk."""

    def run_task(task: Task, **_: Any) -> dict[str, Any]:
        with redirect_stdout(StringIO()):
            return perform(Task.of_json(json.dumps(asdict(task))))

    limits = DeviceLimits(80_000.0, 1e9, "pread", is_direct=True)
    monkeypatch.setattr(harness, "run_task", run_task)
    monkeypatch.setattr(harness, "measure_disk_of", lambda _: limits)


@pytest.mark.usefixtures("timed_here")
def test_reverses_by_the_name_of_their_type(run: Any, tmp_path: Path) -> None:
    ends = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (2, 200)))
    data = HeteroData(user={"x": torch.zeros(50, 30)})
    data["user", "follows", "user"].edge_index = ends
    data["user", "followed_by", "user"].edge_index = ends.flip(0)
    follows, followed_by = data.edge_types
    store = from_pyg(data, tmp_path / "s.gnn")
    asked = ("--links", "user__follows__user:all", "--exclude-edges", "reverse")
    assert pack(run, store, "links", *asked).status == 2
    with_types = (*asked, "--reverse-types", "user__follows__user=user__followed_by__user")
    assert pack(run, store, "links", *with_types).status == 0
    options: dict[str, Any] = {
        **LOADER,
        "exclude_edges": "reverse",
        "reverse_types": {follows: followed_by},
    }
    packed = gnnstore.LinkNeighborLoader(store, [4, 3], follows, packed="links", **options)
    expected = gnnstore.LinkNeighborLoader(store, [4, 3], follows, **options)
    assert_same_batches(batches_of(packed), batches_of(expected))
    planned = run("predict", store, *BATCH, *with_types, "--batches", "2", *ONE, "--json")
    batches = gnnstore.LinkNeighborLoader(store, [4, 3], follows, **options | {"seed": 0})
    assert planned.document["rows_needed"] == sum(b.num_nodes for b in islice(batches, 2))
    words = ("--strategies", "direct,belady", "--no-limit", "--json")
    done = run("bench", "load", store, *BATCH, *with_types, *words)
    assert done.status == 0, done.stdout
    timed = done.document["strategies"]
    once = [batch.num_nodes for batch in islice(batches, 2)]
    twice = [batch.num_nodes for batch in islice(batches, 2)]  # of the epoch after
    assert [found["rounds"][0]["nodes"] for found in timed] == [sum(once) / 2, sum(twice) / 2]
    for command in (("pack",), ("predict",), ("bench", "load")):
        assert run(*command, store, *BATCH, *asked).status == 2
        wrong = run(*command, store, *asked, "--reverse-types", "follows=followed_by")
        assert "'follows=followed_by' is not a list of pairs of edge types" in wrong.stderr
