"""`LinkNeighborLoader` keeps PyG's contract, attribute by attribute, under every strategy."""

from __future__ import annotations

import inspect
import json
import math
import pickle
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch_geometric.loader import LinkLoader
from torch_geometric.loader import LinkNeighborLoader as PygLinkNeighborLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, SamplerOutput
from torch_geometric.sampler.neighbor_sampler import edge_sample

import gnnstore
from gnnstore import LinkNeighborLoader
from gnnstore.sampling.neighbor import NeighborSampler, SamplingConfig
from gnnstore.seeds.base import BatchKey
from gnnstore.seeds.links import Links
from gnnstore.seeds.negatives import Negatives, cumulative_weights
from gnnstore.strategies.registry import STRATEGIES
from gnnstore.testing.graphs import GraphArrays, random_graph
from tests.support.batches import Batches, assert_same_batches, batches_of
from tests.support.effort import choose, is_long, paired
from tests.support.packing import pack

N, E, FANOUTS, BATCH_SIZE, SEED = 600, 6_000, [4, 3], 40, 5
KINDS: dict[str, dict[str, Any]] = {
    "no negatives": {},
    "binary": {"neg_sampling": "binary"},
    "binary half, disjoint": {"neg_sampling": NegativeSampling("binary", 0.5), "disjoint": True},
    "triplet": {"neg_sampling": {"mode": "triplet", "amount": 3}},
    "triplet, disjoint": {"neg_sampling": NegativeSampling("triplet", 2), "disjoint": True},
    "extensions": {
        "neg_sampling": NegativeSampling("triplet", 4),
        "neg_side": "both",
        "negative_chunks": 3,
        "degree_fraction": 0.5,
        "strict_negatives": True,
        "edge_label_attrs": ("edge_attr",),
        "exclude_edges": "self",
    },
    "disjoint, of both sides, shared, without reverses": {
        "neg_sampling": NegativeSampling("triplet", 3),
        "disjoint": True,
        "neg_side": "both",
        "negative_chunks": 5,
        "exclude_edges": "reverse",
    },
    "strict, of sources": {
        "neg_sampling": NegativeSampling("triplet", 2),
        "neg_side": "src",
        "strict_negatives": True,
    },
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = random_graph(N, E, seed=2, feature_dim=24, num_classes=5, skew=1.5, edge_feature_dim=3)
    return graph.write(tmp_path_factory.mktemp("links") / "s.gnn")


@pytest.fixture(scope="module")
def edge_index(path: Path) -> torch.Tensor:
    """Return the edges in the order of their ids."""
    return gnnstore.open(path).edge_index.tensor()


@pytest.fixture(scope="module")
def csc(path: Path) -> set[tuple[int, int]]:
    store = gnnstore.open(path)
    return set(zip(*store.edge_index.tensor().tolist(), strict=True))


def loader_of(path: Path, **options: Any) -> LinkNeighborLoader:
    strategy = options.get("strategy", "auto")
    if strategy in STRATEGIES and STRATEGIES[strategy].plans:
        options |= {"cache_bytes": "20kB", "superbatch": 3}
    given = {"batch_size": BATCH_SIZE, "shuffle": True, "seed": SEED, "num_threads": 2}
    return LinkNeighborLoader(path, FANOUTS, **{**given, **options})


def given_edges(edge_index: torch.Tensor) -> torch.Tensor:
    """Return 210 edges: some of the graph, and some that may be none."""
    generator = torch.Generator().manual_seed(1)
    others = torch.randint(N, (2, 90), generator=generator)
    return torch.cat([edge_index[:, ::50], others], dim=1)


# --- the contract -------------------------------------------------------------------------------


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize(
    "negatives",
    [None, NegativeSampling("binary", 1), NegativeSampling("binary", 2)]
    + [NegativeSampling("triplet", amount) for amount in (1, 3)],
    ids=str,
)
def test_what_a_batch_shows_is_what_pyg_makes_of_the_same_draws(
    path: Path,
    edge_index: torch.Tensor,
    disjoint: bool,
    negatives: NegativeSampling | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyG's own `edge_sample` gets our negatives in the place of its own, and our sampler."""
    edges = given_edges(edge_index)
    is_triplet = negatives is not None and negatives.is_triplet()
    label = None if is_triplet else torch.arange(edges.shape[1]) % 3
    loader = loader_of(
        path,
        edge_label_index=edges,
        edge_label=label,
        neg_sampling=negatives,
        disjoint=disjoint,
        shuffle=False,
        strategy="memory",
    )
    assert isinstance(loader, PygLinkNeighborLoader)
    assert repr(loader) == "LinkNeighborLoader()"
    assert len(loader) == math.ceil(edges.shape[1] / BATCH_SIZE)
    for number, batch in enumerate(loader):
        inputs = EdgeSamplerInput(None, *edges, label=loader.input_data.label)[
            torch.arange(number * BATCH_SIZE, min(number * BATCH_SIZE + BATCH_SIZE, len(edges[0])))
        ]
        num_positives = len(inputs.row)
        drawn = {}
        if negatives is not None and negatives.is_binary():
            ends = batch.n_id[batch.edge_label_index[:, num_positives:]]
            drawn = {"src": ends[0], "dst": ends[1]}
        elif negatives is not None:
            nodes = batch.n_id[batch.dst_neg_index].reshape(num_positives, -1)
            drawn = {"dst": nodes.T.reshape(-1) if disjoint else nodes.reshape(-1)}
        monkeypatch.setattr(
            NegativeSampling, "sample", lambda _, n, endpoint, __, d=drawn: d[endpoint][:n]
        )
        seeds_of_pyg: list[torch.Tensor] = []

        def sample(
            seeds: torch.Tensor, _: Any, batch: Any = batch, seen: list[torch.Tensor] = seeds_of_pyg
        ) -> SamplerOutput:
            seen.append(seeds)
            tree = torch.arange(len(seeds)) if disjoint else None
            return SamplerOutput(batch.n_id, None, None, None, tree)

        expected = edge_sample(inputs, sample, N, disjoint, neg_sampling=negatives)
        assert torch.equal(batch.n_id[: len(seeds_of_pyg[0])], seeds_of_pyg[0])
        assert batch.num_sampled_nodes[0] == len(seeds_of_pyg[0])
        names = ["input_id", "src_index", "dst_pos_index", "dst_neg_index"]
        if negatives is None or negatives.is_binary():
            names = ["input_id", "edge_label_index", "edge_label"]
        for name, value in zip(names, expected.metadata, strict=False):
            assert torch.equal(batch[name], value), name
            assert batch[name].dtype == value.dtype
        if disjoint:
            assert torch.equal(batch.batch[: len(expected.batch)], expected.batch)
        absent = {"batch_size", "edge_label_time", "seed_time", "src_neg_index"}
        absent |= {"edge_label_index", "edge_label"} if "src_index" in names else {"src_index"}
        assert absent.isdisjoint(batch.keys())


def test_negatives_of_disjoint_subgraphs_belong_to_a_positive_each(
    path: Path, edge_index: torch.Tensor
) -> None:
    """Where PyG mislabels the ends: half a negative each, and a short last batch."""
    loader = loader_of(path, edge_label_index=given_edges(edge_index), **KINDS[_HALF], shuffle=True)
    for batch in loader:
        num_positives = len(batch.input_id)
        positive_of = batch.batch[batch.edge_label_index]
        numbers = torch.arange(positive_of.shape[1])
        expected = torch.where(numbers < num_positives, numbers, numbers - num_positives)
        assert torch.equal(positive_of, expected.expand(2, -1))
        # A tree never leaves its positive.
        source, target = batch.edge_index
        assert torch.equal(batch.batch[source], batch.batch[target])


_HALF = "binary half, disjoint"


def test_all_edges_are_seeds_without_a_copy(path: Path, edge_index: torch.Tensor) -> None:
    options: dict[str, Any] = {"batch_size": 10 * BATCH_SIZE, "strategy": "memory"}
    loader = loader_of(path, edge_label=torch.arange(E), neg_sampling=None, **options)
    assert len(loader) == E // (10 * BATCH_SIZE)
    seen = []
    for batch in loader:
        assert torch.equal(batch.n_id[batch.edge_label_index], edge_index[:, batch.input_id])
        assert torch.equal(batch.edge_label, batch.input_id)
        seen.append(batch.input_id)
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(E))
    assert loader._seeds.num_bytes == 8 * E  # the labels
    ordered = loader_of(path, shuffle=False, **options)
    in_order = torch.cat([b.n_id[b.edge_label_index] for b in ordered], 1)
    by_target = np.lexsort((edge_index[0], edge_index[1]))
    assert torch.equal(in_order, edge_index[:, by_target])


@pytest.mark.parametrize(
    "dtype", choose([torch.bfloat16], [torch.int64, torch.float32, torch.bfloat16])
)
def test_labels_make_room_for_negatives_only_where_they_must(
    path: Path, dtype: torch.dtype
) -> None:
    """By the smallest of all labels, not of the batch's."""
    labels = torch.ones(E, 2, dtype=dtype)
    with_zero = labels.clone()
    with_zero[17, 1] = 0
    for given, shift in ((with_zero, 1), (labels, 0)):
        for batch in islice(loader_of(path, edge_label=given, neg_sampling="binary"), 8):
            expected = given[batch.input_id] + shift
            assert torch.equal(batch.edge_label, torch.cat([expected, torch.zeros_like(expected)]))
            assert batch.edge_label.dtype == dtype


def test_ids_and_labels_of_all_edges_go_by_edge_id(path: Path, edge_index: torch.Tensor) -> None:
    label, shown = torch.arange(E) * 3, torch.arange(E) + 10**6
    loader = loader_of(path, edge_label=label, input_id=shown, neg_sampling=None)
    batch = next(iter(loader))
    ends = batch.n_id[batch.edge_label_index]
    assert torch.equal(ends, edge_index[:, batch.input_id - 10**6])
    assert torch.equal(batch.edge_label, (batch.input_id - 10**6) * 3)
    inputs = loader.input_data
    assert torch.equal(torch.stack([inputs.row, inputs.col]), edge_index[:, inputs.label // 3])
    assert torch.equal(inputs.input_id, inputs.label // 3 + 10**6)


def test_what_pyg_hides_and_what_it_leaves(tmp_path: Path) -> None:
    graph = random_graph(50, 300, seed=1)
    graph.attributes.update(edge_label=np.arange(300), seed_time=np.arange(50))
    store = graph.write(tmp_path / "s.gnn")
    batch = next(iter(LinkNeighborLoader(store, [2], batch_size=4, seed=0)))
    assert "edge_label" not in batch
    assert len(batch.seed_time) == batch.num_nodes
    triplets = LinkNeighborLoader(store, [2], batch_size=4, seed=0, neg_sampling="triplet")
    batch = next(iter(triplets))
    assert "seed_time" not in batch
    assert "edge_label" in batch


def test_labels_of_waiting_batches_count_in_the_budget(
    path: Path, edge_index: torch.Tensor
) -> None:
    """400 negatives for each of 200 positives: 0.6 MB a batch, of subgraphs of 20 kB."""
    options: dict[str, Any] = {
        "edge_label_index": edge_index[:, :800],
        "neg_sampling": NegativeSampling("triplet", 400),
        "batch_size": 200,
        "strategy": "belady",
        "topology": "memory",  # the only place to be tried, or each is sampled for
    }
    with pytest.raises(gnnstore.BudgetError, match=r"3\.\d+ MB of labels of seeds") as caught:
        loader_of(path, memory="25MB", **options)
    assert caught.value.missing_bytes is not None
    loader = loader_of(path, memory=25_000_000 + caught.value.missing_bytes, **options)
    assert loader.stats().superbatch == 3


def test_no_hops_give_the_ends_alone(path: Path) -> None:
    loader = LinkNeighborLoader(path, [], batch_size=8, seed=0, neg_sampling="binary")
    batch = next(iter(loader))
    assert batch.edge_index.shape == (2, 0)
    assert len(batch.n_id) == len(batch.edge_label_index.unique()) == batch.num_nodes


@pytest.mark.parametrize("subgraph_type", ["bidirectional", "induced"])
def test_message_edges_of_other_kinds(
    path: Path, csc: set[tuple[int, int]], subgraph_type: str
) -> None:
    batch = next(iter(loader_of(path, subgraph_type=subgraph_type, neg_sampling="binary")))
    ends = list(zip(*batch.n_id[batch.edge_index].tolist(), strict=True))
    assert "num_sampled_nodes" not in batch
    if subgraph_type == "induced":
        inside = set(batch.n_id.tolist())
        assert set(ends) == {(u, v) for u, v in csc if {u, v} <= inside}
    else:
        assert set(ends) == {(v, u) for u, v in ends}


def test_a_loader_is_built_anew_from_its_attributes(path: Path) -> None:
    """As frameworks do: by the names of the parameters."""
    loader = loader_of(
        path, neg_sampling_ratio=2.0, edge_label_attrs=iter(["edge_attr"]), shuffle=False
    )
    names = [*inspect.signature(LinkNeighborLoader).parameters, "batch_size"]
    given = {name: getattr(loader, name) for name in names if name not in {"kwargs", "args"}}
    again = LinkNeighborLoader(**given)
    assert_same_batches([next(iter(again)).to_dict()], [next(iter(loader)).to_dict()])
    assert "label_edge_attr" in next(iter(again))


def test_arrays_of_the_user_are_not_kept_beside_their_copies(path: Path) -> None:
    """And what is kept in their place makes the same loader."""
    edges, label = torch.randint(N, (2, 90)), torch.arange(90)
    nodes, mask, ids = torch.arange(0, N, 7), torch.arange(N) % 3 == 0, torch.arange(90)
    alive = [weakref.ref(given) for given in (edges, label, nodes, mask, ids)]
    kind: dict[str, Any] = {"neg_sampling": "binary", "strategy": "memory"}
    loaders = [
        loader_of(path, edge_label_index=edges, edge_label=label, input_id=ids, **kind),
        gnnstore.NeighborLoader(path, FANOUTS, nodes, batch_size=9, seed=0),
        gnnstore.NeighborLoader(path, FANOUTS, mask, batch_size=9, seed=0),
    ]
    del edges, label, nodes, mask, ids
    assert [reference() for reference in alive] == [None] * 5
    for loader in loaders:
        taken = inspect.signature(type(loader)).parameters.keys() & vars(loader).keys()
        given = {name: getattr(loader, name) for name in taken} | {"batch_size": loader.batch_size}
        shuffle = isinstance(loader, LinkNeighborLoader)
        again = type(loader)(**given, shuffle=shuffle)
        assert again.state_dict() == loader.state_dict()
        assert_same_batches(batches_of(again), batches_of(loader))


def test_pyg_loader_over_our_sampler(path: Path, edge_index: torch.Tensor) -> None:
    edges = given_edges(edge_index)
    sampler = loader_of(path, strategy="memory").link_sampler
    store = gnnstore.open(path)
    loader = LinkLoader((store, store), sampler, (None, edges), neg_sampling="binary", batch_size=9)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id[batch.edge_label_index[:, :9]], edges[:, :9])
    assert batch.edge_label.tolist() == [1.0] * 9 + [0.0] * 9


# --- the same batches, however they are prepared ------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def seeds(kind: dict[str, Any], edge_index: torch.Tensor) -> dict[str, Any]:
    """Return some edges as seeds, and how negatives are drawn for them."""
    edges = edge_index[:, ::30] if "edge_label_attrs" in kind else given_edges(edge_index)
    return {"edge_label_index": edges, **kind}


@pytest.fixture(scope="module")
def expected(path: Path, seeds: dict[str, Any]) -> Batches:
    loader = loader_of(path, strategy="memory", num_threads=0, **seeds)
    return batches_of(loader, 2)


@pytest.mark.parametrize(
    ("kind", "strategy"), paired(KINDS, [*STRATEGIES.names, "auto"], 1), indirect=["kind"]
)
def test_every_strategy_gives_the_same(
    path: Path, seeds: dict[str, Any], expected: Batches, strategy: str
) -> None:
    loader = loader_of(path, strategy=strategy, **seeds)
    begun = iter(loader)
    batches = batches_of(next(begun) for _ in range(4))
    assert_same_batches(batches, expected[:4])
    state = json.loads(json.dumps(loader.state_dict()))
    second = pickle.loads(pickle.dumps(loader_of(path, strategy=strategy, **seeds)))  # noqa: S301
    second.load_state_dict(state)
    second.transform_sampler_output = lambda output: output
    rest = batches_of(second, 2)
    assert_same_batches(rest, expected[4:])


@pytest.mark.parametrize("kind", choose([*KINDS][1::4], KINDS), indirect=True)
@pytest.mark.parametrize(("topology", "num_threads"), paired(["mmap", "disk"], [0, 4], 1))
def test_topology_and_threads_change_nothing(
    path: Path, seeds: dict[str, Any], expected: Batches, topology: str, num_threads: int
) -> None:
    loader = loader_of(path, strategy="static", topology=topology, num_threads=num_threads, **seeds)
    assert_same_batches(batches_of(loader), expected[: len(loader)])


@pytest.mark.parametrize("kind", choose(["extensions"], KINDS), indirect=True)
def test_packed_epochs_hold_links(
    path: Path, seeds: dict[str, Any], expected: Batches, tmp_path: Path
) -> None:
    links: Links = loader_of(path, strategy="memory", **seeds)._seeds
    directory = pack(
        path,
        FANOUTS,
        output=tmp_path / "packed",
        seeds=links,
        disjoint=links.disjoint,
        seed=SEED,
        batch_size=BATCH_SIZE,
        superbatch=3,
        cache_bytes="20kB",
    )
    loader = loader_of(path, packed=directory, **seeds)
    assert_same_batches(batches_of(loader, 2), expected)
    packed = gnnstore.open_packed(directory).loader(num_threads=2)
    assert_same_batches(batches_of(packed, 2), expected)
    with pytest.raises(gnnstore.UsageError, match="crc32c of edge_label_index"):
        loader_of(
            path, packed=directory, **(seeds | {"edge_label_index": links.ends(np.arange(9))})
        )


# --- negatives ----------------------------------------------------------------------------------


def drawn(loader: LinkNeighborLoader) -> npt.NDArray[np.int64]:
    """Return the negative pairs of an epoch, [2, n]."""
    pairs = []
    for batch in loader:
        if "src_index" in batch:
            source = batch.n_id[batch.src_index]
            negative = batch.n_id[batch.dst_neg_index].reshape(len(source), -1)
            pairs.append(torch.stack([source[:, None].expand_as(negative), negative]).flatten(1))
        else:
            pairs.append(batch.n_id[batch.edge_label_index[:, batch.edge_label == 0]])
    return torch.cat(pairs, dim=1).numpy()


def chi_square(counts: npt.NDArray[np.int64], expected: npt.NDArray[np.float64]) -> float:
    """Return by how many standard deviations the statistic exceeds its mean."""
    some = expected > 0
    assert not counts[~some].any()
    statistic = ((counts[some] - expected[some]) ** 2 / expected[some]).sum()
    freedom = some.sum() - 1
    return float((statistic - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_negatives_have_their_distribution(path: Path, mode: str, is_weighted: bool) -> None:
    weight = (torch.arange(N) % 7 * (torch.arange(N) > 20)).float()
    given = weight if is_weighted else None
    sampling = NegativeSampling(mode, 4, src_weight=given, dst_weight=given)
    loader = LinkNeighborLoader(path, [], batch_size=500, seed=1, neg_sampling=sampling)
    share = (weight / weight.sum()).double().numpy() if is_weighted else np.full(N, 1 / N)
    for end in (0, 1) if mode == "binary" else (1,):
        counts = np.bincount(drawn(loader)[end], minlength=N)
        assert counts.sum() == 4 * E
        assert abs(chi_square(counts, share * 4 * E)) < 5


def test_weights_of_float32_that_sum_beyond_its_whole_numbers() -> None:
    """A sum in float32 stands still at 2^24, and `torch.multinomial` takes no more categories."""
    few = cumulative_weights(torch.tensor([2.0**24, 1, 1]), 3, "dst_weight")
    assert few is not None
    assert np.diff(few).tolist() == [1, 1]
    if not is_long():
        return
    num_nodes = 2**24 + 2**22
    sums = cumulative_weights(torch.ones(num_nodes), num_nodes, "dst_weight")
    negatives = Negatives("triplet", 100, num_nodes, num_nodes, None, sums)
    positives = (np.zeros(2000, np.int64), np.zeros(2000, np.int64))
    nodes, _, _ = negatives.ends(BatchKey(0, 0, 0), positives, "dst", None)  # type: ignore[arg-type]
    counts = np.bincount(nodes.ravel() >> 18, minlength=80)  # 64 parts below 2^24, 16 behind
    assert len(counts) == 80
    assert abs(chi_square(counts, np.full(80, 2500.0))) < 5


@pytest.mark.parametrize(
    "kind",
    [
        {"neg_sampling": "binary"},
        *choose((), ({"neg_sampling": {"mode": "triplet", "amount": 5}},)),
        {"neg_sampling": {"mode": "triplet", "amount": 5}, "negative_chunks": 4},
    ],
    ids=str,
)
def test_strict_negatives_are_no_edges(
    path: Path, edge_index: torch.Tensor, csc: set[tuple[int, int]], kind: dict[str, Any]
) -> None:
    kind = {**kind, "edge_label_index": edge_index[:, :: choose(5, 1)]}
    loader = loader_of(path, **kind, num_threads=0, strategy="memory")
    collide = {(u, v) for u, v in drawn(loader).T.tolist() if (u, v) in csc or u == v}
    assert collide  # a test that cannot fail proves nothing
    strict = loader_of(path, **kind, strict_negatives=True, num_threads=0, strategy="memory")
    found = [(u, v) for u, v in drawn(strict).T.tolist() if (u, v) in csc or u == v]
    kept = strict.stats().negatives_kept
    if "negative_chunks" in kind:  # one negative may collide with several positives of its chunk
        assert len(found) >= kept
        assert (kept == 0) == (not found)
    else:
        assert not found
        assert kept == 0


def pairs_of(batch: Any, side: str) -> torch.Tensor:
    """Return the sources and targets of the negatives of a side, [2, P, A], by node id."""
    negative = batch.n_id[batch[f"{side}_neg_index"]].reshape(len(batch.src_index), -1)
    other = batch.n_id[batch.src_index if side == "dst" else batch.dst_pos_index]
    other = other[:, None].expand_as(negative)
    return torch.stack([negative, other] if side == "src" else [other, negative])


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("side", ["src", "dst", "both"])
def test_strict_negatives_of_pairs_that_are_no_edges(
    path: Path, csc: set[tuple[int, int]], side: str, *, disjoint: bool
) -> None:
    """Of whichever side, none is an edge, a loop, or the pair itself."""
    edges = torch.randint(N, (2, 400), generator=torch.Generator().manual_seed(3))
    assert not csc.issuperset(zip(*edges.tolist(), strict=True))
    options: dict[str, Any] = {
        "edge_label_index": edges,
        "neg_sampling": NegativeSampling("triplet", 5),
        "neg_side": side,
        "disjoint": disjoint,
        "num_threads": 0,
    }
    avoided = 0
    for is_strict in (False, True):
        loader = loader_of(path, strict_negatives=is_strict, **options)
        found = 0
        for batch in loader:
            positive = edges[:, batch.input_id][:, :, None]
            for end in ("src", "dst") if side == "both" else (side,):
                pairs = pairs_of(batch, end)
                kept = int(end == "src")
                assert torch.equal(pairs[kept], positive[kept].expand(-1, 5))
                found += int((pairs == positive).all(dim=0).sum())
                found += sum((u, v) in csc or u == v for u, v in pairs.flatten(1).T.tolist())
        assert loader.stats().negatives_kept == 0
        avoided = avoided or found
    assert (avoided > 0, found) == (True, 0)


def test_a_chunk_by_itself_has_no_ends_of_others_to_draw_from(tmp_path: Path) -> None:
    """Its negatives are drawn uniformly, and strict ones are not its own positive."""
    store = GraphArrays(4, np.array([[0, 1], [1, 0]])).write(tmp_path / "s.gnn")
    options: dict[str, Any] = {
        "neg_sampling": NegativeSampling("triplet", 4),
        "negative_chunks": 2,
        "degree_fraction": 0.5,
        "batch_size": 1,
        "seed": 0,
    }
    seen = set()
    for is_strict in (False, True):
        loader = LinkNeighborLoader(
            store, [2], torch.tensor([[2], [3]]), strict_negatives=is_strict, **options
        )
        for epoch in range(choose(12, 40)):
            loader.set_epoch(epoch)
            (batch,) = loader
            assert batch.dst_neg_index.shape == (1, 4)
            drawn_nodes = set(batch.n_id[batch.dst_neg_index].flatten().tolist())
            seen |= set() if is_strict else drawn_nodes
            assert not is_strict or drawn_nodes <= {0, 1}  # 2 -> 2 is a loop, 2 -> 3 its own
        assert loader.stats().negatives_kept == 0
    assert seen == {0, 1, 2, 3}


def test_one_positive_in_a_batch(path: Path, kind: dict[str, Any]) -> None:
    loader = loader_of(path, **kind, batch_size=1, num_threads=0, shuffle=False)
    amount = NegativeSampling.cast(kind.get("neg_sampling"))
    given = loader.input_data
    edges = torch.stack([given.row, given.col])[:, :3]
    batches = iter(loader)
    for edge in edges.T:
        batch = next(batches)
        if amount is not None and amount.is_triplet():
            shape = (1,) if amount.amount == 1 else (1, amount.amount)
            sides = {"both": ("src", "dst")}.get(kind.get("neg_side", ""), (kind.get("neg_side"),))
            for side in sides:
                assert batch[f"{side or 'dst'}_neg_index"].shape == shape
            ends = torch.stack([batch.src_index, batch.dst_pos_index])
        else:
            count = 0 if amount is None else math.ceil(amount.amount)
            assert batch.edge_label_index.shape == (2, 1 + count)
            ends = batch.edge_label_index[:, :1]
        assert torch.equal(batch.n_id[ends].flatten(), edge)
        if kind.get("disjoint"):
            assert not batch.batch.any()  # all of it belongs to the only positive


def test_negatives_do_not_depend_on_what_is_sampled(path: Path) -> None:
    """Neither on fan-outs, nor on whether edges are excluded."""
    options: dict[str, Any] = {"neg_sampling": {"mode": "triplet", "amount": 2}, "batch_size": 500}
    options |= {"shuffle": True, "seed": SEED}
    alone = drawn(LinkNeighborLoader(path, [], **options))
    for fanouts, exclude in (([4, 3], None), ([5], "reverse")):
        loader = LinkNeighborLoader(path, fanouts, exclude_edges=exclude, **options)
        assert np.array_equal(drawn(loader), alone)


def test_a_single_node_of_weight_is_all_that_is_drawn(path: Path) -> None:
    weight = torch.zeros(N)
    weight[N - 1] = 1e-20
    sampling = NegativeSampling("binary", 1, src_weight=weight, dst_weight=weight)
    loader = loader_of(path, neg_sampling=sampling, batch_size=500)
    assert set(drawn(loader).ravel().tolist()) == {N - 1}


@pytest.mark.parametrize("strategy", choose(["memory", "packed"], ["memory", "belady", "packed"]))
@pytest.mark.parametrize("is_transformed", [False, True])
@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_what_cannot_be_avoided_is_counted(
    tmp_path: Path, mode: str, strategy: str, *, is_transformed: bool
) -> None:
    """Three nodes, all of them connected: every negative is an edge or a loop.

    Those of batches that are ready and not handed out yet do not count.
    """
    ends = np.array([[u, v] for u in range(3) for v in range(3)]).T
    x = np.ones((3, 2), np.float32)
    store = GraphArrays(3, ends, attributes={"x": x}).write(tmp_path / "s.gnn")
    loader = LinkNeighborLoader(
        store,
        [1],
        batch_size=2,
        seed=0,
        neg_sampling=mode,
        strict_negatives=True,
        strategy=strategy,
        num_threads=2,
        transform_sampler_output=(lambda out: out) if is_transformed else None,
    )
    counted = [loader.stats().negatives_kept for _ in loader]
    assert counted == [2, 4, 6, 8, 9]
    loader([0, 1])  # on demand, and of no epoch
    assert loader.stats().negatives_kept == 9


def test_negatives_are_shared_by_chunks_and_drawn_by_degree(path: Path) -> None:
    sampling = NegativeSampling("triplet", 6)
    loader = loader_of(
        path, neg_sampling=sampling, negative_chunks=4, degree_fraction=0.5, neg_side="both"
    )
    batch = next(iter(loader))
    for side, positive in (("dst", batch.dst_pos_index), ("src", batch.src_index)):
        negatives = batch[f"{side}_neg_index"]
        assert negatives.shape == (BATCH_SIZE, 6)
        chunks = negatives.view(4, -1, 6)
        assert torch.equal(chunks, chunks[:, :1].expand_as(chunks))
        for number, (chunk, own) in enumerate(zip(chunks, positive.view(4, -1), strict=True)):
            rows = torch.arange(BATCH_SIZE).view(4, -1)
            others = positive[rows[rows[:, 0] != number * 10].ravel()]
            assert torch.isin(chunk[0, :3], others).all(), (side, own)


# --- the seed edges themselves --------------------------------------------------------------------


@pytest.mark.parametrize("topology", ["memory", "disk"])
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("exclude", ["self", "reverse"])
@pytest.mark.parametrize("replace", [False, True])
def test_seed_edges_are_not_sampled_and_fan_outs_stay_full(
    path: Path,
    csc: set[tuple[int, int]],
    *,
    topology: str,
    subgraph_type: str,
    exclude: str,
    replace: bool,
) -> None:
    options = {"subgraph_type": subgraph_type, "replace": replace, "topology": topology}
    options |= {"shuffle": False, "strategy": "memory" if topology == "memory" else "direct"}
    if (subgraph_type, exclude) == ("bidirectional", "self"):
        with pytest.raises(gnnstore.UsageError, match="choose exclude_edges='reverse'"):
            loader_of(path, exclude_edges=exclude, **options)
        return
    degrees = gnnstore.open(path).topology("mmap").columns()
    leaks = 0
    pairs = zip(
        loader_of(path, **options), loader_of(path, exclude_edges=exclude, **options), strict=True
    )
    for number, (plain, batch) in enumerate(pairs):
        if number == choose(6, 40):
            break
        seeds = set(zip(*batch.n_id[batch.edge_label_index].tolist(), strict=True))
        hidden = seeds | ({(v, u) for u, v in seeds} if exclude == "reverse" else set())
        leaks += len(hidden & set(zip(*plain.n_id[plain.edge_index].tolist(), strict=True)))
        messages = list(zip(*batch.n_id[batch.edge_index].tolist(), strict=True))
        assert hidden.isdisjoint(messages)
        if subgraph_type == "induced":
            inside = set(batch.n_id.tolist())
            assert set(messages) == {(u, v) for u, v in csc if {u, v} <= inside} - hidden
        elif subgraph_type == "directional":
            taken = np.bincount(batch.edge_index[1], minlength=batch.num_nodes)
            for place in range(batch.num_sampled_nodes[0]):
                node = int(batch.n_id[place])
                column = degrees.indices[degrees.indptr[node] : degrees.indptr[node + 1]]
                others = sum((int(u), node) not in hidden for u in column)
                full = FANOUTS[0] if replace and others else min(FANOUTS[0], others)
                assert taken[place] == full
            if not replace:
                assert len(batch.e_id.unique()) == len(batch.e_id)
    assert leaks  # without the option they are there


@pytest.mark.parametrize("exclude", ["self", "reverse"])
def test_a_hub_with_many_seed_edges(tmp_path: Path, exclude: str) -> None:
    """A target of 30 neighbours, each connected twice; 20 of these edges are seeds of a batch."""
    spokes = np.repeat(np.arange(1, 31), 2)
    hub = np.zeros_like(spokes)
    edges = np.concatenate([np.stack([spokes, hub]), np.stack([hub, spokes])], axis=1)
    store = GraphArrays(31, edges).write(tmp_path / "s.gnn")
    seeds = torch.stack([torch.arange(1, 31), torch.zeros(30, dtype=torch.long)])
    loader = LinkNeighborLoader(
        store, [25], seeds, batch_size=20, shuffle=True, seed=0, exclude_edges=exclude
    )
    for batch in loader:
        own = batch.n_id[batch.edge_label_index[0]]
        sources, targets = batch.n_id[batch.edge_index]
        into_hub = sources[targets == 0]
        # Both copies are left out, of this batch's edges alone; others fill the fan-out.
        assert not torch.isin(into_hub, own).any()
        assert len(into_hub) == min(25, 2 * (30 - len(own)))
        assert len(batch.e_id.unique()) == len(batch.e_id)
        from_hub = targets[sources == 0]
        if exclude == "reverse":  # the spokes have no other neighbour: none is left to them
            assert from_hub.numel() == 0
        else:
            assert torch.equal(from_hub.sort().values, own.repeat_interleave(2).sort().values)


def test_what_is_excluded_leaves_other_draws_uniform(tmp_path: Path) -> None:
    """A target of ten neighbours, two of them excluded, twice connected: the rest come alike."""
    sources = np.array([0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9])
    edges = np.stack([sources, np.full(12, 10)])
    store = GraphArrays(11, edges).write(tmp_path / "s.gnn")
    seeds = torch.tensor([[3, 7], [10, 10]])
    loader = LinkNeighborLoader(store, [3], seeds, batch_size=2, seed=0, exclude_edges="self")
    found, num_epochs = [], choose(100, 1500)
    for epoch in range(num_epochs):
        loader.set_epoch(epoch)
        (batch,) = loader
        assert batch.num_sampled_edges == [3]
        found.append(batch.n_id[batch.edge_index[0]].numpy())
    counts = np.bincount(np.concatenate(found), minlength=10)
    assert counts[[3, 7]].tolist() == [0, 0]
    share = np.full(10, num_epochs * 3 / 8)
    share[[3, 7]] = 0
    assert abs(chi_square(counts, share)) < 5


@pytest.mark.parametrize("ranges", [([5], [3], [3]), ([5, 4], [9, 3], [10, 4]), ([5], [0], [1])])
def test_the_core_checks_ranges(path: Path, ranges: tuple[list[int], ...]) -> None:
    csc = gnnstore.open(path).topology("memory").columns()
    sampler = NeighborSampler(csc, SamplingConfig((2,)), "int64")
    nodes, begins, ends = (np.array(r) for r in ranges)
    begins, ends = begins + csc.indptr[5], ends + csc.indptr[5]
    if ranges[1] == [0]:
        begins, ends = begins - 1, ends + 10_000
    with pytest.raises(gnnstore.CorruptStoreError, match="excluded edges: range"):
        sampler.sample([5], epoch=0, batch=0, excluded=(nodes, begins, ends))


def test_attributes_of_seed_edges(path: Path, edge_index: torch.Tensor) -> None:
    values = gnnstore.open(path).to_pyg().edge_attr
    for edges in (None, edge_index[:, 100:300]):
        loader = loader_of(
            path, edge_label_index=edges, edge_label_attrs=["edge_attr"], shuffle=False
        )
        batch = next(iter(loader))
        ends = batch.n_id[batch.edge_label_index]
        for pair, value in zip(ends.T, batch.label_edge_attr, strict=True):
            same_ends = (edge_index == pair[:, None]).all(dim=0)
            assert (values[same_ends] == value).all(dim=1).any()


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_label_index": torch.tensor([[0, 1], [2, N]])}, f"target {N} at position 1"),
        ({"edge_label_index": torch.tensor([[0, -1], [2, 3]])}, "source -1 at position 1"),
        ({"edge_label_index": torch.zeros(3, 4, dtype=torch.long)}, r"\[3, 4\]; expected sources"),
        ({"edge_label_index": torch.zeros(2, 4)}, "float32; expected node ids"),
        ({"edge_label_index": (("a", "b", "c"), None)}, "edge type"),
        ({"edge_label_index": "valid"}, "it has no edge splits"),
        ({"edge_label": torch.ones(3)}, r"it has the shape \[3\]"),
        ({"edge_label": torch.ones(E), "neg_sampling": "triplet"}, "triplets have no labels"),
        ({"neg_sampling": {"mode": "binary", "amount": 0}}, "needs to be positive"),
        ({"neg_sampling": {"mode": "triplet", "amount": 0.5}}, "integer"),
        ({"neg_sampling": "other"}, "expected a mode"),
        ({"neg_sampling": ("binary", 1, torch.ones(3))}, f"each of the {N} nodes"),
        ({"neg_sampling": ("binary", 1, torch.full((N,), math.nan))}, "expected finite weights"),
        (
            {"neg_sampling": ("binary", 1, None, -torch.ones(N))},
            "dst_weight: expected finite",
        ),
        ({"neg_sampling": ("binary", 1, torch.zeros(N))}, "not all 0"),
        (
            {"neg_sampling": ("binary", 1, torch.full((N,), 1e308, dtype=torch.double))},
            "add up to inf",
        ),
        ({"neg_sampling": ("binary", math.inf)}, "the amount is inf"),
        ({"neg_sampling_ratio": -1.0}, "needs to be positive"),
        ({"neg_sampling_ratio": 1.0, "neg_sampling": "triplet"}, "give one of them"),
        ({"edge_label_index": ()}, r"\[0\]; expected sources"),
        ({"edge_label_index": ([0, 1], [2])}, "an array of numbers was expected"),
        ({"edge_label": ["a"] * E}, "edge_label is a list"),
        ({"edge_label_attrs": "edge_attr"}, "expected a list of names"),
        ({"exclude_edges": ["self"]}, "is unknown"),
        ({"negative_chunks": 2.5, "neg_sampling": "triplet"}, "is not a whole number"),
        ({"strict_negatives": True}, "strict_negatives: no negatives are drawn"),
        ({"exclude_edges": "all"}, "exclude_edges='all' is unknown"),
        ({"neg_side": "src", "neg_sampling": "binary"}, "only of use to neg_sampling='triplet'"),
        ({"neg_side": "top", "neg_sampling": "triplet"}, "neg_side='top' is unknown"),
        ({"negative_chunks": 0, "neg_sampling": "triplet"}, "at least 1"),
        ({"degree_fraction": 2.0, "neg_sampling": "triplet"}, "expected a share"),
        ({"edge_label_attrs": ["nope"]}, "no attribute 'nope'"),
        ({"edge_label_time": torch.ones(E)}, "time"),
        ({"input_id": torch.arange(3)}, f"3 entries for {E} edges"),
    ],
)
def test_bad_options_are_refused_when_the_loader_is_made(
    path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(gnnstore.GnnstoreError, match=message):
        loader_of(path, **options)


def test_bad_positions_are_refused(path: Path) -> None:
    with pytest.raises(gnnstore.InputError, match=f"position {E} at position 1 of 2"):
        loader_of(path)([0, E])


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("strategy", ["memory", "belady"])
def test_a_batch_of_no_edges(path: Path, kind: dict[str, Any], strategy: str) -> None:
    """A sampler of the user's may yield one, as on a rank that has nothing left."""
    loader = loader_of(
        path, strategy=strategy, batch_size=1, shuffle=None, batch_sampler=[[0, 7], [], [5]], **kind
    )
    lengths = [(len(batch.input_id), batch.num_nodes > 0) for batch in loader]
    assert lengths == [(2, True), (0, False), (1, True)]


def test_labels_of_no_columns(path: Path, edge_index: torch.Tensor) -> None:
    loader = loader_of(path, edge_label_index=edge_index[:, :50], edge_label=torch.empty(50, 0))
    assert [batch.edge_label.shape for batch in loader] == [(40, 0), (10, 0)]
    loader.load_state_dict(loader.state_dict())


def test_no_edge_has_no_attributes(path: Path, csc: set[tuple[int, int]]) -> None:
    pair = next((u, v) for u in range(N) for v in range(N) if (u, v) not in csc)
    loader = loader_of(
        path,
        edge_label_index=torch.tensor(pair)[:, None],
        edge_label_attrs=["edge_attr"],
        num_threads=0,
        strategy="memory",
    )
    with pytest.raises(gnnstore.InputError, match=f"edge {pair[0]} -> {pair[1]} at position 0"):
        next(iter(loader))


def test_a_graph_without_edges(tmp_path: Path) -> None:
    """It has zero batches, as zero edges of another have."""
    store = GraphArrays(3, np.zeros((2, 0), np.int64)).write(tmp_path / "s.gnn")
    for strategy in ("memory", "packed"):
        loader = LinkNeighborLoader(store, [1], strategy=strategy, shuffle=True)
        assert (len(loader), list(loader)) == (0, [])


@pytest.mark.parametrize("empty", [torch.empty(2, 0, dtype=torch.long), [[], []]])
def test_zero_seed_edges_give_zero_batches(path: Path, empty: Any) -> None:
    for negatives, label in (("binary", torch.empty(0)), ("triplet", None)):
        for strategy in ("memory", "static", "packed"):
            loader = LinkNeighborLoader(
                path, [3], empty, label, neg_sampling=negatives, strategy=strategy, batch_size=9
            )
            assert (len(loader), list(loader), list(loader)) == (0, [], [])


def test_node_and_edge_loaders_do_not_share_states(path: Path) -> None:
    state = loader_of(path).state_dict()
    with pytest.raises(gnnstore.UsageError, match="seeds: expected 'links', found nothing"):
        loader_of(path).load_state_dict(
            gnnstore.NeighborLoader(path, FANOUTS, batch_size=40, shuffle=True).state_dict()
        )
    with pytest.raises(gnnstore.UsageError, match="neg_sampling"):
        loader_of(path, neg_sampling="binary").load_state_dict(state)
