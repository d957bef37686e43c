"""Edges to compressed sparse columns, in memory or spilled to disk."""
