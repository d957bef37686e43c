"""Predicts the rows, reads and seconds of an epoch."""
