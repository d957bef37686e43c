"""Ranks among given negatives, and metrics of ranks and of scores.

A rank is 1 + ½ (#{negatives above} + #{negatives above or equal}): ties count half, so that a
constant model over K negatives ranks 1 + K/2. OGB (ogbl-citation2, ogbl-wikikg2) and TGB define it
this way: `mrr(ranks_among(positive, negative))` and `hits_at` are their MRR and hits@K. OGB's
hits@K of ogbl-collab, ppa and ddi is defined differently: `ogb_hits_at`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnnstore.errors import InputError, UsageError


def ranks_among(positive: Any, negative: Any) -> Tensor:
    """Return the rank of each positive among its own negatives: float64 [Q].

    Parameters
    ----------
    positive : tensor or array [Q]
        Scores of true edges.
    negative : tensor or array [Q, A]
        Scores of the negatives of each; [A] is one list for all.

    Raises
    ------
    UsageError, InputError
        If shapes do not fit, there is nothing to rank, or a score is not a number.
    """
    positive, negative = _both(positive, negative, (1, 2))
    if negative.dim() == 2 and len(negative) != len(positive):
        raise UsageError(
            f"negative has {len(negative)} rows for {len(positive)} positives; give [Q, A] scores, "
            "or one list [A] for all"
        )
    positive = positive[:, None]
    above: Tensor = (negative > positive).sum(dim=1) + (negative >= positive).sum(dim=1)
    return 1 + above.double() / 2


def mrr(ranks: Any) -> float:
    """Return the mean reciprocal rank."""
    return float((1 / _ranks(ranks)).mean())


def mean_rank(ranks: Any) -> float:
    """Return the mean of the ranks."""
    return float(_ranks(ranks).mean())


def hits_at(ranks: Any, k: int) -> float:
    """Return the share of ranks that are at most k."""
    return float((_ranks(ranks) <= _count(k)).double().mean())


def ogb_hits_at(positive: Any, negative: Any, k: int) -> float:
    """Return OGB's hits@K of ogbl-collab, ogbl-ppa and ogbl-ddi.

    It is the share of positives [P] above the k-th best of one list of negatives [M], which all
    positives share; 1.0 if there are fewer than k.
    """
    positive, negative = _both(positive, negative)
    if len(negative) < _count(k):
        return 1.0
    return float((positive > negative.topk(k).values[-1]).double().mean())


def auc(positive: Any, negative: Any) -> float:
    """Return the area under the ROC curve.

    It is the probability that a positive [P] scores above a negative [M], ties counting half.
    """
    positive, negative = _both(positive, negative)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive).double()
    below_or_equal = torch.searchsorted(ordered, positive, right=True).double()
    return float((below + below_or_equal).mean() / (2 * len(ordered)))


def _both(positive: Any, negative: Any, dims: tuple[int, ...] = (1,)) -> tuple[Tensor, Tensor]:
    """Return positives [P], and negatives, in one type."""
    scores = _scores(positive, "positive", (1,)), _scores(negative, "negative", dims)
    if scores[0].dtype != scores[1].dtype:
        return scores[0].double(), scores[1].double()
    return scores


def _scores(values: Any, name: str, dims: tuple[int, ...]) -> Tensor:
    try:
        scores = torch.as_tensor(values).detach()
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{name}: expected scores, real numbers; {error}") from None
    if scores.dim() not in dims or not scores.numel() or scores.is_complex():
        expected = " or ".join("[Q, A]" if dim == 2 else "[Q]" for dim in dims)
        raise InputError(
            f"{name} is {scores.dtype} of the shape {list(scores.shape)}; expected scores, real "
            f"numbers {expected}, at least one"
        )
    if scores.isnan().any():
        place = scores.isnan().nonzero()[0].tolist()
        raise InputError(f"{name}{place} is not a number (NaN), which has no rank")
    return scores if scores.is_floating_point() else scores.double()


def _ranks(values: Any) -> Tensor:
    ranks = torch.as_tensor(values).detach().double()
    if not ranks.numel() or not bool((ranks >= 1).all()):
        raise UsageError("expected ranks, at least one, and none below 1; got none, or scores")
    return ranks


def _count(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UsageError(f"k={k!r}: expected a whole number, at least 1")
    return k
