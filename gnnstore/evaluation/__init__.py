"""Evaluation of link prediction: ranks of true edges among others, and metrics of ranks."""

from gnnstore.evaluation.ranks import (
    LinkQueries,
    auc,
    hits_at,
    link_ranks,
    mean_rank,
    mrr,
    ogb_hits_at,
    ranks_among,
)

__all__ = [
    "LinkQueries",
    "auc",
    "hits_at",
    "link_ranks",
    "mean_rank",
    "mrr",
    "ogb_hits_at",
    "ranks_among",
]
