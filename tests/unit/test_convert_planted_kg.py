"""Planted knowledge graphs: what was planted ranks first, and nothing depends on the machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import gnnstore
from gnnstore.converters import ConvertOptions
from gnnstore.errors import BudgetError, UsageError
from gnnstore.evaluation import mrr
from gnnstore.features.check import verify
from gnnstore.testing.graphs import read_store
from tests.support.modules import import_file
from tests.support.stores import assert_same_files

planted_kg = import_file(Path(__file__).parents[2] / "benchmarks" / "parts" / "planted_kg.py")
from_planted_kg = planted_kg.from_planted_kg

SMALL: dict[str, Any] = {
    "num_entities": 400,
    "num_relations": 6,
    "num_triples": (2000, 300, 200),
    "num_communities": 3,
}

Triples = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]


def triples_of(store: gnnstore.GraphStore) -> dict[str, Triples]:
    """Return heads, relations and tails of each split."""
    graph = read_store(store.path)
    (heads, tails), types = graph.edge_index, graph.edge_attributes["edge_type"]
    found: dict[str, Triples] = {"train": (heads, types, tails)}
    for name, own in store.edge_splits.items():
        found[name] = (own.source.read(), own.attributes["edge_type"].read(), own.target.read())
    return found


def complex_tables(vectors: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ComplEx embeddings of entities and relations, complex128 [N or R, C (rank + 1)].

    The first number of a community is 1 for its heads and i for its tails, and very large times i
    for relations: pairs of a head and a tail, in this order, score above all others.
    """
    size = vectors.heads.shape[2] + 1
    entities = np.zeros((len(vectors.heads), vectors.num_communities, size), np.complex128)
    relations = np.zeros((len(vectors.relations), vectors.num_communities, size), np.complex128)
    every, kinds = np.arange(len(entities)), np.arange(len(relations))
    for members, values, role in (
        (vectors.head_of, vectors.heads, 1),
        (vectors.tail_of, vectors.tails, 1j),
    ):
        entities[every, members, 0] = role
        entities[every, members, 1:] = values[:, 0] + 1j * values[:, 1]
    of = kinds % vectors.num_communities
    relations[kinds, of, 0] = 1e9j
    relations[kinds, of, 1:] = vectors.relations[:, 0] + 1j * vectors.relations[:, 1]
    tables = (torch.from_numpy(table.reshape(len(table), -1)) for table in (entities, relations))
    return next(tables), next(tables)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_planted_vectors_rank_first_what_is_no_noise(tmp_path: Path, noise: float) -> None:
    store = gnnstore.open(from_planted_kg(tmp_path / "kg.gnn", noise=noise, **SMALL))
    vectors = planted_kg.PlantedVectors.draw(400, 6, 3, 3, 0)
    entities, relations = complex_tables(vectors)

    def score(known: torch.Tensor, rows: torch.Tensor, queries: Any) -> torch.Tensor:
        known, rows = torch.view_as_complex(known), torch.view_as_complex(rows)
        w = relations[queries.relation]
        if queries.side == "dst":
            return ((known * w) @ rows.conj().T).real
        return ((w * known.conj()) @ rows.T).real

    ranks = gnnstore.link_ranks(
        score,
        store.edge_splits["test"],
        torch.view_as_real(entities),
        side="both",
        filter=[store, *store.edge_splits.values()],
        relation="edge_type",
    )
    source, target = store.edge_splits["test"].ends(np.dtype(np.int64))
    of = store.edge_splits["test"].attributes["edge_type"].read() % 3
    typed = (vectors.head_of[source] == of) & (vectors.tail_of[target] == of)
    if not noise:
        assert typed.all()
        assert (ranks == 1).all()
    # Of noise one triple in nine joins a head and a tail of the relation's community.
    assert (ranks[:, ~torch.from_numpy(typed)] > 1).all()
    assert abs(mrr(ranks[0]) - (1 - noise)) < 0.08
    assert abs(mrr(ranks[1]) - (1 - noise)) < 0.08


def test_splits_are_different_triples(tmp_path: Path) -> None:
    store = gnnstore.open(from_planted_kg(tmp_path / "kg.gnn", noise=0.5, **SMALL))
    found = triples_of(store)
    assert [len(parts[0]) for parts in found.values()] == [2000, 300, 200]
    assert len({triple for parts in found.values() for triple in zip(*parts, strict=True)}) == 2500
    counts = np.bincount(np.concatenate([parts[1] for parts in found.values()]))
    assert counts[0] > 2 * counts[5] > 0, "relations are more and less frequent"
    assert store.relation_names is not None
    assert list(store.relation_names)[4] == "community1/relation4"
    assert verify(store.path, "full").ok


def test_it_is_a_function_of_its_parameters(tmp_path: Path) -> None:
    first, second, other = (
        from_planted_kg(tmp_path / name, seed=seed, **SMALL)
        for name, seed in (("a.gnn", 1), ("b.gnn", 1), ("c.gnn", 2))
    )
    assert_same_files(first, second)
    digests = {
        path.name: hashlib.sha256(
            b"".join(
                part.astype("<i8").tobytes()
                for parts in triples_of(gnnstore.open(path)).values()
                for part in parts
            )
        ).hexdigest()
        for path in (first, other)
    }
    # Recorded: results are compared across machines.
    assert digests["a.gnn"][:16] == "53ff0002aa608ba9"
    assert digests["c.gnn"] != digests["a.gnn"]


def test_no_valid_and_no_test(tmp_path: Path) -> None:
    small = SMALL | {"num_triples": (500, 0, 0), "noise": 1.0}
    store = gnnstore.open(from_planted_kg(tmp_path / "kg.gnn", **small))
    assert store.num_edges == 500
    assert not store.edge_splits


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_entities": 3}, r"num_entities=3 is not in \[4"),
        ({"num_communities": 1}, r"num_communities=1 is not in \[2, 200\]"),
        ({"rank": 0}, "rank=0"),
        ({"noise": 1.5}, "noise=1.5"),
        ({"noise": float("nan")}, "noise=nan"),
        ({"num_triples": (5, 5)}, "expected how many to train on"),
        ({"num_triples": (0, 5, 5)}, "expected how many to train on"),
        ({"num_triples": (10**6, 0, 0)}, "its community make 17822 pairs"),
        ({"num_triples": (10**6, 0, 0), "noise": 1.0}, "at most 120000 can be noise"),
        ({"num_entities": 2**32}, "fewer than 2.63 triples"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_parameters(tmp_path: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_planted_kg(tmp_path / "kg.gnn", **(SMALL | words))
    assert not (tmp_path / "kg.gnn").exists()


def test_a_budget_that_is_too_small(tmp_path: Path) -> None:
    options = ConvertOptions(memory_bytes=2**25)
    with pytest.raises(BudgetError, match="scores of a community"):
        from_planted_kg(tmp_path / "kg.gnn", num_communities=2, options=options)
