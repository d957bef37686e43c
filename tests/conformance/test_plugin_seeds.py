"""Seeds of another kind that stand in this file alone: pairs of nodes, with drawn negatives.

They go through every strategy, packed epochs and a resumed run. Were anything between the order of
an epoch and the finished batch to know what a seed node is, something here would not come through.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

import gnnstore
from gnnstore.converters.partitions.partition import partition
from gnnstore.formats.partitions.reader import PartitionsReader
from gnnstore.partitions.seeds import by_state
from gnnstore.plugins import (
    NODE_TYPE,
    SEED_KINDS,
    STRATEGIES,
    BatchKey,
    LoaderOptions,
    SampledLoader,
    SeedLabels,
    Seeds,
)
from gnnstore.testing import assert_resumes
from gnnstore.testing.graphs import random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.packed import pack

N, FANOUTS, BATCH_SIZE, SEED = 800, [4, 3], 30, 5


class PairLabels(SeedLabels):
    """Where the ends of each pair, and its negative, are among the nodes of the batch."""

    name: ClassVar[str] = "pairs"
    num_arrays: ClassVar[int] = 2

    def __init__(self, input_id: torch.Tensor, local: torch.Tensor) -> None:
        self.input_id = input_id
        self.local = local

    def label(self, batch: Any) -> None:
        batch.input_id = self.input_id
        batch.edge_label_index, batch.dst_neg_index = self.local[:2], self.local[2]

    def arrays(self) -> list[npt.NDArray[Any]]:
        return [self.input_id.numpy(), self.local.numpy()]

    @classmethod
    def from_arrays(cls, arrays: Sequence[npt.NDArray[Any]]) -> PairLabels:
        return cls(*map(torch.from_numpy, arrays))


def negatives(key: BatchKey, count: int) -> npt.NDArray[np.int64]:
    words = np.array([key.seed, key.epoch], np.uint64)
    generator = np.random.Philox(key=words, counter=key.batch)
    return (generator.random_raw(count) % N).astype(np.int64)


class Pairs:
    labels = PairLabels
    name = None

    def __init__(self, pairs: npt.NDArray[np.int64]) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs[0])

    @property
    def num_bytes(self) -> int:
        return self.pairs.nbytes

    def select(self, index: Any, key: BatchKey) -> Seeds[PairLabels]:
        positions = np.asarray(index, np.int64)
        ends = np.stack([*self.pairs[:, positions], negatives(key, len(positions))])
        nodes, local = np.unique(ends, return_inverse=True)
        labels = PairLabels(
            torch.from_numpy(positions.copy()), torch.from_numpy(local.reshape(ends.shape))
        )
        return Seeds({NODE_TYPE: nodes}, labels)

    def fingerprint(self) -> Mapping[str, Any]:
        return {"sum of pairs": int(self.pairs.sum())}


class PairLoader(SampledLoader):
    """A loader of another kind; what it has of its own is how it reads its options."""

    def __init__(
        self,
        data: Path,
        num_neighbors: list[int],
        pairs: npt.NDArray[np.int64],
        *,
        strategy: str = "auto",
        packed: Path | None = None,
        cache_bytes: str | None = None,
        superbatch: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        seed: int | None = SEED,
        num_threads: int = 2,
        transform_sampler_output: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(LoaderOptions.of(locals()), Pairs(pairs))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, 9_000, seed=2, feature_dim=40, num_classes=5, skew=1.5)
    return graph.write(tmp_path_factory.mktemp("pairs") / "s.gnn")


@pytest.fixture(scope="module")
def pairs() -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, N, (2, 200))


@pytest.fixture(scope="module")
def packed(path: Path, pairs: npt.NDArray[np.int64]) -> Path:
    options: dict[str, Any] = {"seed": SEED, "batch_size": BATCH_SIZE, "superbatch": 3}
    return pack(path, FANOUTS, seeds=Pairs(pairs), cache_bytes="20kB", **options)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with SEED_KINDS.having(PairLabels):
        yield


def loader_of(path: Path, pairs: npt.NDArray[np.int64], **options: Any) -> PairLoader:
    if "strategy" in options and STRATEGIES[options["strategy"]].plans:
        options |= {"cache_bytes": "20kB", "superbatch": 3}
    options = {"batch_size": BATCH_SIZE, "shuffle": True} | options
    return PairLoader(path, FANOUTS, pairs, **options)


@pytest.fixture(scope="module")
def expected(path: Path, pairs: npt.NDArray[np.int64]) -> Batches:
    return batches_of(loader_of(path, pairs, strategy="memory", num_threads=0), 2)


def test_a_batch_is_what_its_labels_say(
    path: Path, pairs: npt.NDArray[np.int64], expected: Batches
) -> None:
    x = gnnstore.open(path).features
    for number, batch in enumerate(expected):
        key = BatchKey(SEED, *divmod(number, len(expected) // 2))
        n_id, input_id = batch["n_id"].numpy(), batch["input_id"].numpy()
        assert np.array_equal(n_id[batch["edge_label_index"]], pairs[:, input_id])
        assert np.array_equal(n_id[batch["dst_neg_index"]], negatives(key, len(input_id)))
        assert np.array_equal(batch["x"].numpy(), x[n_id])
        assert "batch_size" not in batch
    seen = np.concatenate([batch["input_id"] for batch in expected[: len(expected) // 2]])
    assert sorted(seen.tolist()) == list(range(200))


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("strategy", STRATEGIES.names)
def test_every_strategy_gives_the_same(
    path: Path, pairs: npt.NDArray[np.int64], expected: Batches, strategy: str, num_threads: int
) -> None:
    found = loader_of(path, pairs, strategy=strategy, num_threads=num_threads)
    assert_same_batches(batches_of(found, 2), expected)
    found.set_epoch(0)
    found.transform_sampler_output = lambda output: output
    assert_same_batches(batches_of(found, 2), expected)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_packed_plan_gives_the_same(
    path: Path, pairs: npt.NDArray[np.int64], packed: Path, expected: Batches, num_threads: int
) -> None:
    """With the store, and without it."""
    assert_same_batches(
        batches_of(loader_of(path, pairs, packed=packed, num_threads=num_threads), 2), expected
    )
    assert_same_batches(
        batches_of(gnnstore.open_packed(packed).loader(num_threads=num_threads), 2), expected
    )


def test_packed_epochs_of_other_pairs_or_of_nodes_are_refused(
    path: Path, pairs: npt.NDArray[np.int64], packed: Path
) -> None:
    with pytest.raises(gnnstore.UsageError, match="sum of pairs"):
        loader_of(path, np.flip(pairs, axis=1) + 1, packed=packed)
    with pytest.raises(gnnstore.UsageError, match="seeds: expected nothing, found 'pairs'"):
        gnnstore.NeighborLoader(
            path, FANOUTS, range(200), batch_size=BATCH_SIZE, shuffle=True, packed=packed
        )


def test_partitions_train_kinds_that_say_how(path: Path, pairs: npt.NDArray[np.int64]) -> None:
    unit = PartitionsReader.open(partition(path, 2, output=path.parent / "p"))
    with pytest.raises(gnnstore.UsageError, match="seeds of the kind Pairs: these cannot be train"):
        by_state(Pairs(pairs), unit, "random")


def test_epochs_of_an_unknown_kind_are_refused(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SEED_KINDS, "_values", {"nodes": SEED_KINDS["nodes"]})
    with pytest.raises(gnnstore.UnsupportedVersionError, match="'pairs', and this gnnstore knows"):
        gnnstore.open_packed(packed).loader()
    monkeypatch.undo()  # before the kind is taken out


@pytest.mark.parametrize("then", STRATEGIES.names)
def test_a_run_goes_on_under_another_strategy(
    path: Path, pairs: npt.NDArray[np.int64], then: str
) -> None:
    strategies = cycle(("static", then))
    assert_resumes(lambda: loader_of(path, pairs, strategy=next(strategies)))
    state = loader_of(path, pairs, strategy=then).state_dict()
    with pytest.raises(gnnstore.UsageError, match="sum of pairs"):
        loader_of(path, pairs + 1, strategy="memory").load_state_dict(state)


def test_ranks_share_the_batches(
    path: Path, pairs: npt.NDArray[np.int64], expected: Batches
) -> None:
    ranks = [loader_of(path, pairs, strategy="memory", rank=r, world_size=2) for r in range(2)]
    shared = [batches_of(loader) for loader in ranks]
    assert_same_batches(shared[0], expected[:7:2])
    assert_same_batches(shared[1], [*expected[1:7:2], expected[0]])


def test_a_loader_is_pickled_and_called(
    path: Path, pairs: npt.NDArray[np.int64], expected: Batches
) -> None:
    loader = pickle.loads(pickle.dumps(loader_of(path, pairs, strategy="memory")))  # noqa: S301
    assert_same_batches(batches_of(loader, 2), expected)
    batch = loader([3, 1])
    assert np.array_equal(batch.n_id[batch.edge_label_index], pairs[:, [3, 1]])
