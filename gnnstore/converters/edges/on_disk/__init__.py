"""Edges that memory does not hold: sorted runs in files, cut into ranges, and merged."""
