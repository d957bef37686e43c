"""Packed rows that the batches of a segment share (DiskGNN, section 4.2)."""
