"""Bytes by row: the places that attributes are read from, and the buffers they go to."""
