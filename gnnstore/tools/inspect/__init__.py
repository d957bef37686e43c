"""Describes stores, packed epochs and engines."""
