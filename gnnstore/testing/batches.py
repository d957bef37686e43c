"""Compares batches, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def as_dicts(batches: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the values of each batch by name."""
    return [batch.to_dict() for batch in batches]


def same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Return whether batches are equal, to the bit and in their order."""
    return len(found) == len(expected) and all(
        a.keys() == b.keys()
        and all(
            torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
        )
        for a, b in zip(found, expected, strict=True)
    )
