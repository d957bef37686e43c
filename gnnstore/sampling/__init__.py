"""Samplers of subgraphs: the nodes and edges of a batch."""
