"""Evaluation of link prediction: ranks of true edges among others, and metrics of ranks."""

from gnnstore.evaluation.metrics import auc, hits_at, mean_rank, mrr, ogb_hits_at, ranks_among
from gnnstore.evaluation.ranks import LinkQueries, link_ranks

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
