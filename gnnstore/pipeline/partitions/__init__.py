"""Batches that are sampled from the partitions in memory."""
