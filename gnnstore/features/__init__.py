"""Rows by id, in memory, mapped, or read from disk."""
