"""Knowledge graphs whose triples a bilinear model explains: ComplEx vectors are planted in them.

Real ones cannot be made at will, and of random triples nothing can be learned. Here entities belong
to communities, in one as heads and in another as tails, and have a vector of complex numbers in
each; a relation joins the heads of one community to its tails, and its triples are the pairs that
score highest: Re sum_k h_k w_k conj(t_k) (Trouillon et al.: "Complex embeddings for simple link
prediction", ICML 2016). Some triples are noise. A ComplEx model of `rank + 1` numbers for each
community ranks all planted ones first among filtered candidates, on both sides: one number
separates heads from tails, the others are the planted ones. So 1 - noise is an MRR that can be
reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnstore.budget.ledger import Reservation
from gnnstore.budget.limits import memory_ledger
from gnnstore.converters.datasets.triples import EDGE_ATTRIBUTE
from gnnstore.converters.inputs.opening import PathLike
from gnnstore.converters.writer.estimates import Workload
from gnnstore.converters.writer.graph_writer import GraphWriter
from gnnstore.converters.writer.options import ConvertOptions, check_features
from gnnstore.errors import UsageError, limits_named
from gnnstore.progress import Phase, Progress
from gnnstore.random_words import draw_words, uniform

# All pairs of a community's heads and tails are scored for each of its relations.
_COMMUNITY_SIZE = 1024
# The second word of the generator's key: what is drawn.
_MEMBERS, _HEADS, _TAILS, _RELATIONS, _NOISE, _ORDER = (0x6B670000 + i for i in range(6))
_PAIR_BYTES = 3 * 8  # a score, a copy to partition, and places
_TRIPLE_BYTES = 12 * 8  # three numbers, packed, sorted, shuffled and dealt out

Int64Array = npt.NDArray[np.int64]


@limits_named("convert")
def from_planted_kg(
    output: PathLike,
    *,
    num_entities: int = 14_541,
    num_relations: int = 237,
    num_triples: tuple[int, int, int] = (272_115, 17_535, 20_466),
    num_communities: int | None = None,
    rank: int = 3,
    noise: float = 0.05,
    seed: int = 0,
    options: ConvertOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Generate a knowledge graph with planted ComplEx vectors, by default of FB15k-237's size.

    Edges have the number of their relation as `edge_type`, and relations have names, as
    `from_triples` writes them. Everything is a function of the parameters alone, on every machine.

    Parameters
    ----------
    num_entities, num_relations : int
        N and R.
    num_triples : (int, int, int)
        Triples to train on, which are the graph, and of the edge splits "valid" and "test". All
        are different.
    num_communities : int, optional
        C, at least 2; by default one for each 1,024 entities.
    rank : int
        Complex numbers that an entity has in a community. With many, vectors cannot be learned
        from so few triples; 3 can, in a few epochs.
    noise : float
        Share of triples whose ends are drawn from all entities, in [0, 1]: a model can reach an MRR
        of `1 - noise`.
    seed : int
        In [0, 2**64).
    output, options, progress
        See `gnnstore.converters`.

    Raises
    ------
    UsageError
        If a parameter is out of range, or there are fewer pairs than triples.
    """
    if num_communities is None:
        num_communities = max(2, -(-num_entities // _COMMUNITY_SIZE))
    parameters = {
        "num_entities": num_entities,
        "num_relations": num_relations,
        "num_triples": list(num_triples),
        "num_communities": num_communities,
        "rank": rank,
        "noise": noise,
        "seed": seed,
    }
    _check(parameters)
    check_features(options, {})
    planted = PlantedVectors.draw(num_entities, num_relations, num_communities, rank, seed)
    with GraphWriter(
        output,
        kind="planted-kg",
        source={"parameters": parameters},
        options=options,
        num_nodes=num_entities,
        edge_ids=False,
        progress=progress,
        workload=Workload(num_nodes=num_entities, num_edges=num_triples[0], edge_row_bytes=8),
    ) as writer:
        pairs = (-(-num_entities // num_communities) + num_communities) ** 2
        memory_ledger("drawing the triples", writer.options.memory_bytes).add(
            Reservation("scores of a community", pairs * _PAIR_BYTES)
        ).add(Reservation("triples", sum(num_triples) * _TRIPLE_BYTES)).check(
            None, "ask for fewer triples, or smaller communities (num_communities=)"
        )
        heads, relations, tails = _triples(writer, planted, sum(num_triples), noise, seed)
        first = num_triples[0]
        if not writer.has_edges:
            writer.add_edges(heads[:first], tails[:first], {EDGE_ATTRIBUTE: relations[:first]})
        for name, size in zip(("valid", "test"), num_triples[1:], strict=True):
            part = slice(first, first + size)
            first += size
            if size:
                types = {EDGE_ATTRIBUTE: relations[part]}
                writer.set_edge_split(name, heads[part], tails[part], attributes=types)
        writer.set_value_names(
            EDGE_ATTRIBUTE,
            [f"community{k % num_communities}/relation{k}".encode() for k in range(num_relations)],
        )
        return writer.commit()


@dataclass(frozen=True)
class PlantedVectors:
    """The communities and vectors of entities and relations.

    Real and imaginary parts are integers, whose products and sums float64 holds exactly: which
    pairs score highest does not depend on the order in which a library adds.
    """

    num_communities: int
    head_of: Int64Array  # int64 [N]: the community in which an entity is a head
    tail_of: Int64Array  # int64 [N]: the community in which an entity is a tail
    # float64 [N, 2, rank]: real and imaginary parts of the entities' vectors as heads.
    heads: npt.NDArray[np.float64]
    # float64 [N, 2, rank]: real and imaginary parts of the entities' vectors as tails.
    tails: npt.NDArray[np.float64]
    relations: npt.NDArray[np.float64]  # float64 [R, 2, rank]: vectors of the relations

    @classmethod
    def draw(
        cls, num_entities: int, num_relations: int, num_communities: int, rank: int, seed: int
    ) -> PlantedVectors:
        """Draw all vectors by a seed."""
        order = np.argsort(draw_words(seed, _MEMBERS, 0, num_entities), kind="stable")
        place = np.empty(num_entities, np.int64)
        place[order] = np.arange(num_entities)
        head_of = place % num_communities
        tail_of = (head_of + 1 + place // num_communities % (num_communities - 1)) % num_communities
        return cls(
            num_communities,
            head_of,
            tail_of,
            _integers(seed, _HEADS, num_entities, rank),
            _integers(seed, _TAILS, num_entities, rank),
            _integers(seed, _RELATIONS, num_relations, rank),
        )

    def best_pairs(self, relation: int, count: int) -> tuple[Int64Array, Int64Array]:
        """Return the heads and tails [count] of a relation's pairs that score highest."""
        community = relation % self.num_communities
        heads = np.flatnonzero(self.head_of == community)
        tails = np.flatnonzero(self.tail_of == community)
        h_re, h_im = self.heads[heads].swapaxes(0, 1)
        w_re, w_im = self.relations[relation]
        products = np.hstack([h_re * w_re - h_im * w_im, h_re * w_im + h_im * w_re])
        scores = (products @ self.tails[tails].reshape(len(tails), -1).T).ravel()
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
        places = np.concatenate([above, equal[: count - len(above)]])
        return heads[places // len(tails)], tails[places % len(tails)]

    def counts(self, num_triples: int) -> Int64Array:
        """Return the number of triples of each relation k [R], in proportion to 1/sqrt(k + 1)."""
        shares = 1 / np.sqrt(np.arange(len(self.relations)) + 1)
        bounds = np.round(np.cumsum(shares) / shares.sum() * num_triples).astype(np.int64)
        counts: Int64Array = np.diff(bounds, prepend=0)
        num_heads, num_tails = (
            np.bincount(of, minlength=self.num_communities) for of in (self.head_of, self.tail_of)
        )
        pairs = (num_heads * num_tails)[np.arange(len(counts)) % self.num_communities]
        if (wrong := np.flatnonzero(counts > pairs)).size:
            raise UsageError(
                f"num_triples: relation {wrong[0]} would have {counts[wrong[0]]} triples, and the "
                f"heads and tails of its community make {pairs[wrong[0]]} pairs; ask for fewer, or "
                "for more entities, or for fewer communities (num_communities=)"
            )
        return counts


def _integers(seed: int, purpose: int, num_rows: int, rank: int) -> npt.NDArray[np.float64]:
    """Return integers from -127 to 127, [num_rows, 2, rank]."""
    num_bytes = num_rows * 2 * rank
    words = draw_words(seed, purpose, 0, -(-num_bytes // 8))
    shifts = np.arange(8, dtype=np.uint64) * np.uint64(8)
    drawn = (words[:, None] >> shifts & np.uint64(255)).astype(np.int64).ravel()[:num_bytes]
    return (drawn % 255 - 127).astype(np.float64).reshape(num_rows, 2, rank)


def _triples(
    writer: GraphWriter, planted: PlantedVectors, num_triples: int, noise: float, seed: int
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return heads, relations and tails, all different, in a random order."""
    num_entities = len(planted.head_of)
    num_planted = num_triples - round(noise * num_triples)
    counts = planted.counts(num_planted)
    with writer.progress.phase("draw triples", num_triples, "triples") as phase:
        parts = list(_planted(planted, counts, num_entities, phase))
        packed = np.concatenate([np.empty(0, np.int64), *parts])
        shares = 1 / np.sqrt(np.arange(len(counts)) + 1)
        bounds, block = np.cumsum(shares) / shares.sum(), 0
        while (missing := num_triples - len(packed)) > 0:
            # Some are there already; words of three a triple, blocks of four words.
            words = draw_words(seed, _NOISE, block, 3 * 4 * missing).reshape(3, -1)
            block += 3 * missing
            drawn = uniform(words)
            kinds = np.searchsorted(bounds, drawn[0], side="right").clip(max=len(counts) - 1)
            heads, tails = (drawn[1:] * num_entities).astype(np.int64)
            found = np.unique((kinds * num_entities + heads) * num_entities + tails)
            found = found[~np.isin(found, packed)]
            order = np.argsort(draw_words(seed, _NOISE, 2**62 + block, len(found)), kind="stable")
            packed = np.concatenate([packed, found[order[:missing]]])
        phase.advance(num_triples - num_planted)
    packed = packed[np.argsort(draw_words(seed, _ORDER, 0, num_triples), kind="stable")]
    rest, tails = np.divmod(packed, num_entities)
    relations, heads = np.divmod(rest, num_entities)
    return heads, relations, tails


def _planted(
    planted: PlantedVectors, counts: Int64Array, num_entities: int, phase: Phase
) -> Iterator[Int64Array]:
    for relation, count in enumerate(counts.tolist()):
        if count:
            heads, tails = planted.best_pairs(relation, count)
            yield (relation * num_entities + heads) * num_entities + tails
        phase.advance(count)


def _check(parameters: Mapping[str, Any]) -> None:
    """Check the parameters of `from_planted_kg`, by name."""
    num_entities, num_relations = parameters["num_entities"], parameters["num_relations"]
    ranges = {
        "num_entities": (4, 2**40),
        "num_relations": (1, 2**20),
        "num_communities": (2, max(2, num_entities // 2)),
        "rank": (1, 2**16),
        "noise": (0, 1),
        "seed": (0, 2**64 - 1),
    }
    for name, (least, most) in ranges.items():
        if not least <= parameters[name] <= most:
            raise UsageError(f"{name}={parameters[name]} is not in [{least}, {most}]")
    if num_relations * num_entities**2 >= 2**63:
        raise UsageError(
            f"num_entities={num_entities}, num_relations={num_relations}: expected fewer than 2^63 "
            "triples that can be"
        )
    num_triples = parameters["num_triples"]
    if len(num_triples) != 3 or min(num_triples) < 0 or not num_triples[0]:
        raise UsageError(
            f"num_triples={num_triples}: expected how many to train on, at least one, and how many "
            "for valid and test, as in (272115, 17535, 20466)"
        )
    num_noise, most = parameters["noise"] * sum(num_triples), num_relations * num_entities**2 // 8
    if num_noise > most:
        raise UsageError(
            f"noise={parameters['noise']}: of {sum(num_triples)} triples at most {most} can be "
            "noise, an eighth of those that can be; ask for fewer"
        )
