"""Describes stores, plans and engines."""
