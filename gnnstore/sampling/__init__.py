"""Samplers of subgraphs from a store: the nodes and edges of a batch."""

from gnnstore.sampling.disk import DiskNeighborSampler
from gnnstore.sampling.neighbor import NeighborSampler, Sample, SamplingConfig

__all__ = ["DiskNeighborSampler", "NeighborSampler", "Sample", "SamplingConfig"]
