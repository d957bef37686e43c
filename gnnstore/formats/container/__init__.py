"""A sealed directory: checked names and JSON, atomic commits, journals, leftovers."""
