"""Ranks among given negatives, and metrics of ranks and of scores.

A rank is 1 + ½ (#{negatives above} + #{negatives above or equal}): ties count half, so that a
constant model over K negatives ranks 1 + K/2. OGB (ogbl-citation2, ogbl-wikikg2) and TGB define it
this way: `mrr(ranks_among(positive, negative))` and `hits_at` are their MRR and hits@K. OGB's
hits@K of ogbl-collab, ppa and ddi is defined differently: `ogb_hits_at`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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
    positive, negative = _both(positive, negative, may_be_rows=True)
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

    Raises
    ------
    UsageError, InputError
        As in `ranks_among`.
    """
    positive, negative = _both(positive, negative, may_be_empty=True)
    if len(negative) < _count(k):
        return 1.0
    return float((positive > negative.topk(k).values[-1]).double().mean())


def auc(positive: Any, negative: Any) -> float:
    """Return the area under the ROC curve.

    It is the probability that a positive [P] scores above a negative [M], ties counting half.

    Raises
    ------
    UsageError, InputError
        As in `ranks_among`.
    """
    positive, negative = _both(positive, negative)
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive).double()
    below_or_equal = torch.searchsorted(ordered, positive, right=True).double()
    return float((below + below_or_equal).mean() / (2 * len(ordered)))


def _both(positive: Any, negative: Any, **allowed: bool) -> tuple[Tensor, Tensor]:
    """Return both scores in one type that compares them without rounding either."""
    scores = _scores(positive, "positive"), _scores(negative, "negative", **allowed)
    if scores[0].dtype != scores[1].dtype:
        is_exact = not any(found.is_floating_point() for found in scores)
        dtype = torch.int64 if is_exact else torch.float64
        return scores[0].to(dtype), scores[1].to(dtype)
    return scores


def _scores(
    values: Any, name: str, *, may_be_rows: bool = False, may_be_empty: bool = False
) -> Tensor:
    """Return scores [Q], or [Q, A] where these may be, in a type that torch compares."""
    if isinstance(values, np.ndarray):  # torch takes neither big-endian nor reversed ones
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    try:
        scores = torch.as_tensor(values).detach()
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{name}: expected scores, real numbers; {error}") from None
    if scores.is_complex():
        raise InputError(f"{name} is {scores.dtype}: complex numbers have no order")
    if scores.dtype in (torch.bool, torch.uint16, torch.uint32):
        scores = scores.long()
    elif scores.dtype == torch.uint64 or (scores.is_floating_point() and scores.itemsize == 1):
        scores = scores.double()
    if scores.dim() != 1 and not (may_be_rows and scores.dim() == 2):
        expected = "[Q] or [Q, A]" if may_be_rows else "[Q]"
        raise UsageError(f"{name} has the shape {list(scores.shape)}; expected scores {expected}")
    if scores.numel() == 0 and not may_be_empty:
        raise UsageError(f"{name} has the shape {list(scores.shape)}: it holds no score")
    if scores.isnan().any():
        place = tuple(scores.isnan().nonzero()[0].tolist())
        raise InputError(
            f"{name}{list(place)} is not a number (NaN), which has no rank; look for a model that "
            "has diverged"
        )
    return scores


def _ranks(values: Any) -> Tensor:
    ranks = torch.as_tensor(values).detach().double()
    if ranks.numel() == 0:
        raise UsageError("there are no ranks to take the mean of; rank at least one query")
    if not bool((ranks >= 1).all()):
        raise UsageError("a rank is below 1 or not a number; give ranks, not scores")
    return ranks


def _count(k: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UsageError(f"k={k!r}: expected a whole number, at least 1")
    return k
