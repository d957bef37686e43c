"""`memory="10%"`: a share of what a store's topology and attributes take, wherever one is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import gnnstore
from gnnstore.budget.limits import memory_of
from gnnstore.converters import from_pyg, partition
from gnnstore.errors import BudgetError, UsageError
from gnnstore.formats.packed import PackedReader
from gnnstore.tools import predict
from gnnstore.tools.bench import harness
from gnnstore.units import parse_share
from tests.support.disks import keep_usual_profile

NODES, EDGES = 2**11, 2**12
# int64 `indptr`, int32 `indices`; float32 `x`, int64 `y`.
WHOLE = 8 * (NODES + 1) + 4 * EDGES + NODES * (4 * 32 + 8)
SHARE = "50000%"
BYTES = 500 * WHOLE


@pytest.fixture(autouse=True)
def the_disk_is_known(made: Path) -> None:
    keep_usual_profile(made)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store with partitions and packed epochs, each made with a share."""
    rng = np.random.default_rng(0)
    path = gnnstore.from_arrays(
        {
            "edge_index": rng.integers(0, NODES, (2, EDGES)),
            "x": rng.random((NODES, 32), np.float32),
            "y": np.arange(NODES) % 3,
        },
        tmp_path_factory.mktemp("shares") / "graph.gnn",
    )
    partition(path, 4, memory_bytes=SHARE)
    return path


@pytest.mark.parametrize(
    ("share", "fraction"),
    [("10%", 0.1), (" 2.5 % ", 0.025), ("110%", 1.1), ("8GB", None), (8000, None), (None, None)],
)
def test_a_share_is_a_fraction_of_the_store(share: Any, fraction: float | None) -> None:
    assert parse_share(share, name="memory") == fraction
    found = memory_of(share, 10**6)
    assert found == (share if fraction is None else 10**6 * fraction)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ("0%", "memory='0%' is nothing; give a share above 0%"),
        ("-5%", "memory='-5%' is not a share; write a number and %, such as '10%', or a size"),
        ("abc%", "memory='abc%' is not a share"),
        ("%", "memory='%' is not a share"),
        ("nan%", "memory='nan%' is not a share"),
        ("1e3%", "memory='1e3%' is not a share"),
    ],
)
def test_what_is_not_a_share(made: Path, share: str, words: str) -> None:
    for door in (
        lambda: gnnstore.NeighborLoader(made, [2], memory=share),
        lambda: gnnstore.inference([SAGEConv(32, 2)], made, memory=share),
        lambda: partition(made, 4, name="again", memory_bytes=share),
    ):
        with pytest.raises(UsageError) as refused:
            door()
        assert words.partition("=")[2] in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "direct"},
        {"partitions": gnnstore.PartitionPolicy(capacity=4)},
        {"attributes": ["y"]},  # a share of the store, whatever batches show
    ],
)
def test_loaders(made: Path, options: dict[str, Any]) -> None:
    for kind in (gnnstore.NeighborLoader, gnnstore.LinkNeighborLoader):
        if kind is gnnstore.LinkNeighborLoader and "partitions" in options:
            continue
        found = kind(made, [2], memory=SHARE, **options)
        assert found.memory == SHARE
        assert found.explain().limit_bytes == BYTES
        assert found.explain().is_promise


def test_the_budget_of_partitions(made: Path) -> None:
    policy = gnnstore.PartitionPolicy(memory="100%")
    with pytest.raises(BudgetError, match=f"has {WHOLE} bytes"):
        gnnstore.NeighborLoader(made, [2], partitions=policy)


def test_too_small_a_share_says_its_bytes(made: Path) -> None:
    amount = round(WHOLE / 100)
    with pytest.raises(BudgetError, match=f"has {amount} bytes .* of the memory= budget"):
        gnnstore.NeighborLoader(made, [2], memory="1%")
    with pytest.raises(BudgetError, match=f"has {amount} bytes"):
        gnnstore.inference([SAGEConv(32, 2)], made, memory="1%")


