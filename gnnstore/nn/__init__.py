"""Batches as CSR (`edge_format="csr"`) in PyG's layers: the matrix, trimming, the norm of GCN."""

from gnnstore.nn.adjacency import AdjT
from gnnstore.nn.layers import gcn_norm, trim

__all__ = ["AdjT", "gcn_norm", "trim"]
