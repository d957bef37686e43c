"""Lists of accesses: what this processor does fastest is what any processor does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnstore import _core

Ids = npt.NDArray[np.int32]

HERE, LATER, END = 1000, 1600, 5000


def accesses_of(seed: int, size: int, repeated: float) -> tuple[Ids, Ids]:
    """Next uses and slots of a batch; a share of its accesses is repeated behind them."""
    rng = np.random.default_rng(seed)
    next_uses = np.where(
        rng.random(size) < 0.3, -rng.integers(1, 50, size), rng.integers(LATER, END, size)
    )
    for i in np.flatnonzero(rng.random(size) < repeated).tolist():
        if i + 1 < size:
            next_uses[i] = HERE + rng.integers(i + 1, size)
    slots = np.where(rng.random(size) < 0.3, -1, rng.integers(0, 10_000, size))
    return next_uses.astype(np.int32), slots.astype(np.int32)


def expected_lists(
    next_uses: Ids, slots: Ids, kept_end: int, stay_end: int
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Go through them one by one; the last list is of the slots afterwards."""
    uses: list[int] = []
    handed_on: list[int] = []
    others: list[int] = []
    held = slots.tolist()
    for i, use in enumerate(next_uses.tolist()):
        if HERE <= use < LATER:
            held[use - HERE] = held[i]
        elif held[i] >= 0 and LATER <= use < kept_end:
            uses.append(use)
            handed_on.append(held[i])
        elif held[i] >= 0 or LATER <= use < kept_end or use < stay_end:
            others.append(i)
    return uses, handed_on, others, held


@pytest.mark.parametrize("portable", [False, True])
@given(
    st.integers(0, 2**16),
    st.integers(0, 512),
    st.sampled_from([0.0, 0.01, 0.4]),
    st.tuples(st.integers(LATER, END), st.integers(-51, -1)),
)
def test_accesses_are_listed(
    portable: bool, seed: int, size: int, repeated: float, ends: tuple[int, int]
) -> None:
    next_uses, slots = accesses_of(seed, size, repeated)
    expected = expected_lists(next_uses, slots, *ends)
    kept_end, stay_end = ends
    bounds = {"here": HERE, "later": LATER, "kept_end": kept_end, "stay_end": stay_end}
    found = _core.access_lists(next_uses, slots, **bounds, portable=portable)
    for array, values in zip((*found, slots), expected, strict=True):
        assert array.dtype == np.int32
        assert array.tolist() == values


@pytest.mark.parametrize("portable", [False, True])
@given(st.integers(0, 2**16), st.integers(0, 512), st.integers(-5, 5), st.integers(0, 5))
def test_places_are_found(portable: bool, seed: int, size: int, low: int, width: int) -> None:
    values = np.random.default_rng(seed).integers(-6, 7, size).astype(np.int32)
    found = _core.places_between(values, low, low + width, portable)
    assert found.tolist() == np.flatnonzero((values >= low) & (values <= low + width)).tolist()


@pytest.mark.parametrize("use", [HERE + 1, HERE, HERE + 3, HERE - 1])
def test_what_is_repeated_names_an_access_behind_it(use: int) -> None:
    next_uses = np.array([-1, use, -1], np.int32)
    slots = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match=f"must name an access behind it, got {use} at position 1"):
        _core.access_lists(next_uses, slots, here=HERE, later=LATER, kept_end=END, stay_end=-1)
