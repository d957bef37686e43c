"""Displays progress on stderr: bars on a terminal, lines elsewhere."""
