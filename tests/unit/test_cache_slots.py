"""What the kernels for a cache's slots refuse; what they do is in the property tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gnnstore import _core


def call_check(**changed: Any) -> None:
    arguments = {"nodes": np.array([7, -1]), "slots": np.array([0, -1], np.int32)}
    _core.check_cached(**{**arguments, "ids": np.array([7, 9]), **changed})


def call_copy_from(**changed: Any) -> None:
    arguments: dict[str, Any] = {
        "cache": np.zeros((2, 4), np.uint8),
        "slots": np.array([1, -1], np.int32),
        "out": np.zeros(8, np.uint8),
    }
    _core.copy_from_slots(**{**arguments, **changed})


def call_copy_to(**changed: Any) -> None:
    arguments: dict[str, Any] = {
        "rows": np.zeros(8, np.uint8),
        "positions": np.array([1], np.int32),
        "cache": np.zeros((2, 4), np.uint8),
        "slots": np.array([0], np.int32),
    }
    _core.copy_to_slots(**{**arguments, **changed})


SLOTS = np.zeros((2, 8), np.uint8)
OVERLAPPING = np.lib.stride_tricks.as_strided(SLOTS, (2, 4), (3, 1))


def slot(number: int) -> NDArray[np.int32]:
    return np.array([number], np.int32)


@pytest.mark.parametrize(
    ("call", "changed", "error", "message"),
    [
        (call_check, {"ids": np.array([8, 9])}, ValueError, "slot 0 should hold row 8, .* row 7"),
        (call_check, {"slots": np.array([0, 1], np.int32)}, ValueError, "hold row 9, .* none"),
        (call_check, {"slots": np.array([0, 2], np.int32)}, IndexError, "slot 2 at position 1"),
        (call_check, {"slots": slot(0)}, ValueError, "one entry per id: expected 2, got 1"),
        (call_check, {"slots": np.array([0, 1])}, TypeError, "slots must be int32, got int64"),
        (call_copy_from, {"slots": np.array([0, 2], np.int32)}, IndexError, "cache of 2 rows"),
        (call_copy_from, {"slots": slot(0)}, ValueError, "out must hold 1 rows of 4 .* got 8"),
        (call_copy_from, {"cache": np.zeros(8, np.uint8)}, ValueError, "must have two dimensions"),
        (
            call_copy_from,
            {"cache": np.zeros((2, 4))},
            TypeError,
            "must be uint8, got float64",
        ),
        (call_copy_from, {"cache": SLOTS[:, ::2]}, ValueError, "one behind the other"),
        (call_copy_from, {"cache": SLOTS[::-1, :4]}, ValueError, "one behind the other"),
        (call_copy_from, {"cache": OVERLAPPING}, ValueError, "one behind the other"),
        (
            call_copy_from,
            {"cache": SLOTS[:, :0]},
            ValueError,
            "row_bytes must be at least 1",
        ),
        (call_copy_from, {"num_threads": 0}, ValueError, "num_threads must be between 1 and 1024"),
        (call_copy_to, {"slots": slot(2)}, IndexError, r"2 at position 0 is outside \[0, 2\)"),
        (call_copy_to, {"slots": slot(-1)}, IndexError, "-1 at position 0 is outside"),
        (call_copy_to, {"positions": slot(2)}, IndexError, "2 at position 0 is outside"),
        (call_copy_to, {"positions": slot(-1)}, IndexError, "-1 at position 0 is outside"),
        (call_copy_to, {"slots": np.zeros(2, np.int32)}, ValueError, "one entry per slot"),
        (call_copy_to, {"rows": np.zeros(6, np.uint8)}, ValueError, "rows must hold whole rows"),
        (call_copy_to, {"cache": np.zeros(8, np.uint8)}, ValueError, "must have two dimensions"),
        (call_copy_to, {"cache": OVERLAPPING}, ValueError, "one behind the other"),
        (call_copy_to, {"cache": SLOTS[:, :0]}, ValueError, "row_bytes must be at least 1"),
    ],
)
def test_bad_arguments(
    call: Callable[..., None], changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    call()
    with pytest.raises(error, match=message):
        call(**changed)
