"""A colour means one thing in all plots."""

from __future__ import annotations

from gnnstore.budget.ledger import CACHED, STAGING
from gnnstore.caching.policies.simulate import policies
from gnnstore.palette import PARTS, SERIES, STRATEGIES, part_looks, strategy_looks
from gnnstore.strategies.builtin import auto
from gnnstore.tools.bench.ways import STAGES


def test_no_colour_means_two_things() -> None:
    colours = [look.colour for look in (*STRATEGIES.values(), *PARTS.values(), *SERIES)]
    assert len(colours) == len(set(colours))


def test_every_strategy_and_policy_has_a_colour() -> None:
    names = {candidate.choice for candidate in auto().candidates}
    assert names == STRATEGIES.keys() - {"lru"}
    assert {"lru", "belady"} <= set(policies())
    looks = strategy_looks(names)
    assert looks == {name: STRATEGIES[name] for name in names}
    assert len({look.marker for look in looks.values()}) == len(names), "in grey print"


def test_a_strategy_of_a_plug_in_has_a_colour_of_its_own() -> None:
    looks = strategy_looks(["belady", "mine", "yours"])
    assert looks["belady"] == STRATEGIES["belady"]
    assert len({look.colour for look in looks.values()}) == 3
    assert not {looks["mine"], looks["yours"]} & set(STRATEGIES.values())


def test_a_part_has_the_colour_of_its_work() -> None:
    assert PARTS.keys() >= set(STAGES)
    looks = part_looks([*STAGES, "gathering", "topology", CACHED, STAGING, "mine"])
    assert looks["gathering"] == looks[STAGING] == PARTS["reading"]
    assert looks["topology"] == PARTS["sampling"]
    assert looks[CACHED] == PARTS["filling"]
    assert looks["mine"] in SERIES
