"""Writing the nodes and edges of a store once more, in partitions."""
