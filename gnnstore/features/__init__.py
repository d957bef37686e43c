"""Rows by id, wherever they lie: in memory, mapped, or read from disk."""
