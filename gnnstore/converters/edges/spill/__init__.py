"""Edges that do not fit in memory: sorted runs, merged by range."""
