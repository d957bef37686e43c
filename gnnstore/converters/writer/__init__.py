"""The streaming writer that every converter feeds."""