def test_inference(made: Path) -> None:
    torch.manual_seed(0)
    layers = [SAGEConv(32, 2)]
    found, again = (gnnstore.inference(layers, made, memory=each) for each in (SHARE, BYTES))
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, torch.as_tensor(again))


def test_packed_epochs(run: Any, made: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    words = ("--num-neighbors", "2", "--batch-size", "512", "--seed", "0", "--json")
    estimates = [
        run("pack", made, "--output", packed, *words, "--memory", memory, "--estimate").document
        for memory in (SHARE, BYTES)
    ]
    assert estimates[0]["estimate"] == estimates[1]["estimate"]
    assert run("pack", made, "--output", packed, *words, "--memory", SHARE).status == 0
    assert PackedReader.open(packed).manifest.schema.bytes_in_memory == WHOLE
    assert gnnstore.open_packed(packed).loader(memory=SHARE).explain().limit_bytes == BYTES
    options: dict[str, Any] = {
        "batch_size": 512,
        "shuffle": True,
        "seed": 0,
        "packed": packed,
        "memory": SHARE,
    }
    assert gnnstore.NeighborLoader(made, [2], **options).explain().limit_bytes == BYTES


def test_predictions(run: Any, made: Path) -> None:
    words = ("--num-neighbors", "2", "--batches", "2", "--json", "--memory", SHARE)
    document = run("predict", made, *words).document
    assert document["predictions"]["memory_bytes"] == BYTES
    document = run("predict", made, "--partitions", "nodes", "--memory", SHARE, "--json").document
    assert document["memory_bytes"] == BYTES


def test_partitions(run: Any, made: Path) -> None:
    words = ("partition", made, "-p", 4, "--name", "other", "--estimate", "--json", "--memory")
    assert run(*words, SHARE).document == run(*words, BYTES).document
    done = run(*words, "1%")
    assert done.status != 0
    assert f"{round(WHOLE / 100)} bytes" in done.stderr


def test_bench_load(run: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[harness.Task] = []

    def stop(task: harness.Task, **_: Any) -> str:
        tasks.append(task)
        return "stopped"

    monkeypatch.setattr(harness, "run_task", stop)
    words = ("--num-neighbors", "2", "--strategies", "direct", "--no-limit", "--loader-memory")
    run("bench", "load", made, *words, "10%")
    run("bench", "load", made, *words, "0%")
    (task,) = tasks
    assert round(task.share * NODES * 4 * 32) == round(0.1 * WHOLE)


@pytest.mark.parametrize("slack", [230_000, 233_000])
def test_a_prediction_leads_to_a_limit_that_limits(
    run: Any, made: Path, monkeypatch: pytest.MonkeyPatch, slack: int
) -> None:
    monkeypatch.setattr(predict, "SLACK_BYTES", slack)
    found = run("predict", made, "--num-neighbors", "2", "--batches", "2").stdout
    limits = WHOLE // 10 + slack < NODES * 4 * 32
    assert f"  gnnstore bench load {made}{'' if limits else ' --no-limit'}\n" in found


def test_converters_ask_for_a_size(run: Any, made: Path, tmp_path: Path) -> None:
    data = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]))
    words = "a share of a store is for loaders, inference, predict, pack, partition and bench load"
    with pytest.raises(UsageError, match=f"memory_bytes='10%': {words}; write a size here, such"):
        from_pyg(data, tmp_path / "out.gnn", memory_bytes="10%")
    with pytest.raises(UsageError, match=f"cache_bytes='10%': {words}"):
        gnnstore.NeighborLoader(made, [2], strategy="static", cache_bytes="10%")
    done = run("reorder", made, tmp_path / "other.gnn", "--order", "degree", "--memory", "10%")
    assert done.status == 2
    assert "--memory='10%': a share of a store is for loaders" in " ".join(done.stderr.split())
