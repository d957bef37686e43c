"""Compares batches, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def batches_of(loader: Iterable[Any], num_epochs: int = 1) -> list[dict[str, Any]]:
    """Return the batches of some epochs, as dicts."""
    return [batch.to_dict() for _ in range(num_epochs) for batch in loader]


def assert_same_batches(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Check that batches are equal: names, their order, dtypes, shapes and values.

    Raises
    ------
    AssertionError
        Naming the first batch and the first of its values that differ.
    """
    if len(found) != len(expected):
        raise AssertionError(f"{len(found)} batches, expected {len(expected)}")
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if list(ours) != list(theirs):
            raise AssertionError(f"batch {number} has {list(ours)}, expected {list(theirs)}")
        for name, value in theirs.items():
            if not _same(ours[name], value):
                raise AssertionError(f"batch {number}: {name!r} differs")


def _same(value: Any, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return bool(value == expected)
    return value.dtype == expected.dtype and torch.equal(value, expected)
