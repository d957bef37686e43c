"""Reads bytes from a device into pooled buffers; independent of graphs."""
