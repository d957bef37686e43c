"""Batches sampled and planned a superbatch ahead of training (Ginex, section 3)."""
