"""Caches in front of a source of rows."""
