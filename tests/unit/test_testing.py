"""What tests compare and change with: it fails where things differ, and changes what it says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from gnnstore.testing import assert_resumes
from tests.support.batches import assert_same_batches

BATCHES: list[dict[str, Any]] = [
    {"x": torch.arange(3), "size": 2},
    {"x": torch.tensor([1.0, math.nan]), "size": 1},
]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (BATCHES[:1], "1 batches, expected 2"),
        ([BATCHES[0], {"size": 1, "x": torch.ones(2)}], r"batch 1 has \['size', 'x'\], expected"),
        ([{**BATCHES[0], "x": torch.arange(3)[None]}, BATCHES[1]], "batch 0: 'x' differs"),
        ([BATCHES[0], {**BATCHES[1], "x": torch.ones(2)}], "batch 1: 'x' differs"),
        ([{**BATCHES[0], "x": torch.arange(3).int()}, BATCHES[1]], "batch 0: 'x' differs"),
        ([BATCHES[0], {**BATCHES[1], "x": torch.zeros(2)}], "batch 1: 'x' differs"),
        ([{**BATCHES[0], "size": 3}, BATCHES[1]], "batch 0: 'size' differs"),
        ([{**BATCHES[0], "paper": {}}, BATCHES[1]], r"batch 0 has \['x', 'size', 'paper'\]"),
    ],
)
def test_batches_that_differ(found: Any, message: str) -> None:
    assert_same_batches([{**batch, "x": batch["x"].clone()} for batch in BATCHES], BATCHES)
    with pytest.raises(AssertionError, match=message):
        assert_same_batches(found, BATCHES)


class Counting:
    """Batches that name their places in a run of epochs of `size` batches."""

    epoch, number, size, step = 0, 0, 5, 1

    def __iter__(self) -> Iterator[Data]:
        while self.number < self.size:
            self.number += 1
            yield Data(x=torch.tensor([self.epoch, self.number]))
        self.epoch, self.number = self.epoch + self.step, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.number = state["epoch"], state["number"]


class NextEpochAfterTheLast(Counting):
    """Whose state after the last batch of an epoch is that of the next one."""

    def state_dict(self) -> dict[str, Any]:
        is_over = self.number == self.size
        return {"epoch": self.epoch + is_over, "number": 0 if is_over else self.number}


class OfOneBatch(Counting):
    size = 1


@pytest.mark.parametrize("kind", [Counting, NextEpochAfterTheLast, OfOneBatch])
def test_a_loader_resumes(kind: type[Counting]) -> None:
    assert_resumes(kind)


class Empty(Counting):
    size = 0


class ForgetsItsPosition(Counting):
    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "number": 0}


class RepeatsABatch(Counting):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.number = state["epoch"], max(0, state["number"] - 1)


class RepeatsItsEpoch(Counting):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.step = 0


class LosesTheLastBatch(Counting):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.number = state["epoch"], state["number"] + (state["number"] == 4)


class LosesItsEpoch(Counting):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class CountsFromTheResume(Counting):
    first = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "number": max(0, self.number - self.first)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.first = self.number


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Empty, "the first epoch has no batches"),
        (ForgetsItsPosition, "in epoch 0 after 1 of 5 batches: 5 batches, expected 4"),
        (RepeatsABatch, "in epoch 0 after 1 of 5 batches: 5 batches, expected 4"),
        (RepeatsItsEpoch, "after 0 of 5 batches, in the epoch after that: batch 0: 'x' differs"),
        (LosesTheLastBatch, "in epoch 0 after 4 of 5 batches: 0 batches, expected 1"),
        (LosesItsEpoch, "in epoch 1 after 0 of 5 batches: batch 0: 'x' differs"),
        (CountsFromTheResume, "after 1 of 5 batches, and again one later: 4 batches, expected 3"),
    ],
)
def test_a_loader_that_does_not_resume_exactly(kind: type[Counting], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_resumes(kind)
