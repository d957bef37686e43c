"""Packed epochs on disk: batches that were sampled and packed ahead of training."""
