"""Planted knowledge graphs: what was planted ranks first, and nothing depends on the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnstore
from gnnstore.evaluation import mrr
from tests.support.effort import choose
from tests.support.modules import import_file

planted_kg = import_file(Path(__file__).parents[2] / "benchmarks" / "parts" / "planted_kg.py")
from_planted_kg = planted_kg.from_planted_kg

SMALL: dict[str, Any] = {
    "num_entities": 400,
    "num_relations": 6,
    "num_triples": (2000, 300, 200),
    "num_communities": 3,
}


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


@pytest.mark.parametrize("noise", [*choose([], [0.0]), 0.2])
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
