"""Training and evaluation over one store stay within one `memory=`, under a real limit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnstore.converters import from_numpy
from tests.support.effort import choose
from tests.support.forks import ForkServer
from tests.support.limits import run_limited

ALLOWANCE_BYTES = 48 * 10**6

AHEAD: dict[str, Any] = choose({"prefetch_batches": 1}, {})
PLAN: dict[str, Any] = {"batches": choose(2, 4), "epochs": choose(1, 2)}
PAIR = """
import itertools
import numpy as np
from gnnstore import _core
store, words, group = sys.argv[1:]
words = json.loads(words)
gnnstore.NeighborLoader  # imports what would count later
begin(group)
store = gnnstore.open(store)
within = words.get("within")  # whether validation comes within epochs, which are whole
def make(split, fanouts, **options):
    nodes = store.splits[split][: 6 * 256] if within else split
    return gnnstore.NeighborLoader(
        store, fanouts, nodes, batch_size=256, shuffle=split == "train", seed=0, num_threads=2,
        **options,
    )
def run(loader, then=lambda: None):
    crc = 0  # of a gigabyte: cryptography would take more time than the loaders
    for i, batch in enumerate(itertools.islice(loader, None if within else words["batches"])):
        for values in batch.n_id, batch.edge_index, batch.x:
            crc = _core.crc32c(values.numpy().reshape(-1).view(np.uint8), crc)
        if i == 1:
            then()
    found.append(crc)
found = []
train = make("train", [10, 10], **words["train"])
if words.get("late"):
    run(train)
valid = make("valid", [5, 5] if within else [15, 15], **words["valid"])
for epoch in range(words["epochs"]):
    if within:
        run(train, lambda: run(valid))
        run(train)
    else:
        run(train)
        run(valid)
stats = [loader.stats() for loader in (train, valid)]
finish(
    digests=found, strategies=[s.strategy for s in stats], cached=[s.rows_cached for s in stats]
)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of 307 MB: more than the budgets below."""
    directory = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    num_nodes = 300_000
    np.save(directory / "x.npy", rng.random((num_nodes, 256), dtype=np.float32))
    np.save(directory / "edge_index.npy", rng.integers(0, num_nodes, (2, 2_400_000)))
    order = rng.permutation(num_nodes)
    np.save(directory / "train.npy", order[:15_000])
    np.save(directory / "valid.npy", order[15_000:30_000])
    return from_numpy(directory, directory / "a.gnn")


@pytest.fixture(scope="module")
def mapped(forks: ForkServer, store: Path) -> Callable[..., list[int]]:
    """Return what says how batches are that nobody keeps in memory."""

    @cache
    def digests(**order: bool) -> list[int]:
        words = {"strategy": "mmap", **AHEAD}
        words_of_both = json.dumps(PLAN | {"train": words, "valid": words, **order})
        found: list[int] = run_limited(forks, PAIR, store, words_of_both)["digests"]
        return found

    return digests


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kinds", "late"),
    [
        (("belady", "belady"), True),  # made when the cache of training is full
        (("static", "static"), True),
        (("packed", "belady"), False),
        (("belady", "static"), False),  # which cannot share a cache
    ][: choose(1, 4)],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_one_budget(
    forks: ForkServer,
    store: Path,
    limited: tuple[Path, Path],
    mapped: Callable[..., list[int]],
    *,
    kinds: tuple[str, str],
    late: bool,
) -> None:
    """Each cache alone is half the budget and more, so two of them would be seen."""
    train, valid = kinds
    memory = 170 * 10**6
    words = PLAN | {
        "train": {"strategy": train, "memory": memory, **AHEAD},
        "valid": {"strategy": valid, "memory": memory, **AHEAD},
        "late": late,
    }
    most = memory + ALLOWANCE_BYTES
    found = run_limited(forks, PAIR, store, json.dumps(words), limited=limited, most=most)
    assert found["grown"] - found["mapped"] <= most
    assert found["strategies"] == [train, valid]
    assert found["cached"][0] > 0
    shares = valid == train or {train, valid} == {"packed", "belady"}
    assert (found["cached"][1] > 0) == shares
    assert found["digests"] == mapped(late=late)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", choose(["packed"], ["belady", "packed"]))
def test_validation_within_epochs(
    forks: ForkServer,
    store: Path,
    limited: tuple[Path, Path],
    mapped: Callable[..., list[int]],
    strategy: str,
) -> None:
    """It has no slots, for those of training stay; its batches, which are small, come on top."""
    memory = 170 * 10**6
    options = {"strategy": strategy, "memory": memory, "prefetch_batches": 1}
    words = PLAN | {"train": options, "valid": options, "within": True}
    most = memory + ALLOWANCE_BYTES
    found = run_limited(forks, PAIR, store, json.dumps(words), limited=limited, most=most)
    assert found["grown"] - found["mapped"] <= most
    assert found["strategies"] == [strategy] * 2
    assert found["cached"][0] > 0
    assert found["cached"][1] == 0
    assert found["digests"] == mapped(within=True)
