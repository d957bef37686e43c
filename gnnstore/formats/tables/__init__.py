"""Tables of learned rows: a directory of its own, whose commits never overwrite each other."""
