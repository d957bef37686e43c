"""Bytes from a device, into pooled buffers; nothing here knows of graphs."""
