"""Sizes that a ledger finds fit, are as large as can be, and grow with the limit."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gnnstore.budget.ledger import (
    ALWAYS,
    IN_FLIGHT,
    PLANNED,
    SLOTS,
    Ledger,
    Part,
    Reservation,
    Wish,
    largest_phase,
    least_more,
)
from gnnstore.errors import BudgetError

SIZES = (IN_FLIGHT, PLANNED, SLOTS)
reservations = st.lists(
    st.builds(
        Reservation,
        what=st.sampled_from(["topology", "traces and plans", "cached rows"]),
        fixed=st.integers(0, 10**9),
        per=st.dictionaries(st.sampled_from(SIZES), st.integers(0, 10**6), max_size=3),
        phase=st.sampled_from([ALWAYS, "sampling", "packing"]),
    ),
    max_size=6,
).map(tuple)
wishes = st.permutations(SIZES).flatmap(
    lambda names: st.tuples(
        *(
            st.builds(
                lambda name, least, more: Wish(name, least, least + more),
                st.just(name),
                st.integers(0, 100),
                st.integers(0, 10**5),
            )
            for name in names
        )
    )
)


@given(limit=st.integers(0, 10**11), parts=reservations, wished=wishes)
def test_what_is_found_fits_and_no_less_is_found_with_more(
    limit: int, parts: tuple[Reservation, ...], wished: tuple[Wish, ...]
) -> None:
    ledger = Ledger(limit, parts)
    try:
        sizes = ledger.solve(*wished)
    except BudgetError:
        assert ledger.left({wish.size: wish.least for wish in wished}) < 0
        return
    assert ledger.peak(sizes) <= limit
    assert all(wish.least <= sizes[wish.size] <= wish.most for wish in wished)
    first, last = wished[0], wished[-1]
    more = Ledger(limit + limit // 7 + 1, parts).solve(*wished)
    assert more[first.size] >= sizes[first.size], "the first wish gets no less with more"
    if sizes[last.size] < last.most:
        assert ledger.left({**sizes, last.size: sizes[last.size] + 1}) < 0, "one more had room"


@given(limit=st.integers(0, 10**11), parts=reservations, wished=wishes)
def test_what_a_refusal_asks_for_is_enough_and_no_more(
    limit: int, parts: tuple[Reservation, ...], wished: tuple[Wish, ...]
) -> None:
    ledger = Ledger(limit, parts)
    try:
        ledger.solve(*wished)
    except BudgetError as error:
        (missing,) = map(int, re.findall(r"(\d+) bytes? too few", str(error)))
    else:
        assume(False)
    ledger.with_limit(limit + missing).solve(*wished)
    with pytest.raises(BudgetError):
        ledger.with_limit(limit + missing - 1 - missing // 100).solve(*wished)


@given(
    limit=st.integers(0, 10**11), parts=reservations, size=st.sampled_from(SIZES), n=st.integers(1)
)
def test_the_largest_is_what_trying_finds(
    limit: int, parts: tuple[Reservation, ...], size: str, n: int
) -> None:
    ledger, beside = Ledger(limit, parts), {name: 3 for name in SIZES if name != size}
    found = ledger.largest(size, beside, n)
    assert 0 <= found <= n
    assert found == 0 or ledger.left({**beside, size: found}) >= 0
    assert found == n or ledger.left({**beside, size: found + 1}) < 0


@given(needed=st.integers(0, 10**12), told=st.floats(0.1, 1000), known=st.integers(0, 10**12))
def test_the_fewest_more_that_do(needed: int, told: float, known: int) -> None:
    asked = []

    def missing(more: int) -> int:
        asked.append(more)
        # All that is missing beyond what is known to be, and of that a share or a multiple.
        return max(0, known - more) or max(0, math.ceil((needed - more) * told))

    assert least_more(missing) == max(needed, known)
    assert len(asked) <= 3 or known < needed


def test_phases_do_not_add_up() -> None:
    ledger = Ledger(
        1000,
        (
            Reservation("topology", 100),
            Reservation("samples", 300, phase="sampling"),
            Reservation("windows", 200, {PLANNED: 10}, phase="packing"),
            Reservation("cached rows", 0, {SLOTS: 50}),
        ),
        "strategy 'packed'",
    )
    assert (ledger.peak(), ledger.left()) == (400, 600)
    assert ledger.peak({PLANNED: 20, SLOTS: 2}) == 100 + 400 + 100
    assert ledger.largest(SLOTS) == 12
    assert ledger.largest(PLANNED, {SLOTS: 4}) == 50
    assert ledger.bytes_each(SLOTS) == 50
    assert ledger.parts({PLANNED: 20}) == [
        Part("windows", "packing", 400),
        Part("samples", "sampling", 300),
        Part("topology", ALWAYS, 100),
    ]
    assert largest_phase(ledger.parts({PLANNED: 20})) == "packing"
    assert largest_phase(ledger.parts()) == "sampling"
    with pytest.raises(BudgetError) as caught:
        ledger.check({PLANNED: 71, SLOTS: 1}, "lower superbatch=")
    assert str(caught.value) == (
        "strategy 'packed' does not fit, 60 bytes too few:\n"
        "- needs 1060 bytes (1.06 kB)\n"
        "- has 1000 bytes (1 kB) of the memory= budget\n"
        "- largest parts: 910 B of windows + 100 B of topology + 50 B of cached rows\n"
        "- to do: raise memory= by at least 60 B, or lower superbatch="
    )


def test_a_refusal_names_the_four_largest_parts() -> None:
    sizes = {"rows": 5000, "plans": 4000, "order": 3000, "index": 2000, "labels": 1000, "ends": 3}
    parts = tuple(Reservation(what, num_bytes) for what, num_bytes in sizes.items())
    named = "largest parts: 5 kB of rows + 4 kB of plans + 3 kB of order + 2 kB of index\n"
    with pytest.raises(BudgetError, match=re.escape(named)):
        Ledger(10_000, parts).check()
    # What is too little to help is left out.
    with pytest.raises(BudgetError, match=re.escape("5 kB of rows\n- to do: raise memory= by")):
        Ledger(10, (parts[0], parts[5])).check()


def test_wishes_come_in_their_order() -> None:
    ledger = Ledger(1000, (Reservation("a", 200, {IN_FLIGHT: 1}), Reservation("b", 0, {SLOTS: 7})))
    sizes = ledger.solve(Wish(IN_FLIGHT, 50, 300), Wish(SLOTS))
    assert sizes == {IN_FLIGHT: 300, SLOTS: 500 // 7}
    assert ledger.solve(Wish(IN_FLIGHT, 50, 900), Wish(SLOTS, 60))[IN_FLIGHT] == 380


def test_the_memory_of_a_device_is_a_ledger_without_an_option() -> None:
    device = Ledger(1000, who="conv1", source="of device memory", option="").add(
        Reservation("weights", 300), Reservation("blocks", per={PLANNED: 70})
    )
    assert device.solve(Wish(PLANNED, least=1)) == {PLANNED: 10}
    assert device.left({PLANNED: 10}) == 0
    with pytest.raises(BudgetError) as caught:
        device.check({PLANNED: 11}, "run on device='cpu'")
    assert str(caught.value) == (
        "conv1 does not fit, 70 bytes too few:\n"
        "- needs 1070 bytes (1.07 kB)\n"
        "- has 1000 bytes (1 kB) of device memory\n"
        "- largest parts: 770 B of blocks + 300 B of weights\n"
        "- to do: run on device='cpu'"
    )


def test_one_byte_is_not_bytes() -> None:
    with pytest.raises(
        BudgetError, match=r"(?s)fit, 1 byte too few:.* needs 2 bytes\n- has 1 byte of "
    ):
        Ledger(1, (Reservation("rows", 2),)).check()
