"""Kronecker expansion of a seed graph."""
