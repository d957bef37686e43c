"""Conversions of a store into another store."""
