"""Keeps in-neighbour lists in memory while the others are read from disk (Ginex, section 3.2)."""
