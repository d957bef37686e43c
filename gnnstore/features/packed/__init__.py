"""Packs the missed rows of batches into chunks that are read in order (DiskGNN)."""
