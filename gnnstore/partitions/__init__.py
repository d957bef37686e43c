"""Training by partitions (MariusGNN): some partitions of a graph are in memory at a time."""
