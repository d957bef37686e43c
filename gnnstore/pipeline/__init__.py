"""Epochs, order and look-ahead of batches, for any strategy."""
