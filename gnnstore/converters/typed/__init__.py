"""Writes graphs of several node and edge types; orders by time, weight sums, reverse types."""
