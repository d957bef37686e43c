"""Metrics of ranks and scores, beside their definitions written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnstore.errors import InputError, UsageError
from gnnstore.evaluation import auc, hits_at, mean_rank, mrr, ogb_hits_at, ranks_among

SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=12)


@given(positive=SCORES, negative=SCORES, k=st.integers(1, 14))
def test_metrics_are_their_definitions(positive: list[int], negative: list[int], k: int) -> None:
    own = [negative[i:] + negative[:i] for i in range(len(positive))]
    ranks = ranks_among(torch.tensor(positive), torch.tensor(own))
    optimistic = [sum(n > p for n in negative) for p in positive]
    pessimistic = [sum(n >= p for n in negative) for p in positive]
    wanted = [1 + (o + p) / 2 for o, p in zip(optimistic, pessimistic, strict=True)]
    assert ranks.tolist() == wanted
    assert ranks_among(np.array(positive), np.array(negative)).tolist() == wanted, "one list"
    assert mrr(ranks) == pytest.approx(np.mean([1 / rank for rank in wanted]))
    assert mean_rank(ranks) == pytest.approx(np.mean(wanted))
    assert hits_at(wanted, k) == np.mean([rank <= k for rank in wanted])
    pairs = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    assert auc(positive, negative) == pytest.approx(np.mean(pairs))
    kth = sorted(negative, reverse=True)[k - 1] if k <= len(negative) else -np.inf
    assert ogb_hits_at(positive, negative, k) == np.mean([p > kth for p in positive])


def test_a_constant_model_ranks_in_the_middle() -> None:
    ranks = ranks_among(torch.zeros(5), torch.zeros(5, 1000))
    assert ranks.tolist() == [501.0] * 5
    assert mrr(ranks) == pytest.approx(1 / 501)
    assert hits_at(ranks, 500) == 0
    assert auc(torch.zeros(5), torch.zeros(9)) == 0.5
    assert ogb_hits_at(torch.zeros(5), torch.zeros(9), 9) == 0
    assert ogb_hits_at(torch.zeros(5), torch.zeros(9), 10) == 1, "fewer negatives than 10"


def test_scores_may_be_of_different_types() -> None:
    positive = torch.tensor([0.1], dtype=torch.float64)
    assert auc(positive, torch.tensor([0.1], dtype=torch.float32)) == 0.0, "0.1f is more than 0.1"
    assert auc(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([0.5])) == 1.0


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda: ranks_among([1.0, 2], [[1.0]]), UsageError, "1 rows for 2 positives"),
        (lambda: ranks_among([[1.0]], [[1.0]]), InputError, r"positive is .* shape \[1, 1\]"),
        (lambda: ranks_among([1.0], 1.0), InputError, r"negative is .* shape \[\]; .* or \[Q, A"),
        (lambda: ranks_among([], [[]]), InputError, r"positive is .* shape \[0\]; .* at least one"),
        (lambda: ranks_among([1.0], [[]]), InputError, r"negative is .* shape \[1, 0\]"),
        (
            lambda: ranks_among([1.0], [[0, np.nan]]),
            InputError,
            r"negative\[0, 1\] is not a number",
        ),
        (lambda: auc([np.nan], [1.0]), InputError, r"positive\[0\] is not a number"),
        (lambda: auc([1.0], []), InputError, r"negative is .* shape \[0\]"),
        (lambda: mrr([]), UsageError, "expected ranks"),
        (lambda: mrr([0.5, 1]), UsageError, "none below 1"),
        (lambda: mean_rank([np.nan]), UsageError, "expected ranks"),
        (lambda: hits_at([1.0], 0), UsageError, "k=0: expected a whole number, at least 1"),
        (lambda: ogb_hits_at([1.0], [1.0], True), UsageError, "k=True"),
    ],
)
def test_what_has_no_metric_is_refused(function: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        function()


def test_scores_of_two_types_are_compared_without_rounding() -> None:
    """float32 has not all whole numbers beyond 2^24, to which torch would bring both."""
    positive, negative = torch.tensor([2**24 + 1]), torch.tensor([float(2**24)])
    assert auc(positive, negative) == ogb_hits_at(positive, negative, 1) == 1.0
    assert ranks_among(positive, negative).tolist() == [1.0]


@pytest.mark.parametrize(
    "scores",
    [
        [False, True],
        np.array([0, 1], np.uint16),
        torch.tensor([0, 1], dtype=torch.uint32),
    ],
)
def test_scores_of_any_type_of_real_numbers(scores: Any) -> None:
    assert auc(scores, [0.5]) == ogb_hits_at(scores, [0.5], 1) == 0.5


@pytest.mark.parametrize("scores", [["a"], None, [[1], [1, 2]], torch.tensor([1j]), object()])
def test_what_are_no_scores(scores: Any) -> None:
    for metric in (auc, ranks_among):
        with pytest.raises(InputError, match="real numbers"):
            metric(scores, [0.5])
