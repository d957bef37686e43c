"""Samplers of subgraphs from a store: the nodes and edges that a batch consists of."""

from gnnstore.sampling.disk import DiskNeighborSampler
from gnnstore.sampling.neighbor import NeighborSampler, Sample, SamplingConfig

__all__ = ["DiskNeighborSampler", "NeighborSampler", "Sample", "SamplingConfig"]
