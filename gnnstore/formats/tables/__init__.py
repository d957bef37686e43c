"""Embedding tables: each a directory of its own, whose commits never overwrite each other."""
