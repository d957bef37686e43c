"""Embeddings that are learned: tables of rows, larger than memory if need be, and optimizers."""
