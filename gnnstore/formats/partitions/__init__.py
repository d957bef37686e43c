"""A store's nodes and edges in partitions on disk, for a buffer that holds some at a time."""
