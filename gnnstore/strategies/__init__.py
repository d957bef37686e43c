"""Strategies: each reserves memory, predicts an epoch, and opens the data of a loader."""
