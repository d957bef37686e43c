"""Batches for training: torch data loaders, and the pipeline that prepares batches ahead."""
