"""Graphs that are drawn: R-MAT, and Kronecker expansion of a seed graph."""
